//! Reading the log from the saved state to its end: what is kept, what is cut,
//! what is damaged.

use super::{DamagedRange, RecoveryReport, files::Found};
use crate::{
    active::{ActiveSegment, BlockSums, ClosingSegment},
    config::LogConfig,
    fault::{Fault, planted},
    fs::LogFile,
    index::IndexBuilder,
    marker::Boot,
    names,
    reader::LogReader,
    replay::Replayed,
    segment::{SegmentView, Times},
    sidecar::{
        seal::SealedDamage,
        sessions::{SegmentState, SessionsFile},
    },
    walk::{DATA_CHUNK, Step, Walker},
};
use std::{io, sync::Arc};
use talweg_batch::BatchHeader;
use talweg_types::{Offset, TimestampMs};

/// Rewritten at a time.
const REWRITE_BYTES: u64 = 1 << 20;

pub(crate) struct Scan<'a> {
    shared: &'a LogReader,
    found: &'a Found,
    boot: Boot,
    saved: Option<&'a SessionsFile>,
    config: &'a LogConfig,
    now: TimestampMs,
}

/// The log above the sealed segments.
pub(crate) struct Scanned {
    pub closing: Vec<ClosingSegment>,
    pub active: Option<ActiveSegment>,
    pub end: Offset,
    /// Index entries from here on are in memory.
    pub indexed_from: Offset,
}

/// One segment under scan.
struct Open {
    view: SegmentView,
    times: Times,
    sums: BlockSums,
    index: IndexBuilder,
    damage: Vec<SealedDamage>,
    /// Bytes kept.
    size: u64,
    cut: bool,
    /// Records that were flushed are gone from its end; it must not grow.
    short: bool,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(
        shared: &'a LogReader,
        found: &'a Found,
        boot: Boot,
        saved: Option<&'a SessionsFile>,
        config: &'a LogConfig,
        now: TimestampMs,
    ) -> Self {
        Self {
            shared,
            found,
            boot,
            saved,
            config,
            now,
        }
    }

    pub(crate) fn run(
        &self,
        sealed: &[Arc<SegmentView>],
        state: &mut Replayed,
        report: &mut RecoveryReport,
    ) -> io::Result<Scanned> {
        self.replay_sealed(sealed, state, report)?;
        let record = &self.found.record;
        let files = self.found.open_segments();
        let mut scanned = Scanned {
            closing: Vec::new(),
            active: None,
            end: record.flushed_segment,
            indexed_from: record.flushed_segment,
        };
        if files.first() != Some(&record.flushed_segment) && record.flushed_position > 0 {
            // The segment that holds the flushed end is missing.
            report.damaged.push(DamagedRange {
                from: record.flushed_segment,
                next_good: record.flushed_end,
            });
            scanned.end = record.flushed_end;
        }
        let mut kept: Vec<(Open, SessionsFile)> = Vec::new();
        let mut gone: Vec<Offset> = Vec::new();
        for (index, base) in files.iter().enumerate() {
            let cut_before = kept.last().is_some_and(|(open, _)| open.cut);
            if cut_before || !self.follows(*base, &mut scanned, report) {
                gone.push(*base);
                continue;
            }
            let is_last = index + 1 == files.len();
            let open = self.segment(*base, is_last, state, &mut scanned, report)?;
            let end = scanned.end;
            kept.push((open, self.snapshot(state, end)));
        }
        self.remove(&gone, report)?;
        self.make_durable(&kept, !gone.is_empty())?;
        self.hold(kept, &mut scanned);
        Ok(scanned)
    }

    /// Whether a segment file goes on where the log ends.
    fn follows(&self, base: Offset, scanned: &mut Scanned, report: &mut RecoveryReport) -> bool {
        if base == scanned.end {
            return true;
        }
        if base < scanned.end || self.after_other_boot() {
            // Left over from a cut, or behind bytes that were lost.
            return false;
        }
        report.damaged.push(DamagedRange {
            from: scanned.end,
            next_good: base,
        });
        scanned.end = base;
        true
    }

    /// Whether everything above the flushed end is suspect. Without a believable
    /// `partition` file the flushed end is a guess, and nothing is cut on a guess.
    fn after_other_boot(&self) -> bool {
        !matches!(self.boot, Boot::SameBoot | Boot::Clean) && !self.found.record_lost
    }

