//! Log compaction: of a log's sealed head only the newest record of each key
//! stays. Offsets do not change.
//!
//! ```text
//! log start        first dirty      mapped end     sealed, flushed, committed        log end
//!     | compacted before | keys go into the map | left to the next round | not touched |
//!     | rewritten, segment by segment ----------|
//! ```
//! - The map holds the newest offset of each key in `first dirty .. mapped end`,
//!   and is bounded: when it is full the mapped end is where it filled up.
//! - All segments below the mapped end are rewritten from the head on, small
//!   neighbours into one, and each is replaced before the next is begun: what a
//!   record superseded is gone before the record itself can go.
//! - First dirty is told by the seals of compacted segments; nothing else is kept.
//!
//! The owner hands a round out with [`PartitionLog::compaction`], another thread
//! runs it, the owner takes it back. Readers of a replaced segment keep its file.

mod filter;
mod keys;
mod round;
mod survey;

pub use round::{Compaction, CompactionReport};
pub use survey::CompactionNeed;

use crate::{partition::PartitionLog, reader::ReadOutcome};
use bytes::{Bytes, BytesMut};
use round::Plan;
use survey::Survey;
use talweg_batch::{BatchHeader, compact};
use talweg_types::{Offset, TimestampMs};

impl PartitionLog {
    /// A round that is due, to be run on another thread and given back to
    /// [`Self::rewrite_done`], run or not. While it is out no segment leaves the
    /// log, and cutting or deleting the log is refused; one at a time. With an
    /// untrusted clock no tombstone goes.
    pub fn compaction(&mut self, now: TimestampMs, clock_trusted: bool) -> Option<Compaction> {
        let config = self.config.compaction?;
        if self.rewrite.is_some() || self.check_alive().is_err() {
            return None;
        }
        let trusted = clock_trusted.then_some(now);
        let survey = Survey::of(&self.shared, &config, self.compactable_end(), trusted)?;
        if !survey.is_due(&config) {
            return None;
        }
        Some(Compaction::new(
            self.begin_rewrite(),
            Plan {
                views: survey.views,
                first_dirty: survey.first_dirty,
                config,
                segment_bytes: u64::from(self.config.segment_bytes),
                index_interval_bytes: self.config.index_interval_bytes,
                now: trusted,
            },
        ))
    }

    /// Below this offset the log may be compacted: what may be rewritten at all, up to
    /// the first record with an idempotency key in its window, of which a copy of the
    /// log must learn the key.
    fn compactable_end(&self) -> Offset {
        let keys = self.keys.oldest().unwrap_or(Offset::MAX);
        self.rewritable_end().min(keys)
    }
}

/// A copy ends between the batches of the log as it was written, maybe inside
/// a placeholder that has joined several: it gets the rest of it.
pub(crate) fn from_offset(outcome: ReadOutcome, from: Offset) -> ReadOutcome {
    let Ok(header) = BatchHeader::parse(&outcome.batches) else {
        return outcome;
    };
    if header.base_offset >= from || !header.is_placeholder() {
        return outcome;
    }
    let Ok(rest) = compact::placeholder(from, header.next_offset(), header.leader_epoch) else {
        return outcome;
    };
    ReadOutcome {
        batches: join(&rest, &outcome.batches.slice(header.total_bytes()..)),
        ..outcome
    }
}

fn join(first: &Bytes, rest: &Bytes) -> Bytes {
    let mut joined = BytesMut::with_capacity(first.len() + rest.len());
    joined.extend_from_slice(first);
    joined.extend_from_slice(rest);
    joined.freeze()
}
