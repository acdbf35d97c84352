//! Putting back what a disk has lost, from another replica.
//!
//! A damaged range of a sealed segment lies below the watermark, where all replicas
//! that are in sync agree on every (epoch, offset): what is missing is read from one
//! of them, checked, and the segment is written anew around it, with the same atomic
//! replacement as in compaction. What was good stays; until then the range answers
//! "damaged" and the rest serves.
//!
//! The owner hands a repair out with [`PartitionLog::repair`], another thread runs it,
//! the owner takes it back with [`PartitionLog::rewrite_done`].

use crate::{
    compact::from_offset as compact_from,
    error::ReadError,
    partition::PartitionLog,
    reader::LogReader,
    recovery::DamagedRange,
    rewrite::{Rewrite, RewriteError, index_interval, output::Output},
    segment::{SegmentView, Times},
    sidecar::seal::{Cleaned, SealedDamage},
};
use bytes::Bytes;
use std::{
    io,
    sync::{Arc, atomic::Ordering},
};
use talweg_batch::{BatchHeader, compact, verify_crc};
use talweg_types::{LeaderEpoch, Offset, TimestampMs};

/// Whole batches from `from` on (inclusive) that another replica holds, of which at
/// least one begins below `end` (exclusive); or why not, in a few words.
pub type RepairSource<'a> = &'a mut dyn FnMut(RepairWish) -> Result<Bytes, String>;

/// What a repair asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RepairWish {
    pub from: Offset,
    pub end: Offset,
    /// The other replica must have compacted at least this far: a tombstone that is
    /// gone here no longer hides what it deleted. `None`: nothing was compacted.
    pub cleaned_end: Option<Offset>,
}

/// A repair that is out. `Send`; give it back with `rewrite_done`, run or not.
pub struct Repair {
    rewrite: Rewrite,
    view: Arc<SegmentView>,
    index_interval_bytes: u32,
    now: TimestampMs,
}

/// What a repair did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RepairReport {
    /// The segment, by its first offset.
    pub segment: Offset,
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
                if range.end > start {
                    ranges.push(DamagedRange {
                        from: range.start.max(start),
                        next_good: range.end,
                    });
                }
            }
        }
        ranges
    }

    /// How far the log is compacted without a break; its first offset if it is not.
    /// Reads seals: for a thread that may wait.
    pub fn cleaned_end(&self) -> Offset {
        let fs = &*self.folder.fs;
        let mut end = self.first_offset();
        for view in self.segments() {
            let cleaned = view.is_sealed().then(|| view.cleaned(fs)).flatten();
            let Some(cleaned) = cleaned.filter(|cleaned| cleaned.end > view.base) else {
                break;
            };
            end = cleaned.end.min(view.end());
            if end < view.end() {
                break;
            }
        }
        end
    }

    /// For the repair of another replica: committed whole batches that cover the wish
    /// from its start on (inclusive), or from where this log begins; empty if there is
    /// nothing, `None` if this log is not compacted as far as the wish asks. Up to
    /// `max_bytes` but at least one batch. May wait for the disk.
    pub fn read_for_repair(
        &self,
        wish: RepairWish,
        max_bytes: usize,
    ) -> Result<Option<Bytes>, ReadError> {
        let first = self.first_offset();
        if wish.cleaned_end.is_some_and(|end| self.cleaned_end() < end) {
            return Ok(None);
        }
        let from = wish.from.max(first);
        let committed = self.bounds().high_watermark;
        if from >= wish.end.min(committed) {
            return Ok(Some(Bytes::new()));
        }
        let outcome = self.read_above(first, from, committed, max_bytes)?;
        Ok(Some(compact_from(outcome, from).batches))
    }

    /// The furthest that any of its segments was compacted.
    fn cleaned_anywhere(&self) -> Option<Offset> {
        let fs = &*self.folder.fs;
        let sealed = self.segments().into_iter().filter(|view| view.is_sealed());
        sealed
            .filter_map(|view| Some((view.cleaned(fs)?.end, view.base)))
            .filter_map(|(end, base)| (end > base).then_some(end))
            .max()
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
            damage.ranges.iter().any(|range| range.end >= start)
        });
        segments
    }
}

