//! The topics as the caller's metadata shows them at one moment.

use std::collections::BTreeMap;
use talweg_types::{PartitionIndex, TopicId, TopicPartition};

/// One topic that is ready for use.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Topic {
    pub id: TopicId,
    /// By partition number: the racks of its replicas; empty where unknown.
    pub racks: Vec<Vec<String>>,
    /// A retry or dead-letter topic of some group. Patterns pass it by.
    pub derived: bool,
}

impl Topic {
    pub fn partitions(&self) -> impl Iterator<Item = TopicPartition> + '_ {
        let count = u32::try_from(self.racks.len()).unwrap_or(u32::MAX);
        (0..count).map(|index| TopicPartition {
            topic_id: self.id,
            partition: PartitionIndex(index),
        })
    }
}

/// Topics by name and by id. A topic that is missing here is not assigned; its
/// offsets stay until its deletion is said outright.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Topics {
    by_name: BTreeMap<String, Topic>,
    names: BTreeMap<TopicId, String>,
}

impl Topics {
    pub fn new(topics: impl IntoIterator<Item = (String, Topic)>) -> Self {
        let by_name: BTreeMap<_, _> = topics.into_iter().collect();
        let names = by_name.iter().map(|(name, topic)| (topic.id, name.clone()));
        Self {
            names: names.collect(),
            by_name,
        }
    }

    pub fn named(&self, name: &str) -> Option<&Topic> {
        self.by_name.get(name)
    }

    pub fn by_id(&self, id: TopicId) -> Option<&Topic> {
        self.names.get(&id).and_then(|name| self.by_name.get(name))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Topic)> {
        self.by_name
            .iter()
            .map(|(name, topic)| (name.as_str(), topic))
    }
}
