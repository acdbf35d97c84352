//! Which partition a thin record goes to. Pure.

use std::collections::BTreeMap;
use talweg_batch::partition_for_key;
use talweg_client::view::TopicView;
use talweg_proto::v1;
use talweg_types::{PartitionIndex, TopicId};

/// The partitions that records without key stick to, a batch long.
#[derive(Default)]
pub struct Partitioner {
    sticky: BTreeMap<TopicId, u32>,
    /// Spreads the first choice of many streams.
    seed: u32,
}

impl Partitioner {
    pub fn new(seed: u32) -> Self {
        Self {
            sticky: BTreeMap::new(),
            seed,
        }
    }

    /// As the record says; else by its key; else by its idempotency key, so
    /// that a repeat lands where the first try did; else sticky.
    pub fn partition(
        &mut self,
        topic: &TopicView,
        record: &v1::Record,
        now_ms: i64,
    ) -> PartitionIndex {
        if let Some(partition) = record.partition {
            return PartitionIndex(partition);
        }
        if let Some(key) = &record.key {
            return partition_for_key(key, count(topic));
        }
        if !record.idempotency_key.is_empty() {
            let window = topic.config.idempotency_window_ms;
            return by_id(topic, record.idempotency_key.as_bytes(), window, now_ms);
        }
        let seed = self.seed;
        let start = self
            .sticky
            .entry(topic.id)
            .or_insert_with(|| available(topic, seed % count(topic)));
        PartitionIndex(*start)
    }

    /// A batch for this partition is on its way: stick to another one.
    pub fn on_sealed(&mut self, topic: &TopicView, partition: PartitionIndex) {
        if let Some(current) = self.sticky.get_mut(&topic.id)
            && *current == partition.0
        {
            *current = available(topic, (partition.0 + 1) % count(topic));
        }
    }
}

fn count(topic: &TopicView) -> u32 {
    u32::try_from(topic.partitions.len())
        .unwrap_or(u32::MAX)
        .max(1)
}

/// By the hash of an id that names a repeat. For one window after the topic
/// grew, the count before it still holds.
pub fn by_id(topic: &TopicView, id: &[u8], window_ms: u64, now_ms: i64) -> PartitionIndex {
    let window = i64::try_from(window_ms).unwrap_or(i64::MAX);
    let in_window = |it: &&v1::PartitionCount| it.until_ms.saturating_add(window) > now_ms;
    let earlier = topic.earlier_counts.iter().find(in_window);
    partition_for_key(
        id,
        earlier.map_or(count(topic), |it| it.partitions.clamp(1, count(topic))),
    )
}

/// The first partition from `start` on that has a leader; `start` if none has.
fn available(topic: &TopicView, start: u32) -> u32 {
    let count = count(topic);
    let has_leader = |at: &u32| {
        topic
            .partitions
            .get(*at as usize)
            .is_some_and(|it| !it.leader.is_none())
    };
    (0..count)
        .map(|step| (start + step) % count)
        .find(has_leader)
        .unwrap_or(start)
}
