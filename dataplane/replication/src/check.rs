//! The inequality between a replica's positions, written once for both cores.

use crate::ReplicaEnds;
use talweg_types::{LeaderEpoch, Offset};
use thiserror::Error;

/// Where one replica stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Positions {
    /// First readable offset; 0 where it is not known.
    pub log_start: Offset,
    /// Exclusive.
    pub high_watermark: Offset,
    pub ends: ReplicaEnds,
    /// The highest epoch that it has heard of, and the epoch of its last batch.
    pub epoch: LeaderEpoch,
    pub last_epoch: LeaderEpoch,
}

/// The broken part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Broken {
    #[error("log start {log_start} is above the high watermark {high_watermark}")]
    StartAboveWatermark {
        log_start: Offset,
        high_watermark: Offset,
    },
    #[error("high watermark {high_watermark} is above the log end {log_end}")]
    WatermarkAboveEnd {
        high_watermark: Offset,
        log_end: Offset,
    },
    #[error("flushed end {flushed_end} is above the log end {log_end}")]
    FlushedAboveEnd {
        flushed_end: Offset,
        log_end: Offset,
    },
    #[error("a batch of epoch {last_epoch} in epoch {epoch}")]
    EpochFell {
        last_epoch: LeaderEpoch,
        epoch: LeaderEpoch,
    },
    #[error("high watermark {high_watermark} fell below {floor}")]
    WatermarkFell {
        high_watermark: Offset,
        floor: Offset,
    },
}

impl Positions {
    /// log start ≤ high watermark ≤ log end, flushed end ≤ log end, and no batch
    /// of an epoch that has not begun.
    pub fn check(&self) -> Result<(), Broken> {
        let Self {
            log_start,
            high_watermark,
            ends: ReplicaEnds {
                log_end,
                flushed_end,
            },
            epoch,
            last_epoch,
        } = *self;
        if log_start > high_watermark {
            return Err(Broken::StartAboveWatermark {
                log_start,
                high_watermark,
            });
        }
        if high_watermark > log_end {
            return Err(Broken::WatermarkAboveEnd {
                high_watermark,
                log_end,
            });
        }
        if flushed_end > log_end {
            return Err(Broken::FlushedAboveEnd {
                flushed_end,
                log_end,
            });
        }
        if last_epoch > epoch {
            return Err(Broken::EpochFell { last_epoch, epoch });
        }
        Ok(())
    }
}
