//! Control batches: the markers that end a transaction in a partition.
//!
//! One record. Key: `i16` version 0, `i16` kind. Value: `i16` version 0,
//! `i32` coordinator epoch. Consumers never see them.

use crate::builder::{BatchBuilder, seal};
use crate::error::BatchError;
use crate::header::{BatchHeader, HEADER_BYTES, bits};
use crate::record::Record;
use bytes::Bytes;
use talweg_types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs};
use thiserror::Error;

/// How a transaction ended; the values are Kafka's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MarkerKind {
    Abort = 0,
    Commit = 1,
}

/// The marker that ends the transaction of one producer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndTransactionMarker {
    pub kind: MarkerKind,
    /// Of the transaction coordinator that decided; fences older ones.
    pub coordinator_epoch: i32,
}

/// Why a control record is none that we know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ControlError {
    #[error("the record of a control batch cannot be read")]
    Unreadable,
    #[error("the key of a control record must have 4 bytes or more")]
    Key,
    #[error("control record of kind {0} is not an end-of-transaction marker")]
    Kind(i16),
    #[error("version {0} of a control record is unknown")]
    Version(i16),
    #[error("the value of an end-of-transaction marker must have 6 bytes or more")]
    Value,
}

impl EndTransactionMarker {
    /// Reads the record of a control batch. Later versions may append fields;
    /// they are left alone.
    pub fn from_record(record: &Record) -> Result<Self, ControlError> {
        let mut key = record.key.as_deref().unwrap_or_default();
        let version = take_i16(&mut key).ok_or(ControlError::Key)?;
        let kind = take_i16(&mut key).ok_or(ControlError::Key)?;
        if version < 0 {
            return Err(ControlError::Version(version));
        }
        let kind = match kind {
            0 => MarkerKind::Abort,
            1 => MarkerKind::Commit,
            other => return Err(ControlError::Kind(other)),
        };
        let mut value = record.value.as_deref().unwrap_or_default();
        let version = take_i16(&mut value).ok_or(ControlError::Value)?;
        if version < 0 {
            return Err(ControlError::Version(version));
        }
        let epoch = value.first_chunk::<4>().ok_or(ControlError::Value)?;
        Ok(Self {
            kind,
            coordinator_epoch: i32::from_be_bytes(*epoch),
        })
    }
}

pub(crate) fn take_i16(rest: &mut &[u8]) -> Option<i16> {
    let (field, after) = rest.split_first_chunk::<2>()?;
    *rest = after;
    Some(i16::from_be_bytes(*field))
}

/// The batch with `marker` for one producer, with base offset 0 and no leader
/// epoch, ready to be stamped.
pub fn control_batch(
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    marker: EndTransactionMarker,
    timestamp: TimestampMs,
) -> Result<Bytes, BatchError> {
    let mut key = [0; 4];
    key[2..].copy_from_slice(&(marker.kind as i16).to_be_bytes());
    let mut value = [0; 6];
    value[2..].copy_from_slice(&marker.coordinator_epoch.to_be_bytes());
    let mut builder = BatchBuilder::new(talweg_types::Compression::None);
    builder.push(timestamp, Some(&key), Some(&value), [])?;
    let plain = builder.build()?;
    debug_assert!(plain.len() > HEADER_BYTES);
    let header = BatchHeader {
        base_offset: Offset::ZERO,
        batch_length: 0,
        leader_epoch: LeaderEpoch::NONE,
        crc: 0,
        attributes: bits::CONTROL | bits::TRANSACTIONAL,
        last_offset_delta: 0,
        first_timestamp: timestamp,
        max_timestamp: timestamp,
        producer_id,
        producer_epoch,
        base_sequence: Sequence::NONE,
        record_count: 1,
    };
    seal(plain.into(), header)
}
