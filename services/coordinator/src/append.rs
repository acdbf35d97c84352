//! One append, sent until its end is known.
//!
//! | the leader's word | while no send may have arrived | once one may have |
//! | --- | --- | --- |
//! | committed | done | done |
//! | SHARD_FENCED | the shard is lost | the shard is lost |
//! | not done, retry | again, for a bounded time; then not appended | again, for ever |
//! | not done, for good | not appended | again, for ever: the first send may still be there |
//! | unknown, or no word | again, for ever | again, for ever |
//!
//! "For ever" ends when the shard is lost or the process stops.

use crate::{
    log::{Place, ShardLog},
    metrics::CoordinatorMetrics,
};
use bytes::Bytes;
use std::{sync::Arc, time::Duration};
use talweg_client::backoff::Backoff;
use talweg_kit::errors::{Effect, ErrorCode, Refusal};
use talweg_types::{ShardEpoch, TopicPartition};
use tokio::time::Instant;

/// How long an append that certainly is not done is tried.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

#[derive(Debug)]
pub enum End {
    /// Committed; where the last record is.
    Appended(Place),
    NotAppended(Refusal),
    /// A higher shard epoch has the log.
    Lost(Refusal),
    /// It may have been there, and this leader's log does not know our earlier
    /// batches: an election has cut them. Only a replay says what is left.
    Unknown(Refusal),
}

pub struct Append {
    pub log: Arc<dyn ShardLog>,
    pub at: TopicPartition,
    pub epoch: ShardEpoch,
    /// The same for every send.
    pub batch: Bytes,
    pub metrics: CoordinatorMetrics,
}

impl Append {
    pub async fn run(self) -> End {
        let deadline = Instant::now() + PATIENCE;
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        let mut may_be_there = false;
        loop {
            let sent = self.log.append(self.at, self.epoch, self.batch.clone());
            let refusal = match sent.await {
                Ok(place) => return End::Appended(place),
                Err(refusal) => refusal,
            };
            if refusal.code == ErrorCode::ShardFenced {
                return End::Lost(refusal);
            }
            let cut = matches!(
                refusal.code,
                ErrorCode::UnknownProducer | ErrorCode::OutOfOrderSequence
            );
            if may_be_there && cut {
                return End::Unknown(refusal);
            }
            may_be_there |= refusal.effect() != Effect::NotDone;
            let hopeless = !refusal.is_retriable() || Instant::now() >= deadline;
            if !may_be_there && hopeless {
                return End::NotAppended(refusal);
            }
            self.metrics.append_retries.inc();
            let pause = backoff.pause(refusal.retry_after_ms);
            if hopeless {
                tracing::warn!(at = %self.at, %refusal, "the outcome of an append is unknown; sending it again");
            } else {
                tracing::debug!(at = %self.at, %refusal, "an append is sent again");
            }
            tokio::time::sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{log::MemoryLog, producer::Producer};
    use talweg_coordinator_runtime::Encoded;
    use talweg_kit::metrics::Metrics;
    use talweg_types::{Offset, PartitionIndex, ProducerId, TopicId};

    fn at() -> TopicPartition {
        TopicPartition {
            topic_id: TopicId::from_slice(&[1; 16]).expect("16 bytes"),
            partition: PartitionIndex(0),
        }
    }

    async fn run(faults: &[crate::log::Fault]) -> (End, Offset) {
        let log = MemoryLog::default();
        log.fence(at(), ShardEpoch(1)).await.expect("a fence");
        log.inject(faults.iter().copied());
        let record = Encoded {
            key: Bytes::from_static(b"k"),
            value: None,
        };
        let mut producer = Producer::new(ProducerId(5));
        let append = Append {
            log: Arc::new(log.clone()),
            at: at(),
            epoch: ShardEpoch(1),
            batch: producer.batch(&[record]).expect("a batch"),
            metrics: CoordinatorMetrics::new(&Metrics::new("coordinator")),
        };
        (append.run().await, log.end(at()))
    }

    /// Story: the answer to an append is lost, then a repeat is refused for good. The
    /// first send is in the log, so the append is not given up.
    #[tokio::test]
    async fn what_may_be_in_the_log_is_sent_until_that_is_known() {
        use crate::log::Fault::{AnswerLost, NotDone, SendLost};
        for faults in [
            &[AnswerLost, NotDone(ErrorCode::CorruptBatch)][..],
            &[SendLost, NotDone(ErrorCode::NotLeader)],
            &[NotDone(ErrorCode::NoLeader), AnswerLost],
            &[],
        ] {
            let (end, log_end) = run(faults).await;
            assert!(
                matches!(
                    end,
                    End::Appended(Place {
                        last: Offset(1),
                        ..
                    })
                ),
                "{faults:?}: {end:?}"
            );
            assert_eq!(log_end, Offset(2), "{faults:?}: once");
        }
    }

    #[tokio::test]
    async fn what_is_refused_for_good_is_not_appended_and_a_fence_ends_the_shard() {
        use crate::log::Fault::{NotDone, SendLost};
        let (end, log_end) = run(&[NotDone(ErrorCode::CorruptBatch)]).await;
        assert!(matches!(end, End::NotAppended(_)), "{end:?}");
        assert_eq!(log_end, Offset(1));
        let (end, _) = run(&[SendLost, NotDone(ErrorCode::ShardFenced)]).await;
        assert!(matches!(end, End::Lost(_)), "{end:?}");
    }
}
