//! The 61 bytes in front of every batch.
//!
//! ```text
//!  0        8        12      16 17      21   23      27       35       43       51  53     57     61
//!  | base    | length | leader |m| CRC   |attr|last   | first  | max    |producer|epo|base  |record|
//!  | offset  |        | epoch  |2| 32C   |    |delta  | time   | time   | id     |ch |seq.  |count |
//!  |<---- stamped by leader --->|         |<----------------- covered by the CRC ------------------ …
//! ```
//!
//! All integers are big-endian. `length` counts what follows it, so a whole
//! batch has `length + 12` bytes. Fails with a [`BatchError`]; never panics.

use crate::error::BatchError;
use bytes::Bytes;
use talweg_types::{
    Compression, LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs,
};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 61;
/// Bytes that a leader rewrites: base offset, length, leader epoch. They lie
/// outside the CRC.
pub const STAMP_BYTES: usize = 16;

const LENGTH_FROM: usize = 12;
const CRC_AT: usize = 17;
pub(crate) const CRC_FROM: usize = 21;
const MAGIC_AT: usize = 16;
const MAGIC: i8 = 2;

const _: () = assert!(STAMP_BYTES == MAGIC_AT && CRC_AT + 4 == CRC_FROM);
const _: () = assert!(HEADER_BYTES == CRC_FROM + 2 + 4 + 8 + 8 + 8 + 2 + 4 + 4);

/// Bits of `attributes`.
pub(crate) mod bits {
    pub const CODEC: i16 = 0x07;
    pub const LOG_APPEND_TIME: i16 = 0x08;
    pub const TRANSACTIONAL: i16 = 0x10;
    pub const CONTROL: i16 = 0x20;
    pub const DELETE_HORIZON: i16 = 0x40;
}

/// The header, parsed. Offsets and counts are as stated, not yet compared with
/// the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record; from a client of no meaning.
    pub base_offset: Offset,
    /// Bytes of the batch after the first 12.
    pub batch_length: i32,
    /// Epoch of the leader that appended it; from a client of no meaning.
    pub leader_epoch: LeaderEpoch,
    /// CRC-32C from the attributes to the end.
    pub crc: u32,
    /// Bits 0–2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete
    /// horizon.
    pub attributes: i16,
    /// Last offset minus base offset. After compaction it may exceed record
    /// count - 1.
    pub last_offset_delta: i32,
    /// What the records' timestamp deltas count from: usually the first
    /// record's timestamp, or the delete horizon. A record may be earlier.
    pub first_timestamp: TimestampMs,
    /// The largest timestamp in the batch.
    pub max_timestamp: TimestampMs,
    pub producer_id: ProducerId,
    pub producer_epoch: ProducerEpoch,
    /// Sequence of the first record.
    pub base_sequence: Sequence,
    pub record_count: i32,
}