impl PartitionLog {
    /// The repair of a damaged segment, to be run on another thread and given back to
    /// [`Self::rewrite_done`], run or not. `None`: there is nothing to repair, or not
    /// yet: only what is sealed, flushed and committed is rewritten. Where
    /// [`LogReader::is_damaged`] still says so, a flush gets it nearer; a damaged segment
    /// that is still written to was rolled for it.
    pub fn repair(&mut self, now: TimestampMs) -> Option<Repair> {
        if self.rewrite.is_some() || self.check_alive().is_err() {
            return None;
        }
        // Cleared first: what is met from here on sets it again.
        self.shared.damaged.store(false, Ordering::Release);
        let damaged = self.shared.damaged_segments();
        if damaged.is_empty() {
            return None;
        }
        self.shared.damaged.store(true, Ordering::Release);
        let end = self.rewritable_end();
        let ready = |view: &&Arc<SegmentView>| view.is_sealed() && view.end() <= end;
        if let Some(view) = damaged.iter().find(ready) {
            return Some(Repair {
                view: Arc::clone(view),
                index_interval_bytes: self.config.index_interval_bytes,
                now,
                rewrite: self.begin_rewrite(),
            });
        }
        let written = |active: &crate::active::ActiveSegment| {
            damaged.iter().any(|view| Arc::ptr_eq(view, &active.view))
        };
        if self.active.as_ref().is_some_and(written) {
            self.roll(now);
        }
        // The next flush seals it and records that no recovery scans it again.
        self.disk.record_due = true;
        None
    }
}

impl Repair {
    /// Does the work; waits for the disk and for `source`. Once. Ends early when
    /// `stop` says so.
    pub fn run(
        &mut self,
        source: RepairSource<'_>,
        stop: &dyn Fn() -> bool,
    ) -> Result<RepairReport, RewriteError> {
        self.rewrite.check_room(self.view.size())?;
        match self.replace(source, stop) {
            Ok(report) => Ok(report),
            Err(error) => {
                self.rewrite.clean_up(self.view.base, &error);
                Err(error)
            }
        }
    }

    fn replace(
        &mut self,
        source: RepairSource<'_>,
        stop: &dyn Fn() -> bool,
    ) -> Result<RepairReport, RewriteError> {
        let shared = Arc::clone(&self.rewrite.shared);
        let view = Arc::clone(&self.view);
        let (fs, dir) = (&*shared.folder.fs, &shared.dir);
        let io = |error| self.rewrite.io("repairing", &view, error);
        let there = self.assess()?;
        let times = self.times();
        let interval = index_interval(self.index_interval_bytes, view.size());
        let mut output = Output::create(fs, dir, view.base, interval).map_err(io)?;
        output.covers(times);
        let mut filler = Filler {
            rewrite: &self.rewrite,
            view: &view,
            source,
            output: &mut output,
            times,
            next: view.base,
            epoch: LeaderEpoch::NONE,
            log_start: shared.bounds().log_start,
            cleaned_end: shared.cleaned_anywhere(),
            learned: Vec::new(),
            report: RepairReport {
                segment: view.base,
                ..RepairReport::default()
            },
        };
        if there {
            let known = view.damage.read().ranges.clone();
            let visit = &mut |header: BatchHeader, batch: Bytes| {
                filler.fill(header.base_offset, &|| self.rewrite.check_going(stop))?;
                filler.own(&header, &batch).map(|()| None::<()>)
            };
            self.rewrite.batches(&view, known, stop, visit)?;
        }
        filler.fill(view.end(), &|| self.rewrite.check_going(stop))?;
        let (report, learned) = (filler.report, filler.learned);
        let revision = shared.revision_of(&view).saturating_add(1);
        let before = view.cleaned(fs);
        let cleaned = Cleaned {
            revision,
            end: before.map_or(view.base, |cleaned| cleaned.end),
            next_horizon: before.map_or(Cleaned::NO_TOMBSTONE, |cleaned| cleaned.next_horizon),
        };
        let written = output.finish(fs, dir, view.end(), cleaned).map_err(io)?;
        let new = self
            .rewrite
            .put_in_place(std::slice::from_ref(&view), &written)?;
        self.rewrite.learned(learned);
        self.rewrite.replaced(vec![view], new);
        Ok(report)
    }

    /// Finds all that is damaged. False: the file is not there.
    fn assess(&self) -> Result<bool, RewriteError> {
        let (shared, view) = (&self.rewrite.shared, &*self.view);
        let io = |error| self.rewrite.io("reading", view, error);
        match view.open(&shared.folder) {
            Ok(open) => {
                shared.assess(view, &open).map_err(io)?;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io(error)),
        }
    }

    /// As the seal has them; young where nothing says so, for nothing is deleted early.
    fn times(&self) -> Times {
        let young = Times {
            first_append: self.now,
            last_append: self.now,
            max_timestamp: TimestampMs::NONE,
        };
        let fs = &*self.rewrite.shared.folder.fs;
        self.view.times(fs).unwrap_or(young)
    }
}

