//! Offsets, epochs and the inequality that every partition keeps.

use std::fmt;
use thiserror::Error;

macro_rules! number {
    ($(#[$meta:meta])* $name:ident($inner:ty)) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A record's place in its partition, from 0; never a byte position.
    Offset(i64)
}

impl Offset {
    pub const ZERO: Self = Self(0);
    pub const MAX: Self = Self(i64::MAX);

    /// The offset `records` further on; saturates, so that a hostile count
    /// cannot wrap.
    #[must_use]
    pub fn plus(self, records: i64) -> Self {
        Self(self.0.saturating_add(records))
    }
}

number! {
    /// Counts leaderships of a partition. -1 is "none known", as in Kafka.
    LeaderEpoch(i32)
}

impl LeaderEpoch {
    pub const NONE: Self = Self(-1);
}

number! {
    /// Counts how often a shard of an internal topic was given to a coordinator, from 1.
    ShardEpoch(i32)
}

impl ShardEpoch {
    /// Never given out; a log without fence.
    pub const NONE: Self = Self(0);
}

number! {
    /// Counts changes of a partition's record at the controller.
    PartitionEpoch(i64)
}

number! {
    /// Milliseconds since 1970-01-01T00:00:00Z. -1 is "none".
    TimestampMs(i64)
}

impl TimestampMs {
    pub const NONE: Self = Self(-1);
}

/// The four promises of a partition:
///
/// ```text
/// log start ≤ last stable ≤ high watermark ≤ log end,   flushed end ≤ log end
/// ```
///
/// Log start is the first readable offset; the others are exclusive: the first
/// that committed readers, consumers, or anyone may not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogBounds {
    pub log_start: Offset,
    pub last_stable: Offset,
    pub high_watermark: Offset,
    pub log_end: Offset,
    /// First offset that is not known to be on stable storage.
    pub flushed_end: Offset,
}

/// Names the broken part of the inequality.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum LogBoundsError {
    #[error("log start is above the last stable offset")]
    StartAboveStable,
    #[error("last stable offset is above the high watermark")]
    StableAboveWatermark,
    #[error("high watermark is above the log end")]
    WatermarkAboveEnd,
    #[error("flushed end is above the log end")]
    FlushedAboveEnd,
}

impl LogBounds {
    /// The invariant, written once.
    pub fn check(&self) -> Result<(), LogBoundsError> {
        if self.log_start > self.last_stable {
            return Err(LogBoundsError::StartAboveStable);
        }
        if self.last_stable > self.high_watermark {
            return Err(LogBoundsError::StableAboveWatermark);
        }
        if self.high_watermark > self.log_end {
            return Err(LogBoundsError::WatermarkAboveEnd);
        }
        if self.flushed_end > self.log_end {
            return Err(LogBoundsError::FlushedAboveEnd);
        }
        Ok(())
    }
}
