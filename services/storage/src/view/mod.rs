//! The cluster as this node knows it: topics, who leads what, who is alive.
//!
//! A view is immutable and shared; a change makes the next one, in which only
//! what changed is new. It moves by snapshots and by deltas that name their
//! predecessor ([`update`]); it stays as it is while no controller is there.

mod metadata;
mod update;

#[cfg(test)]
mod tests;

pub use metadata::{changes, snapshot};
pub use update::{Gap, ViewUpdate};

use arc_swap::ArcSwap;
use bytes::Bytes;
use std::{collections::BTreeMap, sync::Arc};
use talweg_proto::{
    controller::v1::PartitionState,
    v1::{self, NodeMetadata, Plane},
};
use talweg_types::{TopicConfig, TopicId, TopicPartition};
use tokio::sync::watch;

/// A topic with its partitions.
#[derive(Clone, Debug)]
pub struct TopicView {
    pub id: TopicId,
    pub topic: v1::Topic,
    pub config: TopicConfig,
    pub partitions: BTreeMap<u32, PartitionState>,
    pub earlier_counts: Vec<v1::PartitionCount>,
}

/// Everything, at one revision.
#[derive(Clone, Debug, Default)]
pub struct ClusterView {
    /// 16 bytes; empty before the first snapshot.
    pub cluster_id: Bytes,
    /// -1 before the first snapshot.
    pub revision: i64,
    pub topics: BTreeMap<TopicId, Arc<TopicView>>,
    pub by_name: BTreeMap<String, TopicId>,
    /// By plane and id.
    pub nodes: BTreeMap<(i32, u32), NodeMetadata>,
    /// Deleted topics, and the nodes that still hold replicas of them.
    pub tombstones: BTreeMap<TopicId, Vec<u32>>,
}

impl ClusterView {
    pub fn empty() -> Self {
        Self {
            revision: -1,
            ..Self::default()
        }
    }

    pub fn topic_by_name(&self, name: &str) -> Option<&Arc<TopicView>> {
        self.topics.get(self.by_name.get(name)?)
    }

    pub fn partition(&self, tp: &TopicPartition) -> Option<(&Arc<TopicView>, &PartitionState)> {
        let topic = self.topics.get(&tp.topic_id)?;
        Some((topic, topic.partitions.get(&tp.partition.0)?))
    }

    /// gRPC addresses of the nodes of a plane.
    pub fn addresses(&self, plane: Plane) -> Vec<String> {
        let of_plane = self
            .nodes
            .range((plane as i32, 0)..=(plane as i32, u32::MAX));
        of_plane
            .map(|(_, node)| node.grpc_address.clone())
            .collect()
    }

    pub fn storage_node(&self, node_id: u32) -> Option<&NodeMetadata> {
        self.nodes.get(&(Plane::Storage as i32, node_id))
    }
}

/// The newest view, and a bell for those who follow it.
pub struct ViewHolder {
    current: ArcSwap<ClusterView>,
    changed: watch::Sender<i64>,
}

impl Default for ViewHolder {
    fn default() -> Self {
        Self {
            current: ArcSwap::from_pointee(ClusterView::empty()),
            changed: watch::Sender::new(-1),
        }
    }
}

impl ViewHolder {
    pub fn get(&self) -> Arc<ClusterView> {
        self.current.load_full()
    }

    pub fn set(&self, view: Arc<ClusterView>) {
        let revision = view.revision;
        self.current.store(view);
        self.changed.send_replace(revision);
    }

    /// Wakes the followers although the view is the same: something else that
    /// they look at has changed.
    pub fn ring(&self) {
        self.changed.send_modify(|_| {});
    }

    /// Says when there is a newer view.
    pub fn subscribe(&self) -> watch::Receiver<i64> {
        self.changed.subscribe()
    }
}
