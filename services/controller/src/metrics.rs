//! What a controller counts. The gauges about the cluster are those of the
//! active one; a standby shows zeros.

use crate::core::{Census, Core, Plane};
use talweg_kit::metrics::{
    Histogram, IntCounterVec, IntGauge, IntGaugeVec, LATENCY_BUCKETS, Metrics as Registry,
};
use talweg_types::TimestampMs;

const PLANES: [(Plane, &str); 3] = [
    (Plane::Storage, "storage"),
    (Plane::Coordinator, "coordinator"),
    (Plane::Gateway, "gateway"),
];
/// Elections after a loss: by itself, or asked for.
const KINDS: [&str; 2] = ["recovered", "unclean"];

pub struct Metrics {
    pub active: IntGauge,
    pub write_seconds: Histogram,
    recovered: IntCounterVec,
    last_recovered: IntGaugeVec,
    topics: IntGauge,
    partitions: IntGauge,
    leaderless: IntGauge,
    below_min_in_sync: IntGauge,
    under_replicated: IntGauge,
    offline_replicas: IntGauge,
    storage_nodes: IntGauge,
    offline_nodes: IntGauge,
    unclean_nodes: IntGauge,
    tombstones: IntGauge,
    watchers: IntGauge,
    nodes: IntGaugeVec,
    shards: IntGaugeVec,
    free_shards: IntGauge,
}

fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl Metrics {
    pub fn new(registry: &Registry) -> Self {
        let gauge = |name: &str, help: &str| registry.gauge(&format!("controller_{name}"), help);
        let metrics = Self {
            active: gauge("active", "1 while this controller is the active one"),
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
            last_recovered: registry.gauges(
                "controller_last_recovered_election_timestamp_seconds",
                "When the newest such election was, as stored; 0: never",
                &["kind"],
            ),
            topics: gauge("topics", "Topics"),
            partitions: gauge("partitions", "Partitions"),
            leaderless: gauge("partitions_without_leader", "Partitions without a leader"),
            below_min_in_sync: gauge(
                "partitions_below_min_in_sync",
                "Partitions with fewer replicas in sync than acks=all asks for",
            ),
            under_replicated: gauge(
                "partitions_under_replicated",
                "Partitions of which a replica is not in sync",
            ),
            offline_replicas: gauge("replicas_offline", "Replicas on nodes without a session"),
            storage_nodes: gauge("storage_nodes", "Storage nodes in the registry"),
            offline_nodes: gauge(
                "storage_nodes_offline",
                "Storage nodes in the registry without a session",
            ),
            unclean_nodes: gauge(
                "storage_nodes_unclean",
                "Storage nodes whose newest start may have lost unflushed bytes",
            ),
            tombstones: gauge("tombstones", "Deleted topics that nodes have not confirmed"),
            watchers: gauge("watchers", "Processes that follow the metadata"),
            nodes: registry.gauges("controller_nodes_alive", "Nodes with a session", &["kind"]),
            shards: registry.gauges(
                "controller_shards",
                "Shards of consumer groups by the coordinator that holds them",
                &["coordinator"],
            ),
            free_shards: gauge(
                "shards_without_coordinator",
                "Shards of consumer groups that no coordinator holds",
            ),
        };
        metrics.stand_by();
        // Shown from the start: a series that begins with 1 has not risen.
        for kind in KINDS {
            metrics.recovered.with_label_values(&[kind]).inc_by(0);
        }
        metrics
    }

    /// A leader was elected although something may be missing.
    pub fn on_recovered(&self, unclean: bool) {
        let kind = KINDS[usize::from(unclean)];
        self.recovered.with_label_values(&[kind]).inc();
    }

    /// What this controller knew is not the truth any more.
    pub fn stand_by(&self) {
        self.active.set(0);
        self.show(Census::default());
        for gauge in [
            &self.topics,
            &self.partitions,
            &self.tombstones,
            &self.watchers,
        ] {
            gauge.set(0);
        }
        for (_, name) in PLANES {
            self.nodes.with_label_values(&[name]).set(0);
        }
        self.shards.reset();
        self.free_shards.set(0);
    }

    /// A coordinator that holds none any more has no series.
    fn show_shards(&self, core: &Core) {
        self.shards.reset();
        let mut free = 0;
        for stored in core.view().shards.values() {
            let coordinator = stored.value.coordinator;
            if coordinator.is_none() || core.session(coordinator).is_none() {
                free += 1;
            } else {
                let label = coordinator.to_string();
                self.shards.with_label_values(&[&label]).inc();
            }
        }
        self.free_shards.set(free);
    }

    pub fn on_changed(&self, core: &Core, watchers: usize) {
        let view = core.view();
        self.topics.set(count(view.topics.len()));
        self.partitions.set(count(view.partitions.len()));
        self.tombstones.set(count(view.tombstones.len()));
        self.watchers.set(count(watchers));
        for (plane, name) in PLANES {
            let alive = core
                .sessions()
                .filter(|(_, session)| session.plane == plane)
                .count();
            self.nodes.with_label_values(&[name]).set(count(alive));
        }
        self.show_shards(core);
        self.show(core.census());
    }

    fn show(&self, census: Census) {
        self.leaderless.set(count(census.without_leader));
        self.below_min_in_sync.set(count(census.below_min_in_sync));
        self.under_replicated.set(count(census.under_replicated));
        self.offline_replicas.set(count(census.offline_replicas));
        self.storage_nodes.set(count(census.storage_nodes));
        self.offline_nodes.set(count(census.offline_nodes));
        self.unclean_nodes.set(count(census.unclean_nodes));
        for (kind, at) in KINDS.into_iter().zip([census.recovered, census.unclean]) {
            let seconds = at.map_or(0, |TimestampMs(ms)| ms / 1_000);
            self.last_recovered.with_label_values(&[kind]).set(seconds);
        }
    }
}
