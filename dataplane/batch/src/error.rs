//! Why a batch was refused: one variant per reason, and a coarser
//! [`BatchErrorKind`] for the places that only choose an error code.

use crate::codec::UnpackFault;
use talweg_types::Compression;
use thiserror::Error;

/// Why these bytes are not a batch, or not one that is allowed here.
///
/// Trying again with the same bytes gives the same answer.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BatchError {
    #[error("{actual} bytes are too few for a record batch; {needed} are needed")]
    TooShort { needed: usize, actual: usize },
    #[error("magic is {0}; only 2 is supported")]
    Magic(i8),
    #[error("the length field is {0}; the smallest batch has 49")]
    LengthField(i32),
    /// The bytes are not exactly one batch.
    #[error("the header states a batch of {stated} bytes, but {actual} are here")]
    Length { stated: usize, actual: usize },
    #[error("batch of {actual} bytes; the limit is {limit}")]
    TooLarge { limit: u32, actual: usize },
    #[error("CRC-32C is {computed:#010x}, the header states {stated:#010x}")]
    Crc { stated: u32, computed: u32 },
    #[error("compression codec {0} is unknown")]
    Codec(i16),
    #[error("control batches are written by coordinators only")]
    ControlBatch,
    #[error("transactions are not built yet; the transactional bit is refused")]
    Transactional,
    #[error("timestamp type LogAppendTime is not accepted; timestamps are the client's")]
    LogAppendTime,
    #[error("attributes {0:#06x} have bits set that a client may not set")]
    AttributeBits(i16),
    /// They go together: all -1, or all 0 and above.
    #[error("producer id {id}, epoch {epoch} and base sequence {sequence} do not go together")]
    ProducerFields { id: i64, epoch: i16, sequence: i32 },
    /// Negative; from a client also zero.
    #[error("record count is {0}")]
    RecordCount(i32),
    #[error("{actual} records in one batch; the limit is {limit}")]
    TooManyRecords { limit: u32, actual: u32 },
    /// Negative, or from a client not record count - 1.
    #[error("last offset delta {delta} does not go with {count} records")]
    LastOffsetDelta { delta: i32, count: i32 },
    #[error("first timestamp {0} is negative and not -1")]
    FirstTimestamp(i64),
    #[error("max timestamp is stated as {stated}, the records' largest is {actual}")]
    MaxTimestamp { stated: i64, actual: i64 },
    #[error("the header states {stated} records, the bytes end after {found}")]
    RecordsMissing { stated: i32, found: usize },
    #[error("{bytes} bytes follow the last record")]
    TrailingBytes { bytes: usize },
    #[error("{codec} data cannot be unpacked: {fault}")]
    Unpack {
        codec: Compression,
        fault: UnpackFault,
    },
    #[error("batch unpacks to more than {limit} bytes")]
    UnpacksTooLarge { limit: usize },
    /// Only when building.
    #[error("{codec} could not pack the batch: {reason}")]
    Pack { codec: Compression, reason: String },
    #[error("record {index}: {fault}")]
    Record { index: usize, fault: RecordFault },
}

/// What is wrong with one record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RecordFault {
    #[error("its length or a field ends inside a varint")]
    VarintCut,
    #[error("a varint is longer than its value needs or its type allows")]
    VarintOverlong,
    #[error("its length is {0}")]
    NegativeLength(i32),
    #[error("its length is {length}, {left} bytes are left")]
    BeyondBatch { length: i32, left: usize },
    #[error("its fields end before its length is used up")]
    FieldsMissing,
    #[error("its length leaves {0} bytes that no field accounts for")]
    Unaccounted(usize),
    #[error("attributes are {0:#04x}; none are defined")]
    Attributes(u8),
    #[error("offset delta is {actual}; {expected} was due")]
    OffsetDelta { expected: i32, actual: i32 },
    #[error("key length is {length}, {left} bytes are left")]
    KeyLength { length: i32, left: usize },
    #[error("value length is {length}, {left} bytes are left")]
    ValueLength { length: i32, left: usize },
    #[error("header count is {count}, {left} bytes are left")]
    HeaderCount { count: i32, left: usize },
    #[error("{actual} headers; the limit is {limit}")]
    TooManyHeaders { limit: u32, actual: u32 },
    #[error("a header name is null")]
    HeaderNameNull,
    #[error("a header name's length is {length}, {left} bytes are left")]
    HeaderNameLength { length: i32, left: usize },
    #[error("a header name is not UTF-8")]
    HeaderNameNotUtf8,
    #[error("a header value's length is {length}, {left} bytes are left")]
    HeaderValueLength { length: i32, left: usize },
    #[error("timestamp delta {delta} leaves the range of timestamps")]
    TimestampOverflow { delta: i64 },
    #[error("timestamp {0} is negative and not -1")]
    TimestampNegative(i64),
    #[error("timestamp {timestamp} is too far ahead; the latest accepted now is {max}")]
    TimestampAhead { timestamp: i64, max: i64 },
    #[error("{actual} bytes of key, value and headers; the limit is {limit}")]
    TooLarge { limit: u32, actual: usize },
    #[error("it has no key, which every record of a compacted topic needs (cleanup.policy)")]
    KeyMissing,
    /// Null, empty, longer than 128 bytes, or given twice.
    #[error("its idempotency key must be 1 to {limit} bytes, given once")]
    IdempotencyKey { limit: usize },
}

