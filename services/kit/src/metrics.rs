//! Metrics: one Prometheus registry per process (or, in `talweg dev` and in
//! tests, per plane), with the process's own figures.

mod process;

use prometheus::{Encoder, Registry, TextEncoder};
pub use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// Content type of [`Metrics::text`].
pub const TEXT_FORMAT: &str = prometheus::TEXT_FORMAT;

/// Seconds; from what the page cache answers to what a stalled disk does.
pub const LATENCY_BUCKETS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0,
];

/// A registry; clones share it. Every metric's name begins with `talweg_`
/// (added here), labels must have few values: never topics of strangers,
/// never addresses.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
}

impl Metrics {
    /// A registry with the process's figures and a `plane` label on all of it.
    pub fn new(plane: &str) -> Self {
        let labels = [("plane".to_owned(), plane.to_owned())].into();
        // Fails only for a prefix or label that is not a name.
        let registry = Registry::new_custom(Some("talweg".into()), Some(labels))
            .unwrap_or_else(|_| Registry::new());
        let metrics = Self { registry };
        metrics.register(process::ProcessCollector::new());
        metrics
    }

    /// A counter: how often.
    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.made(IntCounter::new(name, help))
    }

    /// A counter for each value of the labels.
    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.made(IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// A gauge: how much now.
    pub fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.made(IntGauge::new(name, help))
    }

    /// A gauge for each value of the labels.
    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.made(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    /// A histogram; with [`LATENCY_BUCKETS`] in seconds.
    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.made(Histogram::with_opts(opts))
    }

    /// A histogram for each value of the labels.
    pub fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> HistogramVec {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.made(HistogramVec::new(opts, labels))
    }

    /// A collector of your own: figures that are computed when they are asked for.
    pub fn register(&self, collector: impl Collector + 'static) {
        if let Err(error) = self.registry.register(Box::new(collector)) {
            // A name used twice: a defect that tests see, not worth a process.
            tracing::error!(%error, "a metric was not registered");
            debug_assert!(false, "metric not registered: {error}");
        }
    }

    /// Everything, in the text format.
    pub fn text(&self) -> String {
        let mut text = Vec::new();
        match TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            Ok(()) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => format!("# metrics could not be encoded: {error}\n"),
        }
    }

    /// Names and buckets are constants in our code: a bad one is a defect.
    fn made<M>(&self, metric: prometheus::Result<M>) -> M
    where
        M: Collector + Clone + 'static,
    {
        let metric = metric.expect("constant metric names and buckets are valid");
        self.register(metric.clone());
        metric
    }
}
