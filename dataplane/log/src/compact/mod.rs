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
mod output;
mod place;
mod round;
mod survey;
pub(crate) mod swap;

pub use round::{Compaction, CompactionError, CompactionReport};
pub use survey::CompactionNeed;

use crate::{partition::PartitionLog, reader::ReadOutcome};
use bytes::{Bytes, BytesMut};
use round::Plan;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use survey::Survey;
use talweg_batch::{BatchHeader, compact};
use talweg_types::{Offset, TimestampMs};

impl PartitionLog {
    /// A round that is due, to be run on another thread and given back to
    /// [`Self::compaction_done`], run or not. While it is out no segment leaves the
    /// log, and cutting or deleting the log is refused; one at a time. With an
    /// untrusted clock no tombstone goes.
    pub fn compaction(&mut self, now: TimestampMs, clock_trusted: bool) -> Option<Compaction> {
        let config = self.config.compaction?;
        if self.compaction.is_some() || self.check_alive().is_err() {
            return None;
        }
        let trusted = clock_trusted.then_some(now);
        let survey = Survey::of(&self.shared, &config, self.compactable_end(), trusted)?;
        if !survey.is_due(&config) {
            return None;
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        self.compaction = Some(Arc::clone(&cancelled));
        Some(Compaction::new(
            Arc::clone(&self.shared),
            Plan {
                views: survey.views,
                first_dirty: survey.first_dirty,
                config,
                segment_bytes: u64::from(self.config.segment_bytes),
                index_interval_bytes: u64::from(self.config.index_interval_bytes),
                now: trusted,
            },
            cancelled,
        ))
    }

    /// Below this offset the log may be compacted: committed, flushed, and so
    /// recorded that no recovery scans what will be replaced. A record with an
    /// idempotency key in its window ends it: a copy of the log must learn the key.
    fn compactable_end(&self) -> Offset {
        let bounds = self.bounds();
        let recorded = self.disk.recorded.lock();
        let recorded = recorded
            .as_ref()
            .map_or(Offset::ZERO, |record| record.flushed_segment);
        let limits = [
            Some(bounds.last_stable),
            Some(bounds.flushed_end),
            Some(recorded),
            self.keys.oldest(),
            self.shared.index.first_pending(),
        ];
        limits.into_iter().flatten().min().unwrap_or_default()
    }

    /// The round that is out ends as soon as it can; it still has to come back.
    pub fn cancel_compaction(&self) {
        if let Some(cancelled) = &self.compaction {
            cancelled.store(true, Ordering::Release);
        }
    }

    /// Whether a round is out.
    pub fn is_compacting(&self) -> bool {
        self.compaction.is_some()
    }

    /// Takes a round back: readers see the segments that it has replaced.
    pub fn compaction_done(&mut self, round: Compaction) {
        self.compaction = None;
        for replaced in round.into_replaced() {
            if !self.shared.replace_segments(&replaced.old, &replaced.new) {
                // Nothing else takes segments off the list meanwhile.
                self.folder.fail(&format!(
                    "{}: a compacted segment has no place in the log",
                    self.tp
                ));
            }
            for view in &replaced.old {
                view.release(&self.folder);
            }
        }
        // Segments that had to wait for the round.
        self.move_log_start(self.bounds().log_start);
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
