//! Appends of coordinators to internal topics: always acks=all, in the shard epoch that
//! the coordinator holds, one batch or one fence at a time.

use super::{
    command::Reservation,
    completion::{Completion, Completions, Deliveries, Outcome},
    replica::{AppendedRound, Replica, Waiting},
};
use std::sync::Arc;
use talweg_batch::CheckedBatch;
use talweg_replication::MonotonicMs;
use talweg_types::{Acks, ShardEpoch, TopicPartition};

/// What a coordinator appends.
pub struct InternalAppend {
    pub tp: TopicPartition,
    /// The epoch in which it holds the shard.
    pub epoch: ShardEpoch,
    pub what: InternalBatch,
    /// Where the one answer goes.
    pub stream: Arc<Completions>,
    /// Given back when it is written.
    pub reservation: Reservation,
}

/// One of the two.
pub enum InternalBatch {
    Fence,
    Batch(Box<CheckedBatch>),
}

impl Replica {
    /// Appends it, or says why not.
    pub fn append_internal(
        &mut self,
        now: MonotonicMs,
        request: InternalAppend,
        out: &mut Deliveries,
    ) -> AppendedRound {
        let waiting = Waiting::one(&request.stream, Acks::All);
        if let Err(refusal) = self.admit(now, Acks::All, None) {
            refuse_internal(&request.stream, Outcome::Refused(refusal), out);
            return AppendedRound::default();
        }
        let before = self.log.unflushed_bytes();
        let time = (self.wall_clock)();
        let (result, records) = match &request.what {
            InternalBatch::Fence => (self.log.append_fence(request.epoch, time), 1),
            InternalBatch::Batch(batch) => {
                let records = u64::try_from(batch.header.record_count).unwrap_or(0);
                let done = self.log.append_in_shard(batch, request.epoch, time);
                (done, records)
            }
        };
        let bytes = self.log.unflushed_bytes().saturating_sub(before);
        self.settle(now, vec![waiting], vec![result], out);
        AppendedRound {
            bytes,
            records: if bytes > 0 { records } else { 0 },
        }
    }
}

/// The answer to an append that no replica has seen.
pub(super) fn refuse_internal(stream: &Arc<Completions>, outcome: Outcome, out: &mut Deliveries) {
    let completion = Completion {
        slot: 0,
        sequence: 0,
        outcome,
    };
    out.push(Arc::clone(stream), completion);
}