    /// The saved state is older than the last roll: sealed segments are read for it.
    fn replay_sealed(
        &self,
        sealed: &[Arc<SegmentView>],
        state: &mut Replayed,
        report: &mut RecoveryReport,
    ) -> io::Result<()> {
        let from = self.saved.map_or(Offset::ZERO, |saved| saved.offset);
        for view in sealed.iter().filter(|view| view.end() > from) {
            let times = view.times(&*self.shared.folder.fs)?;
            let open = view.open(&self.shared.folder)?;
            self.shared.seal_of(view, &open);
            self.shared.assess(view, &open)?;
            let known = view.damage.read().ranges.clone();
            known.iter().for_each(|range| report.add(range));
            let mut walk = Walker::new(&*open.file, 0, view.size(), view.base, DATA_CHUNK)
                .stepping_over(known);
            while let Step::Batch(header, position) = walk.step()? {
                if header.base_offset >= from {
                    let bytes = walk.bytes(position, header.total_bytes())?;
                    state.apply(&header, bytes, times.last_append);
                }
            }
            report.scanned_bytes += view.size();
        }
        Ok(())
    }

    /// Where the scan of a segment begins, and what is known there.
    fn start_of(&self, base: Offset, len: u64) -> (Offset, SegmentState, BlockSums) {
        let within = |saved: &&SessionsFile| {
            saved.segment.base == base && (1..=len).contains(&saved.segment.position)
        };
        if let Some(saved) = self.saved.filter(within)
            && let Some(sums) =
                BlockSums::resume(saved.segment.position, saved.segment.blocks.clone())
        {
            return (saved.offset, saved.segment.clone(), sums);
        }
        (base, SegmentState::empty(base), BlockSums::default())
    }

    fn segment(
        &self,
        base: Offset,
        is_last: bool,
        state: &mut Replayed,
        scanned: &mut Scanned,
        report: &mut RecoveryReport,
    ) -> io::Result<Open> {
        let record = &self.found.record;
        let flushed_here = record.flushed_segment == base;
        let view = SegmentView::listed(&self.shared.dir, base, Offset::MAX);
        let file = Arc::clone(&view.open(&self.shared.folder)?.file);
        let len = file.len()?;
        let changed = TimestampMs(file.modified_ms()?);
        let (from, saved, sums) = self.start_of(base, len);
        if flushed_here {
            scanned.indexed_from = from;
        }
        let mut open = Open {
            times: Times {
                first_append: saved.first_append,
                last_append: saved.last_append,
                max_timestamp: saved.max_timestamp,
            },
            index: IndexBuilder::resume(base, saved.position, max_or_none(&saved)),
            sums,
            damage: Vec::new(),
            size: saved.position,
            cut: false,
            short: false,
            view,
        };
        open.view.set_trusted_from(saved.position);
        let flushed = if flushed_here {
            (record.flushed_end, record.flushed_position)
        } else {
            (base, 0)
        };
        let mut walk = Walker::new(&*file, saved.position, len, from, DATA_CHUNK)
            .above_epoch(state.epochs.last_below(from));
        loop {
            let (position, expected, epoch) = (walk.position, walk.expected, walk.epoch);
            let good = match walk.step()? {
                Step::End => break,
                Step::Bad(_) => None,
                Step::Batch(header, _) => {
                    let right = self.epoch_fits(&header, flushed.0, state)
                        && (walk.crc_fits(&header, position)? || planted(Fault::TailNotChecked));
                    right.then_some(header)
                }
            };
            if let Some(header) = good {
                let time = if header.next_offset() <= flushed.0 {
                    record.last_append.max(saved.last_append)
                } else {
                    changed
                };
                let time = if time == TimestampMs::NONE {
                    changed
                } else {
                    time
                };
                let bytes = walk.bytes(position, header.total_bytes())?;
                open.sums.extend(bytes);
                if self
                    .saved
                    .is_none_or(|saved| header.base_offset >= saved.offset)
                {
                    state.apply(&header, bytes, time);
                }
                open.took(&header, position, time, self.shared, self.config);
                continue;
            }
            walk.jump(position, expected);
            walk.epoch = epoch;
            match self.judge(&mut walk, flushed, is_last, len)? {
                Some((to_position, next_good)) => {
                    open.keep_damaged(&mut walk, position, to_position)?;
                    let range = SealedDamage {
                        start_position: position,
                        end_position: to_position,
                        start: expected,
                        end: next_good,
                    };
                    report.add(&range);
                    open.damage.push(range);
                    walk.jump(to_position, next_good);
                }
                None => {
                    open.cut = true;
                    report.cut_bytes += len - position;
                    break;
                }
            }
        }
        report.scanned_bytes += walk.position.min(len) - saved.position;
        self.finish(&mut open, walk.expected, flushed, report);
        scanned.end = walk.expected.max(if flushed_here {
            flushed.0
        } else {
            walk.expected
        });
        Ok(open)
    }

