//! What every request passes through: a deadline, a bound on how many are
//! handled at a time, a span, a count and a latency.
//!
//! Deadline, bound and latency end with the head of the response: for a unary
//! call that is its answer, a stream has its own rules from there on. The count
//! by code comes with the trailers.

use super::methods;
use crate::{
    data_stream::parse_grpc_timeout,
    errors::{ErrorCode, Refusal},
    metrics::{Histogram, IntCounter, IntCounterVec, LATENCY_BUCKETS, Metrics},
    telemetry::trace,
};
use http::{HeaderMap, Request};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Code, Status};
use tracing::Span;

/// Rules for requests.
#[derive(Clone, Debug)]
pub struct CallOptions {
    /// Deadline of a call whose client sets none.
    pub timeout: Duration,
    /// Calls handled at a time by the server; above it THROTTLED.
    pub in_flight_max: usize,
    /// Where to count; `None` does not count.
    pub metrics: Option<Metrics>,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            in_flight_max: 1024,
            metrics: None,
        }
    }
}

/// A client that was throttled comes back after this.
const THROTTLE_RETRY_MS: u32 = 100;

/// The rules of one server.
#[derive(Debug)]
pub(super) struct Calls {
    timeout: Duration,
    in_flight: Arc<Semaphore>,
    in_flight_max: usize,
    meters: Option<Meters>,
}

#[derive(Debug)]
struct Meters {
    codes: IntCounterVec,
    throttled: IntCounter,
    /// By path; what is not here is nobody's method and counted under "other",
    /// so that strangers cannot make up label values.
    seconds: BTreeMap<String, Histogram>,
    other: Histogram,
}

const OTHER: &str = "other";

impl Meters {
    fn new(metrics: &Metrics) -> Self {
        let seconds = metrics.histograms(
            "grpc_call_seconds",
            "Time from a request to the head of its response.",
            &["method"],
            LATENCY_BUCKETS,
        );
        let of = |path: &str| seconds.with_label_values(&[path]);
        Self {
            codes: metrics.counters(
                "grpc_calls_total",
                "Requests that ended, by method and gRPC code.",
                &["method", "code"],
            ),
            throttled: metrics.counter(
                "grpc_throttled_total",
                "Requests refused because too many were being handled.",
            ),
            other: of(OTHER),
            seconds: methods::paths()
                .map(|path| (path.clone(), of(&path)))
                .collect(),
        }
    }
}

impl Calls {
    pub(super) fn new(options: &CallOptions) -> Self {
        Self {
            timeout: options.timeout,
            in_flight: Arc::new(Semaphore::new(options.in_flight_max)),
            in_flight_max: options.in_flight_max,
            meters: options.metrics.as_ref().map(Meters::new),
        }
    }

    /// Lets a request in, or refuses it.
    pub(super) fn admit<B>(
        self: &Arc<Self>,
        request: &Request<B>,
        peer: SocketAddr,
    ) -> Result<(Admitted, CallRecord), Status> {
        let path = request.uri().path();
        let mut record = CallRecord {
            calls: self.clone(),
            method: path.to_owned(),
            started: Instant::now(),
            code: None,
        };
        let Ok(permit) = self.in_flight.clone().try_acquire_owned() else {
            record.code = Some(Code::ResourceExhausted);
            if let Some(meters) = &self.meters {
                meters.throttled.inc();
            }
            return Err(self.throttled());
        };
        let span = tracing::info_span!("call", method = path, peer = %peer, otel.kind = "server");
        trace::adopt(&span, request.headers());
        let timeout = parse_grpc_timeout(request.headers()).unwrap_or(self.timeout);
        let admitted = Admitted {
            span,
            deadline: Box::pin(tokio::time::sleep(timeout)),
            _permit: permit,
        };
        Ok((admitted, record))
    }

    fn throttled(&self) -> Status {
        let limit = self.in_flight_max;
        Refusal::new(ErrorCode::Throttled, "too many calls are being handled")
            .with_limit("calls in flight", limit, limit.saturating_add(1), "calls")
            .retry_after(THROTTLE_RETRY_MS)
            .into()
    }
}

/// A request that is being handled.
pub(super) struct Admitted {
    pub(super) span: Span,
    pub(super) deadline: std::pin::Pin<Box<tokio::time::Sleep>>,
    _permit: OwnedSemaphorePermit,
}

pub(super) fn timed_out() -> Status {
    Refusal::new(ErrorCode::TimedOut, "the deadline of the call has passed").into()
}

/// Counts a request when it has ended, however that was.
pub(super) struct CallRecord {
    calls: Arc<Calls>,
    method: String,
    started: Instant,
    code: Option<Code>,
}

impl CallRecord {
    /// The head of the response is there; it has the status if that is all.
    pub(super) fn head(&mut self, headers: &HeaderMap) {
        if let Some(meters) = &self.calls.meters {
            let seconds = meters.seconds.get(&self.method).unwrap_or(&meters.other);
            seconds.observe(self.started.elapsed().as_secs_f64());
        }
        self.status(headers);
    }

    /// The trailers are there.
    pub(super) fn status(&mut self, headers: &HeaderMap) {
        if let Some(status) = headers.get(Status::GRPC_STATUS) {
            self.code = Some(Code::from_bytes(status.as_bytes()));
        }
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        let Some(meters) = &self.calls.meters else {
            return;
        };
        let method = match meters.seconds.contains_key(&self.method) {
            true => self.method.as_str(),
            false => OTHER,
        };
        // No status was sent: the client went away before.
        let code = self.code.unwrap_or(Code::Cancelled);
        let code = format!("{code:?}");
        meters.codes.with_label_values(&[method, &code]).inc();
    }
}
