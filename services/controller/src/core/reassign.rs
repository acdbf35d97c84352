//! Replicas that move: the new ones are added to the old ones; their leader
//! reports them in sync when they have caught up; then the old ones are removed
//! and told so in the record until their nodes have confirmed. All of it is in
//! the partition's record, so the next controller goes on with it.

use super::{
    CHANGES_PER_WRITE, Change, Core, Move, Now, Partition, Refusal, Reply,
    jobs::Progress,
    reconcile::put,
    requests::{Next, Reassign},
};
use std::collections::BTreeSet;
use talweg_types::{NodeId, PartitionIndex, TopicPartition};
use uuid::Uuid;

fn invalid(field: &'static str, reason: String) -> Refusal {
    Refusal::InvalidArgument { field, reason }
}

impl Core {
    /// A partition in force by its topic's name.
    pub(super) fn find_partition(
        &self,
        name: &str,
        partition: PartitionIndex,
    ) -> Result<TopicPartition, Refusal> {
        let topic = self.view.topic_by_name(name);
        let (topic_id, topic) = topic.ok_or_else(|| Refusal::UnknownTopic { name: name.into() })?;
        let tp = TopicPartition {
            topic_id,
            partition,
        };
        match self.view.visible_partition(tp) {
            Some(_) => Ok(tp),
            None => Err(invalid(
                "partition",
                format!(
                    "topic {name:?} has partitions 0 to {}, not {}",
                    topic.partitions.saturating_sub(1),
                    partition.0
                ),
            )),
        }
    }

    pub(super) fn plan_reassign(&self, now: Now, asked: &Reassign) -> Result<Next, Refusal> {
        let tp = self.find_partition(&asked.topic, asked.partition)?;
        let Some(before) = self.view.partitions.get(&tp).map(|stored| &stored.value) else {
            return Err(invalid("partition", "there is no such partition".into()));
        };
        match &before.moving {
            Some(moving) if moving.to == asked.to && moving.throttle == asked.throttle => {
                return Ok(Next::Reply(Reply::Moving(moving.id)));
            }
            // The same with another limit.
            Some(moving) if moving.to == asked.to => {
                let mut next = before.clone();
                next.moving = Some(Move {
                    throttle: asked.throttle,
                    ..moving.clone()
                });
                let next = next.after(before).unwrap_or_else(|| before.clone());
                return Ok(Next::Write(vec![put(tp, next)]));
            }
            Some(moving) => {
                let reason = format!(
                    "it is being reassigned to {}; cancel that first",
                    list(&moving.to)
                );
                return Err(invalid("partition", reason));
            }
            None if before.replicas == asked.to => {
                return Ok(Next::Reply(Reply::Moving(asked.id)));
            }
            None => self.check_target(tp, before, &asked.to)?,
        }
        let mut next = before.clone();
        let moving = Move {
            id: asked.id,
            from: before.replicas.clone(),
            to: asked.to.clone(),
            throttle: asked.throttle,
            started: now.wall,
        };
        next.replicas = moving.all();
        next.moving = Some(moving);
        next.settle(self.rules(tp.topic_id).map_or(1, |rules| rules.minimum));
        let next = next.after(before).unwrap_or_else(|| before.clone());
        Ok(Next::Write(vec![put(tp, next)]))
    }

    fn check_target(
        &self,
        tp: TopicPartition,
        before: &Partition,
        to: &[NodeId],
    ) -> Result<(), Refusal> {
        let topic = self.view.topics.get(&tp.topic_id);
        let factor = topic.map_or(1, |stored| stored.value.replication_factor);
        if to.len() != factor as usize {
            let reason = format!(
                "names {} nodes, and the replication factor is {factor}",
                to.len()
            );
            return Err(invalid("to", reason));
        }
        let hosts: BTreeSet<_> = self.hosts().collect();
        let limit = self.settings.limits.partitions_per_node;
        for (i, node) in to.iter().enumerate() {
            if to[..i].contains(node) {
                return Err(invalid("to", format!("node {node} is there twice")));
            }
            if before.replicas.contains(node) {
                continue;
            }
            if before.removed.contains(node) {
                let reason = format!("node {node} has not deleted its earlier replica yet");
                return Err(invalid("to", reason));
            }
            if !hosts.contains(node) {
                let reason = format!("node {node} is no storage node that can take replicas now");
                return Err(invalid("to", reason));
            }
            let hosted = self.view.hosted_count(*node) as u64 + 1;
            if hosted > u64::from(limit) {
                return Err(Refusal::LimitExceeded {
                    name: "max.partitions.per.node",
                    limit: u64::from(limit),
                    actual: hosted,
                    unit: "partitions",
                    reason: format!("node {node} holds {limit} replicas already"),
                });
            }
        }
        Ok(())
    }

