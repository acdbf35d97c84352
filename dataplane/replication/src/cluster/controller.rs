//! The controller's part: compare-and-set on the partition epoch, elections from
//! the in-sync set, then the eligible one, a new incarnation per process.

use crate::Proposal;
use std::collections::{BTreeMap, BTreeSet};
use talweg_types::NodeId;

#[derive(Clone, Debug)]
pub(super) struct State {
    pub leader: Option<(NodeId, u64)>,
    pub epoch: i32,
    pub partition_epoch: i64,
    pub in_sync: BTreeSet<NodeId>,
    pub eligible: BTreeSet<NodeId>,
}

pub(super) struct Controller {
    pub state: State,
    /// Sessions: the incarnation that holds one.
    pub live: BTreeMap<NodeId, u64>,
    last: BTreeMap<NodeId, u64>,
    needed: usize,
}

impl Controller {
    pub(super) fn new(needed: usize) -> Self {
        let state = State {
            leader: None,
            epoch: 0,
            partition_epoch: 0,
            in_sync: BTreeSet::new(),
            eligible: BTreeSet::new(),
        };
        Self {
            state,
            live: BTreeMap::new(),
            last: BTreeMap::new(),
            needed,
        }
    }

    /// The first leader, with everyone in sync.
    pub(super) fn begin(&mut self) {
        self.state.in_sync = self.live.keys().copied().collect();
        self.elect();
    }

    /// A process starts. `lost`: it may miss what it had counted.
    pub(super) fn register(&mut self, node: NodeId, lost: bool) -> u64 {
        self.dead(node);
        let incarnation = self.last.get(&node).copied().unwrap_or(0) + 1;
        self.last.insert(node, incarnation);
        self.live.insert(node, incarnation);
        if lost {
            self.state.in_sync.remove(&node);
            self.state.eligible.remove(&node);
        }
        if self.state.leader.is_none() && self.state.partition_epoch > 0 {
            self.elect();
        }
        incarnation
    }

    /// The session of a node has ended.
    pub(super) fn dead(&mut self, node: NodeId) {
        if self.live.remove(&node).is_none() {
            return;
        }
        self.state.partition_epoch += 1;
        let leads = self.state.leader.is_some_and(|(leader, _)| leader == node);
        if self.state.in_sync.contains(&node) {
            let mut members = self.state.in_sync.clone();
            members.remove(&node);
            self.set_members(members);
        }
        if leads {
            self.elect();
        }
    }

    fn set_members(&mut self, members: BTreeSet<NodeId>) {
        if members.len() >= self.needed {
            self.state.eligible.clear();
        } else {
            let left: Vec<_> = self.state.in_sync.difference(&members).copied().collect();
            self.state.eligible.extend(left);
            for member in &members {
                self.state.eligible.remove(member);
            }
        }
        self.state.in_sync = members;
    }

    fn elect(&mut self) {
        self.state.partition_epoch += 1;
        let sets = [&self.state.in_sync, &self.state.eligible];
        let live = |node: &&NodeId| self.live.contains_key(node);
        let found = sets.iter().find_map(|set| set.iter().find(live)).copied();
        let Some(node) = found else {
            self.state.leader = None;
            return;
        };
        if !self.state.in_sync.contains(&node) {
            self.set_members([node].into());
        }
        self.lead(node);
    }

    fn lead(&mut self, node: NodeId) {
        self.state.epoch += 1;
        self.state.leader = Some((node, self.live[&node]));
    }

    /// Another member leads although nobody has died.
    pub(super) fn move_leader(&mut self, choice: usize) {
        let Some((leader, _)) = self.state.leader else {
            return;
        };
        let live = |node: &&NodeId| **node != leader && self.live.contains_key(node);
        let others: Vec<_> = self.state.in_sync.iter().filter(live).copied().collect();
        if !others.is_empty() {
            self.state.partition_epoch += 1;
            self.lead(others[choice % others.len()]);
        }
    }

    /// Whether it was applied.
    pub(super) fn propose(&mut self, from: (NodeId, u64), proposal: &Proposal) -> bool {
        let state = &self.state;
        let current = state.leader == Some(from)
            && proposal.epoch.0 == state.epoch
            && proposal.partition_epoch.0 == state.partition_epoch;
        let live = proposal.members.iter().all(|member| {
            let live = self.live.get(&member.node).copied();
            state.in_sync.contains(&member.node)
                || (live.is_some() && live == member.incarnation.map(|named| named.0))
        });
        if !current || !live {
            return false;
        }
        self.state.partition_epoch += 1;
        self.set_members(proposal.members.iter().map(|member| member.node).collect());
        true
    }
}
