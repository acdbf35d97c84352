//! Which replicas move where so that nodes carry equally many, and are preferred
//! as leaders equally often. Pure: a cluster in, moves out; the same cluster
//! gives the same moves, and what the moves lead to gives none.
//!
//! In this order, each step only where it makes something better:
//! 1. replicas leave nodes that are being drained;
//! 2. partitions spread over more racks;
//! 3. replicas go from the fullest to the emptiest node, never to a worse spread;
//! 4. replicas change places within their partition, so that each node is equally
//!    often the first, which is preferred as the leader. That copies nothing.
//!
//! Steps 1 and 3 move as few replicas as there are too many: greedy from the
//! fullest to the emptiest. Replicas on nodes that are only away stay.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use talweg_types::{NodeId, TopicId, TopicPartition};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanNode {
    pub rack: String,
    /// It may get replicas.
    pub takes: bool,
    /// Its replicas are to go elsewhere.
    pub leaves: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanPartition {
    pub tp: TopicPartition,
    /// The first is preferred as the leader.
    pub replicas: Vec<NodeId>,
    /// It counts, and stays as it is.
    pub fixed: bool,
    /// May not get a replica now.
    pub barred: Vec<NodeId>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedMove {
    pub tp: TopicPartition,
    pub from: Vec<NodeId>,
    pub to: Vec<NodeId>,
}

impl PlannedMove {
    /// Replicas that have to be copied.
    pub fn copies(&self) -> usize {
        self.to.iter().filter(|n| !self.from.contains(n)).count()
    }
}

/// A rack repair may make room for evening out, and the other way round; more
/// rounds find nothing new in practice and would only find better plans.
const ROUNDS: usize = 4;

/// The moves, in the order of `partitions`. No node gets more than `limit` replicas.
pub fn plan(
    nodes: &BTreeMap<NodeId, PlanNode>,
    partitions: Vec<PlanPartition>,
    limit: usize,
) -> Vec<PlannedMove> {
    let before: Vec<_> = partitions.iter().map(|p| p.replicas.clone()).collect();
    let mut planner = Planner::new(nodes, partitions, limit);
    planner.evacuate();
    for _ in 0..ROUNDS {
        let spread = planner.spread_over_racks();
        if !planner.even_out() && !spread {
            break;
        }
    }
    planner.even_out_preferred(&before);
    let after = planner.partitions.into_iter().zip(before);
    let moved = after.filter(|(p, before)| p.replicas != *before);
    moved
        .map(|(p, from)| PlannedMove {
            tp: p.tp,
            from,
            to: p.replicas,
        })
        .collect()
}

struct Planner<'a> {
    nodes: &'a BTreeMap<NodeId, PlanNode>,
    partitions: Vec<PlanPartition>,
    limit: usize,
    /// Indexes of partitions by node.
    on: BTreeMap<NodeId, BTreeSet<usize>>,
    of_topic: BTreeMap<(NodeId, TopicId), usize>,
}

impl<'a> Planner<'a> {
    fn new(
        nodes: &'a BTreeMap<NodeId, PlanNode>,
        partitions: Vec<PlanPartition>,
        limit: usize,
    ) -> Self {
        let mut planner = Self {
            on: nodes.keys().map(|node| (*node, BTreeSet::new())).collect(),
            of_topic: BTreeMap::new(),
            nodes,
            partitions,
            limit,
        };
        for i in 0..planner.partitions.len() {
            for node in planner.partitions[i].replicas.clone() {
                planner.count(node, i, true);
            }
        }
        planner
    }

    fn count(&mut self, node: NodeId, i: usize, there: bool) {
        let topic = self.partitions[i].tp.topic_id;
        let of_topic = self.of_topic.entry((node, topic)).or_default();
        let on = self.on.entry(node).or_default();
        match there {
            true => {
                *of_topic += 1;
                on.insert(i);
            }
            false => {
                *of_topic = of_topic.saturating_sub(1);
                on.remove(&i);
            }
        }
    }

