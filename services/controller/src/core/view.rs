//! The controller's picture of the metastore. It moves by [`View::apply`] only,
//! with changes that are committed: loading at start, the controller's own
//! writes and a reload after an unclear one walk the same path.

use super::state::{
    Balance, Change, Cluster, Life, Node, Partition, Shard, Stored, Tombstone, Topic, Value,
};
use std::collections::{BTreeMap, BTreeSet};
use talweg_metastore::{Revision, keys::Key};
use talweg_types::{NodeId, PartitionIndex, TopicId, TopicPartition};

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// The newest revision applied; only grows.
    pub revision: Revision,
    pub cluster: Option<Stored<Cluster>>,
    pub nodes: BTreeMap<NodeId, Stored<Node>>,
    pub topics: BTreeMap<TopicId, Stored<Topic>>,
    pub names: BTreeMap<String, Stored<TopicId>>,
    pub partitions: BTreeMap<TopicPartition, Stored<Partition>>,
    pub tombstones: BTreeMap<TopicId, Stored<Tombstone>>,
    pub shards: BTreeMap<TopicPartition, Stored<Shard>>,
    pub producer_ids: Option<Stored<i64>>,
    pub balance: Option<Stored<Balance>>,
    /// Partitions by leader; derived.
    led: BTreeMap<NodeId, BTreeSet<TopicPartition>>,
    /// Partitions by replica; derived.
    hosted: BTreeMap<NodeId, BTreeSet<TopicPartition>>,
    /// Partitions without a leader; derived.
    leaderless: BTreeSet<TopicPartition>,
    /// Partitions that are being reassigned; derived.
    moving: BTreeSet<TopicPartition>,
}

impl View {
    /// Takes what was committed as `revision`.
    pub fn apply(&mut self, revision: Revision, changes: Vec<Change>) {
        self.revision = self.revision.max(revision);
        changes
            .into_iter()
            .for_each(|change| self.apply_one(revision, change));
    }

    fn apply_one(&mut self, revision: Revision, change: Change) {
        match (change.key, change.value) {
            (Key::Cluster, Some(Value::Cluster(value))) => {
                self.cluster = Some(Stored { value, revision });
            }
            (Key::Node(id), Some(Value::Node(value))) => {
                self.nodes.insert(id, Stored { value, revision });
            }
            (Key::Topic(id), Some(Value::Topic(value))) => {
                self.topics.insert(id, Stored { value, revision });
            }
            (Key::TopicName(name), Some(Value::TopicName(value))) => {
                self.names.insert(name, Stored { value, revision });
            }
            (Key::Partition(tp), Some(Value::Partition(value))) => {
                self.remove_partition(tp);
                self.add_partition(tp, Stored { value, revision });
            }
            (Key::Tombstone(id), Some(Value::Tombstone(value))) => {
                self.tombstones.insert(id, Stored { value, revision });
            }
            (Key::Shard(tp), Some(Value::Shard(value))) => {
                self.shards.insert(tp, Stored { value, revision });
            }
            (Key::ProducerIds, Some(Value::ProducerIds(value))) => {
                self.producer_ids = Some(Stored { value, revision });
            }
            (Key::Balance, Some(Value::Balance(value))) => {
                self.balance = Some(Stored { value, revision });
            }
            (key, value) => {
                debug_assert!(value.is_none(), "{key:?} does not hold {value:?}");
                self.remove(&key);
            }
        }
    }

    fn remove(&mut self, key: &Key) {
        match key {
            Key::Election => {}
            Key::Cluster => self.cluster = None,
            Key::Node(id) => drop(self.nodes.remove(id)),
            Key::Topic(id) => drop(self.topics.remove(id)),
            Key::TopicName(name) => drop(self.names.remove(name)),
            Key::Partition(tp) => self.remove_partition(*tp),
            Key::Tombstone(id) => drop(self.tombstones.remove(id)),
            Key::Shard(tp) => drop(self.shards.remove(tp)),
            Key::ProducerIds => self.producer_ids = None,
            Key::Balance => self.balance = None,
        }
    }

