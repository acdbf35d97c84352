//! Replicas whose folder fails or fills while their node lives. Nodes say which
//! in their sessions; nothing of it is stored.
//!
//! * A failed one serves no more: to its partition it is as dead, and on
//!   `replicated` it has lost what was not flushed, because nobody knows what
//!   reached a disk that answers a flush with an error.
//! * A full one takes no produce but keeps all it has: others lead, if they are
//!   in sync and have room. Its turn comes again like any preferred leader's.

use super::{Core, Now, Partition, StreamId, jobs::Job};
use std::collections::BTreeSet;
use talweg_types::{Durability, Incarnation, NodeId, TopicPartition};

/// What a session has said of its replicas.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Health {
    pub failed: BTreeSet<TopicPartition>,
    pub full: BTreeSet<TopicPartition>,
}

impl Core {
    /// Takes the place of what the node said before.
    pub(super) fn on_health(&mut self, now: Now, stream: StreamId, health: Health) {
        let Some((node, before)) = self.sessions.on_health(stream, health.clone()) else {
            return;
        };
        if before.failed != health.failed {
            self.jobs.urgent(Job::Reconcile { node });
            self.jobs.urgent(Job::Recover);
        }
        let turned: Vec<_> = before
            .full
            .symmetric_difference(&health.full)
            .copied()
            .collect();
        for tp in turned {
            self.note_due(now.monotonic, tp);
        }
        self.balance_if_due(now);
    }

    pub(super) fn has_failed(&self, tp: TopicPartition, node: NodeId) -> bool {
        self.session(node)
            .is_some_and(|session| session.health.failed.contains(&tp))
    }

    /// The node's incarnation, if it has been heard and its replica works: it may
    /// become the partition's leader.
    pub(super) fn able(&self, tp: TopicPartition, node: NodeId) -> Option<Incarnation> {
        self.alive(node).filter(|_| !self.has_failed(tp, node))
    }

    /// Others should lead the partition, if they can.
    pub(super) fn avoids(&self, tp: TopicPartition, node: NodeId) -> bool {
        self.is_draining(node)
            || self
                .session(node)
                .is_some_and(|session| session.health.full.contains(&tp))
    }

    /// Those without a session, or whose replica has failed.
    pub(super) fn gone(&self, tp: TopicPartition, nodes: &[NodeId]) -> Vec<NodeId> {
        let gone = |node: &&NodeId| self.session(**node).is_none() || self.has_failed(tp, **node);
        nodes.iter().filter(gone).copied().collect()
    }

    /// Takes replicas out of both sets that have failed with unflushed bytes.
    pub(super) fn drop_failed(
        &self,
        tp: TopicPartition,
        partition: &mut Partition,
        durability: Durability,
    ) {
        if durability == Durability::Synced {
            return;
        }
        for node in partition.replicas.clone() {
            if self.has_failed(tp, node) {
                partition.drop_incomplete(node);
            }
        }
    }
}
