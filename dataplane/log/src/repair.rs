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

use crate::{
    active::ActiveSegment,
    compact::from_offset,
    error::ReadError,
    names,
    partition::PartitionLog,
    reader::LogReader,
    recovery::DamagedRange,
    replay::Replayed,
    rewrite::{Rewrite, RewriteError, index_interval, output::Output},
    segment::{SegmentView, Times},
    sidecar::{
        self,
        seal::{Cleaned, SealedDamage},
        sessions::SessionsFile,
    },
    walk::{DATA_CHUNK, Step, Walker},
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

    /// Producer state and the newest fence once more, from what is repaired now. Waits
    /// for the disk, as the replay at a start does.
    pub(crate) fn replay_repaired(&mut self) {
        let Some(from) = self.holes_from.filter(|_| !self.shared.settle_damage()) else {
            return;
        };
        match self.replay_from(from) {
            Ok(state) => {
                self.sessions = state.sessions;
                self.keys = state.keys;
                self.fence = state.fence;
                self.holes_from = None;
            }
            Err(error) => {
                tracing::warn!(partition = %self.tp, %error, "producer state not rebuilt after a repair; the next start does it");
            }
        }
    }

    /// As of the log end, from the newest `sessions` file at or below `hole`.
    fn replay_from(&self, hole: Offset) -> io::Result<Replayed> {
        let (fs, dir) = (&*self.folder.fs, &self.shared.dir);
        let mut files: Vec<_> = fs
            .list(dir)?
            .iter()
            .filter_map(|entry| names::parse(&entry.name, names::SESSIONS))
            .filter(|offset| *offset <= hole)
            .collect();
        files.sort_unstable();
        let mut state = Replayed::default();
        let read =
            |offset| sidecar::read::<SessionsFile>(fs, &names::path(dir, offset, names::SESSIONS));
        let saved = files
            .into_iter()
            .rev()
            .find_map(|offset| read(offset).ok()?);
        let from = saved.as_ref().map_or(Offset::ZERO, |saved| saved.offset);
        if let Some(saved) = &saved {
            state.load(saved);
        }
        let later = |view: &Arc<SegmentView>| view.end() > from;
        for view in self.shared.segments().into_iter().filter(later) {
            let times = view.times(fs)?;
            let open = view.open(&self.folder)?;
            let mut walk = Walker::new(&*open.file, 0, view.size(), view.base, DATA_CHUNK);
            while let Step::Batch(header, position) = walk.step()? {
                if header.base_offset >= from {
                    let bytes = walk.bytes(position, header.total_bytes())?;
                    state.apply(&header, bytes, times.last_append);
                }
            }
            if walk.expected != view.end() {
                return Err(io::Error::other(format!("unreadable at {}", walk.expected)));
            }
        }
        Ok(state)
    }
}

/// Why a segment was not written.
enum Stop {
    /// The other replica is compacted further: all before it is to be taken too.
    Head,
    Error(RewriteError),
}

impl From<RewriteError> for Stop {
    fn from(error: RewriteError) -> Self {
        Self::Error(error)
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
        let Some(damaged) = self.head.last().cloned() else {
            return Err(RewriteError::Cancelled);
        };
        let mut report = RepairReport {
            segment: damaged.base,
            ..RepairReport::default()
        };
        let only = self.replace(&damaged, Own::Kept, source, stop, &mut report);
        let result = match only {
            Ok(()) => Ok(report),
            Err(Stop::Error(error)) => Err(error),
            Err(Stop::Head) => self
                .replace_head(source, stop, &mut report)
                .map(|()| report),
        };
        if let Err(error) = &result {
            for view in &self.head {
                self.rewrite.clean_up(view.base, error);
            }
        }
        result
    }

