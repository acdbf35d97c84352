//! Changes of the in-sync set: compare-and-set at the controller on the
//! partition epoch, one at a time.
//!
//! An attempt that was not answered may be applied at any time before the
//! partition epoch moves. Its members hold the watermark until then, and so do
//! those of the attempts after it; the compare-and-set lets only one through.

use super::{Effect, InSync, Leader, Member, Proposal, ProposalId};
use crate::{
    MonotonicMs,
    fault::{Fault, planted},
};
use std::collections::BTreeSet;
use talweg_types::{NodeId, Offset, PartitionEpoch};

#[derive(Clone, Debug, Default)]
pub(super) struct Proposals {
    last_id: u64,
    /// Asked for and not answered.
    outstanding: Option<(ProposalId, BTreeSet<NodeId>)>,
    /// Members of attempts at this partition epoch whose outcome is unknown.
    in_doubt: BTreeSet<NodeId>,
    /// The last attempt was refused at the partition epoch that is known here.
    refused: bool,
    not_before: MonotonicMs,
    /// In a row.
    failures: u32,
}

impl Proposals {
    /// Who may be in the set without a confirmation.
    pub(super) fn holders(&self) -> impl Iterator<Item = NodeId> {
        let asked = self.outstanding.iter().flat_map(|(_, members)| members);
        asked.chain(&self.in_doubt).copied()
    }

    /// The set that this attempt asked for, if it is the one that is out.
    fn take(&mut self, id: ProposalId) -> Option<BTreeSet<NodeId>> {
        let (_, members) = self.outstanding.take_if(|(asked, _)| *asked == id)?;
        Some(members)
    }

    /// A new set is confirmed: no attempt at an older one can be applied. Ids
    /// go on, so that a late answer meets no other attempt.
    pub(super) fn settled(&mut self) {
        let last_id = self.last_id;
        *self = Self {
            last_id,
            ..Self::default()
        };
    }
}

impl<W> Leader<W> {
    /// In-sync followers that do not stand at the leader's end, or fetch no more,
    /// and have not stood there since `lag_ms` ago.
    pub fn lagging(&self, now: MonotonicMs, lag_ms: u64) -> Vec<NodeId> {
        let late = |(_, caught_up): &(NodeId, MonotonicMs)| now.since(*caught_up) > lag_ms;
        self.behind().filter(late).map(|(node, _)| node).collect()
    }

    /// When each follower that has spoken in this epoch last was known to hold all
    /// that this leader held; of one that stands at the end: now.
    pub fn caught_up(&self, now: MonotonicMs) -> Vec<(NodeId, MonotonicMs)> {
        let end = self.own_ends().log_end;
        let others = self.replicas.iter().filter(|(node, _)| **node != self.node);
        let when = |replica: &crate::replica::Replica| match replica.counted() >= end {
            true => now,
            false => replica.caught_up(),
        };
        others
            .map(|(node, replica)| (*node, when(replica)))
            .collect()
    }

    /// In-sync followers that do not stand at the end or fetch no more, and when
    /// they last did.
    /// Positions are counted ends: on `synced` partitions one whose flush hangs
    /// must not hold the watermark for ever.
    fn behind(&self) -> impl Iterator<Item = (NodeId, MonotonicMs)> {
        let end = self.own_ends().log_end;
        let members = self.in_sync.iter().filter(|node| **node != self.node);
        members.filter_map(move |node| match self.replicas.get(node) {
            Some(replica) if replica.counted() >= end && !replica.is_gone() => None,
            Some(replica) => Some((*node, replica.caught_up())),
            None => Some((*node, self.led_since)),
        })
    }

    /// When `Tick` is wanted at the latest; `None` while nothing depends on time.
    pub fn next_tick(&self) -> Option<MonotonicMs> {
        self.epoch()?;
        if self.proposals.outstanding.is_some() {
            return None;
        }
        let lag = self
            .behind()
            .map(|(_, caught_up)| caught_up.plus(self.timings.lag_ms.saturating_add(1)))
            .min();
        let returns = self.returning().next().map(|_| MonotonicMs(0));
        let doubt = (!self.proposals.in_doubt.is_empty()).then_some(MonotonicMs(0));
        let first = [lag, returns, doubt].into_iter().flatten().min()?;
        Some(first.max(self.proposals.not_before))
    }

