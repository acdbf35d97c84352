//! How a loop answers a produce stream: a queue per stream and one wake-up per
//! round, instead of a channel per batch.
//!
//! Invariant: whoever makes the queue non-empty wakes the stream, at the end of
//! its round. The queue is bounded by the stream's own credit.

use parking_lot::Mutex;
use std::sync::Arc;
use talweg_log::AppendError;
use talweg_replication::Reached;
use talweg_types::{LeaderEpoch, Offset, TimestampMs};
use tokio::sync::Notify;

/// What became of one batch.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// Done as far as its acks ask.
    Done {
        base_offset: Offset,
        append_time: TimestampMs,
        duplicate: bool,
        reached: Reached,
    },
    /// Not done, or unknown.
    Refused(AppendRefusal),
}

/// Why a batch was not appended, or is not known to be committed.
#[derive(Clone, PartialEq, Debug)]
pub enum AppendRefusal {
    /// Not done.
    NotLeader,
    /// Not done: the producer named another epoch than the leader's.
    OtherEpoch {
        asked: LeaderEpoch,
        current: LeaderEpoch,
    },
    /// Not done.
    NotEnoughReplicas { in_sync: u32, needed: u32 },
    /// For a session time-out neither a controller nor enough members were heard.
    NoQuorumContact { heard: u32, needed: u32 },
    /// Unknown.
    LeadershipLost,
    /// Unknown.
    NotEnoughReplicasAfterAppend,
    /// Not done: the process stops.
    Stopping,
    /// Not done.
    Log(AppendError),
}

/// An answer for one batch of one stream.
#[derive(Debug)]
pub struct Completion {
    /// The stream's own number for the partition.
    pub slot: u32,
    /// The stream sequence of the batch.
    pub sequence: u64,
    pub outcome: Outcome,
}

/// A stream's queue of answers.
#[derive(Default)]
pub struct Completions {
    queue: Mutex<Vec<Completion>>,
    notify: Notify,
}

impl Completions {
    /// True if the queue was empty: the caller wakes the stream when its round ends.
    #[must_use]
    pub fn push(&self, completion: Completion) -> bool {
        let mut queue = self.queue.lock();
        queue.push(completion);
        queue.len() == 1
    }

    /// Takes everything; `into` must be empty, its room is used for what comes next.
    pub fn take(&self, into: &mut Vec<Completion>) {
        std::mem::swap(&mut *self.queue.lock(), into);
    }

    /// Resolves when there is something to take. Dropping the future loses nothing.
    pub async fn ready(&self) {
        loop {
            let notified = self.notify.notified();
            if !self.queue.lock().is_empty() {
                return;
            }
            notified.await;
        }
    }
}

/// Answers of one round, and whom to wake when it ends.
#[derive(Default)]
pub struct Deliveries {
    touched: Vec<Arc<Completions>>,
}

impl Deliveries {
    pub fn push(&mut self, stream: Arc<Completions>, completion: Completion) {
        if stream.push(completion) {
            self.touched.push(stream);
        }
    }

    /// One wake-up per stream.
    pub fn wake(&mut self) {
        for stream in self.touched.drain(..) {
            stream.notify.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(sequence: u64) -> Completion {
        Completion {
            slot: 0,
            sequence,
            outcome: Outcome::Refused(AppendRefusal::NotLeader),
        }
    }

    /// Story: many answers of a round wake their stream once, and none is lost
    /// when the stream takes in between.
    #[tokio::test]
    async fn one_wake_up_a_round_and_no_answer_lost() {
        let stream = Arc::new(Completions::default());
        let mut round = Deliveries::default();
        (0..3).for_each(|n| round.push(Arc::clone(&stream), completion(n)));
        assert_eq!(round.touched.len(), 1);
        let mut taken = Vec::new();
        stream.take(&mut taken);
        assert_eq!(taken.len(), 3);
        round.push(Arc::clone(&stream), completion(3));
        assert_eq!(
            round.touched.len(),
            2,
            "emptied in between: must be woken again"
        );
        let waiting = tokio::spawn({
            let stream = Arc::clone(&stream);
            async move { stream.ready().await }
        });
        round.wake();
        waiting.await.expect("woken");
        taken.clear();
        stream.take(&mut taken);
        assert_eq!(taken.iter().map(|c| c.sequence).collect::<Vec<_>>(), [3]);
    }
}
