//! The log of one partition: what its one owner holds and decides with.
//!
//! ```text
//! sealed …  sealed | closing … | active | nothing yet
//! log start ≤ high watermark ≤ log end;  flushed end ≤ log end
//! ```
//! - log end moves in `append`, after the write has returned;
//! - flushed end moves in `flush_done`, after a ticket's run has returned;
//! - high watermark is the caller's, and is kept between log start and log end;
//! - log start moves in retention and `delete_before`, never above the watermark.
//!
//! Nothing but `recover`, `close`, `delete`, `delete_before` and `truncate_to`
//! waits for a flush.

use crate::{
    active::{ActiveSegment, ClosingSegment},
    config::LogConfig,
    error::LogError,
    fault::{Fault, planted},
    fence::Fence,
    folder::LogFolder,
    idempotency::IdempotencyKeys,
    reader::LogReader,
    segment::{SegmentView, Times},
    sessions::Sessions,
    sidecar::partition::PartitionFile,
};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering},
};
use talweg_types::{LeaderEpoch, LogBounds, Offset, TimestampMs, TopicPartition};

/// One partition's log, for its one owner.
pub struct PartitionLog {
    pub(crate) folder: Arc<LogFolder>,
    pub(crate) tp: TopicPartition,
    pub(crate) config: LogConfig,
    pub(crate) shared: Arc<LogReader>,
    pub(crate) active: Option<ActiveSegment>,
    /// Rolled, waiting for flush and seal, oldest first.
    pub(crate) closing: VecDeque<ClosingSegment>,
    pub(crate) sessions: Sessions,
    pub(crate) keys: IdempotencyKeys,
    /// The newest in the log.
    pub(crate) fence: Option<Fence>,
    /// What batches are stamped with; NONE until `begin_epoch`.
    pub(crate) epoch: LeaderEpoch,
    /// The log start is another's to decide.
    pub(crate) follows: bool,
    pub(crate) highest_epoch: LeaderEpoch,
    pub(crate) disk: DiskState,
    /// Off the log, their files still there.
    pub(crate) condemned: Vec<Condemned>,
    pub(crate) flush_in_flight: bool,
    /// A rewrite is out; set to true, it ends early.
    pub(crate) rewrite: Option<Arc<AtomicBool>>,
    /// Repairs that were asked for: each time another segment has its turn.
    pub(crate) repair_turn: usize,
    /// Where the first damage begins that the last replay has passed: producer state
    /// and the fence may lack what was there, and are not written down.
    pub(crate) holes_from: Option<Offset>,
    /// The log start as the last tick told it.
    pub(crate) reported_start: Offset,
    /// Bytes appended as of the last tick.
    pub(crate) tail_checked: u64,
    pub(crate) deleted: bool,
}

/// What the owner knows of the folder on disk.
#[derive(Default)]
pub(crate) struct DiskState {
    pub folder_exists: bool,
    /// The folder's own entry in its parent is durable.
    pub folder_durable: bool,
    /// Files were made or removed since the folder was last flushed.
    pub entries_dirty: bool,
    /// The `partition` file as it is durable; shared with the flush under way.
    pub recorded: Arc<Mutex<Option<PartitionFile>>>,
    /// The next ticket rewrites `partition` (and perhaps `sessions`).
    pub record_due: bool,
    /// Where retention wants the log start; the next record makes it durable.
    pub wanted_start: Offset,
    /// The next ticket writes index entries even if it has nothing else to do.
    pub index_due: bool,
    pub recorded_at: TimestampMs,
    /// Bytes appended since the log was opened, and their number when the
    /// `partition` and `sessions` files were last written.
    pub appended_bytes: u64,
    pub recorded_bytes: u64,
    pub snapshot_bytes: u64,
    pub snapshot_size: u64,
    /// A `sessions` file that is not at a segment's base.
    pub loose_snapshot: Option<Offset>,
    /// Files that nothing needs any more; removed by the next ticket.
    pub removals: Vec<PathBuf>,
}

pub(crate) struct Condemned {
    pub view: Arc<SegmentView>,
    /// Set by the first tick that sees it.
    pub remove_at: Option<TimestampMs>,
}

impl PartitionLog {
    /// A new log; nothing is on disk until the first append.
    pub fn create(folder: &Arc<LogFolder>, tp: TopicPartition, config: LogConfig) -> Self {
        let shared = Arc::new(LogReader::new(Arc::clone(folder), tp));
        *shared.compaction.write() = config.compaction;
        Self {
            shared,
            folder: Arc::clone(folder),
            tp,
            config,
            active: None,
            closing: VecDeque::new(),
            sessions: Sessions::default(),
            keys: IdempotencyKeys::default(),
            fence: None,
            epoch: LeaderEpoch::NONE,
            follows: false,
            highest_epoch: LeaderEpoch::NONE,
            disk: DiskState::default(),
            condemned: Vec::new(),
            flush_in_flight: false,
            rewrite: None,
            repair_turn: 0,
            holes_from: None,
            reported_start: Offset::ZERO,
            tail_checked: 0,
            deleted: false,
        }
    }

