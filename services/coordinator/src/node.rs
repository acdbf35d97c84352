//! What every part of a coordinator shares.

use crate::{
    bounds::BoundsCache, config::CoordinatorConfig, kept::KeptView, link::Links, log::ShardLog,
    metrics::CoordinatorMetrics, shards::Shards,
};
use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
use talweg_client::{
    Client, clock::Clock, membership::Member, pool::ChannelPool, view::SharedView,
};
use talweg_coordinator_runtime::Now;
use talweg_group::Topics;
use talweg_kit::clock::{ClockWatch, wall_now};
use talweg_proto::{
    controller::v1::{NodeRegistered, WatchClusterResponse, watch_cluster_response::Update},
    v1::Plane,
};
use talweg_types::{Incarnation, MonotonicMs, NodeId, TimestampMs, TopicId};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A coordinator.
pub struct Node {
    pub config: CoordinatorConfig,
    pub controller: Client,
    pub view: SharedView,
    pub pool: ChannelPool,
    pub log: Arc<dyn ShardLog>,
    pub kept: KeptView,
    pub metrics: CoordinatorMetrics,
    pub links: Links,
    pub shards: Shards,
    pub bounds: BoundsCache,
    /// Changes only when groups see a difference.
    pub topics: watch::Sender<Arc<Topics>>,
    pub wall: ClockWatch,
    clock: Clock,
    id: AtomicU32,
    incarnation: AtomicU64,
    /// Milliseconds of the session's time-out, and the moment at which it is over
    /// unless the controller is heard again.
    session_ms: AtomicU64,
    session_until: AtomicU64,
    /// The process is told to stop: the session says good-bye.
    pub leaving: CancellationToken,
}

/// What a node is made of.
pub struct Parts {
    pub config: CoordinatorConfig,
    pub controller: Client,
    pub view: SharedView,
    pub pool: ChannelPool,
    pub log: Arc<dyn ShardLog>,
    pub kept: KeptView,
    pub metrics: CoordinatorMetrics,
}

impl Node {
    pub fn new(parts: Parts) -> Self {
        Self {
            id: AtomicU32::new(parts.config.node_id),
            config: parts.config,
            controller: parts.controller,
            view: parts.view,
            pool: parts.pool,
            log: parts.log,
            kept: parts.kept,
            metrics: parts.metrics,
            links: Links::default(),
            shards: Shards::default(),
            bounds: BoundsCache::default(),
            topics: watch::Sender::default(),
            wall: ClockWatch::default(),
            clock: Clock::default(),
            incarnation: AtomicU64::new(0),
            session_ms: AtomicU64::new(0),
            session_until: AtomicU64::new(0),
            leaving: CancellationToken::new(),
        }
    }

    /// None before the controller has given it.
    pub fn identity(&self) -> Option<(NodeId, Incarnation)> {
        let id = NodeId(self.id.load(Ordering::Acquire));
        let incarnation = Incarnation(self.incarnation.load(Ordering::Acquire));
        (!id.is_none() && incarnation.0 > 0).then_some((id, incarnation))
    }

    /// The controller was heard within the session's time-out: it has given our
    /// shards to nobody else. What is not written to the log rests on this.
    pub fn is_in_session(&self) -> bool {
        self.clock.now_ms() < self.session_until.load(Ordering::Acquire)
    }

    fn heard(&self) {
        let until = self.clock.now_ms() + self.session_ms.load(Ordering::Acquire);
        self.session_until.store(until, Ordering::Release);
    }

    pub fn now(&self) -> Now {
        Now {
            monotonic: MonotonicMs(self.clock.now_ms()),
            wall: wall_now(),
        }
    }

    /// For timers.
    pub fn at(&self, moment: MonotonicMs) -> tokio::time::Instant {
        self.clock.at(moment.0)
    }
}

impl Member for Node {
    fn plane(&self) -> Plane {
        Plane::Coordinator
    }

    fn controller(&self) -> &Client {
        &self.controller
    }

    fn pool(&self) -> &ChannelPool {
        &self.pool
    }

    fn view(&self) -> &SharedView {
        &self.view
    }

    fn node_id(&self) -> u32 {
        self.id.load(Ordering::Acquire)
    }

    fn rack(&self) -> &str {
        &self.config.rack
    }

    fn on_registered(&self, registered: &NodeRegistered) {
        self.id.store(registered.node_id, Ordering::Release);
        let before = self
            .incarnation
            .swap(registered.incarnation, Ordering::AcqRel);
        let session_ms = u64::from(registered.session_timeout_ms);
        self.session_ms.store(session_ms, Ordering::Release);
        self.heard();
        self.metrics.controller_connected.set(1);
        if before != registered.incarnation {
            tracing::info!(
                node_id = registered.node_id,
                incarnation = registered.incarnation,
                "registered"
            );
            self.shards.look();
        }
    }

    fn on_disconnected(&self) {
        self.metrics.controller_connected.set(0);
    }

    fn on_controller_time(&self, time: TimestampMs) {
        self.heard();
        self.wall.compare(wall_now(), time);
    }

    fn on_update(&self, update: &WatchClusterResponse) {
        let view = match &update.update {
            Some(Update::Snapshot(part)) => part.view.as_ref(),
            Some(Update::Delta(delta)) => delta.view.as_ref(),
            Some(Update::Progress(_)) | None => None,
        };
        let tombstones = view.iter().flat_map(|view| &view.tombstones);
        let deleted = tombstones.filter_map(|tombstone| TopicId::from_slice(&tombstone.topic_id));
        self.shards.deleted(deleted.collect());
    }

    fn on_view(&self, revision: i64) {
        self.metrics.view_revision.set(revision);
    }

    async fn leaving(&self) {
        self.leaving.cancelled().await;
    }
}