    fn load(&self, node: NodeId) -> usize {
        self.on.get(&node).map_or(0, BTreeSet::len)
    }

    fn topic_load(&self, node: NodeId, i: usize) -> usize {
        let topic = self.partitions[i].tp.topic_id;
        self.of_topic.get(&(node, topic)).copied().unwrap_or(0)
    }

    fn takers(&self) -> Vec<NodeId> {
        let takers = self.nodes.iter().filter(|(_, node)| node.takes);
        takers.map(|(id, _)| *id).collect()
    }

    /// Replicas of partition `i`, but for the one at `at`, in the rack of `node`.
    fn others_in_rack(&self, i: usize, at: usize, node: NodeId) -> usize {
        let rack = |node: NodeId| self.nodes.get(&node).map(|node| node.rack.as_str());
        let others = self.partitions[i].replicas.iter().enumerate();
        others
            .filter(|(other, id)| *other != at && rack(**id) == rack(node))
            .count()
    }

    fn may_go_to(&self, i: usize, node: NodeId) -> bool {
        let p = &self.partitions[i];
        !p.fixed
            && !p.replicas.contains(&node)
            && !p.barred.contains(&node)
            && self.load(node) < self.limit
    }

    fn replace(&mut self, i: usize, at: usize, node: NodeId) {
        let old = std::mem::replace(&mut self.partitions[i].replicas[at], node);
        self.count(old, i, false);
        self.count(node, i, true);
    }

    fn evacuate(&mut self) {
        let takers = self.takers();
        let leaving = self.nodes.iter().filter(|(_, node)| node.leaves);
        let leaving: Vec<_> = leaving.map(|(id, _)| *id).collect();
        for node in leaving {
            for i in self.on.get(&node).cloned().unwrap_or_default() {
                let at = self.partitions[i].replicas.iter().position(|n| *n == node);
                let Some(at) = at else { continue };
                let able = takers.iter().copied().filter(|n| self.may_go_to(i, *n));
                let best = able.min_by_key(|n| {
                    let racks = self.others_in_rack(i, at, *n);
                    (racks, self.load(*n), self.topic_load(*n, i), *n)
                });
                if let Some(best) = best {
                    self.replace(i, at, best);
                }
            }
        }
    }

    /// True if something moved.
    fn spread_over_racks(&mut self) -> bool {
        let takers = self.takers();
        let mut moved = false;
        for i in 0..self.partitions.len() {
            // Each replica moves at most once.
            for at in 0..self.partitions[i].replicas.len() {
                let here = self.partitions[i].replicas[at];
                let crowd = self.others_in_rack(i, at, here);
                if crowd == 0 || !self.nodes.get(&here).is_some_and(|node| node.takes) {
                    continue;
                }
                let able = takers.iter().copied().filter(|n| self.may_go_to(i, *n));
                let better = able.map(|n| (self.others_in_rack(i, at, n), self.load(n), n));
                if let Some((racks, _, node)) = better.min()
                    && racks < crowd
                {
                    self.replace(i, at, node);
                    moved = true;
                }
            }
        }
        moved
    }

    /// True if something moved.
    fn even_out(&mut self) -> bool {
        let mut moved = false;
        while let Some((i, at, node)) = self.evening_move() {
            self.replace(i, at, node);
            moved = true;
        }
        moved
    }

    /// From the fullest node that can give to the emptiest that can take.
    fn evening_move(&self) -> Option<(usize, usize, NodeId)> {
        let mut by_load: Vec<_> = self
            .takers()
            .into_iter()
            .map(|n| (self.load(n), n))
            .collect();
        by_load.sort_unstable();
        for (most, full) in by_load.iter().rev() {
            for (least, empty) in &by_load {
                if least + 2 > *most {
                    break;
                }
                if let Some((i, at)) = self.best_of(*full, *empty) {
                    return Some((i, at, *empty));
                }
            }
        }
        None
    }

