//! The partitions of a Fetch stream: where the client stands in each. Pure.

use bytes::Bytes;
use std::{collections::BTreeMap, sync::Arc};
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{self, PartitionPosition};
use talweg_types::{TopicConfig, TopicPartition};

/// One partition of a stream.
#[derive(Clone, Debug)]
pub struct Reader {
    /// As the client gave it; may be empty.
    pub asked_name: String,
    pub name: Arc<str>,
    pub generation: u64,
    /// Bytes that a batch may unpack to.
    pub max_unpacked: usize,
    /// Where the client stands; `None` before a leader has said.
    pub position: Option<PartitionPosition>,
    /// Leader epoch of the last batch sent; -1 before one was.
    pub last_epoch: i32,
    /// The position or the bounds moved since the client was told.
    pub changed: bool,
    /// Frames that came and were not sent yet.
    pub held: usize,
}

impl Reader {
    pub fn new(asked_name: String, name: Arc<str>, generation: u64, config: &TopicConfig) -> Self {
        Self {
            asked_name,
            name,
            generation,
            max_unpacked: config.max_unpacked_batch_bytes as usize,
            position: None,
            last_epoch: -1,
            changed: false,
            held: 0,
        }
    }

    /// A leader's position in the client's terms, but for `next_offset`.
    pub fn position_of(&self, leader: &PartitionPosition, next_offset: i64) -> PartitionPosition {
        PartitionPosition {
            topic: self.name.to_string(),
            generation: self.generation,
            next_offset,
            high_watermark: leader.high_watermark.max(next_offset),
            ..leader.clone()
        }
    }
}

/// All partitions of a stream.
#[derive(Default)]
pub struct Readers {
    by_partition: BTreeMap<TopicPartition, Reader>,
}

impl Readers {
    pub fn insert(&mut self, partition: TopicPartition, reader: Reader) {
        self.by_partition.insert(partition, reader);
    }

    pub fn get(&self, partition: TopicPartition) -> Option<&Reader> {
        self.by_partition.get(&partition)
    }

    pub fn get_mut(&mut self, partition: TopicPartition) -> Option<&mut Reader> {
        self.by_partition.get_mut(&partition)
    }

    pub fn remove(&mut self, partition: TopicPartition) -> Option<Reader> {
        self.by_partition.remove(&partition)
    }

    pub fn contains(&self, partition: TopicPartition) -> bool {
        self.by_partition.contains_key(&partition)
    }

    pub fn len(&self) -> usize {
        self.by_partition.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_partition.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&TopicPartition, &Reader)> {
        self.by_partition.iter()
    }

    /// The partition that a request names, whatever the view says by now.
    pub fn named(&self, request: &v1::FetchPartition) -> Option<TopicPartition> {
        let is_it = |(at, reader): &(&TopicPartition, &Reader)| {
            let by_id =
                request.topic_id.is_empty() || request.topic_id[..] == at.topic_id.as_bytes()[..];
            let by_name = request.topic.is_empty() || *request.topic == *reader.name;
            at.partition.0 == request.partition && by_id && by_name
        };
        self.iter().find(is_it).map(|(at, _)| *at)
    }

    /// The leader says where a reader begins, or that bounds moved.
    pub fn on_position(
        &mut self,
        partition: TopicPartition,
        leader: &PartitionPosition,
    ) -> Option<PartitionPosition> {
        let reader = self.by_partition.get_mut(&partition)?;
        // What is held lies between the client's position and the leader's.
        let next = match (&reader.position, reader.held) {
            (Some(known), held) if held > 0 => known.next_offset,
            _ => leader.next_offset,
        };
        let position = reader.position_of(leader, next);
        reader.changed |= reader.position.as_ref() != Some(&position);
        reader.position = Some(position.clone());
        Some(position)
    }

    /// Positions that the client was not told yet; they count as told.
    pub fn take_changed(&mut self, at_most: usize) -> Vec<PartitionPosition> {
        let changed = self
            .by_partition
            .values_mut()
            .filter(|reader| reader.changed);
        changed
            .take(at_most)
            .filter_map(|reader| {
                reader.changed = false;
                reader.position.clone()
            })
            .collect()
    }

    /// The error of a partition that stops, in the client's terms.
    pub fn stop(
        &mut self,
        partition: TopicPartition,
        refusal: &Refusal,
    ) -> Option<v1::FetchPartitionError> {
        let reader = self.by_partition.remove(&partition)?;
        Some(v1::FetchPartitionError {
            topic: if reader.asked_name.is_empty() {
                reader.name.to_string()
            } else {
                reader.asked_name
            },
            topic_id: Bytes::copy_from_slice(partition.topic_id.as_bytes()),
            partition: partition.partition.0,
            generation: reader.generation,
            error: Some(refusal.detail()),
        })
    }
}