    fn add_partition(&mut self, tp: TopicPartition, stored: Stored<Partition>) {
        match stored.value.leader.is_none() {
            true => self.leaderless.insert(tp),
            false => self.led.entry(stored.value.leader).or_default().insert(tp),
        };
        if stored.value.moving.is_some() {
            self.moving.insert(tp);
        }
        for node in &stored.value.replicas {
            self.hosted.entry(*node).or_default().insert(tp);
        }
        self.partitions.insert(tp, stored);
    }

    fn remove_partition(&mut self, tp: TopicPartition) {
        let Some(old) = self.partitions.remove(&tp) else {
            return;
        };
        take(&mut self.led, old.value.leader, tp);
        self.leaderless.remove(&tp);
        self.moving.remove(&tp);
        old.value
            .replicas
            .iter()
            .for_each(|node| take(&mut self.hosted, *node, tp));
    }

    /// The revision that last put `key`; `None` if it is absent.
    pub fn revision_of(&self, key: &Key) -> Option<Revision> {
        match key {
            Key::Election => None,
            Key::Cluster => self.cluster.as_ref().map(|s| s.revision),
            Key::Node(id) => self.nodes.get(id).map(|s| s.revision),
            Key::Topic(id) => self.topics.get(id).map(|s| s.revision),
            Key::TopicName(name) => self.names.get(name).map(|s| s.revision),
            Key::Partition(tp) => self.partitions.get(tp).map(|s| s.revision),
            Key::Tombstone(id) => self.tombstones.get(id).map(|s| s.revision),
            Key::Shard(tp) => self.shards.get(tp).map(|s| s.revision),
            Key::ProducerIds => self.producer_ids.as_ref().map(|s| s.revision),
            Key::Balance => self.balance.as_ref().map(|s| s.revision),
        }
    }

    /// A topic, created or being created, by its name.
    pub fn topic_by_name(&self, name: &str) -> Option<(TopicId, &Topic)> {
        let id = self.names.get(name)?.value;
        Some((id, &self.topics.get(&id)?.value))
    }

    /// A topic that clients may see.
    pub fn visible_topic(&self, id: TopicId) -> Option<&Topic> {
        let topic = &self.topics.get(&id)?.value;
        (topic.life == Life::Ready).then_some(topic)
    }

    /// A partition that clients may see.
    pub fn visible_partition(&self, tp: TopicPartition) -> Option<&Partition> {
        let in_force = self.visible_topic(tp.topic_id)?.partitions;
        (tp.partition.0 < in_force)
            .then(|| self.partitions.get(&tp))?
            .map(|stored| &stored.value)
    }

    /// Every stored partition of a topic, in force or not, in order.
    pub fn partitions_of(
        &self,
        topic_id: TopicId,
    ) -> impl Iterator<Item = (TopicPartition, &Partition)> {
        let at = |index| TopicPartition {
            topic_id,
            partition: PartitionIndex(index),
        };
        let range = self.partitions.range(at(0)..=at(u32::MAX));
        range.map(|(tp, stored)| (*tp, &stored.value))
    }

    pub fn led_by(&self, node: NodeId) -> impl Iterator<Item = TopicPartition> {
        self.led.get(&node).into_iter().flatten().copied()
    }

    pub fn hosted_by(&self, node: NodeId) -> impl Iterator<Item = TopicPartition> {
        self.hosted.get(&node).into_iter().flatten().copied()
    }

    pub fn led_count(&self, node: NodeId) -> usize {
        self.led.get(&node).map_or(0, BTreeSet::len)
    }

    pub fn leaderless(&self) -> impl Iterator<Item = (TopicPartition, &Partition)> {
        let leaderless = self.leaderless.iter();
        leaderless.filter_map(|tp| Some((*tp, &self.partitions.get(tp)?.value)))
    }

