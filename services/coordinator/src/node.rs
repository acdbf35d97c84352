//! What every part of a coordinator shares.

use crate::{
    bounds::BoundsCache, config::CoordinatorConfig, kept::KeptView, link::Links, log::ShardLog,
    metrics::CoordinatorMetrics, session::Session, shards::Shards,
};
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
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
    session: Mutex<Session>,
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
            session: Mutex::default(),
            leaving: CancellationToken::new(),
        }
    }

    /// None before the controller has given it.
    pub fn identity(&self) -> Option<(NodeId, Incarnation)> {
        let id = NodeId(self.id.load(Ordering::Acquire));
        let incarnation = Incarnation(self.incarnation.load(Ordering::Acquire));
        (!id.is_none() && incarnation.0 > 0).then_some((id, incarnation))
    }

    /// What is not written to the log rests on this: see [`Session::holds`].
    pub fn is_in_session(&self) -> bool {
        let now = MonotonicMs(self.clock.now_ms());
        self.session.lock().holds(now)
    }

    /// The view has all that the controller had told at this moment.
    pub fn known_at(&self) -> Option<MonotonicMs> {
        self.session.lock().known_at()
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
        self.session.lock().set_timeout(session_ms);
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

    fn on_heard(&self, sent: Duration, revision: i64) {
        let ago = u64::try_from(sent.as_millis()).unwrap_or(u64::MAX);
        // Of a moment before this process's clock began there is no heartbeat.
        let sent = MonotonicMs(self.clock.now_ms().saturating_sub(ago.saturating_add(1)));
        let mut session = self.session.lock();
        // Under the lock: what the view reaches from now on, `on_view` will say.
        session.on_answer(sent, revision, self.view.get().revision);
    }

    fn on_controller_time(&self, time: TimestampMs) {
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
        self.session.lock().on_view(revision);
        self.metrics.view_revision.set(revision);
    }

    async fn leaving(&self) {
        self.leaving.cancelled().await;
    }
}
