//! When a node last heard from controllers and from other nodes.
//!
//! A node keeps one for itself, beside those of its leaders: word of a node is
//! word of all its replicas, and ten thousand idle partitions need no event.

use crate::MonotonicMs;
use std::collections::BTreeMap;
use talweg_types::NodeId;

/// Times of the last word. Nothing heard is no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contacts {
    controller: Option<MonotonicMs>,
    nodes: BTreeMap<NodeId, MonotonicMs>,
}

impl Contacts {
    /// A controller has answered.
    pub fn controller_heard(&mut self, now: MonotonicMs) {
        self.controller = self.controller.max(Some(now));
    }

    /// A node has fetched or reported.
    pub fn node_heard(&mut self, node: NodeId, now: MonotonicMs) {
        let heard = self.nodes.entry(node).or_insert(now);
        *heard = now.max(*heard);
    }

    /// A node is gone for good.
    pub fn forget(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn controller_within(&self, now: MonotonicMs, ms: u64) -> bool {
        self.controller.is_some_and(|heard| now.since(heard) <= ms)
    }

    pub(crate) fn node_within(&self, node: NodeId, now: MonotonicMs, ms: u64) -> bool {
        self.nodes
            .get(&node)
            .is_some_and(|heard| now.since(*heard) <= ms)
    }
}
