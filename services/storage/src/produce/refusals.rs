//! The loop's reasons in the words of the catalogue.

use crate::{node::Node, partition::AppendRefusal, resolve};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_log::AppendError;
use talweg_types::TopicPartition;

/// A repair takes about that long.
const REPAIR_RETRY_MS: u32 = 500;
/// Advice while the disk is full.
const DISK_FULL_RETRY_MS: u32 = 1_000;

/// `base_sequence`: of the batch that was refused.
pub fn refusal(
    node: &Node,
    tp: &TopicPartition,
    base_sequence: i32,
    why: &AppendRefusal,
) -> Refusal {
    match why {
        AppendRefusal::NotLeader => resolve::not_leading(node, tp),
        AppendRefusal::OtherEpoch { asked, current } => {
            match resolve::check_epoch(Some(asked.0), *current) {
                Err(refusal) => refusal,
                Ok(()) => Refusal::internal("epochs differ and do not"),
            }
        }
        AppendRefusal::NotEnoughReplicas { in_sync, needed } => {
            let message =
                format!("{in_sync} replicas are in sync, min.insync.replicas asks for {needed}");
            Refusal::new(ErrorCode::NotEnoughReplicas, message)
        }
        AppendRefusal::NoQuorumContact { heard, needed } => {
            let message = format!(
                "this leader hears no controller and {heard} of the {needed} in-sync replicas that it \
                 needs, itself included; another may lead"
            );
            Refusal::new(ErrorCode::NoQuorumContact, message)
        }
        AppendRefusal::LeadershipLost => Refusal::new(
            ErrorCode::LeadershipLost,
            "leadership ended before the batch was committed",
        ),
        AppendRefusal::NotEnoughReplicasAfterAppend => Refusal::new(
            ErrorCode::NotEnoughReplicasAfterAppend,
            "the in-sync set shrank after the append",
        ),
        AppendRefusal::Stopping => resolve::draining(),
        AppendRefusal::Log(error) => of_log(tp, base_sequence, error),
    }
}

fn of_log(tp: &TopicPartition, base_sequence: i32, error: &AppendError) -> Refusal {
    let new = |code| Refusal::new(code, error.to_string());
    match error {
        AppendError::OutOfOrderSequence { expected } => new(ErrorCode::OutOfOrderSequence)
            .with_sequence(tp.partition.0, expected.0, base_sequence),
        AppendError::UnknownProducer => new(ErrorCode::UnknownProducer),
        AppendError::Fenced { .. } => new(ErrorCode::ProducerFenced),
        AppendError::ShardFenced { .. } | AppendError::FenceMissing { .. } => {
            new(ErrorCode::ShardFenced)
        }
        AppendError::FenceDamaged { .. } => {
            Refusal::unavailable(error.to_string()).retry_after(REPAIR_RETRY_MS)
        }
        AppendError::DiskFull => new(ErrorCode::DiskFull).retry_after(DISK_FULL_RETRY_MS),
        AppendError::FolderFailed(_) => new(ErrorCode::FolderFailed),
        // The folder's partitions are led elsewhere, or here after a restart: whoever
        // leads then knows. Until then its sequence is taken.
        AppendError::WriteUnknown(_) => new(ErrorCode::LeadershipLost),
        AppendError::DuplicateKeyInBatch { .. }
        | AppendError::KeyRepeatedInPart { .. }
        | AppendError::KeyRepeatedInSession { .. } => new(ErrorCode::InvalidIdempotencyKey),
        AppendError::LargerThanSegment {
            bytes,
            segment_bytes,
        } => new(ErrorCode::BatchTooLarge).with_limit(
            "segment.bytes",
            *segment_bytes,
            *bytes,
            "bytes",
        ),
        AppendError::Invalid(_) => new(ErrorCode::Internal),
        AppendError::Deleted => new(ErrorCode::UnknownTopic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_kit::errors::Effect;
    use talweg_types::{PartitionIndex, TopicId};

    /// Story: a write fails, and so does cutting it back. Whoever heard "not done"
    /// would give the sequence to another batch, and the first might come back.
    #[test]
    fn a_write_that_could_not_be_cut_back_is_unknown_and_not_not_done() {
        let tp = TopicPartition {
            topic_id: TopicId::NIL,
            partition: PartitionIndex(0),
        };
        let of = |error| of_log(&tp, 0, &error);
        let unknown = of(AppendError::WriteUnknown("no cut".into()));
        assert_eq!(unknown.effect(), Effect::Unknown);
        assert!(unknown.is_retriable());
        let failed = of(AppendError::FolderFailed("read-only".into()));
        assert_eq!(failed.effect(), Effect::NotDone);
    }
}
