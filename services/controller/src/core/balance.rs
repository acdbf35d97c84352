//! Where leaderships belong: with the preferred replica, a while after it is in
//! sync again; away from nodes that are being drained or have no room, at once. A bounded
//! number moves per tick, each to a replica that is in sync and alive.

use super::{
    CHANGES_PER_WRITE, Change, Core, Now, Partition, Refusal, Reply, SessionState, Value,
    jobs::{Job, Progress},
    reconcile::put,
    requests::{ElectLeader, Next},
};
use std::{collections::BTreeMap, time::Duration};
use talweg_metastore::keys::Key;
use talweg_types::{NodeId, TopicPartition};

/// Leaderships that move per tick.
const MOVES_PER_TICK: usize = 50;
/// Replicas have this long to say where their logs end.
const ENDS_TIMEOUT: Duration = Duration::from_secs(15);

/// Partitions whose leader should be another one, and from when on.
pub(super) type Due = BTreeMap<TopicPartition, Duration>;

impl Core {
    /// A partition has changed: is it led where it belongs?
    pub(super) fn note_due(&mut self, now: Duration, tp: TopicPartition) {
        let stored = self.view.partitions.get(&tp).map(|stored| &stored.value);
        let wait = stored.and_then(|partition| match self.avoids(tp, partition.leader) {
            true => Some(Duration::ZERO),
            false => {
                let preferred = partition.replicas.first()?;
                let away = *preferred != partition.leader && partition.in_sync.contains(preferred);
                self.settings.preferred_after.filter(|_| away)
            }
        });
        match wait {
            Some(wait) => {
                let due = self.due.entry(tp).or_insert(now + wait);
                *due = (*due).min(now + wait);
            }
            None => drop(self.due.remove(&tp)),
        }
    }

    pub(super) fn note_all_due(&mut self, now: Duration) {
        let all: Vec<_> = self.view.partitions.keys().copied().collect();
        all.into_iter().for_each(|tp| self.note_due(now, tp));
    }

    pub(super) fn balance_if_due(&mut self, now: Now) {
        if self.due.values().any(|due| *due <= now.monotonic) {
            self.jobs.urgent(Job::Balance { done: false });
        }
    }

    pub(super) fn plan_balance(&mut self, now: Now, done: &mut bool) -> Option<Vec<Change>> {
        if std::mem::replace(done, true) {
            return None;
        }
        let due = self.due.iter().filter(|(_, due)| **due <= now.monotonic);
        let moved = due.filter_map(|(tp, _)| self.led_better(*tp));
        let moved: Vec<_> = moved.take(MOVES_PER_TICK).collect();
        (!moved.is_empty()).then_some(moved)
    }

    fn led_better(&self, tp: TopicPartition) -> Option<Change> {
        let before = &self.view.partitions.get(&tp)?.value;
        self.rules(tp.topic_id)?;
        self.led_by(tp, before, self.better_leader(tp, before)?)
    }

    fn led_by(&self, tp: TopicPartition, before: &Partition, leader: NodeId) -> Option<Change> {
        let mut next = before.clone();
        next.lead(Some((leader, self.able(tp, leader)?)));
        Some(put(tp, next.after(before)?))
    }

    fn may_lead(&self, tp: TopicPartition, partition: &Partition, node: NodeId) -> bool {
        let live = |s: &super::Session| s.state == SessionState::Live;
        partition.in_sync.contains(&node)
            && self.session(node).is_some_and(live)
            && !self.has_failed(tp, node)
    }

    /// Who should lead instead of the present leader.
    fn better_leader(&self, tp: TopicPartition, partition: &Partition) -> Option<NodeId> {
        let leader = partition.leader;
        if leader.is_none() {
            return None;
        }
        let good = |node: &NodeId| self.may_lead(tp, partition, *node) && !self.avoids(tp, *node);
        match self.avoids(tp, leader) {
            true => partition.replicas.iter().copied().find(good),
            false => {
                let preferred = partition.replicas.first().copied();
                preferred.filter(|node| *node != leader && good(node))
            }
        }
    }

    /// Marks the node, then moves its leaderships.
    pub(super) fn plan_drain(
        &mut self,
        now: Now,
        id: NodeId,
        draining: bool,
    ) -> Result<Next, Refusal> {
        let record = self.view.nodes.get(&id).map(|stored| &stored.value);
        let record = record
            .filter(|node| !node.removed)
            .ok_or(Refusal::UnknownNode { id })?;
        if record.draining != draining {
            let mut record = record.clone();
            record.draining = draining;
            return Ok(Next::Write(vec![Change::put(
                Key::Node(id),
                Value::Node(record),
            )]));
        }
        // What cannot move now moves as soon as it can.
        self.note_all_due(now.monotonic);
        if !draining {
            // A creation may have waited for a node that takes replicas.
            self.jobs.urgent(Job::Tidy);
        }
        let moved = self.view.led_by(id).filter(|_| draining);
        let moved = moved.filter_map(|tp| self.led_better(tp));
        let moved: Vec<_> = moved.take(CHANGES_PER_WRITE).collect();
        if !moved.is_empty() {
            return Ok(Next::Write(moved));
        }
        Ok(Next::Reply(Reply::Drained {
            leaders_left: self.view.led_count(id),
        }))
    }