    /// The leader epoch lies outside the batch's checksum. Below the flushed end
    /// history knows it. Above it, after another boot, one higher than any that
    /// was recorded is not believed: the first flush of an epoch records it
    /// before anything of it is promised.
    fn epoch_fits(&self, header: &BatchHeader, flushed_end: Offset, state: &Replayed) -> bool {
        if !state.epochs.fits(header.leader_epoch, header.base_offset) {
            return false;
        }
        if header.base_offset < flushed_end {
            let known = state.epochs.at(header.base_offset);
            return self.found.record_lost
                || known.is_none_or(|epoch| epoch == header.leader_epoch);
        }
        !self.after_other_boot() || header.leader_epoch <= self.found.record.highest_epoch
    }

    /// A bad batch where `walk` stands: `None` to cut there, else where the next
    /// good one is.
    fn judge(
        &self,
        walk: &mut Walker<'_>,
        flushed: (Offset, u64),
        is_last: bool,
        len: u64,
    ) -> io::Result<Option<(u64, Offset)>> {
        let bad = walk.position;
        let below = walk.expected < flushed.0;
        if !below && self.after_other_boot() {
            return Ok(None);
        }
        let next = walk
            .resync(bad, Offset::MAX)?
            .map(|(header, position)| (position, header.base_offset));
        if below {
            // The flushed end is a good boundary whatever lies before it. Where bytes
            // were put in between, the walk may be beyond it; it never goes back.
            let bound = (flushed.1.min(len).max(bad), flushed.0);
            return Ok(Some(next.filter(|next| next.0 <= bound.0).unwrap_or(bound)));
        }
        Ok(match next {
            Some(next) => Some(next),
            // Damage up to the end of a segment that others follow.
            None if !is_last => Some((len, self.base_after(walk.expected))),
            None => None,
        })
    }

    fn base_after(&self, offset: Offset) -> Offset {
        self.found
            .segments
            .iter()
            .copied()
            .find(|base| *base > offset)
            .unwrap_or(offset)
    }

    fn finish(
        &self,
        open: &mut Open,
        expected: Offset,
        flushed: (Offset, u64),
        report: &mut RecoveryReport,
    ) {
        let mut end = expected;
        if expected < flushed.0 {
            // Bytes that were flushed are not in the file.
            let range = SealedDamage {
                start_position: open.size,
                end_position: open.size,
                start: expected,
                end: flushed.0,
            };
            report.add(&range);
            open.damage.push(range);
            open.short = true;
            end = flushed.0;
        }
        self.shared.note_damage(&open.view, &open.damage);
        open.view.publish(open.size, end, open.times);
    }

    fn snapshot(&self, state: &Replayed, end: Offset) -> SessionsFile {
        SessionsFile {
            offset: end,
            segment: SegmentState::empty(end),
            sessions: state
                .sessions
                .entries(self.now, self.config.producer_id_expiration_ms),
            keys: state
                .keys
                .entries(self.now, self.config.idempotency_window_ms),
            fence: state.fence,
        }
    }

    /// Later segments of a cut log.
    fn remove(&self, gone: &[Offset], report: &mut RecoveryReport) -> io::Result<()> {
        let fs = &*self.shared.folder.fs;
        for base in gone {
            let path = names::path(&self.shared.dir, *base, names::SEGMENT);
            report.cut_bytes += fs.open(&path, false)?.len()?;
            fs.remove_file(&path)?;
        }
        let end = self.found.record.flushed_end;
        for offset in self.found.sessions.iter().filter(|offset| **offset > end) {
            // It may tell of batches that were cut.
            fs.remove_file(&names::path(&self.shared.dir, *offset, names::SESSIONS))?;
        }
        Ok(())
    }

    /// Cuts, and flushes everything that is kept above the flushed end.
    fn make_durable(&self, kept: &[(Open, SessionsFile)], removed: bool) -> io::Result<()> {
        let record = &self.found.record;
        let folder = &self.shared.folder;
        let mut entries = removed || self.found.record_missing;
        for (open, _) in kept {
            let file = open.view.open(folder)?;
            if open.cut {
                self.cut(open, &*file.file)?;
                entries = true;
            } else if open.size == 0 && self.found.seals.contains(&open.view.base) {
                folder
                    .fs
                    .remove_file(&open.view.path.with_extension(names::SEAL))?;
                entries = true;
            }
            let flushed = if open.view.base == record.flushed_segment {
                record.flushed_position
            } else {
                0
            };
            if self.after_other_boot() && open.size > flushed {
                rewrite(&*file.file, flushed, open.size)?;
            }
            let kept = open.cut || open.size != flushed || open.view.base != record.flushed_segment;
            if kept && !planted(Fault::RecoveryDoesNotFlush) {
                file.file.flush()?;
                entries = true;
            }
        }
        if entries {
            folder.fs.flush_dir(&self.shared.dir)?;
            folder.fs.flush_dir(&folder.root)?;
        }
        Ok(())
    }