    /// From the head on, so that what a record superseded is gone before the record is.
    fn replace_head(
        &mut self,
        source: RepairSource<'_>,
        stop: &dyn Fn() -> bool,
        report: &mut RepairReport,
    ) -> Result<(), RewriteError> {
        let mut revision = None;
        for view in self.head.clone() {
            let own = Own::Replaced(&mut revision);
            match self.replace(&view, own, source, stop, report) {
                Ok(()) => {}
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Head) => return Err(RewriteError::Cancelled),
            }
        }
        Ok(())
    }

    fn replace(
        &mut self,
        view: &Arc<SegmentView>,
        own: Own<'_>,
        source: RepairSource<'_>,
        stop: &dyn Fn() -> bool,
        report: &mut RepairReport,
    ) -> Result<(), Stop> {
        let shared = Arc::clone(&self.rewrite.shared);
        let (fs, dir) = (&*shared.folder.fs, &shared.dir);
        let io = |error| self.rewrite.io("repairing", view, error);
        let there = self.assess(view)?;
        let times = self.times(view);
        // Nothing says how large a file was that is not there.
        let size = view.size().max(u64::from(self.segment_bytes));
        self.rewrite.check_room(size)?;
        let interval = index_interval(self.index_interval_bytes, size);
        let mut output = Output::create(fs, dir, view.base, interval).map_err(io)?;
        output.covers(times);
        let mut filler = Filler {
            rewrite: &self.rewrite,
            view,
            source,
            output: &mut output,
            times,
            next: view.base,
            epoch: LeaderEpoch::NONE,
            highest_epoch: self.highest_epoch,
            log_start: shared.bounds().log_start,
            cleaned_end: shared.cleaned_anywhere(),
            own_cleaned: shared.cleaning().0,
            own,
            part: None,
            learned: Vec::new(),
            report: *report,
        };
        if there && filler.keeps_own() {
            let known = view.damage.read().ranges.clone();
            let mut ended = None;
            let visit = &mut |header: BatchHeader, batch: Bytes| {
                let going = || self.rewrite.check_going(stop);
                let done = filler
                    .fill(header.base_offset, &going)
                    .and_then(|()| filler.own(&header, &batch));
                Ok(done.err().map(|stop| ended = Some(stop)))
            };
            self.rewrite.batches(view, known, stop, visit)?;
            if let Some(stop) = ended {
                return Err(stop);
            }
        }
        filler.fill(view.end(), &|| self.rewrite.check_going(stop))?;
        let cleaned = filler.cleaned(&shared, self.now);
        let (done, learned) = (filler.report, filler.learned);
        let written = output.finish(fs, dir, view.end(), cleaned).map_err(io)?;
        self.rewrite.check_going(stop)?;
        let new = self
            .rewrite
            .put_in_place(std::slice::from_ref(view), &written)?;
        self.rewrite.learned(learned);
        self.rewrite.replaced(vec![Arc::clone(view)], new);
        *report = RepairReport {
            segments: done.segments + 1,
            ..done
        };
        Ok(())
    }

    /// Finds all that is damaged. False: the file is not there.
    fn assess(&self, view: &SegmentView) -> Result<bool, RewriteError> {
        let shared = &self.rewrite.shared;
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
    fn times(&self, view: &SegmentView) -> Times {
        let young = Times {
            first_append: self.now,
            last_append: self.now,
            max_timestamp: TimestampMs::NONE,
        };
        let fs = &*self.rewrite.shared.folder.fs;
        view.times(fs).unwrap_or(young)
    }
}

/// What becomes of the segment's own good batches.
enum Own<'a> {
    Kept,
    /// All comes from the other replica, as of one revision of it over all segments.
    Replaced(&'a mut Option<u64>),
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
    highest_epoch: LeaderEpoch,
    log_start: Offset,
    /// How far this log may be compacted at most, and how far it is without a break.
    cleaned_end: Option<Offset>,
    own_cleaned: Option<Offset>,
    own: Own<'a>,
    /// What the first part said of compaction.
    part: Option<(Option<Offset>, u64)>,
    learned: Vec<(LeaderEpoch, Offset)>,
    report: RepairReport,
}

type Going<'a> = &'a dyn Fn() -> Result<(), RewriteError>;

