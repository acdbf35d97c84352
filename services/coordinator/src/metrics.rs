//! What a coordinator counts.

use talweg_kit::metrics::{
    Histogram, IntCounter, IntCounterVec, IntGauge, LATENCY_BUCKETS, Metrics,
};

/// Counters and gauges of a coordinator.
#[derive(Clone)]
pub struct CoordinatorMetrics {
    /// 1 while a controller keeps this coordinator's session.
    pub controller_connected: IntGauge,
    pub view_revision: IntGauge,
    /// Shards served, and on their way up.
    pub shards: IntGauge,
    pub shards_loading: IntGauge,
    /// From a shard's order to serving it.
    pub load_seconds: Histogram,
    /// Loads that failed: unreadable records, an unreachable log.
    pub load_failures: IntCounter,
    pub groups: IntGauge,
    pub members: IntGauge,
    pub gateway_streams: IntGauge,
    pub gateways_cut: IntCounter,
    /// By how they ended: done, refused, not_done, throttled, lost.
    pub requests: IntCounterVec,
    pub offset_commits: IntCounter,
    pub appends: IntCounter,
    pub append_records: IntCounter,
    pub append_retries: IntCounter,
    pub append_seconds: Histogram,
    /// Effects of time that do not fit one append.
    pub oversized: IntCounter,
    pub kept_view_failures: IntCounter,
    pub kept_view_memory: IntGauge,
    /// Partitions whose lag is not shown: more than `lag_series_max`.
    pub lag_left_out: IntGauge,
    /// Partitions whose leader did not answer.
    pub lag_unknown: IntGauge,
}

impl CoordinatorMetrics {
    /// Registers them.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            controller_connected: metrics.gauge(
                "coordinator_controller_connected",
                "1 while a controller keeps this coordinator's session.",
            ),
            view_revision: metrics.gauge(
                "coordinator_view_revision",
                "Revision of the metadata view.",
            ),
            shards: metrics.gauge("coordinator_shards", "Shards served."),
            shards_loading: metrics.gauge(
                "coordinator_shards_loading",
                "Shards given to this coordinator and not served yet.",
            ),
            load_seconds: metrics.histogram(
                "coordinator_load_seconds",
                "From the order to take a shard to serving it.",
                LATENCY_BUCKETS,
            ),
            load_failures: metrics.counter(
                "coordinator_load_failures_total",
                "Attempts to take a shard that failed; it is tried again.",
            ),
            groups: metrics.gauge("coordinator_groups", "Groups in the shards served."),
            members: metrics.gauge("coordinator_members", "Members of these groups."),
            gateway_streams: metrics.gauge(
                "coordinator_gateway_streams",
                "Streams from gateways open now.",
            ),
            gateways_cut: metrics.counter(
                "coordinator_gateways_cut_total",
                "Streams cut because the gateway did not read.",
            ),
            requests: metrics.counters(
                "coordinator_requests_total",
                "Requests decided, by how they ended.",
                &["end"],
            ),
            offset_commits: metrics.counter(
                "coordinator_offset_commits_total",
                "Offsets committed, acknowledged.",
            ),
            appends: metrics.counter(
                "coordinator_appends_total",
                "Batches appended to the internal topic.",
            ),
            append_records: metrics.counter(
                "coordinator_append_records_total",
                "Records in these batches.",
            ),
            append_retries: metrics.counter(
                "coordinator_append_retries_total",
                "Sends of a batch after its first.",
            ),
            append_seconds: metrics.histogram(
                "coordinator_append_seconds",
                "From the first send of a batch to the end of its append.",
                LATENCY_BUCKETS,
            ),
            oversized: metrics.counter(
                "coordinator_oversized_total",
                "Changes of a group that do not fit one batch of the internal topic.",
            ),
            kept_view_failures: metrics.counter(
                "coordinator_kept_view_failures_total",
                "Writes to and reads of the kept view that failed; the log has everything.",
            ),
            kept_view_memory: metrics.gauge(
                "coordinator_kept_view_memory_bytes",
                "Memory of the kept view.",
            ),
            lag_left_out: metrics.gauge(
                "coordinator_lag_series_left_out",
                "Partitions of groups whose lag is not shown: more than lag_series_max.",
            ),
            lag_unknown: metrics.gauge(
                "coordinator_lag_unknown",
                "Partitions of groups whose leader did not say how far they are behind.",
            ),
        }
    }

    pub fn ended(&self, how: &str) {
        self.requests.with_label_values(&[how]).inc();
    }
}
