//! Creation: topic and name first, in `creating`; then its partitions; then `ready`.

use crate::core::{
    CHANGES_PER_WRITE, Change, Core, CreateTopic, Derived, Life, Now, Partition, Refusal, Reply,
    Topic, Value, jobs::Progress, reconcile::put, requests::Next,
};
use talweg_metastore::keys::Key;
use talweg_types::{
    NodeId, PartitionIndex, TopicConfig, TopicId, TopicPartition, check_name, limits,
};

const REPLICATION_FACTOR_DEFAULT: u32 = 3;

/// Where the partitions that are being written go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Creation {
    /// The number of the first one.
    pub(super) first: u32,
    /// The replicas of each, from the first on.
    pub(super) placed: Vec<Vec<NodeId>>,
}

impl Creation {
    fn replicas(&self, partition: u32) -> Option<&[NodeId]> {
        let index = usize::try_from(partition.checked_sub(self.first)?).ok()?;
        self.placed.get(index).map(Vec::as_slice)
    }
}

/// A topic and its name, in one step.
pub(in crate::core) fn new_topic(id: TopicId, topic: Topic) -> Vec<Change> {
    let name = topic.name.clone();
    vec![
        Change::put(Key::Topic(id), Value::Topic(topic)),
        Change::put(Key::TopicName(name), Value::TopicName(id)),
    ]
}

impl Core {
    pub(in crate::core) fn plan_create(
        &mut self,
        now: Now,
        create: &CreateTopic,
        derived: Option<&Derived>,
        progress: &mut Progress,
    ) -> Result<Next, Refusal> {
        let Some(topic) = self.view.topics.get(&create.id).map(|stored| &stored.value) else {
            return self.begin_creation(now, create, derived, progress);
        };
        if topic.life == Life::Ready {
            return Ok(Next::Reply(Reply::Created(
                self.answer(create.id, Vec::new())?,
            )));
        }
        let Progress::Creating(creation) = progress else {
            // Only a repeated random id comes here.
            return Err(Refusal::TopicNotReady {
                name: create.name.clone(),
            });
        };
        Ok(Next::Write(self.creation_step(create.id, topic, creation)))
    }

    /// Checks everything, then writes the topic under its name.
    fn begin_creation(
        &self,
        now: Now,
        create: &CreateTopic,
        derived: Option<&Derived>,
        progress: &mut Progress,
    ) -> Result<Next, Refusal> {
        check_name(&create.name).map_err(|why| Refusal::InvalidName {
            name: create.name.clone(),
            why,
        })?;
        if create.idempotency_key.len() > limits::IDEMPOTENCY_KEY_BYTES_MAX {
            let (given, limit) = (
                create.idempotency_key.len(),
                limits::IDEMPOTENCY_KEY_BYTES_MAX,
            );
            let reason = format!("has at most {limit} bytes, this one has {given}");
            return Err(Refusal::InvalidArgument {
                field: "idempotency_key",
                reason,
            });
        }
        if let Some((id, existing)) = self.view.topic_by_name(&create.name) {
            return self.existing(create, id, existing);
        }
        let factor = self.checked_factor(create.replication_factor)?;
        let partitions = match create.partitions {
            None => self.settings.default_partitions,
            Some(count) => self.checked_count(count)?,
        };
        TopicConfig::resolve(&create.config)?.check_at(factor)?;
        *progress = Progress::Creating(Creation {
            first: 0,
            placed: self.place(partitions, factor)?,
        });
        let topic = Topic {
            name: create.name.clone(),
            partitions,
            replication_factor: factor,
            config: create.config.clone(),
            created: now.wall,
            life: Life::Creating,
            idempotency_key: create.idempotency_key.clone(),
            earlier: Vec::new(),
            derived: derived.cloned(),
        };
        Ok(Next::Write(new_topic(create.id, topic)))
    }

    /// The name is taken: by a repeat of the same request, or by another.
    fn existing(&self, create: &CreateTopic, id: TopicId, topic: &Topic) -> Result<Next, Refusal> {
        let name = create.name.clone();
        let repeat =
            !create.idempotency_key.is_empty() && create.idempotency_key == topic.idempotency_key;
        match topic.life {
            Life::Creating => Err(Refusal::TopicNotReady { name }),
            Life::Ready if repeat => Ok(Next::Reply(Reply::Created(self.answer(id, Vec::new())?))),
            Life::Ready => Err(Refusal::TopicExists { name, id }),
        }
    }

