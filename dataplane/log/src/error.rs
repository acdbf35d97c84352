//! One error enum per operation. Each says what happened; whether it may
//! already have happened and whether trying again is sensible is in the
//! variant's comment.

use crate::sidecar::SidecarError;
use std::{io, sync::Arc};
use talweg_types::{LeaderEpoch, LogBounds, Offset, ProducerEpoch, Sequence, ShardEpoch};
use thiserror::Error;

/// Why a log folder cannot be used.
#[derive(Clone, Debug, Error)]
pub enum FolderError {
    #[error("log folder {path}: {source}")]
    Io {
        path: String,
        source: Arc<io::Error>,
    },
    /// The identity file is there and cannot be believed. Never replaced by guess.
    #[error("log folder {path}: {source}")]
    Sidecar { path: String, source: SidecarError },
    /// Sticky until the process starts again.
    #[error("log folder failed: {0}")]
    Failed(String),
}

/// Why a change of a partition's log did not happen.
#[derive(Clone, Debug, Error)]
pub enum LogError {
    /// Sticky until the process starts again; replicas in the folder are lost to this node.
    #[error("log folder failed: {0}")]
    FolderFailed(String),
    /// Nothing happened; works again when space returns.
    #[error("disk is full")]
    DiskFull,
    #[error("{what}: {source}")]
    Io {
        what: String,
        source: Arc<io::Error>,
    },
    #[error("leader epoch {asked} is not above {current}, the highest in the log")]
    StaleEpoch {
        asked: LeaderEpoch,
        current: LeaderEpoch,
    },
    /// The offset lies outside what may be asked for. Nothing happened.
    #[error("offset {offset} is outside the log ({bounds:?})")]
    OutOfRange { offset: Offset, bounds: LogBounds },
    /// A flush ticket is out; the call works after its `flush_done`.
    #[error("a flush of this partition is in flight")]
    FlushInFlight,
    /// A rewrite is out; the call works after its `rewrite_done`.
    #[error("a rewrite of this partition's segments is in flight")]
    RewriteInFlight,
    /// Files in the folder belong to another partition. Nothing was touched.
    #[error("the folder of {expected} holds files of {found}")]
    WrongIdentity { expected: String, found: String },
    /// A file of a newer version of this program. Nothing was touched.
    #[error("{file}: {source}")]
    Sidecar { file: String, source: SidecarError },
    #[error("the log was deleted")]
    Deleted,
}

/// Why a batch was not appended. In every case but [`Self::WriteUnknown`] nothing of
/// it is in the log.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AppendError {
    #[error("out of order sequence; expected {}", expected.0)]
    OutOfOrderSequence { expected: Sequence },
    /// The session expired or never was; the producer takes a new epoch and starts at sequence 0.
    #[error("unknown producer")]
    UnknownProducer,
    /// A newer life of the producer writes. Final.
    #[error("fenced by producer epoch {}", current.0)]
    Fenced { current: ProducerEpoch },
    /// A newer coordinator has taken the shard. Final; shard epoch 0 is "none named".
    #[error("shard epoch {asked} is fenced by {current}")]
    ShardFenced {
        asked: ShardEpoch,
        current: ShardEpoch,
    },
    /// The log has no fence of this shard epoch yet; it comes first.
    #[error("no fence of shard epoch {asked} is in the log, the newest is {current}")]
    FenceMissing {
        asked: ShardEpoch,
        current: ShardEpoch,
    },
    /// Which coordinator may append follows from a range that is damaged. Nothing
    /// happened; works again when it is repaired.
    #[error("the newest fence is not known: the log is damaged at offset {from}")]
    FenceDamaged { from: Offset },
    /// Works again when space returns.
    #[error("disk is full")]
    DiskFull,
    #[error("log folder failed: {0}")]
    FolderFailed(String),
    /// The folder failed in the write and again when that was cut back: the batch, or
    /// batches before it in the same call, may be found when the folder is opened next.
    #[error("log folder failed in a write that may be there when it is opened again: {0}")]
    WriteUnknown(String),
    /// The same idempotency key twice in one batch.
    #[error("idempotency key {key:?} is twice in one batch")]
    DuplicateKeyInBatch { key: String },
    /// Some records of the batch repeat remembered keys and others do not, so
    /// that neither appending nor skipping it would be right.
    #[error(
        "idempotency key {key:?} repeats offset {offset} but the batch is not a repeat as a whole"
    )]
    KeyRepeatedInPart { key: String, offset: Offset },
    /// A batch of a numbered producer repeats idempotency keys under a new
    /// sequence; the sequence number stays free.
    #[error("idempotency key {key:?} of a numbered batch repeats offset {offset}")]
    KeyRepeatedInSession { key: String, offset: Offset },
    /// Larger than a segment may be.
    #[error("batch of {bytes} bytes does not fit into a segment of {segment_bytes}")]
    LargerThanSegment { bytes: usize, segment_bytes: u32 },
    /// The caller did not begin an epoch, or the batch is not one that was checked.
    #[error("invalid append: {0}")]
    Invalid(&'static str),
    #[error("the log was deleted")]
    Deleted,
}

/// Why a read gave nothing.
#[derive(Clone, Debug, Error)]
pub enum ReadError {
    /// Below the log start or above the log end.
    #[error("offset {offset} is outside the log ({bounds:?})")]
    OutOfRange { offset: Offset, bounds: LogBounds },
    /// Records from `from` (inclusive) to `next_good` (exclusive) cannot be
    /// believed. Reading on from `next_good` works.
    #[error("offsets {from}..{next_good} are damaged on disk")]
    Damaged { from: Offset, next_good: Offset },
    #[error("log folder failed: {0}")]
    FolderFailed(String),
    #[error("{what}: {source}")]
    Io {
        what: String,
        source: Arc<io::Error>,
    },
    #[error("the log was deleted")]
    Deleted,
}

impl LogError {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        if is_full(&source) {
            return Self::DiskFull;
        }
        Self::Io {
            what: what.into(),
            source: Arc::new(source),
        }
    }
}

impl ReadError {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io {
            what: what.into(),
            source: Arc::new(source),
        }
    }
}

impl FolderError {
    pub(crate) fn io(path: &std::path::Path, source: io::Error) -> Self {
        Self::Io {
            path: path.display().to_string(),
            source: Arc::new(source),
        }
    }
}

/// Whether an error says that there is no room, as opposed to a sick disk.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
