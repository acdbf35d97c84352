//! The key map: every key that Talweg keeps in a metastore, built and parsed in
//! one place. Numbers are padded so that byte order is numeric order. A key
//! has one spelling; anything else does not parse.
//!
//! ```text
//! election                           the active controller, under its lease
//! cluster                            cluster id and what was fixed at creation
//! node/<10 digits>                   registry: incarnation, folders, clean or not
//! topic/<topic id>                   name, settings, state
//! topic-name/<name>                  the topic id that holds the name
//! partition/<topic id>/<10 digits>   the atomic unit: leader, epochs, replica sets
//! tombstone/<topic id>               a deleted topic, until every replica's node confirmed
//! shard/<topic id>/<10 digits>       who coordinates a shard of an internal topic
//! producer-ids                       the next producer-id block
//! balance                            the cluster is being balanced
//! ```

use crate::KeyRange;
use bytes::Bytes;
use std::str;
use talweg_types::{NodeId, PartitionIndex, TopicId, TopicPartition};

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Key {
    Election,
    Cluster,
    Node(NodeId),
    Topic(TopicId),
    TopicName(String),
    Partition(TopicPartition),
    Tombstone(TopicId),
    /// The shard that is this partition.
    Shard(TopicPartition),
    ProducerIds,
    Balance,
}

const NODE: &str = "node/";
const TOPIC: &str = "topic/";
const TOPIC_NAME: &str = "topic-name/";
const PARTITION: &str = "partition/";
const TOMBSTONE: &str = "tombstone/";
const SHARD: &str = "shard/";

impl Key {
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Election => "election".into(),
            Self::Cluster => "cluster".into(),
            Self::Node(id) => format!("{NODE}{:010}", id.0).into(),
            Self::Topic(id) => format!("{TOPIC}{id}").into(),
            Self::TopicName(name) => format!("{TOPIC_NAME}{name}").into(),
            Self::Partition(tp) => {
                format!("{PARTITION}{}/{:010}", tp.topic_id, tp.partition.0).into()
            }
            Self::Tombstone(id) => format!("{TOMBSTONE}{id}").into(),
            Self::Shard(tp) => format!("{SHARD}{}/{:010}", tp.topic_id, tp.partition.0).into(),
            Self::ProducerIds => "producer-ids".into(),
            Self::Balance => "balance".into(),
        }
    }

    /// `None` for anything but the one spelling of a known key.
    pub fn parse(key: &[u8]) -> Option<Self> {
        let text = str::from_utf8(key).ok()?;
        let parsed = match text {
            "election" => Self::Election,
            "cluster" => Self::Cluster,
            "producer-ids" => Self::ProducerIds,
            "balance" => Self::Balance,
            _ => Self::parse_prefixed(text)?,
        };
        (parsed.encode() == key).then_some(parsed)
    }

    fn parse_prefixed(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix(NODE) {
            return rest.parse().ok().map(|id| Self::Node(NodeId(id)));
        }
        if let Some(rest) = text.strip_prefix(TOPIC) {
            return rest.parse().ok().map(Self::Topic);
        }
        if let Some(rest) = text.strip_prefix(TOPIC_NAME) {
            return (!rest.is_empty()).then(|| Self::TopicName(rest.into()));
        }
        if let Some(rest) = text.strip_prefix(TOMBSTONE) {
            return rest.parse().ok().map(Self::Tombstone);
        }
        if let Some(rest) = text.strip_prefix(SHARD) {
            return parse_partition(rest).map(Self::Shard);
        }
        parse_partition(text.strip_prefix(PARTITION)?).map(Self::Partition)
    }
}

fn parse_partition(text: &str) -> Option<TopicPartition> {
    let (topic_id, partition) = text.split_once('/')?;
    Some(TopicPartition {
        topic_id: topic_id.parse().ok()?,
        partition: PartitionIndex(partition.parse().ok()?),
    })
}

/// Ranges of keys of one kind.
pub mod ranges {
    use super::*;

    pub fn nodes() -> KeyRange {
        KeyRange::prefix(NODE.as_bytes())
    }

    pub fn topics() -> KeyRange {
        KeyRange::prefix(TOPIC.as_bytes())
    }

    pub fn topic_names() -> KeyRange {
        KeyRange::prefix(TOPIC_NAME.as_bytes())
    }

    pub fn partitions() -> KeyRange {
        KeyRange::prefix(PARTITION.as_bytes())
    }

    pub fn partitions_of(topic: TopicId) -> KeyRange {
        KeyRange::prefix(format!("{PARTITION}{topic}/").as_bytes())
    }

    pub fn tombstones() -> KeyRange {
        KeyRange::prefix(TOMBSTONE.as_bytes())
    }

    pub fn shards() -> KeyRange {
        KeyRange::prefix(SHARD.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_key() -> impl Strategy<Value = Key> {
        let topic = any::<u128>().prop_map(|id| TopicId(uuid::Uuid::from_u128(id)));
        let partition =
            (topic.clone(), any::<u32>()).prop_map(|(topic_id, partition)| TopicPartition {
                topic_id,
                partition: PartitionIndex(partition),
            });
        prop_oneof![
            Just(Key::Election),
            Just(Key::Cluster),
            Just(Key::ProducerIds),
            Just(Key::Balance),
            any::<u32>().prop_map(|id| Key::Node(NodeId(id))),
            topic.clone().prop_map(Key::Topic),
            topic.clone().prop_map(Key::Tombstone),
            "[A-Za-z0-9._-]{1,249}".prop_map(Key::TopicName),
            partition.clone().prop_map(Key::Partition),
            partition.prop_map(Key::Shard),
        ]
    }

    proptest! {
        #[test]
        fn every_key_parses_back_and_lies_in_its_kinds_range(key in any_key()) {
            let bytes = key.encode();
            prop_assert_eq!(Key::parse(&bytes), Some(key.clone()));
            let inside = [
                (ranges::nodes(), matches!(key, Key::Node(_))),
                (ranges::topics(), matches!(key, Key::Topic(_))),
                (ranges::topic_names(), matches!(key, Key::TopicName(_))),
                (ranges::partitions(), matches!(key, Key::Partition(_))),
                (ranges::tombstones(), matches!(key, Key::Tombstone(_))),
                (ranges::shards(), matches!(key, Key::Shard(_))),
            ];
            for (range, expected) in inside {
                prop_assert_eq!(range.contains(&bytes), expected);
            }
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Key::parse(&bytes);
        }

        #[test]
        fn byte_order_is_numeric_order(a in any::<u32>(), b in any::<u32>()) {
            let key = |id| Key::Node(NodeId(id)).encode();
            prop_assert_eq!(key(a).cmp(&key(b)), a.cmp(&b));
        }
    }

    #[test]
    fn only_the_one_spelling_parses() {
        for bad in [
            "",
            "node/1",
            "node/00000000001",
            "topic/x",
            "topic-name/",
            "partition/",
            "shard/",
            "elections",
        ] {
            assert_eq!(Key::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
