//! Whether a process is ready, and the small HTTP server that says so:
//! `/healthz` (it runs), `/readyz` (it serves; 503 with the reason otherwise)
//! and `/metrics`.

use crate::metrics::{Metrics, TEXT_FORMAT};
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use std::{io, net::SocketAddr, time::Duration};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

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

/// A running HTTP server. Dropping it without [`stop`](Self::stop) ends it at once.
#[derive(Debug)]
pub struct HttpServer {
    addr: SocketAddr,
    stopping: CancellationToken,
    task: Option<JoinHandle<()>>,
}

/// Serves any router over HTTP/1 (and HTTP/2 with prior knowledge) on a socket
/// that is already bound.
///
/// # Errors
/// The listener's own address could not be read.
pub fn serve_http(listener: TcpListener, router: Router) -> io::Result<HttpServer> {
    let addr = listener.local_addr()?;
    let stopping = CancellationToken::new();
    let stopped = stopping.clone().cancelled_owned();
    let task = tokio::spawn(async move {
        let served = axum::serve(listener, router).with_graceful_shutdown(stopped);
        if let Err(error) = served.await {
            tracing::error!(%error, "the HTTP server ended");
        }
    });
    Ok(HttpServer {
        addr,
        stopping,
        task: Some(task),
    })
}

impl HttpServer {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Stops accepting, lets requests in progress end within `drain`, then
    /// drops them. True if all ended by themselves.
    pub async fn stop(mut self, drain: Duration) -> bool {
        self.stopping.cancel();
        let Some(mut task) = self.task.take() else {
            return true;
        };
        let ended = tokio::time::timeout(drain, &mut task).await.is_ok();
        task.abort();
        ended
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