/// The segment as it is written anew.
struct Filler<'a> {
    rewrite: &'a Rewrite,
    view: &'a SegmentView,
    source: RepairSource<'a>,
    output: &'a mut Output,
    times: Times,
    /// What comes next into the output.
    next: Offset,
    epoch: LeaderEpoch,
    log_start: Offset,
    cleaned_end: Option<Offset>,
    learned: Vec<(LeaderEpoch, Offset)>,
    report: RepairReport,
}

impl Filler<'_> {
    /// A batch of the old file.
    fn own(&mut self, header: &BatchHeader, batch: &Bytes) -> Result<(), RewriteError> {
        if header.leader_epoch < self.epoch {
            let reason = format!(
                "its epoch {} is above {} of what follows here",
                self.epoch, header.leader_epoch
            );
            return Err(self.refuse(reason));
        }
        self.put(header, batch)
    }

    /// Everything from `next` up to `end` from the other replica.
    fn fill(
        &mut self,
        end: Offset,
        going: &dyn Fn() -> Result<(), RewriteError>,
    ) -> Result<(), RewriteError> {
        while self.next < end {
            going()?;
            let wish = RepairWish {
                from: self.next,
                end,
                cleaned_end: self.cleaned_end,
            };
            let mut rest = (self.source)(wish).map_err(|reason| self.refuse(reason))?;
            let before = self.next;
            while self.next < end && !rest.is_empty() {
                let header = BatchHeader::parse(&rest).map_err(|error| self.refuse(error))?;
                if header.total_bytes() > rest.len() {
                    return Err(self.refuse("a batch was cut short"));
                }
                let batch = rest.split_to(header.total_bytes());
                self.take(&header, &batch, end)?;
            }
            if self.next == before {
                return Err(self.refuse("nothing came"));
            }
        }
        Ok(())
    }

    /// A batch of the other replica, for offsets below `end`.
    fn take(
        &mut self,
        header: &BatchHeader,
        batch: &Bytes,
        end: Offset,
    ) -> Result<(), RewriteError> {
        verify_crc(batch).map_err(|error| self.refuse(error))?;
        if header.leader_epoch < self.epoch || header.next_offset() <= header.base_offset {
            let reason = format!(
                "a batch of epoch {} after {}",
                header.leader_epoch, self.epoch
            );
            return Err(self.refuse(reason));
        }
        let first = header.base_offset;
        if self.next < first && first <= self.log_start.min(end) {
            // Deleted for readers here, and no longer there: only its place is kept.
            let epoch = self.epoch.max(LeaderEpoch(0)).min(header.leader_epoch);
            self.place(first, epoch)?;
        }
        if self.next == end {
            return Ok(());
        }
        if header.is_placeholder() && first <= self.next && header.next_offset() > self.next {
            // Compaction may have joined several, beyond what is missing here.
            self.learn(header.leader_epoch);
            return self.place(end.min(header.next_offset()), header.leader_epoch);
        }
        if first != self.next || header.next_offset() > end {
            let reason = format!(
                "a batch of offsets {first}..{} where {}..{end} is missing",
                header.next_offset(),
                self.next
            );
            return Err(self.refuse(reason));
        }
        self.learn(header.leader_epoch);
        let offsets = header.next_offset().0 - first.0;
        self.report.restored_offsets += u64::try_from(offsets).unwrap_or(0);
        self.report.restored_bytes += batch.len() as u64;
        self.put(header, batch)
    }

    fn learn(&mut self, epoch: LeaderEpoch) {
        if epoch != self.epoch {
            self.learned.push((epoch, self.next));
        }
    }

    /// Offsets up to `end` that hold no record.
    fn place(&mut self, end: Offset, epoch: LeaderEpoch) -> Result<(), RewriteError> {
        let place = compact::placeholder(self.next, end, epoch);
        let place = place.map_err(|error| self.refuse(error))?;
        let header = BatchHeader::parse(&place).map_err(|error| self.refuse(error))?;
        self.put(&header, &place)
    }

    fn put(&mut self, header: &BatchHeader, batch: &Bytes) -> Result<(), RewriteError> {
        self.output
            .batch(batch, self.times)
            .map_err(|error| self.rewrite.io("repairing", self.view, error))?;
        self.next = header.next_offset();
        self.epoch = header.leader_epoch;
        Ok(())
    }

    fn refuse(&self, reason: impl ToString) -> RewriteError {
        RewriteError::Source {
            offset: self.next,
            reason: reason.to_string(),
        }
    }
}
