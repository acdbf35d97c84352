//! The sparse index: where batches begin, and what the largest timestamp before
//! them was. A cache of the log that is never ahead of its flushed end.
//!
//! ```text
//! key                                                    value
//! id 16 | partition u32 | 'm'                          → version, generation, valid-to offset
//! id 16 | partition u32 | 'o' | offset i64             → position u64, append time i64, revision u32
//! id 16 | partition u32 | 't' | segment i64 | time i64 → offset i64, position u64, append time i64, revision u32
//! ```
//! The revision is that of the segment's file ([`Cleaned`]), left out where it is
//! 0: an entry that was made for other bytes is not followed into these.
//! A 't' key says: every record of the segment before `position` has a
//! timestamp of at most `time`. Timestamps are stored with the sign bit turned,
//! so that they sort. Entries not yet in the store are kept in memory, bounded;
//! when there are too many every second one is dropped: look-ups scan further,
//! answers stay right. A store that fails costs only time.

mod times;

use crate::kv::{IndexKv, KvError, KvOp};
#[cfg(doc)]
use crate::sidecar::seal::Cleaned;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
};
use talweg_batch::BatchHeader;
use talweg_types::{Offset, TimestampMs, TopicPartition};

const VERSION: u8 = 1;
const META: u8 = b'm';
const BY_OFFSET: u8 = b'o';
const BY_TIME: u8 = b't';
/// Entries in memory per partition.
const PENDING_MAX: usize = 8192;

/// One sparse entry: a batch boundary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IndexEntry {
    pub segment: Offset,
    pub offset: Offset,
    pub position: u64,
    /// Largest record timestamp in the segment before `position`.
    pub max_before: TimestampMs,
    pub append_time: TimestampMs,
    /// Of the segment's file.
    pub revision: u32,
}

/// Makes the entries of one segment as its batches pass by.
#[derive(Clone, Debug)]
pub(crate) struct IndexBuilder {
    segment: Offset,
    revision: u32,
    last_position: u64,
    max_timestamp: TimestampMs,
}

impl IndexBuilder {
    pub(crate) fn new(segment: Offset) -> Self {
        Self {
            segment,
            revision: 0,
            last_position: 0,
            max_timestamp: TimestampMs(i64::MIN),
        }
    }

    /// Going on at a known entry or saved state.
    pub(crate) fn resume(segment: Offset, position: u64, max_timestamp: TimestampMs) -> Self {
        Self {
            segment,
            revision: 0,
            last_position: position,
            max_timestamp,
        }
    }

    /// For a file that compaction has written.
    pub(crate) fn of_revision(self, revision: u32) -> Self {
        Self { revision, ..self }
    }

    /// An entry when the batch at `position` is at least `interval` bytes past
    /// the last one.
    pub(crate) fn observe(
        &mut self,
        header: &BatchHeader,
        position: u64,
        append_time: TimestampMs,
        interval: u64,
    ) -> Option<IndexEntry> {
        let entry = (position >= self.last_position + interval).then(|| {
            self.last_position = position;
            IndexEntry {
                segment: self.segment,
                offset: header.base_offset,
                position,
                max_before: self.max_timestamp,
                append_time,
                revision: self.revision,
            }
        });
        self.max_timestamp = self.max_timestamp.max(header.max_timestamp);
        entry
    }
}

/// How complete the store's entries of this partition are.
#[derive(Clone, Debug)]
pub(crate) struct IndexState {
    /// Entries are complete below this offset.
    pub valid_to: Offset,
    /// Entries are missing from `valid_to` up to here; a rebuild fills them in.
    pub hole_end: Option<Offset>,
}

#[derive(Clone, Debug)]
pub(crate) struct RebuildCursor {
    pub position: u64,
    pub expected: Offset,
    pub builder: IndexBuilder,
    pub segment: Offset,
}

/// The index of one partition, shared by its owner, its readers, its flush
/// tickets and its rebuild.
pub(crate) struct Index {
    prefix: [u8; 20],
    pending: RwLock<VecDeque<IndexEntry>>,
    /// Held while the store's meta entry is written, never while scanning.
    pub state: Mutex<IndexState>,
    /// What the store holds is not believed and must be dropped.
    pub distrusted: AtomicBool,
    /// Where a rebuild under way goes on; held by the one that is under way.
    pub rebuild: Mutex<Option<RebuildCursor>>,
}

/// Where to begin a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Floor {
    pub offset: Offset,
    pub position: u64,
    pub max_before: TimestampMs,
    /// Of the file that the position is in.
    pub revision: u32,
}

impl Index {
    pub(crate) fn new(tp: TopicPartition) -> Self {
        let mut prefix = [0; 20];
        prefix[..16].copy_from_slice(tp.topic_id.as_bytes());
        prefix[16..].copy_from_slice(&tp.partition.0.to_be_bytes());
        Self {
            prefix,
            pending: RwLock::new(VecDeque::new()),
            state: Mutex::new(IndexState {
                valid_to: Offset::ZERO,
                hole_end: None,
            }),
            distrusted: AtomicBool::new(false),
            rebuild: Mutex::new(None),
        }
    }

