//! What watchers have not been told yet, and the revision that they count by.
//!
//! The published revision must grow with every change that is told, those of
//! sessions included, and across controllers. It is at least the store's
//! revision shifted by [`SHIFT`] bits: each controller's election moves the
//! store's, so a successor starts above all that its predecessor told.

use super::{Change, View};
use std::collections::BTreeSet;
use talweg_metastore::{Revision, keys::Key};
use talweg_types::{NodeId, TopicId, TopicPartition};

/// Room for this many bits of changes within one revision of the store.
const SHIFT: u32 = 28;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changed {
    /// The revision that watchers are at.
    pub previous: u64,
    /// The revision that these changes bring them to.
    pub revision: u64,
    pub topics: BTreeSet<TopicId>,
    pub partitions: BTreeSet<TopicPartition>,
    pub nodes: BTreeSet<NodeId>,
    pub tombstones: BTreeSet<TopicId>,
    pub shards: BTreeSet<TopicPartition>,
}

impl Changed {
    pub(super) fn new(store: Revision) -> Self {
        let start = store.0 << SHIFT;
        Self {
            previous: start,
            revision: start,
            ..Self::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        self.topics.is_empty()
            && self.partitions.is_empty()
            && self.nodes.is_empty()
            && self.tombstones.is_empty()
            && self.shards.is_empty()
    }

    pub(super) fn note(&mut self, changes: &[Change]) {
        for change in changes {
            match &change.key {
                Key::Topic(id) => drop(self.topics.insert(*id)),
                Key::Partition(tp) => drop(self.partitions.insert(*tp)),
                Key::Tombstone(id) => drop(self.tombstones.insert(*id)),
                Key::Node(id) => drop(self.nodes.insert(*id)),
                Key::Shard(tp) => drop(self.shards.insert(*tp)),
                Key::Election
                | Key::Cluster
                | Key::TopicName(_)
                | Key::ProducerIds
                | Key::Balance => {}
            }
        }
    }

    pub(super) fn note_node(&mut self, node: NodeId) {
        self.nodes.insert(node);
    }

    /// Everything that differs between two views.
    pub(super) fn note_all(&mut self, before: &View, after: &View) {
        for view in [before, after] {
            let other = if std::ptr::eq(view, before) {
                after
            } else {
                before
            };
            let topics = view
                .topics
                .iter()
                .filter(|(id, t)| other.topics.get(id) != Some(t));
            self.topics.extend(topics.map(|(id, _)| *id));
            let partitions = view
                .partitions
                .iter()
                .filter(|(tp, p)| other.partitions.get(tp) != Some(p));
            self.partitions.extend(partitions.map(|(tp, _)| *tp));
            let gone = view
                .tombstones
                .iter()
                .filter(|(id, t)| other.tombstones.get(id) != Some(t));
            self.tombstones.extend(gone.map(|(id, _)| *id));
            let shards = view
                .shards
                .iter()
                .filter(|(tp, s)| other.shards.get(tp) != Some(s));
            self.shards.extend(shards.map(|(tp, _)| *tp));
            let nodes = view
                .nodes
                .iter()
                .filter(|(id, n)| other.nodes.get(id) != Some(n));
            self.nodes.extend(nodes.map(|(id, _)| *id));
        }
    }

    /// Hands out what clients can see of it under the next revision.
    pub(super) fn take(&mut self, view: &View) -> Option<Changed> {
        self.complete(view);
        if self.is_empty() {
            return None;
        }
        let previous = self.revision;
        let revision = (previous + 1).max(view.revision.0 << SHIFT);
        let next = Changed {
            previous: revision,
            revision,
            ..Changed::default()
        };
        let taken = std::mem::replace(self, next);
        Some(Changed {
            previous,
            revision,
            ..taken
        })
    }

    /// A topic that came into force brings all its partitions; what is not in
    /// force is not told.
    fn complete(&mut self, view: &View) {
        let visible = self
            .topics
            .iter()
            .filter(|id| view.visible_topic(**id).is_some());
        let partitions = visible
            .flat_map(|id| view.partitions_of(*id))
            .map(|(tp, _)| tp);
        self.partitions.extend(partitions.collect::<Vec<_>>());
        self.partitions
            .retain(|tp| view.visible_partition(*tp).is_some());
        let creating =
            |id: &TopicId| view.topics.contains_key(id) && view.visible_topic(*id).is_none();
        self.topics.retain(|id| !creating(id));
    }
}