    /// Forgets a node; its record stays, so that its id is never another's.
    pub(super) fn plan_remove_node(
        &self,
        id: NodeId,
        progress: &mut Progress,
    ) -> Result<Next, Refusal> {
        let record = self.view.nodes.get(&id).map(|stored| &stored.value);
        let record = record.ok_or(Refusal::UnknownNode { id })?;
        if record.removed {
            return match progress {
                Progress::Written => Ok(Next::Reply(Reply::Removed)),
                _ => Err(Refusal::UnknownNode { id }),
            };
        }
        let refuse = |reason: String| {
            Err(Refusal::InvalidArgument {
                field: "node_id",
                reason,
            })
        };
        let hosted = self.view.hosted_count(id);
        if hosted > 0 {
            return refuse(format!(
                "node {id} holds {hosted} replicas; move them to other nodes first"
            ));
        }
        if self.session(id).is_some() {
            return refuse(format!("node {id} is alive; stop it first"));
        }
        *progress = Progress::Written;
        let waiting = self.not_waiting_for(id);
        if !waiting.is_empty() {
            return Ok(Next::Write(waiting));
        }
        let mut record = record.clone();
        record.removed = true;
        Ok(Next::Write(vec![Change::put(
            Key::Node(id),
            Value::Node(record),
        )]))
    }

    /// Nobody waits any more for what the node should delete.
    fn not_waiting_for(&self, id: NodeId) -> Vec<Change> {
        let stones = self.view.tombstones.iter().filter_map(|(topic, stored)| {
            let mut stone = stored.value.clone();
            let waits = stone.pending.remove(&id);
            waits.then(|| Change::put(Key::Tombstone(*topic), Value::Tombstone(stone)))
        });
        let moves = self.view.partitions.iter().filter_map(|(tp, stored)| {
            let mut next = stored.value.clone();
            next.removed.retain(|node| *node != id);
            Some(put(*tp, next.after(&stored.value)?))
        });
        stones.chain(moves).take(CHANGES_PER_WRITE).collect()
    }

    /// An operator's election: of the preferred replica, or an unclean one.
    pub(super) fn plan_elect(
        &mut self,
        now: Now,
        elect: &ElectLeader,
        progress: &mut Progress,
    ) -> Result<Next, Refusal> {
        let tp = self.find_partition(&elect.topic, elect.partition)?;
        let Some(before) = self.view.partitions.get(&tp).map(|stored| &stored.value) else {
            return Err(Refusal::NoLeader {
                reason: format!("there is no partition {tp}"),
            });
        };
        let elected = Ok(Next::Reply(Reply::Elected {
            leader: before.leader,
            epoch: before.leader_epoch,
        }));
        match (before.leader.is_none(), elect.unclean) {
            (false, true) => elected,
            (true, true) => self.plan_unclean(now, tp, progress),
            (true, false) => Err(Refusal::NoLeader {
                reason: "no replica that has everything is alive; only an unclean election can \
                         choose another"
                    .into(),
            }),
            (false, false) => {
                let preferred = before.replicas.first().copied().unwrap_or_default();
                if before.leader == preferred {
                    return elected;
                }
                let change = self
                    .may_lead(tp, before, preferred)
                    .then(|| self.led_by(tp, before, preferred));
                let change = change.flatten().ok_or_else(|| Refusal::NoLeader {
                    reason: format!("the preferred replica, on node {preferred}, is not in sync"),
                })?;
                Ok(Next::Write(vec![change]))
            }
        }
    }

    /// Among the replicas that are alive, the one with the greatest log.
    fn plan_unclean(
        &mut self,
        now: Now,
        tp: TopicPartition,
        progress: &mut Progress,
    ) -> Result<Next, Refusal> {
        let until = match progress {
            Progress::Asking { until } => *until,
            _ => now.monotonic + ENDS_TIMEOUT,
        };
        *progress = Progress::Asking { until };
        self.ends.want(tp);
        let Some(before) = self.leaderless(tp) else {
            return Ok(Next::Wait);
        };
        let last = now.monotonic >= until;
        let anyone = before
            .replicas
            .iter()
            .any(|node| self.able(tp, *node).is_some());
        match self.unclean(now, tp, before, last) {
            Some(change) => Ok(Next::Write(vec![change])),
            None if !last && anyone => Ok(Next::Wait),
            None => Err(Refusal::NoLeader {
                reason: "no replica of it is alive".into(),
            }),
        }
    }
}
