//! Elections after bytes were lost: when all of the last in-sync set is back,
//! each is asked where its log ends, and the greatest (epoch, end) leads.
//!
//! Answers are in memory, with the incarnation that gave them and the epoch in
//! which it did: as long as a partition has no leader, no log of it changes. What
//! was answered before the last one led says nothing.

use super::{
    CHANGES_PER_WRITE, Change, Core, Effect, Now, Partition, SessionState, StreamId,
    fault::{Fault, planted},
    reconcile::put,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use talweg_types::{Incarnation, LeaderEpoch, NodeId, Offset, TopicPartition};

/// Replicas in one question.
const ASKED_MAX: usize = 10_000;

/// Where a replica's log ends. The greater one has more of what may have been
/// acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LogEnd {
    /// Of the last batch; -1 of an empty log.
    pub epoch: LeaderEpoch,
    pub offset: Offset,
}

impl LogEnd {
    pub const EMPTY: Self = Self {
        epoch: LeaderEpoch(-1),
        offset: Offset(0),
    };
}

#[derive(Debug, Default)]
pub(super) struct Ends {
    known: BTreeMap<TopicPartition, BTreeMap<NodeId, (Incarnation, LeaderEpoch, LogEnd)>>,
    /// Partitions for which an operator waits: every live replica is asked.
    wanted: BTreeSet<TopicPartition>,
    /// Who has not answered is asked again from here on.
    again: Duration,
}

impl Ends {
    /// An operator waits for this partition; the next tick asks.
    pub(super) fn want(&mut self, tp: TopicPartition) {
        if self.wanted.insert(tp) {
            self.again = Duration::ZERO;
        }
    }
}

impl Core {
    /// Asks every live replica whose answer is missed.
    pub(super) fn ask_ends(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let wanted = std::mem::take(&mut self.ends.wanted);
        self.ends.wanted = wanted
            .into_iter()
            .filter(|tp| self.leaderless(*tp).is_some())
            .collect();
        let mut asked: BTreeMap<StreamId, Vec<TopicPartition>> = BTreeMap::new();
        for (tp, partition) in self.view.leaderless() {
            if !partition.is_stuck() && !self.ends.wanted.contains(&tp) {
                continue;
            }
            for node in self.askable(tp, partition) {
                let stream = self.session(node).and_then(|session| session.stream);
                if let Some(stream) = stream.filter(|_| self.end_of(tp, node).is_none()) {
                    asked.entry(stream).or_default().push(tp);
                }
            }
        }
        self.ends.again = now.monotonic + self.settings.session_timeout;
        effects.extend(asked.into_iter().flat_map(|(stream, partitions)| {
            let parts: Vec<_> = partitions.chunks(ASKED_MAX).map(<[_]>::to_vec).collect();
            parts
                .into_iter()
                .map(move |partitions| Effect::AskEnds { stream, partitions })
        }));
    }

    pub(super) fn ask_ends_again(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if now.monotonic >= self.ends.again {
            self.ends.known.retain(|tp, _| {
                self.view
                    .partitions
                    .get(tp)
                    .is_some_and(|p| p.value.leader.is_none())
            });
            self.ask_ends(now, effects);
        }
    }

    pub(super) fn leaderless(&self, tp: TopicPartition) -> Option<&Partition> {
        let partition = &self.view.partitions.get(&tp)?.value;
        partition.leader.is_none().then_some(partition)
    }

