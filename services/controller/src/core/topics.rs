//! Topics: created, grown, configured, deleted.
//!
//! What clients see changes in one transaction each time, the commit point:
//! `creating` → `ready`, a higher partition count, a name given up for a
//! tombstone. Partition keys are written before it, or removed after it, in as
//! many transactions as it takes; [`Job::Tidy`] finishes what is left over.

use super::{
    AlterTopic, CHANGES_PER_WRITE, Change, Core, CreateTopic, DeleteTopic, Life, Now, Partition,
    Refusal, Reply, Tombstone, Topic, TopicAnswer, Value,
    jobs::{Job, Progress},
    requests::Next,
};
use std::collections::{BTreeMap, BTreeSet};
use talweg_metastore::keys::Key;
use talweg_types::{
    Durability, Incarnation, NodeId, PartitionIndex, TopicConfig, TopicId, TopicPartition,
    check_name, limits,
};

/// Where the partitions that are being written go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Creation {
    /// The number of the first one.
    first: u32,
    /// A node for each, from the first on.
    placed: Vec<NodeId>,
}

impl Creation {
    fn node(&self, partition: u32) -> Option<NodeId> {
        let index = usize::try_from(partition.checked_sub(self.first)?).ok()?;
        self.placed.get(index).copied()
    }
}

