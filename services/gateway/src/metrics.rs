//! What a gateway counts.

use parking_lot::Mutex;
use std::{sync::Arc, time::Instant};
use talweg_kit::metrics::{
    Collector, Desc, Histogram, IntCounter, IntGauge, LATENCY_BUCKETS, MetricFamily, Metrics, Opts,
};

/// Counters and gauges of a gateway.
#[derive(Clone)]
pub struct GatewayMetrics {
    pub produce_streams: IntGauge,
    pub fetch_streams: IntGauge,
    pub subscribe_streams: IntGauge,
    /// Gaps that subscribers were told of, and the records lost in them.
    pub gaps: IntCounter,
    pub gap_records: IntCounter,
    /// Copies of failed records.
    pub failed_records: IntCounter,
    /// Failed records of which there was nothing left to copy.
    pub failed_records_gone: IntCounter,
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
    /// 1 while a controller keeps this gateway's session.
    pub controller_connected: IntGauge,
    /// When the metadata watch last spoke.
    pub metadata: MetadataAge,
}

impl GatewayMetrics {
    /// Registers them.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            produce_streams: metrics.gauge("gateway_produce_streams", "Produce streams open now."),
            fetch_streams: metrics.gauge("gateway_fetch_streams", "Fetch streams open now."),
            subscribe_streams: metrics
                .gauge("gateway_subscribe_streams", "Subscribe streams open now."),
            gaps: metrics.counter(
                "gateway_gaps_total",
                "Gaps that members of groups were told of, on streams and over HTTP: records gone before they were read.",
            ),
            gap_records: metrics.counter(
                "gateway_gap_records_total",
                "Records lost in gaps that members of groups were told of.",
            ),
            failed_records: metrics.counter(
                "gateway_failed_records_total",
                "Failed records copied to retry and dead-letter topics.",
            ),
            failed_records_gone: metrics.counter(
                "gateway_failed_records_gone_total",
                "Failed records that compaction or retention took before they were copied.",
            ),
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
            controller_connected: metrics.gauge(
                "gateway_controller_connected",
                "1 while a controller keeps this gateway's session.",
            ),
            metadata: MetadataAge::new(metrics),
        }
    }

    /// A member was told that records were gone before they could be sent.
    pub fn gap_told(&self, records_lost: i64) {
        self.gaps.inc();
        self.gap_records
            .inc_by(u64::try_from(records_lost).unwrap_or(0));
    }
}

/// For how long the metadata watch has been silent (or, before its first word,
/// the process has been there); worked out when it is asked for.
#[derive(Clone)]
pub struct MetadataAge {
    heard: Arc<Mutex<Instant>>,
    age: IntGauge,
}

impl MetadataAge {
    fn new(metrics: &Metrics) -> Self {
        let help = "Time since the metadata watch last said something; at most 5 s while it lives.";
        let opts = Opts::new("gateway_metadata_age_seconds", help);
        let it = Self {
            heard: Arc::new(Mutex::new(Instant::now())),
            age: IntGauge::with_opts(opts).expect("constant names are valid"),
        };
        metrics.register(it.clone());
        it
    }

    /// It said something.
    pub fn heard(&self) {
        *self.heard.lock() = Instant::now();
    }
}

impl Collector for MetadataAge {
    fn desc(&self) -> Vec<&Desc> {
        self.age.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let age = self.heard.lock().elapsed().as_secs();
        self.age.set(i64::try_from(age).unwrap_or(i64::MAX));
        self.age.collect()
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
