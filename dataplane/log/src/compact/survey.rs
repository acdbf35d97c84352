//! How much of a log is compacted, and whether a round is due.

use crate::{
    config::CompactionConfig, reader::LogReader, segment::SegmentView, sessions::is_older,
};
use std::sync::Arc;
use talweg_types::{Offset, Ratio, TimestampMs};

/// What a look at a log has found.
pub(super) struct Survey {
    /// The sealed head that may be compacted.
    pub views: Vec<Arc<SegmentView>>,
    pub first_dirty: Offset,
    clean_bytes: u64,
    dirty_bytes: u64,
    /// Something not yet compacted is older than it may be.
    overdue: bool,
    /// A tombstone can go.
    tombstones: bool,
}

/// A log that a round of compaction would do something for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CompactionNeed {
    /// The share of its sealed bytes that was not compacted yet.
    pub dirty_ratio: Ratio,
    pub dirty_bytes: u64,
    /// A round is due by the topic's settings.
    pub is_due: bool,
}

impl LogReader {
    /// How urgently the log wants compaction; `None` where its topic has none or it
    /// is all done. Reads seals: for a thread that may wait. With an untrusted clock
    /// nothing is due by age.
    pub fn compaction_need(&self, now: TimestampMs, clock_trusted: bool) -> Option<CompactionNeed> {
        let config = (*self.compaction.read())?;
        self.check_readable().ok()?;
        let bounds = self.bounds();
        let end = bounds.last_stable.min(bounds.flushed_end);
        let survey = Survey::of(self, &config, end, clock_trusted.then_some(now))?;
        Some(CompactionNeed {
            dirty_ratio: survey.dirty_ratio(),
            dirty_bytes: survey.dirty_bytes,
            is_due: survey.is_due(&config),
        })
    }
}

impl Survey {
    /// Of the sealed segments that end at or below `end`; `now` is `None` while the
    /// clock is not trusted.
    pub(super) fn of(
        reader: &LogReader,
        config: &CompactionConfig,
        end: Offset,
        now: Option<TimestampMs>,
    ) -> Option<Self> {
        let fs = &*reader.folder.fs;
        let mut survey = Self {
            views: Vec::new(),
            first_dirty: reader.first_offset(),
            clean_bytes: 0,
            dirty_bytes: 0,
            overdue: false,
            tombstones: false,
        };
        let mut dirty = false;
        for view in reader.segments() {
            if !view.is_sealed() || view.end() > end {
                break;
            }
            // A repaired segment has a revision, and nothing of it need be compacted.
            let cleaned = view.cleaned(fs).filter(|cleaned| cleaned.end > view.base);
            let cleaned = cleaned.filter(|_| !dirty);
            let times = view.times(fs).ok()?;
            let bytes = view.size_or_ask(fs).ok()?;
            if cleaned.is_none() && is_young(times.last_append, now, config.min_lag_ms) {
                break;
            }
            let whole = cleaned.is_some_and(|cleaned| cleaned.end >= view.end());
            survey.tombstones |= cleaned
                .zip(now)
                .is_some_and(|(cleaned, now)| cleaned.next_horizon <= now);
            if whole {
                survey.clean_bytes += bytes;
                survey.first_dirty = view.end();
            } else {
                survey.first_dirty = match (dirty, cleaned) {
                    (true, _) => survey.first_dirty,
                    (false, Some(cleaned)) => cleaned.end,
                    (false, None) => view.base,
                };
                dirty = true;
                survey.dirty_bytes += bytes;
                survey.overdue |=
                    now.is_some_and(|now| is_older(times.first_append, now, config.max_lag_ms));
            }
            survey.views.push(view);
        }
        let any = survey.dirty_bytes > 0 || survey.tombstones;
        (any && !survey.views.is_empty()).then_some(survey)
    }

    fn dirty_ratio(&self) -> Ratio {
        Ratio::of(self.dirty_bytes, self.dirty_bytes + self.clean_bytes)
    }

    pub(super) fn is_due(&self, config: &CompactionConfig) -> bool {
        let dirty = self.dirty_bytes > 0 && self.dirty_ratio() >= config.min_dirty_ratio;
        dirty || self.overdue || self.tombstones
    }
}

/// Without a clock that can be believed everything is, where an age is asked for.
fn is_young(last_append: TimestampMs, now: Option<TimestampMs>, lag_ms: u64) -> bool {
    match now {
        _ if lag_ms == 0 => false,
        Some(now) => !is_older(last_append, now, lag_ms),
        None => true,
    }
}
