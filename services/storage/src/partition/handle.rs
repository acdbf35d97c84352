//! What streams know of a partition that this node holds: its reader, who leads
//! it, which loop owns it, who watches it. The loop writes, everybody reads.

use super::watchers::Watchers;
use parking_lot::RwLock;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
};
use talweg_log::LogReader;
use talweg_types::{LeaderEpoch, Offset, TimestampMs, TopicPartition};

/// A replica as seen from outside its loop.
pub struct PartitionHandle {
    pub tp: TopicPartition,
    pub reader: Arc<LogReader>,
    /// Index of the loop that owns it.
    pub owner: usize,
    pub watchers: Watchers,
    /// Streams that copy the log to other nodes: woken by every append too.
    pub copiers: Watchers,
    /// No earlier leader can have published a higher watermark than ours.
    knows_watermark: AtomicBool,
    /// The epoch in which this process leads; -1 while it does not.
    epoch: AtomicI32,
    /// The epoch in which its log is known to be a prefix of the leader's and
    /// grows with it; -1 while it is not.
    follows: AtomicI32,
    failure: RwLock<Option<String>>,
    cuts: RwLock<Cuts>,
    /// The last attempt to repair its damage did not succeed.
    repair_failed: AtomicBool,
}

/// Ends of the log that were cut since the process started, because the leader
/// did not have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cuts {
    pub count: u32,
    pub newest: Option<LogCut>,
}

/// A cut; the ends are exclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogCut {
    pub from: Offset,
    pub to: Offset,
    pub bytes: u64,
    pub time: TimestampMs,
    pub below_watermark: bool,
}

impl PartitionHandle {
    pub fn new(tp: TopicPartition, reader: Arc<LogReader>, owner: usize) -> Self {
        Self {
            tp,
            reader,
            owner,
            watchers: Watchers::default(),
            copiers: Watchers::default(),
            knows_watermark: AtomicBool::new(false),
            epoch: AtomicI32::new(LeaderEpoch::NONE.0),
            follows: AtomicI32::new(LeaderEpoch::NONE.0),
            failure: RwLock::new(None),
            cuts: RwLock::default(),
            repair_failed: AtomicBool::new(false),
        }
    }

    /// A replica that could not be opened: it only says why.
    pub fn failed(tp: TopicPartition, reader: Arc<LogReader>, why: &str) -> Self {
        let handle = Self::new(tp, reader, 0);
        handle.fail(why);
        handle
    }

    /// The epoch in which this process leads it.
    pub fn leads(&self) -> Option<LeaderEpoch> {
        let epoch = self.epoch.load(Ordering::Acquire);
        (epoch != LeaderEpoch::NONE.0).then_some(LeaderEpoch(epoch))
    }

    /// The owner's: told to all readers.
    pub(super) fn set_leads(&self, epoch: Option<LeaderEpoch>) {
        self.epoch
            .store(epoch.unwrap_or(LeaderEpoch::NONE).0, Ordering::Release);
        self.wake_all();
    }

    /// The epoch in which it follows closely enough to serve readers near by:
    /// what lies below its watermark is committed, and the watermark moves on.
    pub fn follows(&self) -> Option<LeaderEpoch> {
        let epoch = self.follows.load(Ordering::Acquire);
        (epoch != LeaderEpoch::NONE.0).then_some(LeaderEpoch(epoch))
    }

    /// The owner's: told to all readers when it ends.
    pub(super) fn set_follows(&self, epoch: Option<LeaderEpoch>) {
        let epoch = epoch.unwrap_or(LeaderEpoch::NONE).0;
        let before = self.follows.swap(epoch, Ordering::AcqRel);
        if before != epoch && before != LeaderEpoch::NONE.0 {
            self.wake_all();
        }
    }

    /// Whether the watermark may be shown to readers: a new leader is silent
    /// about it until it has reached what its predecessor may have published.
    pub fn knows_watermark(&self) -> bool {
        self.knows_watermark.load(Ordering::Acquire)
    }

    /// The owner's.
    pub(super) fn set_knows_watermark(&self, knows: bool) {
        if self.knows_watermark.swap(knows, Ordering::AcqRel) != knows {
            self.wake_all();
        }
    }

    /// Something has changed that no reader and no copy may miss.
    pub(super) fn wake_all(&self) {
        self.watchers.wake_all();
        self.copiers.wake_all();
    }

    /// How a repair went: the repairer's.
    pub fn set_repaired(&self, ok: bool) {
        self.repair_failed.store(!ok, Ordering::Release);
    }

    /// Whether damage of it could not be repaired when that was last tried.
    pub fn repair_failed(&self) -> bool {
        self.repair_failed.load(Ordering::Acquire)
    }

    pub fn cuts(&self) -> Cuts {
        *self.cuts.read()
    }

    /// The owner's.
    pub(super) fn note_cut(&self, cut: LogCut) {
        let mut cuts = self.cuts.write();
        cuts.count = cuts.count.saturating_add(1);
        cuts.newest = Some(cut);
    }

    /// Why the replica serves no more.
    pub fn failure(&self) -> Option<String> {
        self.failure.read().clone()
    }

    /// The owner's: told to all readers; the first reason stays.
    pub(super) fn fail(&self, why: &str) {
        self.failure.write().get_or_insert_with(|| why.to_owned());
        self.wake_all();
    }
}

/// All partitions that this node has open.
#[derive(Default)]
pub struct Registry {
    handles: RwLock<BTreeMap<TopicPartition, Arc<PartitionHandle>>>,
}

impl Registry {
    pub fn get(&self, tp: &TopicPartition) -> Option<Arc<PartitionHandle>> {
        self.handles.read().get(tp).cloned()
    }

    pub fn insert(&self, handle: Arc<PartitionHandle>) {
        self.handles.write().insert(handle.tp, handle);
    }

    pub fn remove(&self, tp: &TopicPartition) {
        let removed = self.handles.write().remove(tp);
        if let Some(handle) = removed {
            handle.set_follows(None);
            handle.set_leads(None);
        }
    }

    pub fn all(&self) -> Vec<Arc<PartitionHandle>> {
        self.handles.read().values().cloned().collect()
    }

    /// All, those led, those failed.
    pub fn counts(&self) -> (u64, u64, u64) {
        let (mut all, mut led, mut failed) = (0, 0, 0);
        for handle in self.handles.read().values() {
            all += 1;
            led += u64::from(handle.leads().is_some());
            failed += u64::from(handle.failure().is_some());
        }
        (all, led, failed)
    }
}