    /// Followers outside the set that have got far enough to be in it.
    fn returning(&self) -> impl Iterator<Item = NodeId> + '_ {
        let floor = self.return_floor();
        // With the watermark standing still, reaching it says little.
        let below = self.confirmed() < self.needed();
        let followers = self.replicas.iter().filter(move |(node, replica)| {
            let far = replica.counted() >= floor && (!below || replica.reached_previous());
            (far && !replica.is_gone()) || (planted(Fault::GrowthTooEarly) && **node != self.node)
        });
        // What is known of a process that has a successor is of one that is gone.
        let fresh = |node: &NodeId| !self.successors.contains_key(node);
        followers
            .map(|(node, _)| *node)
            .filter(|node| self.assigned.contains(node) && !self.in_sync.contains(node))
            .filter(fresh)
    }

    /// Asks for another set if one is due and nothing is asked.
    pub(super) fn propose(&mut self, now: MonotonicMs, effects: &mut Vec<Effect<W>>) {
        let Some(epoch) = self.epoch() else {
            return;
        };
        if self.proposals.outstanding.is_some() || now < self.proposals.not_before {
            return;
        }
        let lagging = self.lagging(now, self.timings.lag_ms);
        // What is in doubt is settled first: whoever returned with it may be gone,
        // and be refused for ever.
        let settling = self.proposals.refused && !self.proposals.in_doubt.is_empty();
        let returning: Vec<_> = match settling {
            true => Vec::new(),
            false => self.returning().collect(),
        };
        let wanted = !lagging.is_empty() || !returning.is_empty();
        // The same set again settles what is in doubt: it moves the partition epoch.
        if !wanted && self.proposals.in_doubt.is_empty() {
            return;
        }
        let mut members = self.in_sync.clone();
        members.retain(|node| !lagging.contains(node));
        members.extend(returning);
        self.proposals.last_id += 1;
        let proposal = Proposal {
            id: ProposalId(self.proposals.last_id),
            epoch,
            partition_epoch: self.partition_epoch,
            members: members.iter().map(|node| self.member(*node)).collect(),
        };
        self.proposals.outstanding = Some((proposal.id, members));
        effects.push(Effect::ProposeInSync(proposal));
    }

    fn member(&self, node: NodeId) -> Member {
        let replica = self.replicas.get(&node);
        Member {
            node,
            incarnation: replica.map(|replica| replica.incarnation()),
        }
    }

    pub(super) fn on_refused(
        &mut self,
        now: MonotonicMs,
        id: ProposalId,
        at: PartitionEpoch,
        effects: &mut Vec<Effect<W>>,
    ) {
        self.contacts.controller_heard(now);
        if at > self.partition_epoch {
            return self.on_timed_out(now, id);
        }
        if self.proposals.take(id).is_none() {
            return;
        }
        self.proposals.refused = true;
        self.back_off(now);
        self.hear_successors(now, effects);
        self.settle(effects);
    }

    pub(super) fn on_timed_out(&mut self, now: MonotonicMs, id: ProposalId) {
        if let Some(members) = self.proposals.take(id) {
            self.proposals.in_doubt.extend(members);
            self.back_off(now);
        }
    }

    fn back_off(&mut self, now: MonotonicMs) {
        let doubled = self
            .timings
            .retry_ms
            .saturating_mul(1 << self.proposals.failures.min(16));
        let wait = doubled.min(self.timings.retry_max_ms);
        self.proposals.failures = self.proposals.failures.saturating_add(1);
        self.proposals.not_before = now.plus(wait);
    }

    /// A word of another epoch is for another leader, and no set is without its leader.
    pub(super) fn on_in_sync(
        &mut self,
        now: MonotonicMs,
        in_sync: InSync,
        effects: &mut Vec<Effect<W>>,
    ) {
        let newer = in_sync.partition_epoch > self.partition_epoch;
        let mine = self.epoch() == Some(in_sync.epoch) && in_sync.members.contains(&self.node);
        if !newer || !mine {
            return;
        }
        self.contacts.controller_heard(now);
        for node in in_sync.members.difference(&self.in_sync) {
            if let Some(replica) = self.replicas.get_mut(node) {
                replica.entered(now);
            }
        }
        self.partition_epoch = in_sync.partition_epoch;
        self.in_sync = in_sync.members;
        self.given_watermark = self.high_watermark;
        self.proposals.settled();
        self.fail_below_minimum(effects);
        self.hear_successors(now, effects);
        self.settle(effects);
        self.propose(now, effects);
    }

    /// The first offset that a returning follower must have counted.
    pub fn return_floor(&self) -> Offset {
        self.high_watermark.max(self.epoch_start)
    }
}
