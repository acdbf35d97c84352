//! `traceparent`: a caller's trace across processes.

use opentelemetry::{Context, global, propagation, trace::TraceContextExt};
use tonic::metadata::{MetadataKey, MetadataMap, MetadataValue};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

struct Headers<'a>(&'a http::HeaderMap);

impl propagation::Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

/// Makes `span` a child of the trace in the headers, if they have one.
pub fn adopt(span: &Span, headers: &http::HeaderMap) {
    if headers.contains_key("traceparent") {
        let context = global::get_text_map_propagator(|it| it.extract(&Headers(headers)));
        // Fails only where spans are not exported at all.
        drop(span.set_parent(context));
    }
}

/// Links `span` to the trace in a `traceparent` value: for work that serves
/// many traces at once, like a batch.
pub fn link(span: &Span, traceparent: &str) {
    let mut headers = http::HeaderMap::new();
    let Ok(value) = http::HeaderValue::from_str(traceparent) else {
        return;
    };
    headers.insert("traceparent", value);
    let context = global::get_text_map_propagator(|it| it.extract(&Headers(&headers)));
    let remote = context.span().span_context().clone();
    if remote.is_valid() {
        span.add_link(remote);
    }
}

struct Metadata<'a>(&'a mut MetadataMap);

impl propagation::Injector for Metadata<'_> {
    fn set(&mut self, key: &str, value: String) {
        let key = MetadataKey::from_bytes(key.as_bytes());
        if let (Ok(key), Ok(value)) = (key, MetadataValue::try_from(value)) {
            self.0.insert(key, value);
        }
    }
}

/// Puts the current span's `traceparent` into the metadata of a call. Nothing
/// if spans are not exported.
pub fn inject(metadata: &mut MetadataMap) {
    let context: Context = Span::current().context();
    global::get_text_map_propagator(|it| it.inject_context(&context, &mut Metadata(metadata)));
}
