//! Spans reach a collector, in the caller's trace, and the last ones are not
//! lost at the end. In a process of its own, because logging is set up once.

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, routing::post};
use std::time::Duration;
use talweg_kit::{
    net::{self, ServerOptions},
    telemetry::{self, LogFormat, TelemetryConfig, trace},
};
use tokio::{sync::mpsc, time::timeout};
use tonic::{metadata::MetadataMap, service::Routes};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

async fn collect(
    State(received): State<mpsc::UnboundedSender<Bytes>>,
    body: Bytes,
) -> (HeaderMap, Vec<u8>) {
    received.send(body).expect("the test listens");
    let mut headers = HeaderMap::new();
    headers.insert("content-type", "application/grpc".parse().expect("a value"));
    headers.insert("grpc-status", "0".parse().expect("a value"));
    // One empty message.
    (headers, vec![0; 5])
}

fn contains(body: &[u8], part: &[u8]) -> bool {
    body.windows(part.len()).any(|window| window == part)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_are_exported_in_the_callers_trace() {
    let (received, mut bodies) = mpsc::unbounded_channel();
    let routes = Router::new()
        .route(EXPORT, post(collect))
        .with_state(received);
    let listener = net::bind("127.0.0.1:0").await.expect("a port");
    let collector =
        net::serve(listener, Routes::from(routes), ServerOptions::default()).expect("serve");
    let config = TelemetryConfig {
        log_format: LogFormat::Json,
        log_filter: "info,h2=off".into(),
        otlp_endpoint: format!("http://{}", collector.addr()),
        otlp_sample_ratio: 1.0,
    };
    let guard = telemetry::init("talweg-test", "instance-7", &config).expect("set up");
    telemetry::init("talweg-test", "again", &config).expect_err("only once");

    let mut headers = HeaderMap::new();
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    headers.insert("traceparent", parent.parse().expect("a value"));
    let span = tracing::info_span!(target: "talweg_test", "a call to remember");
    trace::adopt(&span, &headers);
    let mut onwards = MetadataMap::new();
    span.in_scope(|| {
        tracing::info!("inside");
        trace::inject(&mut onwards);
    });
    drop(span);
    let onwards = onwards
        .get("traceparent")
        .expect("injected")
        .to_str()
        .expect("text");
    assert!(onwards.contains(TRACE) && onwards != parent, "{onwards}");

    let batch = tracing::info_span!(target: "talweg_test", "a batch of many");
    trace::link(&batch, &parent);
    trace::link(&batch, "nonsense");
    drop(batch);

    timeout(Duration::from_secs(10), guard.finish())
        .await
        .expect("bounded");
    let mut all = Vec::new();
    while let Ok(body) = bodies.try_recv() {
        all.extend_from_slice(&body);
    }
    for part in [
        "a call to remember",
        "a batch of many",
        "talweg-test",
        "instance-7",
    ] {
        assert!(contains(&all, part.as_bytes()), "{part:?} was not exported");
    }
    let id: Vec<u8> = (0..16)
        .map(|at| u8::from_str_radix(&TRACE[2 * at..2 * at + 2], 16).expect("hex"))
        .collect();
    let times = all.windows(16).filter(|window| *window == id).count();
    assert!(times >= 2, "the span's own trace and the link: {times}");
}

/// Settings that cannot be used are refused by name, before anything is set up.
#[tokio::test]
async fn unusable_settings_are_refused() {
    let refused = |config: TelemetryConfig| {
        telemetry::init("talweg-test", "x", &config)
            .map(drop)
            .expect_err("refused")
            .to_string()
    };
    let filter = TelemetryConfig {
        log_filter: "info,talweg=nonsense".into(),
        ..Default::default()
    };
    assert!(refused(filter).contains("telemetry.log_filter"));
    let ratio = TelemetryConfig {
        otlp_sample_ratio: 1.5,
        ..Default::default()
    };
    assert!(refused(ratio).contains("telemetry.otlp_sample_ratio"));
    let endpoint = TelemetryConfig {
        otlp_endpoint: "not a url".into(),
        ..Default::default()
    };
    assert!(refused(endpoint).contains("telemetry.otlp_endpoint"));
}
