//! What everything in a storage node shares: the view, the open partitions and
//! the loops that own them, who this node is, and whether it is draining.

use crate::{
    arrivals::Arrivals,
    clock::ClockWatch,
    config::StorageConfig,
    metrics::Metrics,
    partition::{LoopHandle, PartitionHandle, Registry},
    replicate::Outbox,
    view::ViewHolder,
};
use parking_lot::RwLock;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};
use talweg_replication::Contacts;
use talweg_types::{Incarnation, TopicPartition};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

/// Told to every stream when the process is to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drain {
    /// Streams are closed then.
    pub deadline: Instant,
}

/// A storage node's shared state.
pub struct Node {
    pub config: StorageConfig,
    pub view: Arc<ViewHolder>,
    pub partitions: Registry,
    pub loops: Vec<LoopHandle>,
    pub clock: Arc<ClockWatch>,
    pub metrics: Arc<Metrics>,
    /// How fast partitions grow.
    pub arrivals: Arrivals,
    /// What loops have to say to other nodes.
    pub outbox: Arc<Outbox>,
    /// Which controllers and nodes were heard, and when.
    pub contacts: Arc<RwLock<Contacts>>,
    /// Cold reads at a time.
    pub readers: Arc<Semaphore>,
    /// Streams at a time.
    pub streams: Arc<Semaphore>,
    node_id: AtomicU32,
    /// 0: not registered yet.
    incarnation: AtomicU64,
    drain: watch::Sender<Option<Drain>>,
}

impl Node {
    pub fn new(
        config: StorageConfig,
        loops: Vec<LoopHandle>,
        clock: Arc<ClockWatch>,
        metrics: Arc<Metrics>,
        outbox: Arc<Outbox>,
    ) -> Self {
        Self {
            outbox,
            arrivals: Arrivals::default(),
            contacts: Arc::default(),
            readers: Arc::new(Semaphore::new(config.read_threads.max(1))),
            streams: Arc::new(Semaphore::new(config.streams_max)),
            config,
            view: Arc::default(),
            partitions: Registry::default(),
            loops,
            clock,
            metrics,
            node_id: AtomicU32::new(0),
            incarnation: AtomicU64::new(0),
            drain: watch::Sender::new(None),
        }
    }

    /// 0 before the first registration.
    pub fn id(&self) -> u32 {
        self.node_id.load(Ordering::Relaxed)
    }

    pub fn set_id(&self, node_id: u32) {
        self.node_id.store(node_id, Ordering::Relaxed);
    }

    /// This start of the process; none before its registration, and before the
    /// log folders say that it runs.
    pub fn incarnation(&self) -> Option<Incarnation> {
        let incarnation = self.incarnation.load(Ordering::Acquire);
        (incarnation > 0).then_some(Incarnation(incarnation))
    }

    /// The log folders are marked with it: from now on this process may lead.
    pub fn set_incarnation(&self, incarnation: Incarnation) {
        self.incarnation.store(incarnation.0, Ordering::Release);
    }

    /// The loop that owns a partition: partitions of one topic are spread evenly.
    pub fn owner_of(&self, tp: &TopicPartition) -> usize {
        let (high, low) = tp.topic_id.0.as_u64_pair();
        let number = (high ^ low).wrapping_add(u64::from(tp.partition.0));
        usize::try_from(number % self.loops.len() as u64).unwrap_or(0)
    }

    pub fn loop_of(&self, handle: &PartitionHandle) -> &LoopHandle {
        &self.loops[handle.owner]
    }

    /// Registered and with a view: what is asked can be answered.
    pub fn is_ready(&self) -> bool {
        self.incarnation().is_some() && self.view.get().revision >= 0 && self.draining().is_none()
    }

    pub fn draining(&self) -> Option<Drain> {
        *self.drain.borrow()
    }

    /// Tells all streams; the first call counts.
    pub fn begin_drain(&self, time: Duration) {
        let deadline = Instant::now() + time;
        self.drain.send_if_modified(|drain| {
            let first = drain.is_none();
            drain.get_or_insert(Drain { deadline });
            first
        });
    }

    pub fn watch_drain(&self) -> watch::Receiver<Option<Drain>> {
        self.drain.subscribe()
    }

    /// A wait until the next sign of life on an idle stream.
    pub fn heartbeat_wait(&self) -> Duration {
        let (low, high) = (self.config.heartbeat_min_ms, self.config.heartbeat_max_ms);
        Duration::from_millis(rand::random_range(low..=high))
    }
}
