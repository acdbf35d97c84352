//! Answers on their way to the client: acknowledgements of one partition in
//! sequence become one frame, refusals of one kind as well.

use super::credit::Amount;
use bytes::Bytes;
use std::collections::VecDeque;
use talweg_client::delivery::Done;
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{self, produce_response::Frame};
use talweg_types::TopicPartition;

/// Sequences in one refusal.
const SEQUENCES_A_FRAME: usize = 10_000;
/// Offsets in one acknowledgement.
const OFFSETS_A_FRAME: usize = 1_000;

/// Frames to send, in order.
#[derive(Default)]
pub struct Answers {
    frames: VecDeque<Frame>,
}

impl Answers {
    pub fn pop(&mut self) -> Option<Frame> {
        self.frames.pop_front()
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Thin records are done.
    pub fn records(&mut self, partition: TopicPartition, sequences: Vec<u64>, done: Done) {
        self.frames.push_back(Frame::RecordsAck(v1::RecordsAck {
            topic_id: id(partition),
            partition: partition.partition.0,
            base_offset: done.base_offset.unwrap_or(-1),
            timestamp_ms: done.timestamp_ms,
            durability: Some(done.durability),
            sequences,
            duplicate: done.duplicate,
        }));
    }

    /// A batch is done; all of its partition before it was answered.
    pub fn batch(&mut self, partition: TopicPartition, sequence: u64, done: Done) {
        let (offset, repeat) = (done.base_offset.unwrap_or(-1), u32::from(done.duplicate));
        if let Some(Frame::BatchAck(last)) = self.frames.back_mut()
            && last.partition == partition.partition.0
            && last.topic_id[..] == partition.topic_id.as_bytes()[..]
            && last.up_to_sequence < sequence
            && last.base_offsets.len() < OFFSETS_A_FRAME
        {
            last.up_to_sequence = sequence;
            last.base_offsets.push(offset);
            last.timestamp_ms = last.timestamp_ms.max(done.timestamp_ms);
            last.durability = Some(weaker(last.durability.unwrap_or_default(), done.durability));
            last.duplicates += repeat;
            return;
        }
        self.frames.push_back(Frame::BatchAck(v1::BatchAck {
            topic_id: id(partition),
            partition: partition.partition.0,
            up_to_sequence: sequence,
            base_offsets: vec![offset],
            timestamp_ms: done.timestamp_ms,
            durability: Some(done.durability),
            duplicates: repeat,
        }));
    }

    /// Refused, or of unknown outcome.
    pub fn refusal(
        &mut self,
        topic_id: Option<Bytes>,
        partition: Option<u32>,
        sequences: impl IntoIterator<Item = u64>,
        refusal: &Refusal,
    ) {
        let (topic_id, error) = (topic_id.unwrap_or_default(), Some(refusal.detail()));
        if let Some(Frame::Refusal(last)) = self.frames.back_mut()
            && (&last.topic_id, last.partition, &last.error) == (&topic_id, partition, &error)
            && last.sequences.len() < SEQUENCES_A_FRAME
        {
            last.sequences.extend(sequences);
            return;
        }
        let sequences = sequences.into_iter().collect();
        self.frames.push_back(Frame::Refusal(v1::ProduceRefusal {
            topic_id,
            partition,
            sequences,
            error,
        }));
    }

    /// Credit that no answer returns.
    pub fn credit(&mut self, amount: Amount) {
        let amount = amount.to_proto();
        if let Some(Frame::Credit(last)) = self.frames.back_mut() {
            last.bytes += amount.bytes;
            last.records += amount.records;
            return;
        }
        self.frames.push_back(Frame::Credit(amount));
    }
}

/// A topic's id as it travels.
pub fn id(partition: TopicPartition) -> Bytes {
    Bytes::copy_from_slice(partition.topic_id.as_bytes())
}

/// What all of several batches have reached.
fn weaker(one: v1::Durability, other: v1::Durability) -> v1::Durability {
    v1::Durability {
        replicas_holding: one.replicas_holding.min(other.replicas_holding),
        replicas_flushed: one.replicas_flushed.min(other.replicas_flushed),
        leader_epoch: one.leader_epoch.max(other.leader_epoch),
    }
}
