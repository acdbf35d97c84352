//! What a gateway counts.

use talweg_kit::metrics::{Histogram, IntCounter, IntGauge, LATENCY_BUCKETS, Metrics};

/// Counters and gauges of a gateway.
#[derive(Clone)]
pub struct GatewayMetrics {
    pub produce_streams: IntGauge,
    pub fetch_streams: IntGauge,
    /// Records taken in thin form, and refused.
    pub records_in: IntCounter,
    pub records_refused: IntCounter,
    /// Batches handed to leaders, both forms, and their bytes.
    pub batches_in: IntCounter,
    pub bytes_in: IntCounter,
    /// Payload bytes sent to readers, both forms.
    pub bytes_out: IntCounter,
    pub renumberings: IntCounter,
    /// From a batch's oldest record to its answer, seconds.
    pub delivery_seconds: Histogram,
    /// Revision of the view.
    pub view_revision: IntGauge,
}

impl GatewayMetrics {
    /// Registers them.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            produce_streams: metrics.gauge("gateway_produce_streams", "Produce streams open now."),
            fetch_streams: metrics.gauge("gateway_fetch_streams", "Fetch streams open now."),
            records_in: metrics.counter("gateway_records_in_total", "Records taken in thin form."),
            records_refused: metrics.counter(
                "gateway_records_refused_total",
                "Records and batches refused to clients.",
            ),
            batches_in: metrics.counter("gateway_batches_in_total", "Batches handed to leaders."),
            bytes_in: metrics.counter(
                "gateway_bytes_in_total",
                "Bytes of batches handed to leaders.",
            ),
            bytes_out: metrics.counter("gateway_bytes_out_total", "Payload bytes sent to readers."),
            renumberings: metrics.counter(
                "gateway_renumberings_total",
                "Times that a partition of a stream was numbered anew.",
            ),
            delivery_seconds: metrics.histogram(
                "gateway_delivery_seconds",
                "From a batch's oldest record to its answer.",
                LATENCY_BUCKETS,
            ),
            view_revision: metrics.gauge("gateway_view_revision", "Revision of the metadata view."),
        }
    }
}

/// Counts a stream while it lives.
pub struct Counted(IntGauge);

impl Counted {
    pub fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
