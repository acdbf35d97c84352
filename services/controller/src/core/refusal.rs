//! Why the controller refuses. Each becomes one code of the public catalogue;
//! none has taken effect.

use talweg_types::{FolderId, NameError, NodeId, TopicId, topic_config::ConfigError};
use thiserror::Error;
use uuid::Uuid;

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Refusal {
    #[error("topic name {name:?}: {why}")]
    InvalidName { name: String, why: NameError },
    #[error("{name:?} is one of Talweg's own topics; clients do not change it")]
    InternalTopic { name: String },
    #[error("{name:?} is another topic, not that of group {group:?} and this source")]
    NameConflict { name: String, group: String },
    #[error("topic {name:?} exists")]
    TopicExists { name: String, id: TopicId },
    #[error("no topic is named {name:?}")]
    UnknownTopic { name: String },
    #[error("no topic has the id {id}")]
    UnknownTopicId { id: TopicId },
    #[error("topic {name:?} has the id {actual} now, not {asked}")]
    TopicIdChanged {
        name: String,
        asked: TopicId,
        actual: TopicId,
    },
    #[error("topic {name:?} is still being created")]
    TopicNotReady { name: String },
    #[error("{reason}")]
    InvalidPartitions { reason: String },
    #[error("{reason}")]
    InvalidReplicationFactor { reason: String },
    #[error("{0}")]
    Config(#[from] ConfigError),
    #[error("{field}: {reason}")]
    InvalidArgument { field: &'static str, reason: String },
    #[error("{reason}")]
    LimitExceeded {
        name: &'static str,
        limit: u64,
        actual: u64,
        unit: &'static str,
        reason: String,
    },
    #[error(
        "{needed} storage nodes are needed to hold the replicas of a partition, and {alive} can \
         take new ones"
    )]
    NotEnoughNodes { needed: u32, alive: u32 },
    #[error("{waiting} requests are waiting; try again in a moment")]
    Busy { waiting: usize },
    #[error("this is cluster {ours}, the node belongs to cluster {theirs}")]
    ClusterIdMismatch { ours: Uuid, theirs: Uuid },
    #[error("another process is alive as node {id} with other log folders")]
    NodeIdInUse { id: NodeId },
    #[error(
        "node {id} holds replicas in other log folders than this process has; give it its folders \
         back, or start it as a new node, without an id"
    )]
    FoldersLost { id: NodeId },
    #[error("log folder {folder} belongs to node {owner}, not to node {id}")]
    FolderOfAnother {
        folder: FolderId,
        owner: NodeId,
        id: NodeId,
    },
    #[error("a newer process has registered as node {id}; this one must stop")]
    StaleIncarnation { id: NodeId },
    #[error("node {id} has not registered with this controller yet; try again in a moment")]
    NotRegistered { id: NodeId },
    #[error("{reason}")]
    NoLeader { reason: String },
    #[error("no storage node has the id {id}")]
    UnknownNode { id: NodeId },
}
