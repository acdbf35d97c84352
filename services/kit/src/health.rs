//! Whether a process is ready, and the HTTP routes that say so: `/healthz` (it
//! runs), `/readyz` (it serves; 503 with the reason otherwise) and `/metrics`.

use crate::metrics::{Metrics, TEXT_FORMAT};
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::sync::watch;

pub use crate::net::{HttpServer, serve_http};

/// Whether this process serves; clones share it. Starts as not ready.
#[derive(Clone, Debug)]
pub struct Readiness {
    /// `None` is ready, `Some` says why not.
    state: watch::Sender<Option<String>>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self {
            state: watch::Sender::new(Some("starting".into())),
        }
    }
}

impl Readiness {
    /// It serves.
    pub fn ready(&self) {
        self.state.send_replace(None);
    }

    /// It does not; `reason` is shown to whoever asks.
    pub fn not_ready(&self, reason: impl Into<String>) {
        self.state.send_replace(Some(reason.into()));
    }

    /// Why it does not serve; `None` if it does.
    pub fn reason(&self) -> Option<String> {
        self.state.borrow().clone()
    }

    /// To wait for changes.
    pub fn watch(&self) -> watch::Receiver<Option<String>> {
        self.state.subscribe()
    }
}

#[derive(Clone)]
struct Health {
    readiness: Readiness,
    metrics: Metrics,
}

/// The three routes, for a process that has an HTTP API of its own to merge
/// them into.
pub fn router(readiness: Readiness, metrics: Metrics) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .with_state(Health { readiness, metrics })
}

async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(health): State<Health>) -> Response {
    match health.readiness.reason() {
        None => "ready\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn metrics_text(State(health): State<Health>) -> Response {
    let headers = [(header::CONTENT_TYPE, TEXT_FORMAT)];
    (headers, health.metrics.text()).into_response()
}
