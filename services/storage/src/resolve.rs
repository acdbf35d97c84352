//! From what a client names to what this node holds.

use crate::{node::Node, partition::PartitionHandle, view::TopicView};
use std::{sync::Arc, time::Duration};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1::{LeaderHint, Plane};
use talweg_types::{LeaderEpoch, PartitionIndex, TopicId, TopicPartition, is_internal};

/// A wait before asking again while the node is still opening a partition.
const OPENING_RETRY_MS: u32 = 50;
/// A view that is behind its controller's catches up within this.
const NEWS_TIME: Duration = Duration::from_millis(250);
/// A wait before asking again while nobody leads.
const NO_LEADER_RETRY_MS: u32 = 100;

/// A topic that the client named, by name, id or both.
pub fn topic(node: &Node, name: &str, id: &[u8]) -> Result<Arc<TopicView>, Refusal> {
    let view = node.view.get();
    let unknown = |what: String| Refusal::new(ErrorCode::UnknownTopic, format!("no topic {what}"));
    if id.is_empty() {
        if name.is_empty() {
            return Err(Refusal::invalid("topic", "a topic name or id is needed"));
        }
        return view
            .topic_by_name(name)
            .cloned()
            .ok_or_else(|| unknown(format!("has the name {name:?}")));
    }
    let id = TopicId::from_slice(id)
        .ok_or_else(|| Refusal::invalid("topic_id", "must have 16 bytes"))?;
    let found = view
        .topics
        .get(&id)
        .filter(|topic| !topic.topic.name.is_empty());
    match found {
        Some(topic) if name.is_empty() || topic.topic.name == name => Ok(Arc::clone(topic)),
        None if name.is_empty() || view.topic_by_name(name).is_none() => {
            Err(unknown(format!("has the id {id}")))
        }
        _ => Err(Refusal::new(
            ErrorCode::TopicIdChanged,
            format!("topic {name:?} has not the id {id}; it was deleted and created again"),
        )),
    }
}

/// INTERNAL_TOPIC for Talweg's own topics, which clients only read.
pub fn check_writable(name: &str) -> Result<(), Refusal> {
    if is_internal(name) {
        let message = format!("{name:?} is one of Talweg's own topics; clients do not write to it");
        return Err(Refusal::new(ErrorCode::InternalTopic, message));
    }
    Ok(())
}

/// Waits a moment for a topic and partition that this node has not heard of:
/// it may have been made just now, and the news be on its way.
pub async fn wait_for_news(node: &Node, name: &str, id: &[u8], partition: u32) {
    let is_unknown = || match topic(node, name, id) {
        Ok(topic) => partition >= topic.topic.partitions,
        Err(refusal) => refusal.code == ErrorCode::UnknownTopic,
    };
    if !is_unknown() {
        return;
    }
    let mut changed = node.view.subscribe();
    let news = async { while is_unknown() && changed.changed().await.is_ok() {} };
    // Without news the caller is told what is known.
    let _ = tokio::time::timeout(NEWS_TIME, news).await;
}

/// A partition of a topic that this node leads.
pub fn led_partition(
    node: &Node,
    topic: &TopicView,
    partition: u32,
) -> Result<(Arc<PartitionHandle>, LeaderEpoch), Refusal> {
    let tp = TopicPartition {
        topic_id: topic.id,
        partition: PartitionIndex(partition),
    };
    if partition >= topic.topic.partitions {
        let message = format!(
            "topic {:?} has partitions 0 to {}, not {partition}",
            topic.topic.name,
            topic.topic.partitions.saturating_sub(1)
        );
        return Err(Refusal::new(ErrorCode::UnknownPartition, message));
    }
    let handle = node.partitions.get(&tp);
    if let Some(handle) = &handle {
        if let Some(why) = handle.failure() {
            return Err(Refusal::new(ErrorCode::FolderFailed, why));
        }
        if let Some(epoch) = handle.leads() {
            return Ok((Arc::clone(handle), epoch));
        }
    }
    Err(not_leading(node, &tp))
}

