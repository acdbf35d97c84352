//! Logs on standard error, spans to an OpenTelemetry collector.
//!
//! Spans are exported only where an endpoint is configured. A collector that is
//! slow or gone costs spans, never requests: the export queue is bounded and
//! runs on a thread of its own. Only our own spans (targets `talweg*`) are exported.

pub mod trace;

use opentelemetry::{KeyValue, trace::TracerProvider as _};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{Sampler, SdkTracerProvider},
};
use serde::{Deserialize, Serialize};
use std::{io::IsTerminal, time::Duration};
use tracing_subscriber::{
    EnvFilter, Layer, filter::filter_fn, layer::SubscriberExt, registry::LookupSpan,
    util::SubscriberInitExt,
};

/// How a process logs; a table `telemetry` in its configuration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// "text" or "json", one line an event, on standard error.
    pub log_format: LogFormat,
    /// As RUST_LOG: "info", "info,talweg_storage=debug".
    pub log_filter: String,
    /// gRPC endpoint of an OpenTelemetry collector ("http://127.0.0.1:4317");
    /// empty exports nothing.
    pub otlp_endpoint: String,
    /// Share of traces that start here and are exported, 0 to 1. A caller's own
    /// decision in `traceparent` is followed.
    pub otlp_sample_ratio: f64,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            log_format: LogFormat::Text,
            log_filter: "info".into(),
            otlp_endpoint: String::new(),
            otlp_sample_ratio: 1.0,
        }
    }
}

/// The shape of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

/// Telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// `log_filter` cannot be read.
    #[error("telemetry.log_filter {filter:?}: {reason}")]
    Filter {
        /// As configured.
        filter: String,
        /// Why.
        reason: String,
    },
    /// `otlp_sample_ratio` is not a share.
    #[error("telemetry.otlp_sample_ratio must be from 0 to 1, not {0}")]
    Ratio(f64),
    /// The exporter refused its endpoint.
    #[error("telemetry.otlp_endpoint {endpoint:?}: {reason}")]
    Endpoint {
        /// As configured.
        endpoint: String,
        /// Why.
        reason: String,
    },
    /// Something has set up logging already.
    #[error("logging was set up twice")]
    Twice,
}

/// Keeps the exporter; [`finish`](Self::finish) it before the process ends.
#[must_use = "spans are lost unless the guard is finished"]
#[derive(Debug, Default)]
pub struct TelemetryGuard {
    provider: Option<SdkTracerProvider>,
}

/// Time that the last spans get to leave.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

impl TelemetryGuard {
    /// Exports what is still queued; takes at most about three seconds.
    pub async fn finish(mut self) {
        let Some(provider) = self.provider.take() else {
            return;
        };
        // The exporter's thread needs this runtime to do the sending.
        let flushed =
            tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_TIMEOUT));
        match flushed.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the last spans were not exported"),
            Err(error) => tracing::warn!(%error, "the span exporter failed"),
        }
    }
}

/// Sets up logs and, where configured, spans, for the whole process. `process`
/// is the service name ("talweg-gateway"), `instance` tells its copies apart.
/// Call once, inside a tokio runtime.
///
/// # Errors
/// A setting cannot be used, or it was called before.
pub fn init(
    process: &str,
    instance: &str,
    config: &TelemetryConfig,
) -> Result<TelemetryGuard, TelemetryError> {
    let filter = EnvFilter::try_new(&config.log_filter).map_err(|e| TelemetryError::Filter {
        filter: config.log_filter.clone(),
        reason: e.to_string(),
    })?;
    let provider = provider(process, instance, config)?;
    let spans = provider.as_ref().map(|provider| {
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer(process.to_owned()))
            // Not those of the libraries: exporting their spans makes more of them.
            .with_filter(filter_fn(|it| it.target().starts_with("talweg")))
    });
    let registry = tracing_subscriber::registry()
        .with(log_layer(config.log_format))
        .with(filter)
        .with(spans);
    registry.try_init().map_err(|_| TelemetryError::Twice)?;
    opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
    Ok(TelemetryGuard { provider })
}

fn log_layer<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => layer
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    }
}

fn provider(
    process: &str,
    instance: &str,
    config: &TelemetryConfig,
) -> Result<Option<SdkTracerProvider>, TelemetryError> {
    if !(0.0..=1.0).contains(&config.otlp_sample_ratio) {
        return Err(TelemetryError::Ratio(config.otlp_sample_ratio));
    }
    if config.otlp_endpoint.is_empty() {
        return Ok(None);
    }
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(config.otlp_endpoint.clone())
        .with_timeout(FLUSH_TIMEOUT)
        .build()
        .map_err(|error| TelemetryError::Endpoint {
            endpoint: config.otlp_endpoint.clone(),
            reason: error.to_string(),
        })?;
    let resource = Resource::builder()
        .with_service_name(process.to_owned())
        .with_attribute(KeyValue::new("service.instance.id", instance.to_owned()))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    let ratio = Sampler::TraceIdRatioBased(config.otlp_sample_ratio);
    Ok(Some(
        SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::ParentBased(Box::new(ratio)))
            .with_resource(resource)
            .build(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry::trace::Tracer;

    /// A collector that is gone costs its spans and at most the flush time-out,
    /// not a process that does not end.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn finishing_is_bounded_without_a_collector() {
        let listener = crate::net::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("bound");
        let config = TelemetryConfig {
            otlp_endpoint: format!("http://{addr}"),
            ..Default::default()
        };
        // Accepts by the kernel, never answers.
        let provider = provider("test", "x", &config)
            .expect("made")
            .expect("configured");
        drop(provider.tracer("test").start("a span"));
        let guard = TelemetryGuard {
            provider: Some(provider),
        };
        let finished = tokio::time::timeout(3 * FLUSH_TIMEOUT, guard.finish()).await;
        finished.expect("bounded");
        drop(listener);
    }
}
