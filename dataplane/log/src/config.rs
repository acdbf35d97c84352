//! Settings of a partition's log and of a log folder.

use std::time::Duration;
use talweg_types::{Durability, TopicConfig};

/// What a partition's log needs of its topic's configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogConfig {
    /// Age by append time after which sealed segments go; -1 never.
    pub retention_ms: i64,
    /// Bytes of the partition above which head segments go; -1 no limit.
    pub retention_bytes: i64,
    /// A segment is rolled before it grows above this.
    pub segment_bytes: u32,
    /// A segment is rolled when its first record is this old by append time.
    pub segment_ms: u64,
    /// At least this many bytes lie between two entries of the offset index.
    pub index_interval_bytes: u32,
    pub durability: Durability,
    pub producer_id_expiration_ms: u64,
    pub idempotency_window_ms: u64,
    /// How long the files of a deleted segment stay for readers that are in them.
    pub file_delete_delay_ms: u64,
}

impl LogConfig {
    pub fn for_topic(topic: &TopicConfig, durability: Durability) -> Self {
        Self {
            retention_ms: topic.retention_ms,
            retention_bytes: topic.retention_bytes,
            segment_bytes: topic.segment_bytes,
            segment_ms: topic.segment_ms,
            index_interval_bytes: topic.index_interval_bytes,
            durability,
            producer_id_expiration_ms: topic.producer_id_expiration_ms,
            idempotency_window_ms: topic.idempotency_window_ms,
            file_delete_delay_ms: topic.file_delete_delay_ms,
        }
    }
}

impl From<&TopicConfig> for LogConfig {
    /// At replication factor 1.
    fn from(topic: &TopicConfig) -> Self {
        Self::for_topic(topic, topic.durability_at(1))
    }
}

/// Settings of one log folder.
#[derive(Clone, Debug)]
pub struct FolderOptions {
    /// `disk.reserve.bytes`: below this much free space produce is refused.
    /// `None`: 5 % of the disk or 1 GiB, whichever is less.
    pub reserve_bytes: Option<u64>,
    /// Open segment files kept, unflushed ones apart.
    pub open_files: usize,
    /// Bytes of freshly appended batches kept in memory for tailing readers,
    /// over all partitions of the folder; 0 keeps none.
    pub tail_bytes: usize,
}

impl Default for FolderOptions {
    fn default() -> Self {
        Self {
            reserve_bytes: None,
            open_files: 2048,
            tail_bytes: 32 << 20,
        }
    }
}

/// The flushed end on disk lags at most this far behind, in time and bytes.
pub(crate) const RECORD_LAG: Duration = Duration::from_secs(1);
pub(crate) const RECORD_LAG_BYTES: u64 = 16 << 20;
/// A `sessions` file is written at least every so many bytes of log (more
/// seldom when the file itself is large, see `snapshot.rs`).
pub(crate) const SNAPSHOT_BYTES: u64 = 8 << 20;
/// Remembered producers per partition; above it the longest idle are forgotten.
pub(crate) const PRODUCER_SESSIONS_MAX: usize = 100_000;
