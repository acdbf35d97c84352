//! What becomes of a partition's sets and leader; without sessions and writes.
//!
//! * A member that dies leaves the in-sync set in the step that replaces it as
//!   leader. If the set is below its minimum then, the watermark stands still
//!   from that step on: the member holds all that was acknowledged and becomes
//!   eligible, unless it has lost bytes.
//! * A leader is elected from the in-sync set, then from the eligible one.
//! * Both sets empty: all who held what was acknowledged have lost bytes. The
//!   last in-sync set says who they were.

use super::{
    Partition, Recovered,
    fault::{Fault, planted},
};
use talweg_types::{Incarnation, LeaderEpoch, NodeId, Offset, PartitionEpoch, TimestampMs};

/// What a replica may have lost when its process ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Loss {
    Nothing,
    /// What was not flushed.
    Unflushed,
    /// Everything.
    All,
}

impl Partition {
    /// The same, as of a new partition epoch.
    #[must_use]
    pub fn confirmed_again(&self) -> Self {
        Self {
            partition_epoch: PartitionEpoch(self.partition_epoch.0.saturating_add(1)),
            ..self.clone()
        }
    }

    /// A new partition, all of whose replicas are in sync: they are empty.
    pub fn new(replicas: Vec<NodeId>, leader: Option<(NodeId, Incarnation)>) -> Self {
        let (leader, leader_incarnation) = leader.unwrap_or_default();
        Self {
            leader,
            leader_incarnation,
            leader_epoch: LeaderEpoch(0),
            partition_epoch: PartitionEpoch(0),
            in_sync: replicas.clone(),
            last_in_sync: replicas.clone(),
            replicas,
            eligible: Vec::new(),
            recovered: None,
            moving: None,
            removed: Vec::new(),
        }
    }

    /// Led by `leader` (or by none) from a new epoch on.
    pub(super) fn lead(&mut self, leader: Option<(NodeId, Incarnation)>) {
        (self.leader, self.leader_incarnation) = leader.unwrap_or_default();
        if !planted(Fault::EpochKeptByElection) {
            self.leader_epoch = LeaderEpoch(self.leader_epoch.0.saturating_add(1));
        }
    }

    /// Nobody can be elected by the rules: who held what was acknowledged has
    /// lost bytes.
    pub(super) fn is_stuck(&self) -> bool {
        self.leader.is_none() && self.in_sync.is_empty() && self.eligible.is_empty()
    }

    /// These died at once. The watermark did not move after any of them.
    pub(super) fn bury(&mut self, dead: &[NodeId], minimum: usize) {
        let (gone, left) = self.in_sync.iter().partition(|node| dead.contains(node));
        self.in_sync = left;
        let gone: Vec<_> = gone;
        if self.in_sync.len() < minimum {
            self.eligible.extend(gone);
        }
    }

    /// `node` has lost bytes.
    pub(super) fn drop_incomplete(&mut self, node: NodeId) {
        self.in_sync.retain(|other| *other != node);
        if !planted(Fault::EligibleKeptOnUncleanBoot) {
            self.eligible.retain(|other| *other != node);
        }
    }

    /// The log of `node` is gone: nobody waits for it unless there is no other.
    pub(super) fn forget(&mut self, node: NodeId) {
        if self.last_in_sync.iter().any(|other| *other != node) {
            self.last_in_sync.retain(|other| *other != node);
        }
    }

    /// The leader proposes this in-sync set, which has it.
    pub(super) fn replace_in_sync(&mut self, members: &[NodeId], minimum: usize) {
        let left = self.in_sync.iter().filter(|node| !members.contains(node));
        self.eligible.extend(left.copied().collect::<Vec<_>>());
        self.eligible.retain(|node| !members.contains(node));
        self.in_sync = members.to_vec();
        self.settle(minimum);
    }

    /// Elects the first of `candidates` that may lead, and that `preferable`
    /// prefers if there is one.
    pub(super) fn elect(
        &mut self,
        alive: impl Fn(NodeId) -> Option<Incarnation>,
        preferable: impl Fn(NodeId) -> bool,
    ) {
        let first = |set: &[NodeId]| {
            let able = self.replicas.iter().filter(|node| set.contains(node));
            let able = able.filter_map(|node| Some((*node, alive(*node)?)));
            let (good, rest): (Vec<_>, Vec<_>) = able.partition(|(node, _)| preferable(*node));
            good.into_iter().chain(rest).next()
        };
        let elected = first(&self.in_sync).or_else(|| first(&self.eligible));
        let any = || first(&self.replicas).filter(|_| planted(Fault::StaleReplicaElected));
        let elected = elected.or_else(any);
        if let Some((node, _)) = elected
            && (take(&mut self.eligible, node) || !self.in_sync.contains(&node))
        {
            self.in_sync.push(node);
        }
        if elected.is_some() || !self.leader.is_none() {
            self.lead(elected);
        }
    }