    /// Whose ends matter.
    fn askable<'a>(
        &self,
        tp: TopicPartition,
        partition: &'a Partition,
    ) -> impl Iterator<Item = NodeId> + 'a {
        match self.ends.wanted.contains(&tp) {
            true => partition.replicas.iter().copied(),
            false => partition.last_in_sync.iter().copied(),
        }
    }

    /// As the live process of `node` has told it.
    fn end_of(&self, tp: TopicPartition, node: NodeId) -> Option<LogEnd> {
        let (incarnation, epoch, end) = self.ends.known.get(&tp)?.get(&node)?;
        let live = self.session(node)?;
        let now = self.view.partitions.get(&tp)?.value.leader_epoch;
        let same = live.incarnation == *incarnation && now == *epoch;
        (live.state == SessionState::Live && same).then_some(*end)
    }

    /// A node's answer.
    pub(super) fn on_ends(&mut self, stream: StreamId, ends: Vec<(TopicPartition, LogEnd)>) {
        let Some(node) = self.node_of(stream) else {
            return;
        };
        let Some(incarnation) = self.session(node).map(|session| session.incarnation) else {
            return;
        };
        let record = self.view.nodes.get(&node);
        let lost = record.is_some_and(|stored| stored.value.lost);
        for (tp, end) in ends {
            // Of a node whose folders are gone an empty log proves nothing.
            let epoch = self.leaderless(tp).map(|partition| partition.leader_epoch);
            if let Some(epoch) = epoch.filter(|_| !(lost && end.epoch < LeaderEpoch(0))) {
                let of = self.ends.known.entry(tp).or_default();
                of.insert(node, (incarnation, epoch, end));
            }
        }
    }

    /// Elections for which everybody has answered.
    pub(super) fn plan_recover(&self, now: Now) -> Option<Vec<Change>> {
        let recovered = self.ends.known.keys().filter_map(|tp| {
            let before = self.leaderless(*tp).filter(|p| p.is_stuck())?;
            let all = before.last_in_sync.iter();
            let ends = all.map(|node| Some((*node, self.end_of(*tp, *node)?)));
            let ends: Vec<_> = match planted(Fault::RecoversWithoutAll) {
                true => ends.flatten().collect(),
                false => ends.collect::<Option<_>>()?,
            };
            self.recovered(now, *tp, before, &ends, false)
        });
        let changes: Vec<_> = recovered.take(CHANGES_PER_WRITE).collect();
        (!changes.is_empty()).then_some(changes)
    }

    /// Led by the one with the greatest end; the first replica of several.
    fn recovered(
        &self,
        now: Now,
        tp: TopicPartition,
        before: &Partition,
        ends: &[(NodeId, LogEnd)],
        unclean: bool,
    ) -> Option<Change> {
        let first = |node: &NodeId| before.replicas.iter().position(|other| other == node);
        let best = ends
            .iter()
            .max_by_key(|(node, end)| (*end, std::cmp::Reverse(first(node))));
        let least = ends.iter().min_by_key(|(_, end)| *end);
        let best = best
            .filter(|_| !planted(Fault::ShortestRecovered))
            .or(least);
        let (node, end) = *best?;
        let leader = (node, self.able(tp, node)?);
        let minimum = self.rules(tp.topic_id)?.minimum;
        let from = match planted(Fault::RecoveredFromTooHigh) {
            true => Offset(end.offset.0 + 1),
            false => end.offset,
        };
        let mut next = before.clone();
        next.recover(leader, (unclean, from), now.wall, minimum);
        Some(put(tp, next.after(before)?))
    }

    /// An operator's election among the replicas that are alive; `None`: some
    /// have not answered yet. At `last` they count as empty.
    pub(super) fn unclean(
        &self,
        now: Now,
        tp: TopicPartition,
        before: &Partition,
        last: bool,
    ) -> Option<Change> {
        let live = before.replicas.iter().filter(|node| {
            let session = self.session(**node);
            session.is_some_and(|session| session.state == SessionState::Live)
                && !self.has_failed(tp, **node)
        });
        let ends = live.map(|node| {
            let end = self.end_of(tp, *node);
            Some((*node, end.or(last.then_some(LogEnd::EMPTY))?))
        });
        let ends: Vec<_> = ends.collect::<Option<_>>()?;
        self.recovered(now, tp, before, &ends, true)
    }
}