    /// Moves whose new replicas are in sync.
    pub(super) fn plan_moves(&self) -> Option<Vec<Change>> {
        let moved = self.view.moving().filter_map(|tp| self.switched(tp));
        let moved: Vec<_> = moved.take(CHANGES_PER_WRITE).collect();
        (!moved.is_empty()).then_some(moved)
    }

    fn switched(&self, tp: TopicPartition) -> Option<Change> {
        let before = &self.view.partitions.get(&tp)?.value;
        let moving = before.moving.as_ref()?;
        let in_sync = |node: &NodeId| before.in_sync.contains(node);
        let minimum = self.rules(tp.topic_id)?.minimum;
        let enough = moving.to.iter().filter(|node| in_sync(node)).count() >= minimum;
        let caught_up = moving.adding().all(|node| in_sync(&node));
        if !caught_up || !enough {
            return None;
        }
        let removed = moving.removing();
        self.with_replicas(tp, before, moving.to.clone(), removed, minimum)
    }

    /// The move is over, one way or the other; `None`: nobody could lead it.
    fn with_replicas(
        &self,
        tp: TopicPartition,
        before: &Partition,
        replicas: Vec<NodeId>,
        removed: impl Iterator<Item = NodeId>,
        minimum: usize,
    ) -> Option<Change> {
        let mut next = before.clone();
        next.removed.extend(removed);
        next.moving = None;
        next.replicas = replicas;
        next.settle(minimum);
        if !next.leader.is_none() && !next.in_sync.contains(&next.leader) {
            next.elect(|node| self.able(tp, node), |node| !self.avoids(tp, node));
            next.settle(minimum);
            (!next.leader.is_none()).then_some(())?;
        }
        Some(put(tp, next.after(before)?))
    }

    pub(super) fn plan_cancel(&self, id: Uuid, progress: &mut Progress) -> Result<Next, Refusal> {
        let found = self.view.moving().find_map(|tp| {
            let before = &self.view.partitions.get(&tp)?.value;
            let moving = before.moving.as_ref().filter(|moving| moving.id == id)?;
            Some((tp, before, moving))
        });
        let Some((tp, before, moving)) = found else {
            return match progress {
                Progress::Written => Ok(Next::Reply(Reply::MoveCancelled)),
                _ => Err(invalid(
                    "reassignment_id",
                    "no reassignment under way has this id".into(),
                )),
            };
        };
        let minimum = self.rules(tp.topic_id).map_or(1, |rules| rules.minimum);
        let holds = |node: &NodeId| before.in_sync.contains(node) || before.eligible.contains(node);
        let change = moving.from.iter().any(holds).then(|| {
            let removed = moving.adding();
            self.with_replicas(tp, before, moving.from.clone(), removed, minimum)
        });
        let change = change.flatten().ok_or_else(|| {
            invalid(
                "reassignment_id",
                "only new replicas are in sync: the old ones cannot go on without them".into(),
            )
        })?;
        *progress = Progress::Written;
        Ok(Next::Write(vec![change]))
    }

    /// The node has deleted its replicas of partitions that were moved away.
    pub(super) fn confirmed_moves<'a>(
        &'a self,
        node: NodeId,
        partitions: &'a BTreeSet<TopicPartition>,
    ) -> impl Iterator<Item = Change> + 'a {
        partitions.iter().filter_map(move |tp| {
            let before = &self.view.partitions.get(tp)?.value;
            let mut next = before.clone();
            next.removed.retain(|other| *other != node);
            Some(put(*tp, next.after(before)?))
        })
    }
}

fn list(nodes: &[NodeId]) -> String {
    let each: Vec<_> = nodes.iter().map(ToString::to_string).collect();
    each.join(", ")
}
