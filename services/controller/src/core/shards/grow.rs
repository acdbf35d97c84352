//! The internal topic's replicas, when storage nodes come after it was made: a
//! coordinator that registers before the third storage node must not leave every
//! group's offsets on one disk for ever.
//!
//! Partitions get more replicas, a few at a time, as in a reassignment; the topic's
//! replication factor is raised when all have them. Until then the old factor's
//! minimum of in-sync replicas holds, so that nothing waits for a copy.

use super::super::{Change, Core, Move, Now, Partition, Topic, Value, reconcile::put};
use talweg_metastore::keys::Key;
use talweg_types::{TopicConfig, TopicId, TopicPartition};
use uuid::Uuid;

/// Partitions that are copied at a time.
const PARALLEL: usize = 4;

impl Core {
    /// The factor that the topic should have, if that is more than it has and there
    /// are nodes for it.
    pub(in crate::core) fn wanted_factor(&self, topic: &Topic) -> Option<u32> {
        let wanted = self.offsets_factor()?;
        let more = wanted > topic.replication_factor;
        (more && self.hosts().count() >= wanted as usize).then_some(wanted)
    }

    /// The next transaction that brings it there.
    pub(super) fn plan_growth(&self, now: Now, id: TopicId, topic: &Topic) -> Option<Vec<Change>> {
        let wanted = self.wanted_factor(topic)?;
        let partitions = || self.view.partitions_of(id);
        let moving = partitions().filter(|(_, p)| p.moving.is_some()).count();
        let short = || partitions().filter(|(_, p)| p.replicas.len() < wanted as usize);
        if short().next().is_none() {
            return (moving == 0).then(|| self.raise_factor(id, topic, wanted))?;
        }
        let mut places = self.places();
        let begun = short().filter(|(_, p)| p.moving.is_none() && !p.leader.is_none());
        let begun = begun.take(PARALLEL.saturating_sub(moving));
        let begun = begun.filter_map(|(tp, before)| {
            let more = wanted as usize - before.replicas.len();
            let added = self.place_more(&mut places, before, more)?;
            let mut next = before.clone();
            let to = before.replicas.iter().copied().chain(added).collect();
            let moving = Move {
                id: move_id(tp, before),
                from: before.replicas.clone(),
                to,
                throttle: 0,
                started: now.wall,
            };
            next.replicas = moving.all();
            next.moving = Some(moving);
            next.settle(self.rules(id)?.minimum);
            Some(put(tp, next.after(before)?))
        });
        let begun: Vec<_> = begun.collect();
        (!begun.is_empty()).then_some(begun)
    }

    /// Not while that would take a partition below its minimum.
    fn raise_factor(&self, id: TopicId, topic: &Topic, wanted: u32) -> Option<Vec<Change>> {
        let minimum = TopicConfig::resolve_stored(&topic.config).min_insync_at(wanted) as usize;
        let mut partitions = self.view.partitions_of(id);
        if partitions.any(|(_, partition)| partition.in_sync.len() < minimum) {
            return None;
        }
        let mut next = topic.clone();
        next.replication_factor = wanted;
        Some(vec![Change::put(Key::Topic(id), Value::Topic(next))])
    }
}

/// The core draws no lots: the id follows from what is moved.
fn move_id(tp: TopicPartition, before: &Partition) -> Uuid {
    let part = u128::from(tp.partition.0) << 64 | before.partition_epoch.0.unsigned_abs() as u128;
    Uuid::from_u128(tp.topic_id.0.as_u128() ^ part)
}
