//! One Fetch stream as the core sees it: its credit and its state.

use crate::delivery::{LinkId, Target};
use talweg_types::limits::FETCH_CREDIT_RECORDS_MAX;

/// Records are not what holds an upstream back: bytes are.
const RECORDS: i64 = FETCH_CREDIT_RECORDS_MAX as i64;

#[derive(Clone, Debug)]
pub(super) struct Source {
    pub id: LinkId,
    pub target: Target,
    pub opened: bool,
    pub draining: bool,
    /// Granted and not received.
    pub bytes: i64,
    pub records: i64,
    /// When a frame last came, and last went, monotonic milliseconds.
    pub heard_ms: u64,
    pub said_ms: u64,
}

impl Source {
    pub fn new(id: LinkId, target: Target, bytes: i64, now: u64) -> Self {
        Self {
            id,
            target,
            opened: false,
            draining: false,
            bytes,
            records: RECORDS,
            heard_ms: now,
            said_ms: now,
        }
    }

    /// What to grant so that `share` bytes are outstanding. Nothing while more
    /// than half of it and `largest` still are: a batch that does not fit what
    /// is left would wait for ever.
    pub fn top_up(&mut self, share: i64, largest: i64) -> Option<(i64, i64)> {
        let share = share.max(largest);
        let low = self.bytes < (share / 2).max(largest);
        let few = self.records < RECORDS / 2;
        if !low && !few {
            return None;
        }
        let bytes = (share - self.bytes).max(0);
        let records = if few { RECORDS - self.records } else { 0 };
        if bytes == 0 && records == 0 {
            return None;
        }
        self.bytes += bytes;
        self.records += records;
        Some((bytes, records))
    }

    pub fn on_payload(&mut self, bytes: i64, records: i64) {
        self.bytes -= bytes;
        self.records -= records;
    }
}