    pub(super) fn checked_count(&self, count: i32) -> Result<u32, Refusal> {
        let reason = format!("a topic has at least one partition, not {count}");
        let count = u32::try_from(count).ok().filter(|count| *count > 0);
        let count = count.ok_or(Refusal::InvalidPartitions { reason })?;
        let limit = self.settings.limits.partitions_per_topic;
        match count <= limit {
            true => Ok(count),
            false => Err(Refusal::LimitExceeded {
                name: "max.partitions.per.topic",
                limit: u64::from(limit),
                actual: u64::from(count),
                unit: "partitions",
                reason: format!("a topic has at most {limit} partitions, not {count}"),
            }),
        }
    }

    /// The next transaction of a topic that is being created.
    fn creation_step(&self, id: TopicId, topic: &Topic, creation: &Creation) -> Vec<Change> {
        let partitions = self.missing_partitions(id, topic.partitions, creation);
        if !partitions.is_empty() {
            return partitions;
        }
        let ready = Topic {
            life: Life::Ready,
            ..topic.clone()
        };
        vec![Change::put(Key::Topic(id), Value::Topic(ready))]
    }

    fn missing(&self, id: TopicId, count: u32) -> impl Iterator<Item = TopicPartition> {
        let all = (0..count).map(move |index| TopicPartition {
            topic_id: id,
            partition: PartitionIndex(index),
        });
        all.filter(|tp| !self.view.partitions.contains_key(tp))
    }

    pub(super) fn missing_partitions(
        &self,
        id: TopicId,
        count: u32,
        creation: &Creation,
    ) -> Vec<Change> {
        let minimum = self.rules(id).map_or(1, |rules| rules.minimum);
        let new = |tp: TopicPartition| {
            let replicas = creation.replicas(tp.partition.0)?;
            Some(put(tp, self.new_partition(replicas, minimum)))
        };
        self.missing(id, count)
            .filter_map(new)
            .take(CHANGES_PER_WRITE)
            .collect()
    }

    /// All replicas are empty, so all that are alive are in sync.
    fn new_partition(&self, replicas: &[NodeId], minimum: usize) -> Partition {
        let able = |node: &NodeId| Some((*node, self.alive(*node)?));
        let leader = replicas.iter().find_map(able);
        let mut partition = Partition::new(replicas.to_vec(), leader);
        partition.bury(&self.dead(replicas), minimum);
        partition.settle(minimum);
        partition
    }

    /// Goes on with a creation that was left half done.
    pub(super) fn tidy_creations(&self) -> Option<Vec<Change>> {
        let topics = self
            .view
            .topics
            .iter()
            .map(|(id, stored)| (*id, &stored.value));
        topics
            .filter(|(_, topic)| topic.life == Life::Creating)
            .find_map(|(id, topic)| {
                let missing: Vec<_> = self.missing(id, topic.partitions).collect();
                let first = missing.first().map_or(0, |tp| tp.partition.0);
                // Without a node it waits for the next one that registers.
                let placed = match missing.is_empty() {
                    true => Vec::new(),
                    false => self
                        .place(topic.partitions - first, topic.replication_factor)
                        .ok()?,
                };
                Some(self.creation_step(id, topic, &Creation { first, placed }))
            })
    }

    /// The replication factor asked for, or by default 3, or the number of
    /// storage nodes that are meant to take replicas if that is less: one that is away
    /// for a moment counts, for the topic outlives that moment.
    pub(in crate::core) fn checked_factor(&self, asked: Option<i32>) -> Result<u32, Refusal> {
        let limit = limits::REPLICATION_FACTOR_MAX;
        let Some(asked) = asked else {
            let known = self.view.nodes.iter();
            let meant = known.filter(|(id, node)| !node.value.removed && !self.is_draining(**id));
            let nodes = u32::try_from(meant.count()).unwrap_or(u32::MAX);
            return Ok(nodes.clamp(1, REPLICATION_FACTOR_DEFAULT));
        };
        let factor = u32::try_from(asked).ok().filter(|factor| *factor > 0);
        match factor {
            Some(factor) if factor <= limit => Ok(factor),
            _ => Err(Refusal::InvalidReplicationFactor {
                reason: format!("a partition has from 1 to {limit} replicas, not {asked}"),
            }),
        }
    }
}