    pub(crate) fn push(&self, entry: IndexEntry) {
        let mut pending = self.pending.write();
        pending.push_back(entry);
        if pending.len() > PENDING_MAX {
            let mut odd = false;
            pending.retain(|_| {
                odd = !odd;
                odd
            });
        }
    }

    pub(crate) fn pending_len(&self) -> usize {
        self.pending.read().len()
    }

    pub(crate) fn has_pending_below(&self, end: Offset) -> bool {
        self.pending
            .read()
            .front()
            .is_some_and(|entry| entry.offset < end)
    }

    /// Entries below `end`, to be written by a ticket.
    pub(crate) fn pending_below(&self, end: Offset) -> Vec<IndexEntry> {
        self.pending
            .read()
            .iter()
            .take_while(|entry| entry.offset < end)
            .copied()
            .collect()
    }

    /// Entries below `end` are in the store.
    pub(crate) fn forget_below(&self, end: Offset) {
        let mut pending = self.pending.write();
        while pending.front().is_some_and(|entry| entry.offset < end) {
            pending.pop_front();
        }
        if pending.is_empty() {
            pending.shrink_to_fit();
        }
    }

    /// The log was cut: entries from `end` on are no longer true.
    pub(crate) fn forget_from(&self, end: Offset) {
        self.pending.write().retain(|entry| entry.offset < end);
    }

    /// The nearest entry at or below `offset` in that segment, in memory only.
    pub(crate) fn pending_floor(&self, segment: Offset, offset: Offset) -> Option<Floor> {
        let pending = self.pending.read();
        let after = pending.partition_point(|entry| entry.offset <= offset);
        let entry = pending.get(after.checked_sub(1)?)?;
        (entry.segment == segment).then(|| Floor::from(entry))
    }

    /// The same in the store.
    pub(crate) fn stored_floor(
        &self,
        kv: &dyn IndexKv,
        segment: Offset,
        offset: Offset,
    ) -> Result<Option<Floor>, KvError> {
        if self.distrusted.load(Ordering::Acquire) {
            return Ok(None);
        }
        let found = kv.last_in(&self.offset_key(segment), &self.offset_key(offset))?;
        Ok(found.and_then(|(key, value)| {
            let offset = Offset(i64::from_be_bytes(*key.last_chunk()?));
            let position = u64::from_be_bytes(*value.first_chunk()?);
            Some(Floor {
                offset,
                position,
                max_before: TimestampMs(i64::MIN),
                revision: revision_of(value.get(16..)),
            })
        }))
    }

    /// The last entry of the segment before which every timestamp is below
    /// `timestamp`, in memory only.
    pub(crate) fn pending_time_floor(
        &self,
        segment: Offset,
        timestamp: TimestampMs,
    ) -> Option<Floor> {
        let pending = self.pending.read();
        let start = pending.partition_point(|entry| entry.segment < segment);
        let end = pending.partition_point(|entry| entry.segment <= segment);
        let below = pending
            .range(start..end)
            .take_while(|entry| entry.max_before < timestamp)
            .last();
        below.map(Floor::from)
    }

    /// The same in the store.
    pub(crate) fn stored_time_floor(
        &self,
        kv: &dyn IndexKv,
        segment: Offset,
        timestamp: TimestampMs,
    ) -> Result<Option<Floor>, KvError> {
        if self.distrusted.load(Ordering::Acquire) {
            return Ok(None);
        }
        let Some(below) = timestamp.0.checked_sub(1) else {
            return Ok(None);
        };
        let low = self.time_key(segment, TimestampMs(i64::MIN));
        let high = self.time_key(segment, TimestampMs(below));
        Ok(kv.last_in(&low, &high)?.and_then(|(key, value)| {
            let max_before = TimestampMs(i64::from_be_bytes(*key.last_chunk()?) ^ i64::MIN);
            let (offset, rest) = value.split_first_chunk::<8>()?;
            let position = u64::from_be_bytes(*rest.first_chunk()?);
            Some(Floor {
                offset: Offset(i64::from_be_bytes(*offset)),
                position,
                max_before,
                revision: revision_of(rest.get(16..)),
            })
        }))
    }

    /// The changes that store `entries`; the caller adds the meta entry.
    pub(crate) fn put_ops(&self, entries: &[IndexEntry], ops: &mut Vec<KvOp>) {
        for entry in entries {
            let mut by_offset = Vec::with_capacity(20);
            by_offset.extend_from_slice(&entry.position.to_be_bytes());
            by_offset.extend_from_slice(&entry.append_time.0.to_be_bytes());
            if entry.revision > 0 {
                by_offset.extend_from_slice(&entry.revision.to_be_bytes());
            }
            let mut by_time = Vec::with_capacity(28);
            by_time.extend_from_slice(&entry.offset.0.to_be_bytes());
            by_time.extend_from_slice(&by_offset);
            ops.push(KvOp::Put(self.offset_key(entry.offset), by_offset.into()));
            ops.push(KvOp::Put(
                self.time_key(entry.segment, entry.max_before),
                by_time.into(),
            ));
        }
    }

