//! Putting back what a disk has lost, from another replica.
//!
//! A damaged range of a sealed segment lies below the watermark, where all replicas
//! that are in sync agree on every (epoch, offset): what is missing is read from one
//! of them, checked, and the segment is written anew around it, with the same atomic
//! replacement as in compaction. What was good stays; until then the range answers
//! "damaged" and the rest serves.
//!
//! Compaction makes copies differ. A replica that is compacted less would bring back
//! what a tombstone that is gone here has deleted: it is not asked. From one that is
//! compacted further the log is taken from its head on: there, too, a tombstone may be
//! gone that still hides something here.
//!
//! The owner hands a repair out with [`PartitionLog::repair`], another thread runs it,
//! the owner takes it back with [`PartitionLog::rewrite_done`].

mod filler;
mod replay;
mod run;

use crate::{
    active::ActiveSegment, compact::from_offset, error::ReadError, partition::PartitionLog,
    reader::LogReader, recovery::DamagedRange, rewrite::Rewrite, segment::SegmentView,
    sidecar::seal::SealedDamage,
};
use bytes::Bytes;
use std::sync::{Arc, atomic::Ordering};
use talweg_types::{LeaderEpoch, Offset, TimestampMs};

/// Whole batches from `from` on (inclusive) that another replica holds, of which at
/// least one begins below `end` (exclusive); or why not, in a few words.
pub type RepairSource<'a> = &'a mut dyn FnMut(RepairWish) -> Result<RepairPart, String>;

/// What another replica gives.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RepairPart {
    /// Back to back, as they lie in its log.
    pub batches: Bytes,
    /// It is compacted below this offset without a break; `None`: it never was.
    pub cleaned_end: Option<Offset>,
    /// Changes when it compacts: parts of one segment must be of one.
    pub revision: u64,
}

/// What a repair asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RepairWish {
    pub from: Offset,
    pub end: Offset,
    /// The other replica must have compacted at least this far. `None`: nothing was
    /// compacted here.
    pub cleaned_end: Option<Offset>,
}

/// A repair that is out. `Send`; give it back with `rewrite_done`, run or not.
pub struct Repair {
    rewrite: Rewrite,
    /// The sealed head of the log; the last one is damaged.
    head: Vec<Arc<SegmentView>>,
    segment_bytes: u32,
    index_interval_bytes: u32,
    /// No batch of the log is of a higher leader epoch.
    highest_epoch: LeaderEpoch,
    now: TimestampMs,
}

/// What a repair did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RepairReport {
    /// The damaged segment, by its first offset.
    pub segment: Offset,
    /// Segments that were written anew: more than that one where the other replica is
    /// compacted further.
    pub segments: u64,
    /// Offsets that can be read again, and bytes of their batches.
    pub restored_offsets: u64,
    pub restored_bytes: u64,
}

impl From<Repair> for Rewrite {
    fn from(repair: Repair) -> Self {
        repair.rewrite
    }
}

