//! Fences: control batches by which a coordinator takes a shard, a partition of an
//! internal topic. From a fence on, nothing of a lower shard epoch is appended.
//!
//! One record. Key: `i16` version 0, `i16` kind 64. Value: `i16` version 0, `i32`
//! shard epoch. Consumers never see them.

use crate::builder::{BatchBuilder, seal};
use crate::control::{ControlError, take_i16};
use crate::error::BatchError;
use crate::header::{BatchHeader, bits};
use crate::record::{Record, decode_records};
use bytes::Bytes;
use talweg_types::{
    Compression, LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, ShardEpoch, TimestampMs,
};

/// Far from Kafka's own kinds, which count from 0.
const KIND: i16 = 64;
/// A fence unpacked is a few bytes; nothing larger is taken for one.
const UNPACKED_BYTES_MAX: usize = 64 * 1024;

/// The fence with `epoch`, with base offset 0 and no leader epoch, ready to be stamped.
///
/// # Errors
/// None that a timestamp in range meets.
pub fn fence_batch(epoch: ShardEpoch, timestamp: TimestampMs) -> Result<Bytes, BatchError> {
    let mut key = [0; 4];
    key[2..].copy_from_slice(&KIND.to_be_bytes());
    let mut value = [0; 6];
    value[2..].copy_from_slice(&epoch.0.to_be_bytes());
    let mut builder = BatchBuilder::new(Compression::None);
    builder.push(timestamp, Some(&key), Some(&value), [])?;
    let plain = builder.build()?;
    let header = BatchHeader {
        base_offset: Offset::ZERO,
        batch_length: 0,
        leader_epoch: LeaderEpoch::NONE,
        crc: 0,
        attributes: bits::CONTROL,
        last_offset_delta: 0,
        first_timestamp: timestamp,
        max_timestamp: timestamp,
        producer_id: ProducerId::NONE,
        producer_epoch: ProducerEpoch::NONE,
        base_sequence: Sequence::NONE,
        record_count: 1,
    };
    seal(plain.into(), header)
}

/// The shard epoch of a fence; `None` for any other batch. The bytes fit their checksum.
///
/// # Errors
/// A control record that is broken, or a fence of a version that is not known.
pub fn read_fence(header: &BatchHeader, batch: &Bytes) -> Result<Option<ShardEpoch>, ControlError> {
    if !header.is_control() {
        return Ok(None);
    }
    let records =
        decode_records(batch, UNPACKED_BYTES_MAX).map_err(|_| ControlError::Unreadable)?;
    records.first().map_or(Ok(None), from_record)
}

fn from_record(record: &Record) -> Result<Option<ShardEpoch>, ControlError> {
    let mut key = record.key.as_deref().unwrap_or_default();
    let version = take_i16(&mut key).ok_or(ControlError::Key)?;
    if take_i16(&mut key).ok_or(ControlError::Key)? != KIND {
        return Ok(None);
    }
    let mut value = record.value.as_deref().unwrap_or_default();
    let value_version = take_i16(&mut value).ok_or(ControlError::Value)?;
    if version < 0 || value_version < 0 {
        return Err(ControlError::Version(version.min(value_version)));
    }
    let epoch = value.first_chunk::<4>().ok_or(ControlError::Value)?;
    Ok(Some(ShardEpoch(i32::from_be_bytes(*epoch))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{EndTransactionMarker, MarkerKind, control_batch};

    fn read(batch: &Bytes) -> Result<Option<ShardEpoch>, ControlError> {
        read_fence(&BatchHeader::parse(batch).expect("a header"), batch)
    }

    #[test]
    fn a_fence_reads_back_and_no_other_batch_is_one() {
        for epoch in [1, 7, i32::MAX] {
            let fence = fence_batch(ShardEpoch(epoch), TimestampMs(5)).expect("built");
            crate::verify_crc(&fence).expect("checksum");
            assert_eq!(read(&fence), Ok(Some(ShardEpoch(epoch))));
            let record = &decode_records(&fence, 1 << 16).expect("records")[0];
            let other = EndTransactionMarker::from_record(record);
            assert_eq!(other, Err(ControlError::Kind(64)));
        }
        let marker = EndTransactionMarker {
            kind: MarkerKind::Commit,
            coordinator_epoch: 1,
        };
        let marker = control_batch(ProducerId(1), ProducerEpoch(0), marker, TimestampMs(5));
        assert_eq!(read(&marker.expect("built")), Ok(None));
        let mut plain = BatchBuilder::new(Compression::None);
        plain
            .push(TimestampMs(1), Some(b"\0\0\0\x40"), Some(&[0; 6]), [])
            .expect("pushed");
        assert_eq!(read(&plain.build().expect("built")), Ok(None));
    }

    /// The bytes are a format: a later version reads them.
    #[test]
    fn the_bytes_of_a_fence_stay() {
        let fence = fence_batch(ShardEpoch(0x0102_0304), TimestampMs(0)).expect("built");
        let record = &fence[61..];
        let expected = [0x20, 0, 0, 0, 8, 0, 0, 0, 0x40, 12, 0, 0, 1, 2, 3, 4, 0];
        assert_eq!(record, expected);
        assert_eq!(&fence[21..23], &[0, 0x20], "control, and nothing else");
    }
}
