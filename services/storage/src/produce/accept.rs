//! From a frame to batches that may be appended.
//!
//! In this order: sequence, frame size, credit, topic, acks, leader, epoch, then
//! each batch by itself. A refused frame or batch changes nothing but the
//! numbers that its client has used up.

use super::pending::Amount;
use crate::{clock, node::Node, partition::PartitionHandle, resolve, view::TopicView};
use bytes::Bytes;
use std::sync::Arc;
use talweg_batch::{
    BatchHeader, CheckedBatch, HEADER_BYTES, ValidationLimits, check_client_batch, split_batches,
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1::BatchFrame;
use talweg_types::{Acks, LeaderEpoch, limits};

/// Compressed batches above this are unpacked on a worker.
const INLINE_COMPRESSED_BYTES: usize = 4 * 1024;

/// A frame taken apart.
pub struct Parts {
    pub first_sequence: u64,
    pub batches: Vec<Bytes>,
    /// The payload is not whole batches: all of it is refused, as one sequence.
    pub rest: Option<Refusal>,
    pub amount: Amount,
}

impl Parts {
    /// Splits the payload; reads nothing but batch headers.
    pub fn of(frame: &mut BatchFrame) -> Self {
        let payload = std::mem::take(&mut frame.batches);
        let bytes = payload.len() as u64;
        let (mut batches, mut rest, mut records) = (Vec::new(), None, 0);
        if payload.is_empty() {
            rest = Some(Refusal::new(
                ErrorCode::CorruptBatch,
                "the frame holds no batch",
            ));
        }
        for batch in split_batches(payload) {
            match batch {
                Ok(batch) => {
                    records += records_of(&batch);
                    batches.push(batch);
                }
                Err(error) => {
                    // All or nothing: the client cannot tell where the good part ends.
                    batches.clear();
                    records = 0;
                    rest = Some(error.into());
                    break;
                }
            }
        }
        Self {
            first_sequence: frame.first_sequence,
            batches,
            rest,
            amount: Amount { bytes, records },
        }
    }

    /// Stream sequences that the frame uses up.
    pub fn sequences(&self) -> std::ops::Range<u64> {
        let count = self.batches.len() + usize::from(self.rest.is_some());
        self.first_sequence..self.first_sequence.saturating_add(count as u64)
    }

    /// More than one batch in more than a frame's payload.
    pub fn check_size(&self) -> Result<(), Refusal> {
        let limit = u64::from(limits::FRAME_PAYLOAD_BYTES);
        if self.amount.bytes > limit && self.batches.len() > 1 {
            let message = format!("a frame of several batches has at most {limit} bytes of them");
            return Err(Refusal::new(ErrorCode::FrameTooLarge, message).with_limit(
                "frame payload",
                limit,
                self.amount.bytes,
                "bytes",
            ));
        }
        Ok(())
    }
}

fn records_of(batch: &[u8]) -> u64 {
    let header = batch.get(..HEADER_BYTES).map(BatchHeader::parse);
    match header {
        Some(Ok(header)) => u64::try_from(header.record_count).unwrap_or(0),
        _ => 0,
    }
}

/// Where the batches of a frame go.
pub struct Target {
    pub topic: Arc<TopicView>,
    pub handle: Arc<PartitionHandle>,
    pub acks: Acks,
    pub expected_epoch: Option<LeaderEpoch>,
}

/// Resolves topic, acks, leader and epoch. `acks`: of the stream; none is the
/// topic's default.
pub fn target(node: &Node, frame: &BatchFrame, acks: Option<Acks>) -> Result<Target, Refusal> {
    resolve::check_writable(&frame.topic)?;
    let topic = resolve::topic(node, &frame.topic, &frame.topic_id)?;
    resolve::check_writable(&topic.topic.name)?;
    let acks = acks.unwrap_or(topic.config.default_acks);
    if acks < topic.config.min_acks {
        let message = format!(
            "acks {acks} are weaker than the topic's min.acks {}",
            topic.config.min_acks
        );
        return Err(Refusal::new(ErrorCode::AcksTooWeak, message));
    }
    let (handle, epoch) = resolve::led_partition(node, &topic, frame.partition)?;
    resolve::check_epoch(frame.leader_epoch, epoch)?;
    Ok(Target {
        topic,
        handle,
        acks,
        expected_epoch: frame.leader_epoch.map(LeaderEpoch),
    })
}

/// What the checks say of each batch, by stream sequence.
pub type Checked = Vec<(u64, Result<CheckedBatch, Refusal>)>;

/// Checks each batch by itself; may take some milliseconds for compressed ones.
pub fn check(first_sequence: u64, batches: Vec<Bytes>, topic: &TopicView) -> Checked {
    let limits = ValidationLimits::for_topic(&topic.config, clock::wall_now());
    let check = |(sequence, bytes)| {
        (
            sequence,
            check_client_batch(bytes, &limits).map_err(Refusal::from),
        )
    };
    (first_sequence..).zip(batches).map(check).collect()
}

/// Whether checking these takes longer than a stream's task may be held up.
pub fn is_slow(batches: &[Bytes]) -> bool {
    batches.iter().any(|batch| {
        let packed = BatchHeader::parse(batch).is_ok_and(|header| header.attributes & 7 != 0);
        packed && batch.len() > INLINE_COMPRESSED_BYTES
    })
}
