//! Which replicas of this node fail or have no room, for the controller.

use crate::{folders::Folders, node::Node};
use std::collections::BTreeMap;
use talweg_proto::controller::v1::{ReplicaHealth, ReplicasOfTopic};
use talweg_types::{TopicId, TopicPartition};

/// As it is now.
pub fn health(node: &Node, folders: &Folders) -> ReplicaHealth {
    let (mut failed, mut full) = (Named::default(), Named::default());
    for handle in node.partitions.all() {
        let is_full = |folder: usize| folders.list[folder].is_full();
        if handle.failure().is_some() {
            failed.add(handle.tp);
        } else if folders.holder(&handle.tp).is_some_and(is_full) {
            full.add(handle.tp);
        }
    }
    ReplicaHealth {
        failed: failed.by_topic(),
        full: full.by_topic(),
    }
}

#[derive(Default)]
struct Named(BTreeMap<TopicId, Vec<u32>>);

impl Named {
    fn add(&mut self, tp: TopicPartition) {
        self.0.entry(tp.topic_id).or_default().push(tp.partition.0);
    }

    fn by_topic(self) -> Vec<ReplicasOfTopic> {
        let named = |(topic, partitions): (TopicId, Vec<u32>)| ReplicasOfTopic {
            topic_id: topic.as_bytes().to_vec().into(),
            partitions,
        };
        self.0.into_iter().map(named).collect()
    }
}