    /// Removes the torn bytes; a seal of what was cut no longer fits.
    fn cut(&self, open: &Open, file: &dyn LogFile) -> io::Result<()> {
        let fs = &*self.shared.folder.fs;
        if self.found.seals.contains(&open.view.base) {
            fs.remove_file(&open.view.path.with_extension(names::SEAL))?;
        }
        if open.size == 0 {
            return fs.remove_file(&open.view.path);
        }
        file.set_len(open.size)
    }

    /// The last segment goes on being written, unless it was sealed already or
    /// is short; those before it are sealed by the next flush.
    fn hold(&self, kept: Vec<(Open, SessionsFile)>, scanned: &mut Scanned) {
        let start = self.found.record.log_start;
        let count = kept.len();
        for (index, (open, sessions)) in kept.into_iter().enumerate() {
            let is_last = index + 1 == count;
            if is_last && (open.view.end() < start || (open.cut && open.size == 0)) {
                // Nothing of it is left, or records above it were deleted and lost.
                open.view.release(&self.shared.folder);
                continue;
            }
            let view = Arc::new(open.view);
            // An empty one as well: the next segment would be the same file.
            let was_sealed = self.found.seals.contains(&view.base) && open.size > 0;
            let stays_open = is_last && !open.short && (open.cut || !was_sealed);
            if stays_open {
                scanned.active = Some(ActiveSegment::recovered(
                    view, open.times, open.sums, open.index,
                ));
            } else {
                let sessions = Arc::new(sessions);
                scanned.closing.push(ClosingSegment {
                    view,
                    times: open.times,
                    sums: open.sums,
                    sessions,
                    dirty: None,
                });
            }
        }
    }
}

impl Open {
    fn took(
        &mut self,
        header: &BatchHeader,
        position: u64,
        time: TimestampMs,
        shared: &LogReader,
        config: &LogConfig,
    ) {
        if let Some(entry) = self.index.observe(
            header,
            position,
            time,
            u64::from(config.index_interval_bytes),
        ) {
            shared.index.push(entry);
        }
        if self.times.first_append == TimestampMs::NONE {
            self.times.first_append = time;
        }
        self.times.last_append = time;
        self.times.max_timestamp = self.times.max_timestamp.max(header.max_timestamp);
        self.size = position + header.total_bytes() as u64;
    }

    /// Damaged bytes stay where they are and count into the block sums.
    fn keep_damaged(&mut self, walk: &mut Walker<'_>, from: u64, to: u64) -> io::Result<()> {
        let mut position = from;
        while position < to {
            let want = usize::try_from(to - position)
                .unwrap_or(DATA_CHUNK)
                .min(DATA_CHUNK);
            let bytes = walk.bytes(position, want)?;
            if bytes.is_empty() {
                break;
            }
            self.sums.extend(bytes);
            position += bytes.len() as u64;
        }
        self.size = position;
        Ok(())
    }
}

/// Before the first batch nothing bounds the timestamps.
fn max_or_none(saved: &SegmentState) -> TimestampMs {
    if saved.position == 0 {
        TimestampMs(i64::MIN)
    } else {
        saved.max_timestamp
    }
}

impl RecoveryReport {
    /// Offsets that were lost, if any were.
    fn add(&mut self, range: &SealedDamage) {
        if range.start < range.end {
            self.damaged.push(DamagedRange {
                from: range.start,
                next_good: range.end,
            });
        }
    }
}

/// Writes what is there once more, so that a flush writes it. After a flush that
/// failed the page cache holds bytes that count as clean and are not on the disk.
fn rewrite(file: &dyn LogFile, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let size = usize::try_from((to - at).min(REWRITE_BYTES)).unwrap_or(0);
        let mut bytes = vec![0; size];
        file.read_at(&mut bytes, at)?;
        file.write_at(&[io::IoSlice::new(&bytes)], at)?;
        at += size as u64;
    }
    Ok(())
}