    pub(crate) fn meta_op(&self, generation: u64, valid_to: Offset) -> KvOp {
        let mut value = vec![VERSION];
        value.extend_from_slice(&generation.to_be_bytes());
        value.extend_from_slice(&valid_to.0.to_be_bytes());
        KvOp::Put(self.key(META), value.into())
    }

    /// Generation and valid-to offset, if there is a meta entry of this version.
    pub(crate) fn read_meta(&self, kv: &dyn IndexKv) -> Result<Option<(u64, Offset)>, KvError> {
        Ok(kv.get(&self.key(META))?.and_then(|value| {
            let (version, rest) = value.split_first()?;
            let (generation, rest) = rest.split_first_chunk::<8>()?;
            let valid_to = Offset(i64::from_be_bytes(*rest.first_chunk()?));
            (*version == VERSION && rest.len() == 8)
                .then(|| (u64::from_be_bytes(*generation), valid_to))
        }))
    }

    /// Stores `entries`, and that they are complete up to `end` unless a hole
    /// lies below. `generation` is the log's.
    pub(crate) fn store(
        &self,
        kv: &dyn IndexKv,
        entries: &[IndexEntry],
        mut ops: Vec<KvOp>,
        generation: u64,
        end: Offset,
    ) -> Result<(), KvError> {
        self.put_ops(entries, &mut ops);
        let mut state = self.state.lock();
        let complete = state.hole_end.is_none() && end > state.valid_to;
        if complete {
            ops.push(self.meta_op(generation, end));
        }
        if !ops.is_empty() {
            kv.write(ops)?;
        }
        if complete {
            state.valid_to = end;
        }
        Ok(())
    }

    /// Removes all that the store holds of this partition.
    pub(crate) fn drop_op(&self) -> KvOp {
        KvOp::DeleteRange(self.key(0), self.key(u8::MAX))
    }

    /// Removes what the store holds of segments that lie below `start`.
    pub(crate) fn trim_ops(&self, first_segment: Offset, ops: &mut Vec<KvOp>) {
        ops.push(KvOp::DeleteRange(
            self.key(BY_OFFSET),
            self.offset_key(first_segment),
        ));
        ops.push(KvOp::DeleteRange(
            self.key(BY_TIME),
            self.time_key(first_segment, TimestampMs(i64::MIN)),
        ));
    }

    /// Puts `entries` in the place of all that the store holds of the offsets and
    /// segments `base..end`, in one write.
    pub(crate) fn replace_range(
        &self,
        kv: &dyn IndexKv,
        base: Offset,
        end: Offset,
        entries: &[IndexEntry],
    ) -> Result<(), KvError> {
        let first = TimestampMs(i64::MIN);
        let mut ops = vec![
            KvOp::DeleteRange(self.offset_key(base), self.offset_key(end)),
            KvOp::DeleteRange(self.time_key(base, first), self.time_key(end, first)),
        ];
        self.put_ops(entries, &mut ops);
        kv.write(ops)
    }

    /// The first offset whose entry is in memory only.
    pub(crate) fn first_pending(&self) -> Option<Offset> {
        self.pending.read().front().map(|entry| entry.offset)
    }

    fn key(&self, kind: u8) -> Bytes {
        let mut key = self.prefix.to_vec();
        key.push(kind);
        key.into()
    }

    fn offset_key(&self, offset: Offset) -> Bytes {
        let mut key = Vec::with_capacity(29);
        key.extend_from_slice(&self.prefix);
        key.push(BY_OFFSET);
        key.extend_from_slice(&offset.0.to_be_bytes());
        key.into()
    }

    fn time_key(&self, segment: Offset, time: TimestampMs) -> Bytes {
        let mut key = Vec::with_capacity(37);
        key.extend_from_slice(&self.prefix);
        key.push(BY_TIME);
        key.extend_from_slice(&segment.0.to_be_bytes());
        key.extend_from_slice(&(time.0 ^ i64::MIN).to_be_bytes());
        key.into()
    }
}

impl From<&IndexEntry> for Floor {
    fn from(entry: &IndexEntry) -> Self {
        Self {
            offset: entry.offset,
            position: entry.position,
            max_before: entry.max_before,
            revision: entry.revision,
        }
    }
}

/// What follows the append time of an entry.
fn revision_of(rest: Option<&[u8]>) -> u32 {
    rest.and_then(|rest| rest.first_chunk())
        .map_or(0, |bytes| u32::from_be_bytes(*bytes))
}