impl LogReader {
    /// Whether damage was met at or above the log start. Cheap; for whoever looks at
    /// many logs.
    pub fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Acquire)
    }

    /// The damaged ranges that were met, at or above the log start.
    pub fn damage(&self) -> Vec<DamagedRange> {
        let start = self.bounds().log_start;
        let mut ranges = Vec::new();
        for view in self.segments() {
            for range in &view.damage.read().ranges {
                if matters(range, start) {
                    ranges.push(DamagedRange {
                        from: range.start.max(start),
                        next_good: range.end,
                    });
                }
            }
        }
        ranges
    }

    /// Whether there still is damage, which [`Self::is_damaged`] says from then on:
    /// it may have been repaired, or left the log.
    pub fn settle_damage(&self) -> bool {
        // Cleared first: what is met from here on sets it again.
        self.damaged.store(false, Ordering::Release);
        let any = !self.damaged_segments().is_empty();
        if any {
            self.damaged.store(true, Ordering::Release);
        }
        any
    }

    /// For the repair of another replica: committed whole batches that cover the wish
    /// from its start on (inclusive), or from where this log begins; none if there is
    /// nothing, `None` if this log is not compacted as far as the wish asks. Up to
    /// `max_bytes` but at least one batch. May wait for the disk.
    pub fn read_for_repair(
        &self,
        wish: RepairWish,
        max_bytes: usize,
    ) -> Result<Option<RepairPart>, ReadError> {
        let (cleaned_end, revision) = self.cleaning();
        if wish.cleaned_end > cleaned_end {
            return Ok(None);
        }
        let first = self.first_offset();
        let from = wish.from.max(first);
        let committed = self.bounds().high_watermark;
        let batches = match from < wish.end.min(committed) {
            true => {
                let outcome = self.read_above(first, from, committed, max_bytes)?;
                from_offset(outcome, from).batches
            }
            false => Bytes::new(),
        };
        if self.cleaning() != (cleaned_end, revision) {
            // It was compacted meanwhile: which of both the batches are is not known.
            return Ok(None);
        }
        Ok(Some(RepairPart {
            batches,
            cleaned_end,
            revision,
        }))
    }

    /// How far the log is compacted from its head on without a break, `None` if it is
    /// not, and a number that changes with every round. Reads seals.
    fn cleaning(&self) -> (Option<Offset>, u64) {
        let fs = &*self.folder.fs;
        let (mut end, mut broken, mut revision) = (None, false, 0);
        for view in self.segments() {
            let cleaned = view.is_sealed().then(|| view.cleaned(fs)).flatten();
            revision += cleaned.map_or(0, |cleaned| u64::from(cleaned.revision));
            let cleaned = cleaned.filter(|cleaned| cleaned.end > view.base && !broken);
            broken |= cleaned.is_none_or(|cleaned| cleaned.end < view.end());
            end = end.max(cleaned.map(|cleaned| cleaned.end.min(view.end())));
        }
        (end, revision)
    }

    /// The furthest that any of its segments may have been compacted: a segment whose
    /// seal is lost as far as it goes, where the topic is compacted.
    fn cleaned_anywhere(&self) -> Option<Offset> {
        let fs = &*self.folder.fs;
        let compacts = self.compaction.read().is_some();
        let sealed = self.segments().into_iter().filter(|view| view.is_sealed());
        let end = |view: Arc<SegmentView>| {
            match view.read_seal(fs) {
                Some(seal) => seal.cleaned.map(|cleaned| cleaned.end),
                None => compacts.then_some(view.end()),
            }
            .filter(|end| *end > view.base)
        };
        sealed.filter_map(end).max()
    }

    /// Remembers that something of a segment cannot be believed.
    pub(crate) fn note_damage(&self, view: &SegmentView, found: &[SealedDamage]) {
        view.add_damage(found);
        if !found.is_empty() {
            self.damaged.store(true, Ordering::Release);
        }
    }

    /// The file of a segment is not there.
    pub(crate) fn note_missing(&self, view: &SegmentView) {
        let whole = SealedDamage {
            start_position: 0,
            end_position: 0,
            start: view.base,
            end: view.end(),
        };
        self.note_damage(view, &[whole]);
    }

    fn damaged_segments(&self) -> Vec<Arc<SegmentView>> {
        let start = self.bounds().log_start;
        let mut segments = self.segments();
        segments.retain(|view| {
            let damage = view.damage.read();
            damage.ranges.iter().any(|range| matters(range, start))
        });
        segments
    }
}

/// Whether damage is of anything at or above the log start. Bytes that take no offset
/// lie between good ones.
fn matters(range: &SealedDamage, log_start: Offset) -> bool {
    range.end > log_start || (range.start == range.end && range.end == log_start)
}

impl PartitionLog {
    /// The repair of a damaged segment, to be run on another thread and given back to
    /// [`Self::rewrite_done`], run or not. `None`: there is nothing to repair, or not
    /// yet: only what is sealed, flushed and committed is rewritten. Where
    /// [`LogReader::is_damaged`] still says so, a flush gets it nearer; a damaged segment
    /// that is still written to was rolled for it. Several have their turns: one that
    /// cannot be repaired does not stand before the others.
    pub fn repair(&mut self, now: TimestampMs) -> Option<Repair> {
        if self.rewrite.is_some() || self.check_alive().is_err() || !self.shared.settle_damage() {
            return None;
        }
        let damaged = self.shared.damaged_segments();
        let end = self.rewritable_end();
        let ready: Vec<_> = damaged
            .iter()
            .filter(|view| view.is_sealed() && view.end() <= end)
            .collect();
        if !ready.is_empty() {
            self.repair_turn = self.repair_turn.wrapping_add(1);
            let chosen = ready[self.repair_turn % ready.len()].base;
            let mut head = self.shared.segments();
            head.retain(|view| view.base <= chosen);
            return Some(Repair {
                head,
                segment_bytes: self.config.segment_bytes,
                index_interval_bytes: self.config.index_interval_bytes,
                highest_epoch: self.highest_epoch.max(self.shared.last_epoch()),
                now,
                rewrite: self.begin_rewrite(),
            });
        }
        let written =
            |active: &ActiveSegment| damaged.iter().any(|view| Arc::ptr_eq(view, &active.view));
        if self.active.as_ref().is_some_and(written) {
            self.roll(now);
        }
        // The next flush seals it and records that no recovery scans it again.
        self.disk.record_due = true;
        None
    }
}