impl BatchHeader {
    /// Reads the header at the front of `bytes`; the rest of the batch need
    /// not be there. Checks magic, the least length and that no count is
    /// negative; nothing that needs the records.
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        // An older magic has a shorter header: say so before "too short".
        if let Some(magic) = bytes.get(MAGIC_AT).map(|byte| byte.cast_signed())
            && magic != MAGIC
        {
            return Err(BatchError::Magic(magic));
        }
        let mut fields = match bytes.first_chunk::<HEADER_BYTES>() {
            Some(header) => Fields(header),
            None => {
                return Err(BatchError::TooShort {
                    needed: HEADER_BYTES,
                    actual: bytes.len(),
                });
            }
        };
        let base_offset = Offset(i64::from_be_bytes(fields.take()));
        let batch_length = i32::from_be_bytes(fields.take());
        let leader_epoch = LeaderEpoch(i32::from_be_bytes(fields.take()));
        let [_magic] = fields.take();
        let header = Self {
            base_offset,
            batch_length,
            leader_epoch,
            crc: u32::from_be_bytes(fields.take()),
            attributes: i16::from_be_bytes(fields.take()),
            last_offset_delta: i32::from_be_bytes(fields.take()),
            first_timestamp: TimestampMs(i64::from_be_bytes(fields.take())),
            max_timestamp: TimestampMs(i64::from_be_bytes(fields.take())),
            producer_id: ProducerId(i64::from_be_bytes(fields.take())),
            producer_epoch: ProducerEpoch(i16::from_be_bytes(fields.take())),
            base_sequence: Sequence(i32::from_be_bytes(fields.take())),
            record_count: i32::from_be_bytes(fields.take()),
        };
        header.check_counts()?;
        Ok(header)
    }

    fn check_counts(&self) -> Result<(), BatchError> {
        if self.batch_length < (HEADER_BYTES - LENGTH_FROM) as i32 {
            return Err(BatchError::LengthField(self.batch_length));
        }
        if self.record_count < 0 {
            return Err(BatchError::RecordCount(self.record_count));
        }
        if self.last_offset_delta < 0 {
            return Err(BatchError::LastOffsetDelta {
                delta: self.last_offset_delta,
                count: self.record_count,
            });
        }
        Ok(())
    }

    /// The header's bytes, its CRC as stated.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut rest = &mut bytes[..];
        let mut put = |field: &[u8]| {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(field.len());
            head.copy_from_slice(field);
            rest = tail;
        };
        put(&self.base_offset.0.to_be_bytes());
        put(&self.batch_length.to_be_bytes());
        put(&self.leader_epoch.0.to_be_bytes());
        put(&MAGIC.to_be_bytes());
        put(&self.crc.to_be_bytes());
        put(&self.attributes.to_be_bytes());
        put(&self.last_offset_delta.to_be_bytes());
        put(&self.first_timestamp.0.to_be_bytes());
        put(&self.max_timestamp.0.to_be_bytes());
        put(&self.producer_id.0.to_be_bytes());
        put(&self.producer_epoch.0.to_be_bytes());
        put(&self.base_sequence.0.to_be_bytes());
        put(&self.record_count.to_be_bytes());
        bytes
    }

    /// Bytes of the whole batch, header included. At least [`HEADER_BYTES`]
    /// for a parsed header.
    pub fn total_bytes(&self) -> usize {
        usize::try_from(self.batch_length).unwrap_or(0) + LENGTH_FROM
    }

    /// Offset of the last record (inclusive).
    pub fn last_offset(&self) -> Offset {
        self.base_offset.plus(self.last_offset_delta.into())
    }

    /// One past [`Self::last_offset`]: where the next batch begins.
    pub fn next_offset(&self) -> Offset {
        self.last_offset().plus(1)
    }

    pub fn compression(&self) -> Result<Compression, BatchError> {
        Compression::from_attributes(self.attributes)
            .ok_or(BatchError::Codec(self.attributes & bits::CODEC))
    }

    pub fn is_control(&self) -> bool {
        self.attributes & bits::CONTROL != 0
    }

    pub fn is_transactional(&self) -> bool {
        self.attributes & bits::TRANSACTIONAL != 0
    }

    /// Timestamps are the time of append: every record has the batch's
    /// `max_timestamp`.
    pub(crate) fn is_log_append_time(&self) -> bool {
        self.attributes & bits::LOG_APPEND_TIME != 0
    }

    /// From when on, by wall clock, its tombstones may go; set by compaction.
    pub fn delete_horizon(&self) -> Option<TimestampMs> {
        (self.attributes & bits::DELETE_HORIZON != 0).then_some(self.first_timestamp)
    }

    /// It holds the place of offsets that compaction has emptied, and nothing else.
    pub fn is_placeholder(&self) -> bool {
        self.record_count == 0 && !self.has_producer() && !self.is_control()
    }

    /// An idempotent producer numbered it.
    pub fn has_producer(&self) -> bool {
        !self.producer_id.is_none()
    }
}

/// Takes fields off a whole header; the sum of their widths is asserted above.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((field, rest)) => {
                self.0 = rest;
                *field
            }
            None => [0; N],
        }
    }
}

/// Parses the header of `batch`, which must be exactly one whole batch.
pub(crate) fn parse_whole(batch: &[u8]) -> Result<BatchHeader, BatchError> {
    let header = BatchHeader::parse(batch)?;
    let stated = header.total_bytes();
    if stated != batch.len() {
        return Err(BatchError::Length {
            stated,
            actual: batch.len(),
        });
    }
    Ok(header)
}

/// The CRC that the header of `batch` should state; of a batch too short to
/// have one, the CRC of nothing.
pub(crate) fn compute_crc(batch: &[u8]) -> u32 {
    crc32c::crc32c(batch.get(CRC_FROM..).unwrap_or_default())
}

/// Checks the CRC of exactly one whole batch.
pub fn verify_crc(batch: &[u8]) -> Result<(), BatchError> {
    let header = parse_whole(batch)?;
    let computed = compute_crc(batch);
    if computed != header.crc {
        return Err(BatchError::Crc {
            stated: header.crc,
            computed,
        });
    }
    Ok(())
}

/// What a leader writes in place of the first [`STAMP_BYTES`] of a batch:
/// the stored batch is this, then `bytes[STAMP_BYTES..]`.
pub fn stamp_prefix(header: &BatchHeader, base: Offset, epoch: LeaderEpoch) -> [u8; STAMP_BYTES] {
    let mut prefix = [0; STAMP_BYTES];
    prefix[..8].copy_from_slice(&base.0.to_be_bytes());
    prefix[8..12].copy_from_slice(&header.batch_length.to_be_bytes());
    prefix[12..].copy_from_slice(&epoch.0.to_be_bytes());
    prefix
}

/// Takes apart whole batches that lie back to back, without copying. CRCs are
/// not checked.
pub fn split_batches(bytes: Bytes) -> SplitBatches {
    SplitBatches { rest: bytes }
}

/// Iterator of [`split_batches`]; ends after its first error.
#[derive(Clone, Debug)]
pub struct SplitBatches {
    rest: Bytes,
}

impl Iterator for SplitBatches {
    type Item = Result<Bytes, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let whole = BatchHeader::parse(&self.rest).and_then(|header| {
            let stated = header.total_bytes();
            if stated > self.rest.len() {
                return Err(BatchError::Length {
                    stated,
                    actual: self.rest.len(),
                });
            }
            Ok(self.rest.split_to(stated))
        });
        if whole.is_err() {
            self.rest.clear();
        }
        Some(whole)
    }
}
