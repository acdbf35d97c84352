//! Settings of a partition's log and of a log folder.

use std::time::Duration;
use talweg_types::{Durability, Ratio, TopicConfig, limits};

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
    /// `None`: the log is not compacted.
    pub compaction: Option<CompactionConfig>,
}

/// How a log is compacted; the topic's `cleanup.policy` has `compact`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompactionConfig {
    /// How long a tombstone stays after a round has first met it.
    pub delete_retention_ms: u64,
    /// A round is due when this share of the sealed bytes was not compacted yet.
    pub min_dirty_ratio: Ratio,
    /// Sealed segments whose last record is younger by append time are left alone.
    pub min_lag_ms: u64,
    /// A round is due when the first record not yet compacted is older.
    pub max_lag_ms: u64,
    /// Memory of the map from keys to offsets.
    pub map_bytes: usize,
}

impl CompactionConfig {
    fn for_topic(topic: &TopicConfig) -> Option<Self> {
        topic.cleanup.compacts().then_some(Self {
            delete_retention_ms: topic.delete_retention_ms,
            min_dirty_ratio: topic.min_cleanable_dirty_ratio,
            min_lag_ms: topic.min_compaction_lag_ms,
            max_lag_ms: topic.max_compaction_lag_ms,
            map_bytes: limits::COMPACTION_MAP_BYTES,
        })
    }
}

impl LogConfig {
    pub fn for_topic(topic: &TopicConfig, durability: Durability) -> Self {
        let compaction = CompactionConfig::for_topic(topic);
        let deletes = topic.cleanup.deletes();
        // What is to be compacted by an age must be rolled by then.
        let max_lag_ms = compaction.map_or(u64::MAX, |compaction| compaction.max_lag_ms);
        Self {
            retention_ms: if deletes { topic.retention_ms } else { -1 },
            retention_bytes: if deletes { topic.retention_bytes } else { -1 },
            segment_bytes: topic.segment_bytes,
            segment_ms: topic.segment_ms.min(max_lag_ms),
            index_interval_bytes: topic.index_interval_bytes,
            durability,
            producer_id_expiration_ms: topic.producer_id_expiration_ms,
            idempotency_window_ms: topic.idempotency_window_ms,
            file_delete_delay_ms: topic.file_delete_delay_ms,
            compaction,
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
