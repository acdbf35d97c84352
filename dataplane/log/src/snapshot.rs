//! When and what `sessions` files are written.
//!
//! - One at every segment's base, written when the segment before it is sealed
//!   and kept as long as the segment: truncation goes back to it.
//! - One loose one inside the active segment, replaced as the log grows, so
//!   that a restart replays little: every 8 MiB of log, or eight times its own
//!   size if that is more (then it costs at most an eighth of the log's bytes).
//! - One at a clean stop.

use crate::{
    active::ActiveSegment,
    config::SNAPSHOT_BYTES,
    names,
    partition::PartitionLog,
    sidecar::sessions::{SegmentState, SessionsFile},
};
use std::path::PathBuf;
use talweg_types::{Offset, TimestampMs};

impl PartitionLog {
    /// The state as of the log end, for a segment that begins there.
    pub(crate) fn sessions_at_roll(&self, end: Offset, now: TimestampMs) -> SessionsFile {
        SessionsFile {
            offset: end,
            segment: SegmentState::empty(end),
            sessions: self
                .sessions
                .entries(now, self.config.producer_id_expiration_ms),
            keys: self.keys.entries(now, self.config.idempotency_window_ms),
            fence: self.fence,
        }
    }

    /// The state as of the log end, inside the active segment.
    pub(crate) fn sessions_now(&self, now: TimestampMs) -> Option<SessionsFile> {
        let active = self.active.as_ref()?;
        let segment = active.state();
        Some(SessionsFile {
            segment,
            ..self.sessions_at_roll(active.end, now)
        })
    }

    /// Whether the next ticket should carry a loose snapshot.
    pub(crate) fn snapshot_due(&self) -> bool {
        let since = self.disk.appended_bytes - self.disk.snapshot_bytes;
        since >= SNAPSHOT_BYTES.max(self.disk.snapshot_size * 8)
    }

    /// Nothing is written to the active segment any more.
    pub(crate) fn roll(&mut self, now: TimestampMs) {
        // Damaged bytes that take no offset may be all it has: the next segment would
        // be the same file.
        let written = |active: &mut ActiveSegment| active.end > active.view.base;
        let Some(active) = self.active.take_if(written) else {
            return;
        };
        let sessions = self.sessions_at_roll(active.end, now);
        self.forget_loose_snapshot(&active);
        self.closing.push_back(active.roll(sessions));
        self.disk.record_due = true;
    }

    fn forget_loose_snapshot(&mut self, active: &ActiveSegment) {
        // At the segment's end the roll writes a file of the same name.
        let loose = self
            .disk
            .loose_snapshot
            .take()
            .filter(|offset| *offset != active.end);
        self.disk
            .removals
            .extend(loose.map(|offset| self.snapshot_path(offset)));
        self.disk.snapshot_bytes = self.disk.appended_bytes;
    }

    pub(crate) fn snapshot_path(&self, offset: Offset) -> PathBuf {
        names::path(&self.shared.dir, offset, names::SESSIONS)
    }
}