impl Core {
    pub(super) fn plan_create(
        &mut self,
        now: Now,
        create: &CreateTopic,
        progress: &mut Progress,
    ) -> Result<Next, Refusal> {
        let Some(topic) = self.view.topics.get(&create.id).map(|stored| &stored.value) else {
            return self.begin_creation(now, create, progress);
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
        check_replication_factor(create.replication_factor)?;
        let partitions = match create.partitions {
            None => self.settings.default_partitions,
            Some(count) => self.checked_count(count)?,
        };
        TopicConfig::resolve(&create.config)?;
        *progress = Progress::Creating(Creation {
            first: 0,
            placed: self.place(partitions)?,
        });
        let topic = Topic {
            name: create.name.clone(),
            partitions,
            replication_factor: 1,
            config: create.config.clone(),
            created: now.wall,
            life: Life::Creating,
            idempotency_key: create.idempotency_key.clone(),
            earlier: Vec::new(),
        };
        Ok(Next::Write(vec![
            Change::put(Key::Topic(create.id), Value::Topic(topic)),
            Change::put(
                Key::TopicName(create.name.clone()),
                Value::TopicName(create.id),
            ),
        ]))
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

    fn checked_count(&self, count: i32) -> Result<u32, Refusal> {
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

    fn missing_partitions(&self, id: TopicId, count: u32, creation: &Creation) -> Vec<Change> {
        let new = |tp: TopicPartition| {
            let node = creation.node(tp.partition.0)?;
            let partition = Partition::new(node, self.alive(node));
            Some(Change::put(Key::Partition(tp), Value::Partition(partition)))
        };
        self.missing(id, count)
            .filter_map(new)
            .take(CHANGES_PER_WRITE)
            .collect()
    }

    fn alive(&self, node: NodeId) -> Option<Incarnation> {
        self.session(node).map(|session| session.incarnation)
    }

    pub(super) fn plan_alter(
        &mut self,
        now: Now,
        alter: &AlterTopic,
        progress: &mut Progress,
    ) -> Result<Next, Refusal> {
        let name = &alter.name;
        let (id, topic) = self
            .view
            .topic_by_name(name)
            .ok_or_else(|| Refusal::UnknownTopic { name: name.clone() })?;
        if topic.life == Life::Creating {
            return Err(Refusal::TopicNotReady { name: name.clone() });
        }
        let after = self.altered(now, topic, alter)?;
        if after.partitions > topic.partitions && !matches!(progress, Progress::Creating(_)) {
            let placed = self.place(after.partitions - topic.partitions)?;
            *progress = Progress::Creating(Creation {
                first: topic.partitions,
                placed,
            });
        }
        if let Progress::Creating(creation) = progress {
            let partitions = self.missing_partitions(id, after.partitions, creation);
            if !partitions.is_empty() {
                return Ok(Next::Write(partitions));
            }
        }
        if after != *topic {
            return Ok(Next::Write(vec![Change::put(
                Key::Topic(id),
                Value::Topic(after),
            )]));
        }
        let grown = matches!(progress, Progress::Creating(_));
        let warnings = grown.then(|| {
            "keys will move: records of a key written from now on may be in another partition than \
             earlier ones"
                .to_owned()
        });
        Ok(Next::Reply(Reply::Altered(
            self.answer(id, warnings.into_iter().collect())?,
        )))
    }

    /// The topic as asked for.
    fn altered(&self, now: Now, topic: &Topic, alter: &AlterTopic) -> Result<Topic, Refusal> {
        let mut after = topic.clone();
        after.config = altered_config(&topic.config, alter)?;
        let Some(count) = alter.partitions else {
            return Ok(after);
        };
        let count = self.checked_count(count)?;
        if count < topic.partitions {
            let reason = format!(
                "partitions are never removed: topic {:?} has {}, asked for {count}",
                topic.name, topic.partitions
            );
            return Err(Refusal::InvalidPartitions { reason });
        }
        if count > topic.partitions {
            after.earlier.push((topic.partitions, now.wall));
            after.partitions = count;
        }
        Ok(after)
    }

    pub(super) fn plan_delete(
        &mut self,
        now: Now,
        delete: &DeleteTopic,
        progress: &mut Progress,
    ) -> Result<Next, Refusal> {
        if let Progress::Deleting(id) = *progress
            && !self.view.topics.contains_key(&id)
        {
            self.jobs.urgent(Job::Tidy);
            return Ok(Next::Reply(Reply::Deleted(id)));
        }
        let (id, topic) = self.to_delete(delete)?;
        *progress = Progress::Deleting(id);
        let replicas = self
            .view
            .partitions_of(id)
            .flat_map(|(_, p)| p.replicas.iter().copied());
        let tombstone = Tombstone {
            name: topic.name.clone(),
            pending: replicas.collect(),
            deleted: now.wall,
        };
        Ok(Next::Write(vec![
            Change::delete(Key::Topic(id)),
            Change::delete(Key::TopicName(topic.name.clone())),
            Change::put(Key::Tombstone(id), Value::Tombstone(tombstone)),
        ]))
    }

    fn to_delete(&self, delete: &DeleteTopic) -> Result<(TopicId, &Topic), Refusal> {
        let (id, topic) = match (&delete.name, delete.id) {
            (Some(name), asked) => {
                let found = self.view.topic_by_name(name);
                let (id, topic) =
                    found.ok_or_else(|| Refusal::UnknownTopic { name: name.clone() })?;
                if let Some(asked) = asked.filter(|asked| *asked != id) {
                    return Err(Refusal::TopicIdChanged {
                        name: name.clone(),
                        asked,
                        actual: id,
                    });
                }
                (id, topic)
            }
            (None, Some(id)) => {
                let found = self.view.topics.get(&id).map(|stored| &stored.value);
                (id, found.ok_or(Refusal::UnknownTopicId { id })?)
            }
            (None, None) => {
                let reason = "name the topic by its name, its id or both".to_owned();
                return Err(Refusal::InvalidArgument {
                    field: "name",
                    reason,
                });
            }
        };
        match topic.life {
            Life::Ready => Ok((id, topic)),
            Life::Creating => Err(Refusal::TopicNotReady {
                name: topic.name.clone(),
            }),
        }
    }

    pub(super) fn plan_confirm(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        topics: &BTreeSet<TopicId>,
    ) -> Result<Next, Refusal> {
        let known = self
            .view
            .nodes
            .get(&node)
            .map(|stored| stored.value.incarnation);
        match known {
            None => return Err(Refusal::UnknownNode { id: node }),
            Some(known) if known != incarnation => {
                return Err(Refusal::StaleIncarnation { id: node });
            }
            Some(_) => {}
        }
        let confirmed = topics.iter().filter_map(|id| {
            let tombstone = &self.view.tombstones.get(id)?.value;
            let mut pending = tombstone.pending.clone();
            pending.remove(&node).then_some(())?;
            Some(
                match pending.is_empty() && self.view.partitions_of(*id).next().is_none() {
                    true => Change::delete(Key::Tombstone(*id)),
                    false => {
                        let tombstone = Tombstone {
                            pending,
                            ..tombstone.clone()
                        };
                        Change::put(Key::Tombstone(*id), Value::Tombstone(tombstone))
                    }
                },
            )
        });
        let changes: Vec<_> = confirmed.take(CHANGES_PER_WRITE).collect();
        Ok(if changes.is_empty() {
            Next::Reply(Reply::Confirmed)
        } else {
            Next::Write(changes)
        })
    }

    /// The next transaction that finishes something left half done.
    pub(super) fn plan_tidy(&self) -> Option<Vec<Change>> {
        self.tidy_creations().or_else(|| self.tidy_tombstones())
    }

    fn tidy_creations(&self) -> Option<Vec<Change>> {
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
                    false => self.place(topic.partitions - first).ok()?,
                };
                Some(self.creation_step(id, topic, &Creation { first, placed }))
            })
    }

