//! Time passing: rolling by age, retention by age and size, removal of files,
//! expiry of sessions and keys, refresh of `partition`.
//!
//! Retention reads the leader's append times only; what clients write into
//! their records does not steer it. Whole sealed segments go, from the head,
//! never above the high watermark. The new log start is made durable first, then
//! readers see it, and the files go a while later, so that readers that are in
//! them come out.

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
    /// The new log start, if it has moved since the last tick. Retention's moves
    /// when the flush after the deciding tick has made it durable.
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
        if self
            .deletable_head()
            .is_some_and(|first| first.end() <= self.bounds().log_start)
        {
            // Kept by recovery for its sessions; they are saved by now.
            self.move_log_start(self.bounds().log_start);
        }
        report.held_for_clock = self.retain(now, clock_trusted);
        let start = self.bounds().log_start;
        report.log_start_moved = (start > self.reported_start).then_some(start);
        self.reported_start = start;
        self.remove_condemned(now);
        self.sessions
            .expire(now, self.config.producer_id_expiration_ms);
        self.keys.expire(now, self.config.idempotency_window_ms);
        self.refresh_record(now);
        self.disk.index_due = self.has_index_backlog();
        self.drop_idle_tail();
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
        // A follower's log start is its leader's to move, and an uncommitted end stays.
        let retains = !self.follows && self.bounds().high_watermark >= self.bounds().log_end;
        let retention = u64::try_from(self.config.retention_ms).ok();
        let active_retention = retention.filter(|_| retains);
        let retention = retention.filter(|_| !self.follows);
        if let Some(active) = self.active.as_ref().filter(|active| active.size > 0) {
            at(Some(after(
                active.times.first_append,
                self.config.segment_ms,
            )));
            at(active_retention.map(|ms| after(active.times.last_append, ms.saturating_add(1))));
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
        if !self.shared.tail.is_empty() {
            at(Some(after(now, 5000)));
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

    /// Decides how far the log start goes. True when something was old enough
    /// and stays because the clock is not trusted.
    fn retain(&mut self, now: TimestampMs, clock_trusted: bool) -> bool {
        if self.follows {
            return false;
        }
        let segments = self.deletable();
        let expired = self.expired_end(&segments, now);
        let held = !clock_trusted && expired.is_some();
        let aged = expired.filter(|_| clock_trusted);
        let wanted = aged.max(self.oversize_end(&segments)).unwrap_or_default();
        if wanted > self.disk.wanted_start {
            self.disk.wanted_start = wanted;
            self.disk.record_due = true;
        }
        held
    }

    /// The segments at the head that may go: sealed, and below the watermark.
    fn deletable(&self) -> Vec<Arc<SegmentView>> {
        let watermark = self.bounds().high_watermark;
        if self.config.retention_ms < 0 && self.config.retention_bytes < 0 {
            return Vec::new();
        }
        let mut segments = self.shared.segments();
        let may_go = |view: &&Arc<SegmentView>| view.is_sealed() && view.end() <= watermark;
        let count = segments.iter().take_while(may_go).count();
        segments.truncate(count);
        segments
    }

    fn deletable_head(&self) -> Option<Arc<SegmentView>> {
        let first = self.shared.first_segment()?;
        (first.is_sealed() && first.end() <= self.bounds().high_watermark).then_some(first)
    }

    /// The end of the last of the segments from the head that are too old.
    fn expired_end(&self, segments: &[Arc<SegmentView>], now: TimestampMs) -> Option<Offset> {
        if self.config.retention_ms < 0 {
            return None;
        }
        let is_expired = |view: &&Arc<SegmentView>| match view.times(&*self.folder.fs) {
            Ok(times) => self.is_expired(times, now),
            Err(error) => {
                tracing::warn!(partition = %self.tp, segment = %view.base, %error, "age of segment unknown; kept");
                false
            }
        };
        segments
            .iter()
            .take_while(is_expired)
            .last()
            .map(|view| view.end())
    }

    /// The end of the last of the segments from the head that are too much.
    /// Only whole segments go, and only while what stays is enough.
    fn oversize_end(&self, segments: &[Arc<SegmentView>]) -> Option<Offset> {
        let limit = u64::try_from(self.config.retention_bytes).ok()?;
        let size_of = |view: &Arc<SegmentView>| view.size_or_ask(&*self.folder.fs).unwrap_or(0);
        let mut total: u64 = self.shared.segments().iter().map(size_of).sum();
        let goes = |view: &&Arc<SegmentView>| {
            total = total.saturating_sub(view.size());
            total >= limit
        };
        segments
            .iter()
            .take_while(goes)
            .last()
            .map(|view| view.end())
    }

    /// A log start that is durable: readers see it, and the segments below it
    /// leave the log.
    pub(crate) fn move_log_start(&mut self, offset: Offset) {
        self.shared.set_log_start(offset);
        let mut unsealed = self.closing.len() + usize::from(self.active.is_some());
        if self.rewrite.is_some() {
            // A round works on them: they leave when it is back.
            unsealed = usize::MAX;
        }
        for view in self.shared.take_segments_below(offset, unsealed) {
            self.condemned.push(Condemned {
                view,
                remove_at: None,
            });
        }
        // Copies begin at the first segment, and compare their history from there.
        let first = self.shared.first_offset().min(offset);
        self.shared.epochs.write().trim(first);
    }

    fn remove_condemned(&mut self, now: TimestampMs) {
        if self.condemned.is_empty() {
            return;
        }
        let delay = i64::try_from(self.config.file_delete_delay_ms).unwrap_or(i64::MAX);
        for condemned in &mut self.condemned {
            condemned
                .remove_at
                .get_or_insert(TimestampMs(now.0.saturating_add(delay)));
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
        if self.has_unrecorded_epoch() {
            return true;
        }
        let bounds = self.bounds();
        let log_start = bounds.log_start.max(self.disk.wanted_start);
        match &*self.disk.recorded.lock() {
            None => true,
            Some(record) => {
                record.flushed_end < bounds.flushed_end
                    || record.log_start < log_start
                    || record.high_watermark < bounds.high_watermark
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

    /// Memory for tailing readers goes when nothing was written for a tick or two.
    fn drop_idle_tail(&mut self) {
        let written = std::mem::replace(&mut self.tail_checked, self.disk.appended_bytes);
        if written == self.disk.appended_bytes {
            self.shared.tail.clear(&self.folder);
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
