//! The vocabulary of Talweg: identifiers, offsets, promises, limits and the
//! topic configuration table.
//!
//! Nothing here does IO, reads a clock or knows a wire format. Words are
//! Kafka's: `last_` is inclusive, `end_` and `next_` are one past; the *last
//! stable offset* keeps its historic name and is exclusive.

mod acks;
mod cleanup;
mod clock;
mod ids;
pub mod limits;
mod names;
mod offset;
mod planting;
mod producer;
pub mod topic_config;

pub use acks::{Acks, Compression, Durability};
pub use cleanup::{Cleanup, Ratio};
pub use clock::MonotonicMs;
pub use ids::{FolderId, Incarnation, MemberId, NodeId, PartitionIndex, TopicId, TopicPartition};
pub use names::{CONSUMER_OFFSETS, NameError, check_name, is_internal, keeps_replay, replay_group};
pub use offset::{
    LeaderEpoch, LogBounds, LogBoundsError, Offset, PartitionEpoch, ShardEpoch, TimestampMs,
};
pub use producer::{ProducerEpoch, ProducerId, Sequence};
pub use topic_config::TopicConfig;
