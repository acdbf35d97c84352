//! What readers share: the list of segments, the bounds, the epochs, the index.
//!
//! Readable from any thread beside the one owner that writes. Bounds move only
//! after the bytes they promise are in the file; they are loaded in the order
//! in which they bound each other, so that a reader never sees them crossed.

use crate::{
    append_times::RecentAppends, config::CompactionConfig, epochs::Epochs, error::ReadError,
    folder::LogFolder, index::Index, names, segment::SegmentView, sidecar, tail::Tail,
};
use bytes::Bytes;
use parking_lot::RwLock;
use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};
use talweg_types::{LeaderEpoch, LogBounds, Offset, TimestampMs, TopicPartition};

/// A partition's log for reading.
pub struct LogReader {
    pub(crate) folder: Arc<LogFolder>,
    pub(crate) tp: TopicPartition,
    pub(crate) dir: PathBuf,
    pub(crate) index: Index,
    /// In offset order; retained ones only.
    segments: RwLock<Vec<Arc<SegmentView>>>,
    pub(crate) epochs: RwLock<Epochs>,
    pub(crate) tail: Tail,
    pub(crate) recent: RecentAppends,
    /// As the owner's configuration has it.
    pub(crate) compaction: RwLock<Option<CompactionConfig>>,
    log_start: AtomicI64,
    high_watermark: AtomicI64,
    log_end: AtomicI64,
    flushed_end: AtomicI64,
    deleted: AtomicBool,
    /// Counts truncations: what a reader finds odd across one is no damage.
    pub(crate) generation: AtomicU64,
    /// Damage was met that is not repaired.
    pub(crate) damaged: AtomicBool,
}

/// Whole batches, as they lie in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadOutcome {
    /// Batches back to back; empty when nothing below the visible end is there yet.
    pub batches: Bytes,
    /// Where to read on; always set.
    pub next_offset: Offset,
    /// When the leader appended them: from each offset on, to the next one. Empty
    /// where that was not asked for or is not known.
    pub append_times: Vec<(Offset, TimestampMs)>,
}

impl Drop for LogReader {
    fn drop(&mut self) {
        self.tail.clear(&self.folder);
    }
}

impl LogReader {
    pub(crate) fn new(folder: Arc<LogFolder>, tp: TopicPartition) -> Self {
        Self {
            dir: folder.root.join(tp.to_string()),
            folder,
            tp,
            index: Index::new(tp),
            segments: RwLock::new(Vec::new()),
            epochs: RwLock::new(Epochs::default()),
            tail: Tail::default(),
            recent: RecentAppends::default(),
            compaction: RwLock::new(None),
            log_start: AtomicI64::new(0),
            high_watermark: AtomicI64::new(0),
            log_end: AtomicI64::new(0),
            flushed_end: AtomicI64::new(0),
            deleted: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            damaged: AtomicBool::new(false),
        }
    }

    pub fn topic_partition(&self) -> TopicPartition {
        self.tp
    }

    /// The bounds; never crossed, each possibly older than the next.
    pub fn bounds(&self) -> LogBounds {
        let log_start = Offset(self.log_start.load(Ordering::Acquire));
        let high_watermark = Offset(self.high_watermark.load(Ordering::Acquire));
        let flushed_end = Offset(self.flushed_end.load(Ordering::Acquire));
        let log_end = Offset(self.log_end.load(Ordering::Acquire));
        // Without transactions everything below the watermark is stable.
        LogBounds {
            log_start,
            last_stable: high_watermark,
            high_watermark,
            log_end,
            flushed_end,
        }
    }

    /// Bytes of its segments, as far as they are known.
    pub fn size_bytes(&self) -> u64 {
        self.segments.read().iter().map(|view| view.size()).sum()
    }

    /// The largest leader epoch at or below `epoch` in the log, and the end
    /// (exclusive) of its batches: where a reader with `epoch` parts from this log.
    pub fn epoch_end_offset(&self, epoch: LeaderEpoch) -> (LeaderEpoch, Offset) {
        let (first, log_end) = (self.first_offset(), self.bounds().log_end);
        self.epochs.read().end_offset(epoch, first, log_end)
    }

    /// The last leader epoch in the log; NONE for an empty one.
    pub fn last_epoch(&self) -> LeaderEpoch {
        self.epochs.read().last()
    }

