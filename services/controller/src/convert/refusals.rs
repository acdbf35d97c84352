//! The core's refusals as entries of the public catalogue.

use crate::core::Refusal as Core;
use talweg_kit::errors::{ErrorCode, Refusal};

/// How long to wait before the same request may do better, in milliseconds.
const RETRY_MS: u32 = 200;

pub fn refusal(core: Core) -> Refusal {
    let message = core.to_string();
    let new = |code| Refusal::new(code, message.clone());
    match core {
        Core::InvalidName { why, .. } => why.into(),
        Core::InternalTopic { .. } => new(ErrorCode::InternalTopic),
        Core::NameConflict { .. } => new(ErrorCode::NameConflict),
        Core::TopicExists { id, .. } => {
            new(ErrorCode::TopicExists).with_existing_topic(id.as_bytes().to_vec())
        }
        Core::UnknownTopic { .. } | Core::UnknownTopicId { .. } => new(ErrorCode::UnknownTopic),
        Core::TopicIdChanged { .. } => new(ErrorCode::TopicIdChanged),
        Core::TopicNotReady { .. } => new(ErrorCode::TopicNotReady).retry_after(RETRY_MS),
        Core::InvalidPartitions { reason } => {
            new(ErrorCode::InvalidPartitions).with_field("partitions", reason)
        }
        Core::InvalidReplicationFactor { reason } => {
            new(ErrorCode::InvalidReplicationFactor).with_field("replication_factor", reason)
        }
        Core::Config(error) => error.into(),
        Core::InvalidArgument { field, reason } => Refusal::invalid(field, reason),
        Core::LimitExceeded {
            name,
            limit,
            actual,
            unit,
            ..
        } => new(ErrorCode::LimitExceeded).with_limit(name, limit, actual, unit),
        Core::NotEnoughNodes { .. } => new(ErrorCode::NotEnoughNodes).retry_after(RETRY_MS),
        Core::Busy { .. } => new(ErrorCode::Throttled).retry_after(RETRY_MS),
        Core::ClusterIdMismatch { .. } => new(ErrorCode::ClusterIdMismatch),
        Core::NodeIdInUse { .. } | Core::FoldersLost { .. } | Core::FolderOfAnother { .. } => {
            new(ErrorCode::NodeIdConflict)
        }
        Core::StaleIncarnation { .. } => new(ErrorCode::StaleIncarnation),
        Core::NotRegistered { .. } => new(ErrorCode::Unavailable).retry_after(RETRY_MS),
        Core::NoLeader { .. } => new(ErrorCode::NoLeader),
        Core::UnknownNode { .. } => new(ErrorCode::UnknownNode),
    }
}