    /// Led by a replica that may lack something.
    pub(super) fn recover(
        &mut self,
        leader: (NodeId, Incarnation),
        (unclean, from): (bool, Offset),
        time: TimestampMs,
        minimum: usize,
    ) {
        self.in_sync = vec![leader.0];
        self.eligible.clear();
        self.lead(Some(leader));
        if !planted(Fault::RecoveredNotRecorded) {
            self.recovered = Some(Recovered {
                epoch: self.leader_epoch,
                unclean,
                time,
                from: Some(from),
            });
        }
        self.settle(minimum);
    }

    /// Brings the sets in order: each in the order of the replicas, the eligible
    /// one empty while enough are in sync, the last in-sync set up to date.
    pub(super) fn settle(&mut self, minimum: usize) {
        if self.in_sync.len() >= minimum && !planted(Fault::EligibleNotEmptied) {
            self.eligible.clear();
        }
        let among = |set: &[NodeId]| {
            let members = self.replicas.iter().filter(|node| set.contains(node));
            members.copied().collect::<Vec<_>>()
        };
        let (in_sync, eligible) = (among(&self.in_sync), among(&self.eligible));
        let both = among(&[in_sync.clone(), eligible.clone()].concat());
        // Without a leader nothing is acknowledged: who is lost then may still
        // have the newest log.
        let last = match both.len() >= minimum && !self.leader.is_none() {
            true => both,
            false => match among(&self.last_in_sync) {
                last if last.is_empty() => both,
                last => last,
            },
        };
        (self.in_sync, self.eligible, self.last_in_sync) = (in_sync, eligible, last);
    }

    /// The next version of `before`; `None` if nothing has changed.
    pub(super) fn after(mut self, before: &Self) -> Option<Self> {
        let same_leader = (self.leader, self.leader_incarnation)
            == (before.leader, before.leader_incarnation)
            && self.recovered == before.recovered;
        if same_leader {
            // Elected anew although nothing was wrong: no new epoch for that.
            self.leader_epoch = before.leader_epoch;
        }
        (self != *before).then(|| Self {
            partition_epoch: PartitionEpoch(before.partition_epoch.0.saturating_add(1)),
            ..self
        })
    }

    /// Names the first broken rule about the sets.
    pub(super) fn check_sets(&self) -> Result<(), String> {
        for (set, name) in [
            (&self.in_sync, "in sync"),
            (&self.eligible, "eligible"),
            (&self.last_in_sync, "in the last in-sync set"),
        ] {
            if let Some(node) = set.iter().find(|node| !self.replicas.contains(node)) {
                return Err(format!("node {node} is {name} but no replica"));
            }
            let twice = |(i, node): (usize, &NodeId)| set[..i].contains(node);
            if set.iter().enumerate().any(twice) {
                return Err(format!("a node is {name} twice"));
            }
        }
        if let Some(node) = self.eligible.iter().find(|n| self.in_sync.contains(n)) {
            return Err(format!("node {node} is both in sync and eligible"));
        }
        if let Some(node) = self.removed.iter().find(|n| self.replicas.contains(n)) {
            return Err(format!("node {node} is both a replica and removed"));
        }
        if self.is_stuck() && self.last_in_sync.is_empty() {
            return Err("nobody can ever be elected".into());
        }
        if !self.leader.is_none() && !self.in_sync.contains(&self.leader) {
            return Err(format!("leader {} is not in sync", self.leader));
        }
        let all = self.moving.as_ref().map(super::Move::all);
        if all.is_some_and(|all| all != self.replicas) {
            return Err("the replicas are not those of its reassignment".into());
        }
        Ok(())
    }
}

/// Removes `node`; true if it was there.
fn take(set: &mut Vec<NodeId>, node: NodeId) -> bool {
    let before = set.len();
    set.retain(|other| *other != node);
    set.len() < before
}