    fn tidy_tombstones(&self) -> Option<Vec<Change>> {
        self.view.tombstones.iter().find_map(|(id, stored)| {
            let partitions = self.view.partitions_of(*id).map(|(tp, _)| tp);
            let removed = partitions.map(|tp| Change::delete(Key::Partition(tp)));
            let removed: Vec<_> = removed.take(CHANGES_PER_WRITE).collect();
            match (removed.is_empty(), stored.value.pending.is_empty()) {
                (false, _) => Some(removed),
                (true, true) => Some(vec![Change::delete(Key::Tombstone(*id))]),
                (true, false) => None,
            }
        })
    }

    fn answer(&self, id: TopicId, mut warnings: Vec<String>) -> Result<TopicAnswer, Refusal> {
        let topic = self
            .view
            .visible_topic(id)
            .ok_or(Refusal::UnknownTopicId { id })?
            .clone();
        let durability = TopicConfig::resolve(&topic.config)?.durability;
        if durability == Some(Durability::Replicated) && topic.replication_factor == 1 {
            warnings.push(
                "durability=replicated with one replica: a power loss may take acknowledged \
                 records that were not flushed yet"
                    .to_owned(),
            );
        }
        Ok(TopicAnswer {
            id,
            topic,
            warnings,
        })
    }
}

fn check_replication_factor(asked: Option<i32>) -> Result<(), Refusal> {
    let reason = match asked {
        None | Some(1) => return Ok(()),
        Some(factor) if factor < 1 => format!("a partition has at least one replica, not {factor}"),
        Some(factor) => format!(
            "replication factor {factor} needs the replicated cluster, which this version does \
             not have; use 1"
        ),
    };
    Err(Refusal::InvalidReplicationFactor { reason })
}

/// Settings with some set and some back at their default; all of them allowed.
fn altered_config(
    before: &BTreeMap<String, String>,
    alter: &AlterTopic,
) -> Result<BTreeMap<String, String>, Refusal> {
    let mut after = before.clone();
    for key in &alter.reset {
        if alter.set.contains_key(key) {
            let reason = format!("{key} is both set and set back to its default");
            return Err(Refusal::InvalidArgument {
                field: "reset_config",
                reason,
            });
        }
        if talweg_types::topic_config::find(key).is_none() {
            let unknown = talweg_types::topic_config::ConfigError::Unknown { key: key.clone() };
            return Err(Refusal::Config(unknown));
        }
        after.remove(key);
    }
    after.extend(alter.set.clone());
    TopicConfig::resolve(&after)?;
    Ok(after)
}
