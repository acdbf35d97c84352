//! The view as clients see it: whole in parts, and as a change of an earlier one.

use std::{ops::Range, sync::Arc};
use talweg_client::view::{PartitionView, TopicView, View};
use talweg_proto::v1::{self, Metadata, MetadataDelta, MetadataSnapshot, NodeMetadata, Plane};

/// Partitions in one message; keeps it well below the message limit.
const PARTITIONS_A_PART: usize = 5_000;

/// The view as a snapshot in parts. `names`: only these topics; empty is all.
pub fn snapshot(view: &View, names: &[String]) -> Vec<MetadataSnapshot> {
    let all: Vec<&Arc<TopicView>> = if names.is_empty() {
        view.topics().collect()
    } else {
        names.iter().filter_map(|name| view.by_name(name)).collect()
    };
    let ranges = part_ranges(all.iter().map(|topic| topic.partitions.len()));
    let last = ranges.len() - 1;
    let part = |(index, range): (usize, Range<usize>)| MetadataSnapshot {
        first: index == 0,
        last: index == last,
        metadata: Some(Metadata {
            topics: all[range]
                .iter()
                .map(|topic| topic_metadata(topic))
                .collect(),
            nodes: if index == 0 {
                nodes(view).cloned().collect()
            } else {
                Vec::new()
            },
            ..empty(view)
        }),
    };
    ranges.into_iter().enumerate().map(part).collect()
}

/// The whole view in one message, for topics named.
pub fn whole(view: &View, names: &[String]) -> Metadata {
    let mut whole = empty(view);
    for part in snapshot(view, names) {
        let metadata = part.metadata.unwrap_or_default();
        whole.topics.extend(metadata.topics);
        whole.nodes.extend(metadata.nodes);
    }
    whole
}

/// Ranges of topics that fit one message each; at least one.
fn part_ranges(partitions: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
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
pub fn changes(old: &View, new: &View) -> MetadataDelta {
    let changed = |topic: &&Arc<TopicView>| {
        !old.topic(topic.id)
            .is_some_and(|known| Arc::ptr_eq(known, topic) || known == *topic)
    };
    let known = |node: &&NodeMetadata| nodes(old).any(|it| it == *node);
    let gone = |node: &&NodeMetadata| {
        !nodes(new).any(|it| (it.plane, it.node_id) == (node.plane, node.node_id))
    };
    let removed = old.topics().filter(|topic| new.topic(topic.id).is_none());
    MetadataDelta {
        previous_revision: old.revision,
        metadata: Some(Metadata {
            topics: new
                .topics()
                .filter(changed)
                .map(|topic| topic_metadata(topic))
                .collect(),
            nodes: nodes(new).filter(|node| !known(node)).cloned().collect(),
            ..empty(new)
        }),
        removed_topic_ids: removed
            .map(|topic| bytes::Bytes::copy_from_slice(topic.id.as_bytes()))
            .collect(),
        removed_node_ids: nodes(old).filter(gone).map(|node| node.node_id).collect(),
    }
}

fn empty(view: &View) -> Metadata {
    Metadata {
        cluster_id: view.cluster_id.clone(),
        revision: view.revision,
        topics: Vec::new(),
        nodes: Vec::new(),
    }
}

fn nodes(view: &View) -> impl Iterator<Item = &NodeMetadata> {
    let planes = [Plane::Storage as i32, Plane::Gateway as i32];
    view.nodes()
        .map(|node| &**node)
        .filter(move |node| planes.contains(&node.plane))
}

fn topic_metadata(topic: &TopicView) -> v1::TopicMetadata {
    let partition = |(number, state): (usize, &PartitionView)| v1::PartitionMetadata {
        partition: u32::try_from(number).unwrap_or(u32::MAX),
        leader: state.leader.0,
        leader_epoch: state.leader_epoch.0,
        replicas: state.replicas.clone(),
        in_sync: state.in_sync.clone(),
    };
    v1::TopicMetadata {
        topic: Some(topic.topic.clone()),
        partitions: topic.partitions.iter().enumerate().map(partition).collect(),
        earlier_counts: topic.earlier_counts.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str, id: u8, partitions: u32) -> v1::Topic {
        v1::Topic {
            name: name.into(),
            topic_id: vec![id; 16].into(),
            partitions,
            ..Default::default()
        }
    }

    #[test]
    fn a_client_that_applies_a_snapshot_and_changes_knows_what_we_know() {
        let mut view = View::default();
        view.cluster_id = vec![1; 16].into();
        view.revision = 3;
        for id in 1..4 {
            view.set_topic(topic(&format!("t{id}"), id, 4_000));
        }
        view.set_node(NodeMetadata {
            node_id: 1,
            plane: Plane::Storage.into(),
            ..Default::default()
        });
        let parts = snapshot(&view, &[]);
        assert_eq!(parts.len(), 3, "three large topics do not fit one message");
        assert!(parts[0].first && parts[2].last && !parts[1].first && !parts[1].last);
        let mut client = View::default();
        parts
            .into_iter()
            .for_each(|part| client.apply(part.metadata.expect("metadata")));

        let old = view.clone();
        view.revision = 4;
        view.remove_topic(view.by_name("t1").expect("t1").id);
        view.set_topic(topic("t1", 9, 1));
        view.remove_node(1);
        let delta = changes(&old, &view);
        assert_eq!(delta.previous_revision, 3);
        assert_eq!(delta.removed_topic_ids, vec![vec![1_u8; 16]]);
        assert_eq!(delta.removed_node_ids, vec![1]);
        let metadata = delta.metadata.expect("metadata");
        assert_eq!(metadata.topics.len(), 1, "only what changed");
        for id in &delta.removed_topic_ids {
            client.remove_topic(talweg_types::TopicId::from_slice(id).expect("an id"));
        }
        client.apply(metadata);
        assert_eq!(client.by_name("t1").expect("t1").id.as_bytes(), &[9; 16]);
        assert_eq!(client.topics().count(), 3);
    }

    #[test]
    fn an_empty_view_is_one_part_that_is_first_and_last() {
        let parts = snapshot(&View::default(), &[]);
        assert!(matches!(&parts[..], [part] if part.first && part.last));
    }
}
