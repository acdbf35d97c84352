//! Time passing: rolling by age, retention by age and size, removal of files,
//! expiry of sessions and keys, refresh of `partition`.
//!
//! Retention reads the leader's append times only; what clients write into
//! their records does not steer it. Whole sealed segments go, from the head,
//! never above the high watermark. The log start moves first, is made durable,
//! and the files go a while later, so that readers that are in them come out.

use crate::{
    config::RECORD_LAG,
    names,
    partition::{Condemned, PartitionLog},
    segment::{SegmentView, Times},
    sessions::is_older,
};
use std::sync::Arc;
use talweg_types::{Offset, TimestampMs};

/// What a tick did, and what the driver should do about it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TickReport {
    /// The active segment was rolled.
    pub rolled: bool,
    /// The new log start, if retention moved it.
    pub log_start_moved: Option<Offset>,
    /// `flush_ticket` has work.
    pub wants_flush: bool,
    /// `LogReader::rebuild_index` has work, for a worker.
    pub wants_index_rebuild: bool,
    /// Something is old enough to go, and stays because the clock is not trusted.
    pub held_for_clock: bool,
}

/// Without anything to wait for, look again after this long.
const IDLE_MS: i64 = 60 * 60 * 1000;

impl PartitionLog {
    /// Does what is due at `now`. With an untrusted clock (it has jumped, or is
    /// off the controller's) nothing is deleted by age.
    pub fn tick(&mut self, now: TimestampMs, clock_trusted: bool) -> TickReport {
        let mut report = TickReport::default();
        if self.check_alive().is_err() {
            return report;
        }
        report.rolled = self.roll_if_old(now, clock_trusted);
        let before = self.bounds().log_start;
        report.held_for_clock = self.retain_by_age(now, clock_trusted);
        self.retain_by_size();
        let start = self.bounds().log_start;
        report.log_start_moved = (start > before).then_some(start);
        self.remove_condemned(now);
        self.sessions
            .expire(now, self.config.producer_id_expiration_ms);
        self.keys.expire(now, self.config.idempotency_window_ms);
        self.refresh_record(now);
        self.disk.index_due = self.has_index_backlog();
        report.wants_flush = !self.flush_in_flight && self.has_flush_work();
        report.wants_index_rebuild = self.shared.index_incomplete();
        report
    }