    /// The partition whose topic is most uneven between the two.
    fn best_of(&self, full: NodeId, empty: NodeId) -> Option<(usize, usize)> {
        let here = self.on.get(&full).into_iter().flatten().copied();
        let able = here.filter_map(|i| {
            let at = self.partitions[i]
                .replicas
                .iter()
                .position(|n| *n == full)?;
            let no_worse = self.others_in_rack(i, at, empty) <= self.others_in_rack(i, at, full);
            (no_worse && self.may_go_to(i, empty)).then_some((i, at))
        });
        let uneven = |i: usize| {
            let loads = (self.topic_load(full, i), self.topic_load(empty, i));
            (loads.0 as i64) - (loads.1 as i64)
        };
        able.max_by_key(|(i, _)| (uneven(*i), std::cmp::Reverse(*i)))
    }

    /// Along chains: one node may have to hand on what it gets.
    fn even_out_preferred(&mut self, before: &[Vec<NodeId>]) {
        let mut first: BTreeMap<NodeId, BTreeSet<usize>> = self
            .takers()
            .into_iter()
            .map(|n| (n, BTreeSet::new()))
            .collect();
        for (i, p) in self.partitions.iter().enumerate() {
            if let Some(of) = p.replicas.first().and_then(|n| first.get_mut(n)) {
                of.insert(i);
            }
        }
        while let Some(chain) = self.chain(&first, before) {
            for (i, to) in chain {
                let replicas = &mut self.partitions[i].replicas;
                let Some(at) = replicas.iter().position(|n| *n == to) else {
                    return;
                };
                let from = replicas[0];
                replicas.swap(0, at);
                first.entry(from).or_default().remove(&i);
                first.entry(to).or_default().insert(i);
            }
        }
    }

    /// Partitions and who is to be preferred there, from a node that is so too
    /// often to one that is so at least two times less.
    fn chain(
        &self,
        first: &BTreeMap<NodeId, BTreeSet<usize>>,
        before: &[Vec<NodeId>],
    ) -> Option<Vec<(usize, NodeId)>> {
        let count = |node: &NodeId| first.get(node).map_or(0, BTreeSet::len);
        let least = first.keys().map(count).min()?;
        let mut sources: Vec<_> = first.keys().copied().collect();
        sources.sort_by_key(|node| (std::cmp::Reverse(count(node)), *node));
        for source in sources.into_iter().filter(|n| count(n) >= least + 2) {
            let mut came: BTreeMap<NodeId, (NodeId, usize)> = BTreeMap::new();
            let mut queue = VecDeque::from([source]);
            while let Some(node) = queue.pop_front() {
                if node != source && count(&node) + 2 <= count(&source) {
                    return Some(walk_back(&came, source, node));
                }
                for (next, i) in self.handed_on(first, before, node) {
                    if next != source && !came.contains_key(&next) {
                        came.insert(next, (node, i));
                        queue.push_back(next);
                    }
                }
            }
        }
        None
    }

    /// Who could be preferred in place of `node`, and where: rather in partitions
    /// that change anyway.
    fn handed_on(
        &self,
        first: &BTreeMap<NodeId, BTreeSet<usize>>,
        before: &[Vec<NodeId>],
        node: NodeId,
    ) -> BTreeMap<NodeId, usize> {
        let mut to = BTreeMap::new();
        let mut here: Vec<_> = first.get(&node).into_iter().flatten().copied().collect();
        here.sort_by_key(|i| (self.partitions[*i].replicas == before[*i], *i));
        for i in here.into_iter().filter(|i| !self.partitions[*i].fixed) {
            for other in &self.partitions[i].replicas[1..] {
                if first.contains_key(other) {
                    to.entry(*other).or_insert(i);
                }
            }
        }
        to
    }
}

fn walk_back(
    came: &BTreeMap<NodeId, (NodeId, usize)>,
    source: NodeId,
    end: NodeId,
) -> Vec<(usize, NodeId)> {
    let (mut chain, mut node) = (Vec::new(), end);
    while node != source
        && let Some((from, i)) = came.get(&node)
    {
        chain.push((*i, node));
        node = *from;
    }
    chain
}
