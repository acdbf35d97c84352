//! Making partitions agree with who is alive: sets and leader of each in one
//! change, as many changes in a transaction as it takes.

use super::{
    CHANGES_PER_WRITE, Change, Core, Loss, Partition, SessionState, Value,
    fault::{Fault, planted},
};
use talweg_metastore::keys::Key;
use talweg_types::{Durability, Incarnation, NodeId, TopicConfig, TopicId, TopicPartition};

/// What a topic asks of its partitions.
pub(super) struct Rules {
    /// min(`min.insync.replicas`, replication factor).
    pub(super) minimum: usize,
    pub(super) durability: Durability,
}

impl Core {
    pub(super) fn rules(&self, topic: TopicId) -> Option<Rules> {
        let topic = &self.view.topics.get(&topic)?.value;
        let config = TopicConfig::resolve_stored(&topic.config);
        Some(Rules {
            minimum: config.min_insync_at(topic.replication_factor) as usize,
            durability: config.durability_at(topic.replication_factor),
        })
    }

    /// The node's incarnation, if it has been heard: it may become a leader.
    pub(super) fn alive(&self, node: NodeId) -> Option<Incarnation> {
        let session = self.session(node)?;
        (session.state != SessionState::Awaited).then_some(session.incarnation)
    }

    /// Leaders move away from it.
    pub(super) fn is_draining(&self, node: NodeId) -> bool {
        let record = self.view.nodes.get(&node);
        record.is_some_and(|stored| stored.value.draining)
    }

    /// The next partitions that do not agree with the node's session, or with
    /// what its new process has lost.
    pub(super) fn plan_reconcile(&self, node: NodeId, loss: Loss) -> Option<Vec<Change>> {
        // Nothing is decided about a node that has not been heard yet.
        if self
            .session(node)
            .is_some_and(|s| s.state == SessionState::Awaited)
        {
            return None;
        }
        let hosted = self.view.hosted_by(node);
        let moves = hosted.filter_map(|tp| self.reconciled(tp, node, loss));
        let moves: Vec<_> = moves.take(CHANGES_PER_WRITE).collect();
        (!moves.is_empty()).then_some(moves)
    }

    fn reconciled(&self, tp: TopicPartition, node: NodeId, loss: Loss) -> Option<Change> {
        let before = &self.view.partitions.get(&tp)?.value;
        let rules = self.rules(tp.topic_id)?;
        let mut next = before.clone();
        match (loss, rules.durability) {
            (Loss::All, _) => {
                next.drop_incomplete(node);
                next.forget(node);
            }
            (Loss::Unflushed, Durability::Replicated) => next.drop_incomplete(node),
            (Loss::Unflushed | Loss::Nothing, _) => {}
        }
        self.drop_failed(tp, &mut next, rules.durability);
        next.bury(&self.gone(tp, &next.in_sync), rules.minimum);
        if planted(Fault::NewProcessContinues)
            && next.in_sync.contains(&next.leader)
            && let Some(incarnation) = self.alive(next.leader)
        {
            next.leader_incarnation = incarnation;
        }
        if !self.leads(&next) {
            next.elect(|node| self.able(tp, node), |node| !self.avoids(tp, node));
        }
        next.settle(rules.minimum);
        Some(put(tp, next.after(before)?))
    }

    /// Those without a session.
    pub(super) fn dead(&self, nodes: &[NodeId]) -> Vec<NodeId> {
        let dead = |node: &&NodeId| self.session(**node).is_none();
        nodes.iter().filter(dead).copied().collect()
    }

    /// The partition's leader is there, as the process that was elected.
    fn leads(&self, partition: &Partition) -> bool {
        partition.in_sync.contains(&partition.leader)
            && self
                .session(partition.leader)
                .is_some_and(|session| session.incarnation == partition.leader_incarnation)
    }
}

pub(super) fn put(tp: TopicPartition, partition: Partition) -> Change {
    Change::put(Key::Partition(tp), Value::Partition(partition))
}