    /// When `tick` has something to do next, as far as is known; an append or a
    /// flush may make it earlier.
    pub fn next_tick(&self, now: TimestampMs) -> TimestampMs {
        let mut next = TimestampMs(now.0.saturating_add(IDLE_MS));
        let mut at = |time: Option<TimestampMs>| next = next.min(time.unwrap_or(next).max(now));
        let after = |time: TimestampMs, ms: u64| {
            TimestampMs(time.0.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX)))
        };
        let retention = u64::try_from(self.config.retention_ms).ok();
        if let Some(active) = self.active.as_ref().filter(|active| active.size > 0) {
            at(Some(after(
                active.times.first_append,
                self.config.segment_ms,
            )));
            at(retention.map(|ms| after(active.times.last_append, ms.saturating_add(1))));
        }
        if let Some(first) = self
            .shared
            .first_segment()
            .filter(|first| first.is_sealed())
        {
            // Unknown until a tick has looked.
            let times = first.known_times();
            at(retention.map(|ms| {
                times.map_or(now, |times| after(times.last_append, ms.saturating_add(1)))
            }));
        }
        for condemned in &self.condemned {
            at(Some(condemned.remove_at.unwrap_or(after(now, 100))));
        }
        if self.record_is_behind() || self.has_index_backlog() || !self.disk.removals.is_empty() {
            at(Some(after(
                self.disk.recorded_at,
                RECORD_LAG.as_millis() as u64,
            )));
        }
        if !self.sessions.is_empty() || !self.keys.is_empty() {
            at(Some(after(
                now,
                self.config
                    .idempotency_window_ms
                    .min(self.config.producer_id_expiration_ms),
            )));
        }
        if self.shared.index_incomplete() {
            at(Some(after(now, 1000)));
        }
        next
    }

    /// Whether the active segment's first batch is as old as `segment.ms`.
    pub(crate) fn is_old(&self, now: TimestampMs) -> bool {
        let active = self.active.as_ref().filter(|active| active.size > 0);
        active.is_some_and(|active| {
            now.0.saturating_sub(active.times.first_append.0)
                >= i64::try_from(self.config.segment_ms).unwrap_or(i64::MAX)
        })
    }

    /// By `segment.ms`; and when all of an idle segment is past retention, so
    /// that it can go.
    fn roll_if_old(&mut self, now: TimestampMs, clock_trusted: bool) -> bool {
        let active = self.active.as_ref().filter(|active| active.size > 0);
        let Some((times, end)) = active.map(|active| (active.times, active.end)) else {
            return false;
        };
        let expired =
            clock_trusted && self.is_expired(times, now) && end <= self.bounds().high_watermark;
        if !expired && !self.is_old(now) {
            return false;
        }
        self.roll(now);
        true
    }

    fn is_expired(&self, times: Times, now: TimestampMs) -> bool {
        u64::try_from(self.config.retention_ms).is_ok_and(|ms| is_older(times.last_append, now, ms))
    }

    /// True when something was old enough and the clock is not trusted.
    fn retain_by_age(&mut self, now: TimestampMs, clock_trusted: bool) -> bool {
        if self.config.retention_ms < 0 {
            return false;
        }
        while let Some(first) = self.deletable_head() {
            let times = match first.times(&*self.folder.fs) {
                Ok(times) => times,
                Err(error) => {
                    tracing::warn!(partition = %self.tp, segment = %first.base, %error, "age of segment unknown; kept");
                    return false;
                }
            };
            if !self.is_expired(times, now) {
                return false;
            }
            if !clock_trusted {
                return true;
            }
            self.move_log_start(first.end());
        }
        false
    }

    fn retain_by_size(&mut self) {
        let Ok(limit) = u64::try_from(self.config.retention_bytes) else {
            return;
        };
        let size_of = |view: &Arc<SegmentView>| view.size_or_ask(&*self.folder.fs).unwrap_or(0);
        let mut total: u64 = self.shared.segments().iter().map(size_of).sum();
        // Only whole segments go, and only while what stays is enough.
        while let Some(first) = self.deletable_head() {
            let size = first.size();
            if total.saturating_sub(size) < limit {
                return;
            }
            total -= size;
            self.move_log_start(first.end());
        }
    }

    /// The first segment, if it may go as far as durability and the watermark go.
    fn deletable_head(&self) -> Option<Arc<SegmentView>> {
        let first = self.shared.first_segment()?;
        (first.is_sealed() && first.end() <= self.bounds().high_watermark).then_some(first)
    }

    /// Moves the log start and takes the segments below it off the log.
    pub(crate) fn move_log_start(&mut self, offset: Offset) {
        self.shared.set_log_start(offset);
        self.disk.record_due = true;
        let unsealed = self.closing.len() + usize::from(self.active.is_some());
        for view in self.shared.take_segments_below(offset, unsealed) {
            self.condemned.push(Condemned {
                view,
                remove_at: None,
            });
        }
        self.shared.epochs.write().trim(offset);
    }

    fn remove_condemned(&mut self, now: TimestampMs) {
        if self.condemned.is_empty() {
            return;
        }
        let durable_start = self
            .disk
            .recorded
            .lock()
            .as_ref()
            .map(|record| record.log_start);
        let delay = i64::try_from(self.config.file_delete_delay_ms).unwrap_or(i64::MAX);
        for condemned in &mut self.condemned {
            let passed = durable_start.is_some_and(|start| start >= condemned.view.end());
            if condemned.remove_at.is_none() && passed {
                condemned.remove_at = Some(TimestampMs(now.0.saturating_add(delay)));
            }
        }
        let due = |condemned: &Condemned| condemned.remove_at.is_some_and(|at| at <= now);
        let (gone, kept): (Vec<_>, Vec<_>) = self.condemned.drain(..).partition(due);
        self.condemned = kept;
        for condemned in gone {
            let path = &condemned.view.path;
            condemned.view.release(&self.folder);
            // `sessions` at its base goes with it; the one at its end is the next segment's.
            for kind in [names::SEAL, names::SESSIONS, names::SEGMENT] {
                self.disk.removals.push(path.with_extension(kind));
            }
        }
    }

    /// The `partition` file says less than is true.
    fn record_is_behind(&self) -> bool {
        if !self.disk.folder_exists {
            return false;
        }
        let bounds = self.bounds();
        match &*self.disk.recorded.lock() {
            None => true,
            Some(record) => {
                record.flushed_end < bounds.flushed_end
                    || record.log_start < bounds.log_start
                    || record.high_watermark < bounds.high_watermark
                    || record.highest_epoch < self.highest_epoch
            }
        }
    }

    fn refresh_record(&mut self, now: TimestampMs) {
        if !self.record_is_behind() {
            return;
        }
        let age = now.0.saturating_sub(self.disk.recorded_at.0);
        // A clock that went back must not hold it up for ever.
        if age >= RECORD_LAG.as_millis() as i64 || age < 0 {
            self.disk.record_due = true;
            self.disk.recorded_at = now;
        }
    }

    /// Entries of flushed records are in memory only: found by recovery, or the
    /// store failed.
    fn has_index_backlog(&self) -> bool {
        self.shared
            .index
            .has_pending_below(self.bounds().flushed_end)
    }

    pub(crate) fn has_flush_work(&self) -> bool {
        let dirty = self
            .active
            .as_ref()
            .is_some_and(|active| active.dirty().is_some());
        self.disk.folder_exists
            && (dirty
                || !self.closing.is_empty()
                || !self.disk.removals.is_empty()
                || self.disk.index_due
                || (self.disk.record_due && self.record_is_behind()))
    }
}