/// A partition that this node leads, and whose watermark may be shown.
pub fn readable_partition(
    node: &Node,
    topic: &TopicView,
    partition: u32,
) -> Result<(Arc<PartitionHandle>, LeaderEpoch), Refusal> {
    let (handle, epoch) = led_partition(node, topic, partition)?;
    if handle.knows_watermark() {
        return Ok((handle, epoch));
    }
    let message =
        "the new leader does not know yet how far its predecessor's readers may have read";
    Err(Refusal::new(ErrorCode::OffsetNotAvailable, message).retry_after(OPENING_RETRY_MS))
}

/// A partition that this node follows closely, for a reader of its own rack.
pub fn followed_partition(
    node: &Node,
    topic: &TopicView,
    partition: u32,
) -> Option<(Arc<PartitionHandle>, LeaderEpoch)> {
    let tp = TopicPartition {
        topic_id: topic.id,
        partition: PartitionIndex(partition),
    };
    let handle = node.partitions.get(&tp)?;
    let epoch = handle.follows().filter(|_| handle.failure().is_none())?;
    Some((handle, epoch))
}

/// Why this node does not serve a partition, and who does.
pub fn not_leading(node: &Node, tp: &TopicPartition) -> Refusal {
    let view = node.view.get();
    let Some((_, state)) = view.partition(tp) else {
        return match view.topics.get(&tp.topic_id) {
            Some(_) => Refusal::new(ErrorCode::TopicNotReady, "the partition is being created"),
            None => Refusal::new(
                ErrorCode::UnknownTopic,
                format!("no topic has the id {}", tp.topic_id),
            ),
        };
    };
    if state.leader == 0 {
        return Refusal::new(ErrorCode::NoLeader, "the partition has no leader now")
            .retry_after(NO_LEADER_RETRY_MS);
    }
    if state.leader == node.id() {
        let own = node
            .incarnation()
            .is_some_and(|own| own.0 == state.leader_incarnation);
        return if own {
            Refusal::unavailable("the partition is being opened").retry_after(OPENING_RETRY_MS)
        } else {
            Refusal::new(
                ErrorCode::NoLeader,
                "the leader has restarted; a new epoch is to come",
            )
            .retry_after(NO_LEADER_RETRY_MS)
        };
    }
    let message = format!("node {} leads the partition", state.leader);
    Refusal::new(ErrorCode::NotLeader, message).with_leader(LeaderHint {
        node_id: state.leader,
        addresses: view
            .storage_node(state.leader)
            .map(|node| node.grpc_address.clone())
            .into_iter()
            .collect(),
        leader_epoch: state.leader_epoch,
    })
}

/// The epoch that a client believes in, against the leader's.
pub fn check_epoch(asked: Option<i32>, current: LeaderEpoch) -> Result<(), Refusal> {
    let Some(asked) = asked else { return Ok(()) };
    let message = || format!("the leader epoch is {current}, not {asked}");
    match asked.cmp(&current.0) {
        std::cmp::Ordering::Less => Err(Refusal::new(ErrorCode::FencedLeaderEpoch, message())),
        std::cmp::Ordering::Greater => Err(Refusal::new(ErrorCode::UnknownLeaderEpoch, message())),
        std::cmp::Ordering::Equal => Ok(()),
    }
}

/// The thin form, or whatever else only gateways do.
pub fn only_gateways(node: &Node, what: &str) -> Refusal {
    let addresses = node.view.get().addresses(Plane::Gateway);
    Refusal::not_built(format!(
        "{what} is served by gateways, not by storage nodes"
    ))
    .with_leader(LeaderHint {
        node_id: 0,
        addresses,
        leader_epoch: -1,
    })
}

/// A new stream while the process stops.
pub fn draining() -> Refusal {
    Refusal::unavailable("this node is stopping").retry_after(1_000)
}