/// What the answer to a caller depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchErrorKind {
    /// The bytes contradict themselves or the format.
    Corrupt,
    UnsupportedMagic,
    UnsupportedCodec,
    /// Well formed, but not for a client to send.
    NotAllowed,
    /// The encoded batch, in bytes.
    TooLarge {
        limit: u64,
        actual: u64,
    },
    TooManyRecords {
        limit: u64,
        actual: u64,
    },
    /// Key + value + headers of one record, in bytes.
    RecordTooLarge {
        index: usize,
        limit: u64,
        actual: u64,
    },
    /// Unpacking stopped at `limit` bytes.
    UnpacksTooLarge {
        limit: u64,
    },
    TimestampOutOfRange {
        index: usize,
    },
    /// Well formed, but breaks a rule: too many headers, a bad idempotency key, no
    /// key where the topic is compacted.
    InvalidRecord {
        index: usize,
    },
}

impl BatchError {
    pub fn kind(&self) -> BatchErrorKind {
        use BatchErrorKind as Kind;
        match *self {
            Self::Magic(_) => Kind::UnsupportedMagic,
            Self::Codec(_) => Kind::UnsupportedCodec,
            Self::ControlBatch
            | Self::Transactional
            | Self::LogAppendTime
            | Self::AttributeBits(_) => Kind::NotAllowed,
            Self::TooLarge { limit, actual } => Kind::TooLarge {
                limit: limit.into(),
                actual: actual as u64,
            },
            Self::TooManyRecords { limit, actual } => Kind::TooManyRecords {
                limit: limit.into(),
                actual: actual.into(),
            },
            Self::UnpacksTooLarge { limit } => Kind::UnpacksTooLarge {
                limit: limit as u64,
            },
            Self::Record { index, fault } => fault.kind(index),
            Self::TooShort { .. }
            | Self::LengthField(_)
            | Self::Length { .. }
            | Self::Crc { .. }
            | Self::ProducerFields { .. }
            | Self::RecordCount(_)
            | Self::LastOffsetDelta { .. }
            | Self::FirstTimestamp(_)
            | Self::MaxTimestamp { .. }
            | Self::RecordsMissing { .. }
            | Self::TrailingBytes { .. }
            | Self::Unpack { .. }
            | Self::Pack { .. } => Kind::Corrupt,
        }
    }

    /// The record at fault, counted from 0, where one is.
    pub fn record_index(&self) -> Option<usize> {
        match *self {
            Self::Record { index, .. } => Some(index),
            _ => None,
        }
    }
}

impl RecordFault {
    fn kind(self, index: usize) -> BatchErrorKind {
        use BatchErrorKind as Kind;
        match self {
            Self::TooLarge { limit, actual } => Kind::RecordTooLarge {
                index,
                limit: limit.into(),
                actual: actual as u64,
            },
            Self::TimestampOverflow { .. }
            | Self::TimestampNegative(_)
            | Self::TimestampAhead { .. } => Kind::TimestampOutOfRange { index },
            Self::TooManyHeaders { .. } | Self::IdempotencyKey { .. } | Self::KeyMissing => {
                Kind::InvalidRecord { index }
            }
            _ => Kind::Corrupt,
        }
    }

    pub(crate) fn at(self, index: usize) -> BatchError {
        BatchError::Record { index, fault: self }
    }
}