impl Filler<'_> {
    fn keeps_own(&self) -> bool {
        matches!(self.own, Own::Kept)
    }

    /// A batch of the old file.
    fn own(&mut self, header: &BatchHeader, batch: &Bytes) -> Result<(), Stop> {
        if header.leader_epoch < self.epoch {
            let reason = format!(
                "its epoch {} is above {} of what follows here",
                self.epoch, header.leader_epoch
            );
            return Err(self.refuse(reason).into());
        }
        Ok(self.put(header, batch)?)
    }

    /// Everything from `next` up to `end` from the other replica.
    fn fill(&mut self, end: Offset, going: Going<'_>) -> Result<(), Stop> {
        if self.keeps_own() && self.next < end && end <= self.log_start {
            // Deleted for readers: only its place is kept.
            let known = self.rewrite.shared.epoch_at(self.next);
            let epoch = self.epoch.max(known.unwrap_or(LeaderEpoch(0)));
            self.place(end, epoch)?;
        }
        while self.next < end {
            going()?;
            let wish = RepairWish {
                from: self.next,
                end,
                cleaned_end: self.cleaned_end,
            };
            let part = (self.source)(wish).map_err(|reason| self.refuse(reason))?;
            self.check_cleaning(&part)?;
            let (mut rest, before) = (part.batches, self.next);
            while self.next < end && !rest.is_empty() {
                let header = BatchHeader::parse(&rest).map_err(|error| self.refuse(error))?;
                if header.total_bytes() > rest.len() {
                    return Err(self.refuse("a batch was cut short").into());
                }
                let batch = rest.split_to(header.total_bytes());
                self.take(&header, &batch, end)?;
            }
            if self.next == before {
                return Err(self.refuse("nothing came").into());
            }
        }
        Ok(())
    }

    /// All parts are of one revision; and where the other replica has compacted what
    /// this one has not, the whole head is.
    fn check_cleaning(&mut self, part: &RepairPart) -> Result<(), Stop> {
        let told = (part.cleaned_end, part.revision);
        let same = match &mut self.own {
            Own::Kept => *self.part.get_or_insert(told) == told,
            Own::Replaced(revision) => {
                *revision.get_or_insert(part.revision) == part.revision
                    && *self.part.get_or_insert(told) == told
            }
        };
        if !same {
            return Err(self.refuse("it was compacted meanwhile").into());
        }
        let further = part.cleaned_end > self.own_cleaned
            && part.cleaned_end.is_some_and(|end| self.next < end);
        match self.keeps_own() && further {
            true => Err(Stop::Head),
            false => Ok(()),
        }
    }

    /// A batch of the other replica, for offsets below `end`.
    fn take(
        &mut self,
        header: &BatchHeader,
        batch: &Bytes,
        end: Offset,
    ) -> Result<(), RewriteError> {
        verify_crc(batch).map_err(|error| self.refuse(error))?;
        let first = header.base_offset;
        self.check_epoch(header)?;
        if self.next < first && first <= self.log_start.min(end) {
            // Deleted for readers here, and no longer there.
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

    /// Epochs do not fall along a log, and none that this one has not seen is in it: a
    /// replica that was elected beyond it has another history.
    fn check_epoch(&self, header: &BatchHeader) -> Result<(), RewriteError> {
        let (epoch, first) = (header.leader_epoch, header.base_offset);
        let fits = self
            .rewrite
            .shared
            .epochs
            .read()
            .fits(epoch, first.max(self.next));
        if fits
            && epoch >= self.epoch
            && epoch <= self.highest_epoch
            && header.next_offset() > first
        {
            return Ok(());
        }
        let reason = format!("a batch of epoch {epoch} at {first} after {}", self.epoch);
        Err(self.refuse(reason))
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

    /// What compaction has made of what was written.
    fn cleaned(&self, shared: &LogReader, now: TimestampMs) -> Cleaned {
        let revision = shared.revision_of(self.view).saturating_add(1);
        let before = self.view.cleaned(&*shared.folder.fs);
        match (&self.own, self.part, before) {
            // As far as the other replica; which tombstones may go a round finds out.
            (Own::Replaced(_), Some((Some(end), _)), _) => Cleaned {
                revision,
                end: end.min(self.view.end()).max(self.view.base),
                next_horizon: now,
            },
            (Own::Kept, _, Some(before)) => Cleaned { revision, ..before },
            _ => Cleaned {
                revision,
                end: self.view.base,
                next_horizon: Cleaned::NO_TOMBSTONE,
            },
        }
    }

    fn refuse(&self, reason: impl ToString) -> RewriteError {
        RewriteError::Source {
            offset: self.next,
            reason: reason.to_string(),
        }
    }
}
