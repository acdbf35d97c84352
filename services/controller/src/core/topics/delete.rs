//! Deletion: the name is given up for a tombstone in one step; the tombstone
//! goes when every replica's node has confirmed and no partition key is left.

use super::refuse_internal;
use crate::core::{
    CHANGES_PER_WRITE, Change, Core, DeleteTopic, Job, Life, Now, Refusal, Reply, Tombstone, Topic,
    Value, jobs::Progress, requests::Next,
};
use std::collections::BTreeSet;
use talweg_metastore::keys::Key;
use talweg_types::{Incarnation, NodeId, TopicId, TopicPartition};

impl Core {
    pub(in crate::core) fn plan_delete(
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
            .flat_map(|(_, p)| p.replicas.iter().chain(&p.removed).copied());
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
        refuse_internal(&topic.name)?;
        match topic.life {
            Life::Ready => Ok((id, topic)),
            Life::Creating => Err(Refusal::TopicNotReady {
                name: topic.name.clone(),
            }),
        }
    }

    pub(in crate::core) fn plan_confirm(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        topics: &BTreeSet<TopicId>,
        partitions: &BTreeSet<TopicPartition>,
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
        let confirmed = confirmed.chain(self.confirmed_moves(node, partitions));
        let changes: Vec<_> = confirmed.take(CHANGES_PER_WRITE).collect();
        Ok(if changes.is_empty() {
            Next::Reply(Reply::Confirmed)
        } else {
            Next::Write(changes)
        })
    }

    /// Goes on with deletions that were left half done.
    pub(super) fn tidy_tombstones(&self) -> Option<Vec<Change>> {
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
}