    /// Partitions that are being reassigned.
    pub fn moving(&self) -> impl Iterator<Item = TopicPartition> {
        self.moving.iter().copied()
    }

    /// Partitions that have a leader.
    pub fn with_leader(&self) -> usize {
        self.led.values().map(BTreeSet::len).sum()
    }

    pub fn hosted_count(&self, node: NodeId) -> usize {
        self.hosted.get(&node).map_or(0, BTreeSet::len)
    }

    /// Names the first broken invariant.
    pub fn check(&self) -> Result<(), String> {
        self.check_topics()?;
        for (tp, stored) in &self.partitions {
            self.check_partition(*tp, &stored.value)
                .map_err(|why| format!("{tp}: {why}"))?;
        }
        for (tp, stored) in &self.shards {
            check_shard(&stored.value).map_err(|why| format!("shard {tp}: {why}"))?;
        }
        let led: usize = self.led.values().map(BTreeSet::len).sum();
        let with_leader = self
            .partitions
            .values()
            .filter(|p| !p.value.leader.is_none())
            .count();
        if led != with_leader {
            return Err(format!("{led} leaderships indexed, {with_leader} stored"));
        }
        Ok(())
    }

    fn check_topics(&self) -> Result<(), String> {
        for (id, Stored { value: topic, .. }) in &self.topics {
            if self.names.get(&topic.name).map(|s| s.value) != Some(*id) {
                return Err(format!(
                    "topic {id} does not hold its name {:?}",
                    topic.name
                ));
            }
            if self.tombstones.contains_key(id) {
                return Err(format!("topic {id} is there and deleted"));
            }
            let stored = self.partitions_of(*id).map(|(tp, _)| tp.partition.0);
            let missing = stored
                .take(topic.partitions as usize)
                .zip(0..)
                .any(|(p, i)| p != i);
            let enough = self.partitions_of(*id).count() >= topic.partitions as usize;
            if topic.life == Life::Ready && (missing || !enough) {
                return Err(format!("topic {id} is ready but lacks partitions"));
            }
            let counts = topic
                .earlier
                .iter()
                .map(|(count, _)| *count)
                .chain([topic.partitions]);
            if !counts
                .clone()
                .zip(counts.skip(1))
                .all(|(before, after)| before < after)
            {
                return Err(format!("topic {id} has shrunk"));
            }
        }
        let dangling = self
            .names
            .iter()
            .find(|(_, id)| !self.topics.contains_key(&id.value));
        dangling.map_or(Ok(()), |(name, _)| {
            Err(format!("the name {name:?} names no topic"))
        })
    }

    fn check_partition(&self, tp: TopicPartition, p: &Partition) -> Result<(), String> {
        if !self.topics.contains_key(&tp.topic_id) && !self.tombstones.contains_key(&tp.topic_id) {
            return Err("belongs to no topic".into());
        }
        p.check_sets()?;
        if p.leader.is_none() {
            return Ok(());
        }
        let newest = self.nodes.get(&p.leader).map(|node| node.value.incarnation);
        if newest.is_none_or(|newest| p.leader_incarnation > newest) {
            return Err(format!(
                "leader {} has no incarnation {}",
                p.leader, p.leader_incarnation.0
            ));
        }
        Ok(())
    }
}

fn check_shard(shard: &Shard) -> Result<(), &'static str> {
    match shard.coordinator.is_none() {
        true if shard.incarnation.0 != 0 => Err("nobody has an incarnation"),
        false if shard.epoch.0 < 1 => Err("given out in no epoch"),
        _ => Ok(()),
    }
}

fn take(index: &mut BTreeMap<NodeId, BTreeSet<TopicPartition>>, node: NodeId, tp: TopicPartition) {
    if let Some(set) = index.get_mut(&node) {
        set.remove(&tp);
        if set.is_empty() {
            index.remove(&node);
        }
    }
}
