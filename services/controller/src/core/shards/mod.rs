//! Shards of consumer groups: partition i of `__consumer_offsets` is shard i, and one
//! live coordinator holds it.
//!
//! A shard is given out in a new epoch each time, to one process of one coordinator. It
//! goes to another as soon as that process has no session, and when coordinators come
//! or go as far as an even share asks for. A process that registers again keeps what it
//! has. A new controller awaits the coordinators that hold shards, as it awaits storage
//! nodes, before it gives their shards to others.

mod grow;
mod spread;

use super::{
    CHANGES_PER_WRITE, Change, Core, Effect, Job, Life, Now, Plane, Session, SessionState, Shard,
    Topic, Value,
    fault::{Fault, planted},
    topics::new_topic,
};
use std::collections::{BTreeMap, BTreeSet};
use talweg_metastore::keys::Key;
use talweg_types::{
    CONSUMER_OFFSETS, Incarnation, NodeId, PartitionIndex, ShardEpoch, TopicId, TopicPartition,
};

/// Small segments, so that compaction has something to do and a load little.
const SEGMENT_BYTES: &str = "67108864";

impl Core {
    /// Those that held shards under the controller before.
    pub(super) fn await_coordinators(&mut self, now: Now) {
        let held = self.view.shards.values().map(|stored| &stored.value);
        let held: BTreeMap<NodeId, Shard> = held
            .filter(|shard| !shard.coordinator.is_none())
            .map(|shard| (shard.coordinator, shard.clone()))
            .collect();
        for (node, shard) in held {
            if self.sessions.await_coordinator(&shard, now.monotonic) {
                self.first.push(Effect::Probe {
                    node,
                    incarnation: shard.incarnation,
                    address: shard.grpc_address,
                });
            }
        }
        self.jobs.urgent(Job::Shards);
    }

    /// The next transaction that gives shards out; first the topic itself, last its
    /// growth.
    pub(super) fn plan_shards(&mut self, now: Now) -> Option<Vec<Change>> {
        let Some((id, topic)) = self.view.topic_by_name(CONSUMER_OFFSETS) else {
            let topic = self.offsets_topic(now)?;
            self.jobs.urgent(Job::Tidy);
            return Some(new_topic(self.settings.new_offsets_topic, topic));
        };
        let count = (topic.life == Life::Ready).then_some(topic.partitions)?;
        let changes = self.shard_changes(id, count);
        match changes.is_empty() {
            true => self.plan_growth(now, id, topic),
            false => Some(changes),
        }
    }

    /// How many replicas the topic should have, of the nodes that are known.
    fn offsets_factor(&self) -> Option<u32> {
        let asked = self.settings.coordinator_replication_factor;
        let asked = asked.map(|factor| i32::try_from(factor).unwrap_or(i32::MAX));
        self.checked_factor(asked).ok()
    }

    /// The internal topic lacks replicas that there are nodes for.
    pub(super) fn offsets_topic_grows(&self) -> bool {
        let topic = self.view.topic_by_name(CONSUMER_OFFSETS);
        topic.is_some_and(|(_, topic)| {
            topic.life == Life::Ready && self.wanted_factor(topic).is_some()
        })
    }

    /// Once there is a coordinator, and storage nodes enough.
    fn offsets_topic(&self, now: Now) -> Option<Topic> {
        self.coordinators().next()?;
        let replication_factor = self.offsets_factor()?;
        if self.hosts().count() < replication_factor as usize {
            return None;
        }
        let config = [
            ("cleanup.policy", "compact"),
            ("compression.type", "none"),
            // Until it is compacted nothing of it may go.
            ("retention.bytes", "-1"),
            ("retention.ms", "-1"),
            // A fence ends the sessions before it; until then none may end by itself.
            ("producer.id.expiration.ms", "9223372036854775807"),
            ("segment.bytes", SEGMENT_BYTES),
        ];
        Some(Topic {
            name: CONSUMER_OFFSETS.into(),
            partitions: self.settings.coordinator_shards,
            replication_factor,
            config: config.map(|(key, value)| (key.into(), value.into())).into(),
            created: now.wall,
            life: Life::Creating,
            idempotency_key: String::new(),
            earlier: Vec::new(),
            derived: None,
        })
    }

    fn coordinators(&self) -> impl Iterator<Item = (NodeId, &Session)> {
        let live = |(_, session): &(NodeId, &Session)| {
            session.plane == Plane::Coordinator && session.state == SessionState::Live
        };
        self.sessions().filter(live)
    }

    fn shard_changes(&self, topic_id: TopicId, count: u32) -> Vec<Change> {
        let members: BTreeSet<NodeId> = self.coordinators().map(|(id, _)| id).collect();
        let mut held = BTreeMap::new();
        for partition in 0..count {
            let tp = TopicPartition {
                topic_id,
                partition: PartitionIndex(partition),
            };
            match self.holder(tp) {
                Holder::Awaited => {}
                Holder::Live(node) => drop(held.insert(tp, Some(node))),
                Holder::Nobody => drop(held.insert(tp, None)),
            }
        }
        let moved = spread::moves(&held, &members);
        let given = moved.iter().filter_map(|(tp, node)| self.give(*tp, *node));
        let free = held.iter().filter(|(tp, holder)| {
            let stored = self.view.shards.get(*tp).map(|stored| &stored.value);
            let named = stored.is_none_or(|shard| !shard.coordinator.is_none());
            holder.is_none() && !moved.contains_key(*tp) && named
        });
        let freed = free.map(|(tp, _)| self.free(*tp));
        given.chain(freed).take(CHANGES_PER_WRITE).collect()
    }

    /// Who holds a shard now, as far as this controller can know.
    fn holder(&self, tp: TopicPartition) -> Holder {
        let Some(shard) = self.view.shards.get(&tp).map(|stored| &stored.value) else {
            return Holder::Nobody;
        };
        let session = self.session(shard.coordinator);
        let same = |s: &&Session| {
            s.plane == Plane::Coordinator
                && (s.incarnation == shard.incarnation || planted(Fault::NewCoordinatorContinues))
        };
        match session.filter(same).map(|session| session.state) {
            None => Holder::Nobody,
            // Its process speaks with us; what it has stays with it.
            Some(SessionState::Live) => Holder::Live(shard.coordinator),
            Some(SessionState::Awaited | SessionState::Registering) => Holder::Awaited,
        }
    }

    fn give(&self, tp: TopicPartition, node: NodeId) -> Option<Change> {
        let session = self.session(node)?;
        let epoch = self.epoch_of(tp);
        let raised = match planted(Fault::ShardEpochKept) {
            true => ShardEpoch(epoch.0.max(1)),
            false => ShardEpoch(epoch.0.checked_add(1)?),
        };
        let shard = Shard {
            coordinator: node,
            incarnation: session.incarnation,
            epoch: raised,
            grpc_address: session.grpc_address.clone(),
        };
        Some(Change::put(Key::Shard(tp), Value::Shard(shard)))
    }

    fn free(&self, tp: TopicPartition) -> Change {
        let shard = Shard {
            coordinator: NodeId::NONE,
            incarnation: Incarnation(0),
            epoch: self.epoch_of(tp),
            grpc_address: String::new(),
        };
        Change::put(Key::Shard(tp), Value::Shard(shard))
    }

    fn epoch_of(&self, tp: TopicPartition) -> ShardEpoch {
        let shard = self.view.shards.get(&tp);
        shard.map_or(ShardEpoch::NONE, |stored| stored.value.epoch)
    }
}

enum Holder {
    Live(NodeId),
    /// Nothing is decided about it yet.
    Awaited,
    Nobody,
}
