//! Who certainly holds everything that was acknowledged. A model beside the
//! core: it knows what really happened to the nodes, the core only what it was
//! told. A leader that runs must be one of the holders, unless its election was
//! recorded as one after which something may be missing.

use super::{replicas::Boot, *};
use talweg_types::{Durability, TopicConfig};

struct Known {
    seen: Partition,
    holders: BTreeSet<NodeId>,
    /// The incarnations in which members came in.
    members: BTreeMap<NodeId, Incarnation>,
    /// Had caught up when they were proposed; until that is decided nothing is
    /// acknowledged without them.
    proposed: BTreeMap<NodeId, Incarnation>,
}

#[derive(Default)]
pub(super) struct Acked {
    known: BTreeMap<TopicPartition, Known>,
    running: BTreeMap<NodeId, Incarnation>,
}

impl Acked {
    /// Takes what is stored now; `running` are the processes that were let in
    /// and live.
    pub(super) fn look(&mut self, store: &View, running: &BTreeMap<NodeId, Incarnation>) {
        self.running = running.clone();
        self.known
            .retain(|tp, _| store.visible_partition(*tp).is_some());
        for (tp, stored) in &store.partitions {
            let p = &stored.value;
            if store.visible_partition(*tp).is_none() {
                continue;
            }
            let incarnation = |node: &NodeId| store.nodes[node].value.incarnation;
            let known = self.known.entry(*tp).or_insert_with(|| Known {
                seen: p.clone(),
                holders: p.replicas.iter().copied().collect(),
                members: p.in_sync.iter().map(|n| (*n, incarnation(n))).collect(),
                proposed: BTreeMap::new(),
            });
            known.follow(p, incarnation);
            known.check(*tp, running);
        }
    }

    /// A process begins: the old one is gone, with what its disk has lost.
    pub(super) fn on_start(&mut self, store: &View, node: NodeId, boot: Boot) {
        self.running.remove(&node);
        for (tp, known) in &mut self.known {
            let topic = &store.topics[&tp.topic_id].value;
            let config = TopicConfig::resolve(&topic.config).expect("checked");
            let durability = config.durability_at(topic.replication_factor);
            let lost = match boot {
                Boot::Whole => false,
                Boot::Unclean => durability == Durability::Replicated,
                Boot::New => true,
            };
            if lost {
                known.holders.remove(&node);
                known.proposed.remove(&node);
            }
        }
    }

    /// The replica's disk answers with errors while its process lives: what was not
    /// flushed may be gone.
    pub(super) fn on_fail(&mut self, store: &View, tp: TopicPartition, node: NodeId) {
        let topic = &store.topics[&tp.topic_id].value;
        let config = TopicConfig::resolve(&topic.config).expect("checked");
        if let Some(known) = self.known.get_mut(&tp)
            && config.durability_at(topic.replication_factor) == Durability::Replicated
        {
            known.holders.remove(&node);
            known.proposed.remove(&node);
        }
    }

    /// Something is acknowledged, if all members are there as they came in.
    pub(super) fn produce(&mut self, store: &View, tp: TopicPartition, minimum: usize) {
        let p = &store.partitions[&tp].value;
        let Some(known) = self.known.get_mut(&tp) else {
            return;
        };
        let here = |node: &NodeId| {
            let runs = self.running.get(node);
            runs.is_some() && runs == known.members.get(node)
        };
        let led = self.running.get(&p.leader) == Some(&p.leader_incarnation);
        let runs = |(node, incarnation): (&NodeId, &Incarnation)| {
            self.running.get(node) == Some(incarnation)
        };
        let all = p.in_sync.iter().all(here) && known.proposed.iter().all(runs);
        if led && p.in_sync.len() >= minimum && all {
            assert!(p.eligible.is_empty(), "{tp}: acknowledged without {p:?}");
            let holders = p.in_sync.iter().chain(known.proposed.keys());
            known.holders = holders.copied().collect();
        }
    }

    /// The leader proposes these, who have caught up.
    pub(super) fn propose(&mut self, tp: TopicPartition, members: &[(NodeId, Incarnation)]) {
        if let Some(known) = self.known.get_mut(&tp) {
            known.proposed.extend(members.iter().copied());
        }
    }

    pub(super) fn holds(&self, tp: TopicPartition, node: NodeId) -> bool {
        let known = self.known.get(&tp);
        known.is_some_and(|known| known.holders.contains(&node))
    }
}

impl Known {
    fn follow(&mut self, p: &Partition, incarnation: impl Fn(&NodeId) -> Incarnation) {
        if *p == self.seen {
            return;
        }
        let old = std::mem::replace(&mut self.seen, p.clone());
        if p.recovered != old.recovered {
            self.holders = p.in_sync.iter().copied().collect();
        }
        self.members.retain(|node, _| p.in_sync.contains(node));
        for node in &p.in_sync {
            if old.in_sync.contains(node) {
                continue;
            }
            self.members.insert(*node, incarnation(node));
            // Elected, it must have had everything before.
            if p.leader_epoch == old.leader_epoch && self.proposed.contains_key(node) {
                self.holders.insert(*node);
            }
        }
        self.proposed.clear();
        if p.leader_epoch != old.leader_epoch && !p.leader.is_none() {
            self.members.insert(p.leader, p.leader_incarnation);
        }
    }

    fn check(&self, tp: TopicPartition, running: &BTreeMap<NodeId, Incarnation>) {
        let p = &self.seen;
        let excused = p.recovered.is_some_and(|r| r.epoch == p.leader_epoch);
        if running.get(&p.leader) == Some(&p.leader_incarnation) && !excused {
            assert!(
                self.holders.contains(&p.leader),
                "{tp}: leader {} lacks what {:?} hold: {p:?}",
                p.leader,
                self.holders
            );
        }
    }
}
