//! The view as clients see it: whole in parts, and as a change of an earlier one.

use super::{ClusterView, TopicView};
use std::sync::Arc;
use talweg_proto::v1::{self, Metadata, MetadataDelta, MetadataSnapshot, NodeMetadata, Plane};

/// Partitions in one message; keeps it well below the message limit.
const PARTITIONS_A_PART: usize = 5_000;

/// The view as a snapshot in parts. `names`: only these topics, in any order; empty is all.
pub fn snapshot(view: &ClusterView, names: &[String]) -> Vec<MetadataSnapshot> {
    let all: Vec<&Arc<TopicView>> = if names.is_empty() {
        view.by_name
            .values()
            .filter_map(|id| view.topics.get(id))
            .collect()
    } else {
        names
            .iter()
            .filter_map(|name| view.topic_by_name(name))
            .collect()
    };
    let mut parts = Vec::new();
    for (index, range) in part_sizes(all.iter().map(|topic| topic.partitions.len()))
        .into_iter()
        .enumerate()
    {
        let topics = all[range]
            .iter()
            .map(|topic| topic_metadata(topic))
            .collect();
        let nodes = if index == 0 {
            client_nodes(view).cloned().collect()
        } else {
            Vec::new()
        };
        parts.push(MetadataSnapshot {
            first: index == 0,
            last: false,
            metadata: Some(Metadata {
                topics,
                nodes,
                ..empty(view)
            }),
        });
    }
    if let Some(last) = parts.last_mut() {
        last.last = true;
    }
    parts
}

/// Ranges of topics that fit one message each; at least one range.
pub fn part_sizes(partitions: impl Iterator<Item = usize>) -> Vec<std::ops::Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut size, mut count) = (0, 0, 0);
    for (index, partitions) in partitions.enumerate() {
        if size > 0 && size + partitions > PARTITIONS_A_PART {
            ranges.push(start..index);
            (start, size) = (index, 0);
        }
        size += partitions;
        count = index + 1;
    }
    ranges.push(start..count);
    ranges
}

/// What a client at `old` must hear to be at `new`.
pub fn changes(old: &ClusterView, new: &ClusterView) -> MetadataDelta {
    let is_new = |topic: &&Arc<TopicView>| {
        !old.topics
            .get(&topic.id)
            .is_some_and(|known| Arc::ptr_eq(known, topic))
    };
    let topics = new
        .topics
        .values()
        .filter(is_new)
        .map(|topic| topic_metadata(topic))
        .collect();
    let old_node = |node: &NodeMetadata| old.nodes.get(&(node.plane, node.node_id)) == Some(node);
    let gone = |node: &&NodeMetadata| !new.nodes.contains_key(&(node.plane, node.node_id));
    MetadataDelta {
        previous_revision: old.revision,
        metadata: Some(Metadata {
            topics,
            nodes: client_nodes(new)
                .filter(|node| !old_node(node))
                .cloned()
                .collect(),
            ..empty(new)
        }),
        removed_topic_ids: old
            .topics
            .keys()
            .filter(|id| !new.topics.contains_key(id))
            .map(|id| id.as_bytes().to_vec().into())
            .collect(),
        removed_node_ids: client_nodes(old)
            .filter(gone)
            .map(|node| node.node_id)
            .collect(),
    }
}

fn empty(view: &ClusterView) -> Metadata {
    Metadata {
        cluster_id: view.cluster_id.clone(),
        revision: view.revision,
        topics: Vec::new(),
        nodes: Vec::new(),
    }
}

fn client_nodes(view: &ClusterView) -> impl Iterator<Item = &NodeMetadata> {
    let planes = [Plane::Storage as i32, Plane::Gateway as i32];
    view.nodes
        .values()
        .filter(move |node| planes.contains(&node.plane))
}

fn topic_metadata(topic: &TopicView) -> v1::TopicMetadata {
    let partition = |state: &talweg_proto::controller::v1::PartitionState| v1::PartitionMetadata {
        partition: state.partition,
        leader: state.leader,
        leader_epoch: state.leader_epoch,
        replicas: state.replicas.clone(),
        in_sync: state.in_sync.clone(),
    };
    v1::TopicMetadata {
        topic: Some(topic.topic.clone()),
        partitions: topic.partitions.values().map(partition).collect(),
        earlier_counts: topic.earlier_counts.clone(),
    }
}
