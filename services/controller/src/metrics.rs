//! What a controller counts.

use crate::core::{Core, Plane};
use talweg_kit::metrics::{
    Histogram, IntCounterVec, IntGauge, IntGaugeVec, LATENCY_BUCKETS, Metrics as Registry,
};

pub struct Metrics {
    pub active: IntGauge,
    pub write_seconds: Histogram,
    pub recovered: IntCounterVec,
    topics: IntGauge,
    partitions: IntGauge,
    leaderless: IntGauge,
    tombstones: IntGauge,
    watchers: IntGauge,
    nodes: IntGaugeVec,
}

fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl Metrics {
    pub fn new(registry: &Registry) -> Self {
        Self {
            active: registry.gauge(
                "controller_active",
                "1 while this controller is the active one",
            ),
            write_seconds: registry.histogram(
                "controller_write_seconds",
                "Duration of one transaction of the metadata store",
                LATENCY_BUCKETS,
            ),
            recovered: registry.counters(
                "controller_recovered_elections_total",
                "Elections after which acknowledged records may be missing",
                &["kind"],
            ),
            topics: registry.gauge("controller_topics", "Topics"),
            partitions: registry.gauge("controller_partitions", "Partitions"),
            leaderless: registry.gauge(
                "controller_partitions_without_leader",
                "Partitions without a leader",
            ),
            tombstones: registry.gauge(
                "controller_tombstones",
                "Deleted topics that nodes have not confirmed",
            ),
            watchers: registry.gauge("controller_watchers", "Processes that follow the metadata"),
            nodes: registry.gauges("controller_nodes_alive", "Nodes with a session", &["kind"]),
        }
    }

    pub fn on_changed(&self, core: &Core, watchers: usize) {
        let view = core.view();
        self.topics.set(count(view.topics.len()));
        self.partitions.set(count(view.partitions.len()));
        self.leaderless
            .set(count(view.partitions.len() - view.with_leader()));
        self.tombstones.set(count(view.tombstones.len()));
        self.watchers.set(count(watchers));
        for (plane, name) in [
            (Plane::Storage, "storage"),
            (Plane::Coordinator, "coordinator"),
            (Plane::Gateway, "gateway"),
        ] {
            let alive = core
                .sessions()
                .filter(|(_, session)| session.plane == plane)
                .count();
            self.nodes.with_label_values(&[name]).set(count(alive));
        }
    }
}