    /// The leader epoch of the batch at `offset`, where known.
    pub fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        self.epochs.read().at(offset)
    }

    pub(crate) fn set_log_start(&self, offset: Offset) {
        self.log_start.fetch_max(offset.0, Ordering::AcqRel);
    }

    pub(crate) fn set_high_watermark(&self, offset: Offset) {
        self.high_watermark.fetch_max(offset.0, Ordering::AcqRel);
    }

    pub(crate) fn lower_high_watermark(&self, offset: Offset) {
        self.high_watermark.fetch_min(offset.0, Ordering::AcqRel);
    }

    /// The log begins anew, perhaps below what was promised.
    pub(crate) fn lower_bounds(&self, start: Offset) {
        self.log_start.fetch_min(start.0, Ordering::AcqRel);
        self.lower_high_watermark(start);
    }

    pub(crate) fn set_log_end(&self, offset: Offset) {
        self.log_end.store(offset.0, Ordering::Release);
    }

    pub(crate) fn set_flushed_end(&self, offset: Offset) {
        self.flushed_end.store(offset.0, Ordering::Release);
    }

    pub(crate) fn set_deleted(&self) {
        self.deleted.store(true, Ordering::Release);
    }

    pub(crate) fn check_readable(&self) -> Result<(), ReadError> {
        if self.deleted.load(Ordering::Acquire) {
            return Err(ReadError::Deleted);
        }
        match self.folder.failed() {
            Some(why) => Err(ReadError::FolderFailed(why)),
            None => Ok(()),
        }
    }

    /// The first offset of the first segment: what lies between it and the log
    /// start is deleted for readers and still copied by replicas.
    pub fn first_offset(&self) -> Offset {
        self.first_segment()
            .map_or(self.bounds().log_start, |view| view.base)
    }

    /// Where a replica that has nothing begins, and the producer state there: the
    /// bytes of a `sessions` file, empty if there is none. Reads a file.
    pub fn copy_start(&self) -> io::Result<(Offset, Bytes)> {
        let start = self.first_offset();
        let path = names::path(&self.dir, start, names::SESSIONS);
        let bytes = sidecar::read_file(&*self.folder.fs, &path)?;
        Ok((start, bytes.map(Bytes::from).unwrap_or_default()))
    }

    /// The segment whose range holds `offset`, or the first one above it.
    pub(crate) fn segment_of(&self, offset: Offset) -> Option<Arc<SegmentView>> {
        let segments = self.segments.read();
        let after = segments.partition_point(|segment| segment.base <= offset);
        segments.get(after.saturating_sub(1)).cloned()
    }

    pub(crate) fn segments(&self) -> Vec<Arc<SegmentView>> {
        self.segments.read().clone()
    }

    pub(crate) fn segment_count(&self) -> usize {
        self.segments.read().len()
    }

    pub(crate) fn first_segment(&self) -> Option<Arc<SegmentView>> {
        self.segments.read().first().cloned()
    }

    pub(crate) fn push_segment(&self, segment: Arc<SegmentView>) {
        self.segments.write().push(segment);
    }

    /// Takes the last segment off the list if it is the one at `base`.
    pub(crate) fn pop_segment(&self, base: Offset) {
        let mut segments = self.segments.write();
        if segments.last().is_some_and(|segment| segment.base == base) {
            segments.pop();
        }
    }

    pub(crate) fn set_segments(&self, segments: Vec<Arc<SegmentView>>) {
        *self.segments.write() = segments;
    }

    /// Puts `new` in the place of `old`, neighbours that are all in the list; false,
    /// and nothing done, if they are not.
    pub(crate) fn replace_segments(
        &self,
        old: &[Arc<SegmentView>],
        new: &Arc<SegmentView>,
    ) -> bool {
        let mut segments = self.segments.write();
        let Some(at) = segments.iter().position(|view| Arc::ptr_eq(view, &old[0])) else {
            return false;
        };
        let there = segments.get(at..at + old.len());
        let same = |there: &[Arc<SegmentView>]| {
            there
                .iter()
                .zip(old)
                .all(|(one, other)| Arc::ptr_eq(one, other))
        };
        if !there.is_some_and(same) {
            return false;
        }
        segments.splice(at..at + old.len(), [Arc::clone(new)]);
        true
    }

    /// Takes the segments that end at or below `offset` off the list, but never
    /// the last `keep`.
    pub(crate) fn take_segments_below(&self, offset: Offset, keep: usize) -> Vec<Arc<SegmentView>> {
        let mut segments = self.segments.write();
        let removable = segments.len().saturating_sub(keep);
        let count = segments
            .iter()
            .take(removable)
            .take_while(|segment| segment.end() <= offset)
            .count();
        segments.drain(..count).collect()
    }
}