    pub fn topic_partition(&self) -> TopicPartition {
        self.tp
    }

    /// The log folder it lies in.
    pub fn folder(&self) -> Arc<LogFolder> {
        Arc::clone(&self.folder)
    }

    pub fn config(&self) -> &LogConfig {
        &self.config
    }

    /// Takes effect at the next append and tick.
    pub fn set_config(&mut self, config: LogConfig) {
        *self.shared.compaction.write() = config.compaction;
        self.config = config;
    }

    /// For reading, from any thread.
    pub fn reader(&self) -> Arc<LogReader> {
        Arc::clone(&self.shared)
    }

    pub fn bounds(&self) -> LogBounds {
        self.shared.bounds()
    }

    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.epoch
    }

    /// Remembered producers.
    pub fn producers(&self) -> usize {
        self.sessions.len()
    }

    /// Segments that are part of the log.
    pub fn segment_count(&self) -> usize {
        self.shared.segment_count()
    }

    /// Bytes of the log not known to be flushed.
    pub fn unflushed_bytes(&self) -> u64 {
        let closing: u64 = self
            .closing
            .iter()
            .filter(|c| c.dirty.is_some())
            .map(|c| c.view.size())
            .sum();
        let active = self
            .active
            .as_ref()
            .filter(|active| active.dirty().is_some());
        closing + active.map_or(0, |active| active.size - active.flushed_size)
    }

    /// Leader: from now on batches are stamped with `epoch`, which must be above
    /// every epoch in the log. The current one again is no change.
    pub fn begin_epoch(&mut self, epoch: LeaderEpoch) -> Result<(), LogError> {
        self.check_alive()?;
        if epoch == self.epoch && epoch != LeaderEpoch::NONE {
            return Ok(());
        }
        let current = self.shared.last_epoch().max(self.epoch);
        let over = epoch <= current || epoch < self.highest_epoch;
        if over && !planted(Fault::EpochNotChecked) {
            return Err(LogError::StaleEpoch {
                asked: epoch,
                current: current.max(self.highest_epoch),
            });
        }
        self.epoch = epoch;
        self.highest_epoch = epoch;
        self.follows = false;
        Ok(())
    }

    /// No batch is stamped any more until the next `begin_epoch`.
    pub fn resign(&mut self) {
        self.epoch = LeaderEpoch::NONE;
    }

    /// Moves the watermark forwards; it never goes above the log end or back.
    pub fn set_high_watermark(&mut self, offset: Offset) {
        self.shared
            .set_high_watermark(offset.min(self.shared.bounds().log_end));
    }

    /// The log holds an epoch that `partition` does not know of yet. Until it
    /// does, the flushed end does not pass the epoch's batches.
    pub(crate) fn has_unrecorded_epoch(&self) -> bool {
        let recorded = self
            .disk
            .recorded
            .lock()
            .as_ref()
            .map_or(LeaderEpoch::NONE, |record| record.highest_epoch);
        self.shared.last_epoch() > recorded
    }

    pub(crate) fn check_alive(&self) -> Result<(), LogError> {
        if self.deleted {
            return Err(LogError::Deleted);
        }
        match self.folder.failed() {
            Some(why) => Err(LogError::FolderFailed(why)),
            None => Ok(()),
        }
    }

    /// The `partition` file that would be true if everything written so far
    /// were flushed.
    pub(crate) fn record_at_end(&self) -> PartitionFile {
        let bounds = self.bounds();
        let (segment, position, times) = match &self.active {
            Some(active) => (active.view.base, active.size, active.times),
            None => (bounds.log_end, 0, Times::NONE),
        };
        PartitionFile {
            tp: self.tp,
            log_start: bounds.log_start.max(self.disk.wanted_start),
            flushed_end: bounds.log_end,
            flushed_segment: segment,
            flushed_position: position,
            high_watermark: bounds.high_watermark,
            highest_epoch: self.highest_epoch.max(self.shared.last_epoch()),
            generation: self.shared.generation.load(Ordering::Acquire),
            first_append: times.first_append,
            last_append: times.last_append,
            max_timestamp: times.max_timestamp,
            epochs: self.shared.epochs.read().entries().to_vec(),
        }
    }
}
