//! When batches were appended by the leader: of the newest ones to a tenth of a second,
//! of the rest as well as the index and the producers' timestamps tell.

use crate::{
    index::IndexEntry,
    kv::KvError,
    reader::{LogReader, ReadOutcome},
    segment::{SegmentView, Times},
};
use parking_lot::Mutex;
use std::{collections::VecDeque, io};
use talweg_batch::BatchHeader;
use talweg_types::{Offset, TimestampMs};

/// Times that lie closer together are one.
const GRAIN_MS: i64 = 100;
/// Entries of the index looked at for one read.
const ENTRIES_MAX: usize = 4_096;
/// Of the newest appends.
const MARKS: usize = 64;

/// From this offset on batches were appended at this time, or less than
/// [`GRAIN_MS`] later.
pub(crate) type Mark = (Offset, TimestampMs);

/// What this process has appended lately.
#[derive(Default)]
pub(crate) struct RecentAppends(Mutex<VecDeque<Mark>>);

impl RecentAppends {
    pub(crate) fn note(&self, from: Offset, time: TimestampMs) {
        let mut marks = self.0.lock();
        if marks.back().is_some_and(|mark| is_same(mark.1, time)) {
            return;
        }
        if marks.len() == MARKS {
            marks.pop_front();
        }
        marks.push_back((from, time));
    }

    /// The log was cut or began anew.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    /// Whether it is known when the record at `offset` was appended.
    pub(crate) fn covers(&self, offset: Offset) -> bool {
        let marks = self.0.lock();
        marks.front().is_some_and(|mark| mark.0 <= offset)
    }

    /// Of `from..to`; None: the first was appended too long ago.
    pub(crate) fn between(&self, from: Offset, to: Offset) -> Option<Vec<Mark>> {
        let marks = self.0.lock();
        let after = marks.partition_point(|mark| mark.0 <= from);
        let (_, first) = marks.get(after.checked_sub(1)?)?;
        let later = marks.iter().skip(after).take_while(|mark| mark.0 < to);
        let mut found = vec![(from, *first)];
        found.extend(later);
        Some(found)
    }
}

fn is_same(earlier: TimestampMs, later: TimestampMs) -> bool {
    (0..GRAIN_MS).contains(&(later.0.saturating_sub(earlier.0)))
}

impl LogReader {
    /// The outcome with the times of its batches. May wait for the disk.
    pub(crate) fn timed(&self, outcome: ReadOutcome) -> ReadOutcome {
        let Ok(first) = BatchHeader::parse(&outcome.batches) else {
            return outcome;
        };
        let recent = self.recent.between(first.base_offset, outcome.next_offset);
        let append_times = recent.unwrap_or_else(|| self.estimated(first.base_offset, &outcome));
        ReadOutcome {
            append_times,
            ..outcome
        }
    }

    /// The same without waiting; None where it would.
    pub(crate) fn try_timed(&self, outcome: ReadOutcome) -> Option<ReadOutcome> {
        let Ok(first) = BatchHeader::parse(&outcome.batches) else {
            return Some(outcome);
        };
        let append_times = self
            .recent
            .between(first.base_offset, outcome.next_offset)?;
        Some(ReadOutcome {
            append_times,
            ..outcome
        })
    }

    fn estimated(&self, first: Offset, outcome: &ReadOutcome) -> Vec<Mark> {
        let Some(view) = self.segment_of(first) else {
            return Vec::new();
        };
        let Ok(span) = self.span(&view) else {
            return Vec::new();
        };
        let known = self.known_between(&view, first, outcome.next_offset);
        let mut marks: Vec<Mark> = Vec::new();
        let mut rest = outcome.batches.clone();
        while let Ok(header) = BatchHeader::parse(&rest) {
            let after = known.partition_point(|mark| mark.0 <= header.base_offset);
            let time_at = |at: usize| known.get(at).map(|mark| mark.1);
            let around = Around {
                entry: after.checked_sub(1).and_then(time_at),
                next: time_at(after),
            };
            // Retention and producers' windows at the copy go by it: rather too young
            // than as old as a producer may say.
            let (time, _) = around.estimate(span, Some(header.max_timestamp), false);
            let time = marks.last().map_or(time, |mark| mark.1.max(time));
            if !marks.last().is_some_and(|mark| is_same(mark.1, time)) {
                marks.push((header.base_offset, time));
            }
            rest = rest.slice(header.total_bytes().min(rest.len())..);
        }
        marks
    }

    fn known_between(&self, view: &SegmentView, from: Offset, to: Offset) -> Vec<Mark> {
        let kv = &*self.folder.index;
        let known = self
            .index
            .append_times_between(kv, view.base, (from, to), ENTRIES_MAX);
        known.unwrap_or_else(|error| {
            self.warn_of_index(&error);
            Vec::new()
        })
    }

    pub(crate) fn span(&self, view: &SegmentView) -> io::Result<Span> {
        let times = view.times(&*self.folder.fs)?;
        if view.is_sealed() {
            let not_before = times.first_append;
            return Ok(Span { times, not_before });
        }
        let mut older = self.segments().into_iter().rev();
        let not_before = match older.find(|other| other.base < view.base) {
            Some(before) => before.times(&*self.folder.fs)?.last_append,
            None => TimestampMs(0),
        };
        Ok(Span { times, not_before })
    }

    pub(crate) fn warn_of_index(&self, error: &KvError) {
        tracing::warn!(partition = %self.tp, %error, "index not readable; the segment's time counts");
    }
}

/// What is known of a segment's time as a whole.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub times: Times,
    /// None of its batches was appended earlier. After a restart the first append of
    /// the segment that was open is not known, but that the one before was full.
    pub not_before: TimestampMs,
}

/// The index entries at or below a batch, and above it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Around {
    pub entry: Option<TimestampMs>,
    pub next: Option<TimestampMs>,
}

impl Around {
    /// The index knows the time to its grain only; within the grain the producer's
    /// timestamp is believed, beyond it never. Where the index was rebuilt, only if
    /// `guess`. The flag says that it was.
    pub(crate) fn estimate(
        self,
        span: Span,
        told: Option<TimestampMs>,
        guess: bool,
    ) -> (TimestampMs, bool) {
        let Span { times, not_before } = span;
        // A rebuild, and the recovery of the segment that was open, give every entry
        // the segment's last append time.
        let known = self.entry.unwrap_or(times.first_append);
        let approximate = known == times.last_append && not_before < known;
        let earliest = match approximate && guess {
            true => not_before,
            false => known,
        };
        let latest = self.next.unwrap_or(times.last_append).max(known);
        let told = told.filter(|told| (earliest..=latest).contains(told));
        (told.unwrap_or(known), approximate)
    }
}

impl From<&IndexEntry> for Mark {
    fn from(entry: &IndexEntry) -> Self {
        (entry.offset, entry.append_time)
    }
}
