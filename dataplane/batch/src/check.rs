//! The check that every batch of a client passes once, at the partition
//! leader: nothing enters a log that cannot be decoded.
//!
//! It walks an uncompressed batch in place and allocates nothing per record;
//! a compressed one is unpacked into one buffer that is dropped afterwards.

use crate::codec;
use crate::error::{BatchError, RecordFault};
use crate::header::{BatchHeader, HEADER_BYTES, bits, compute_crc};
use crate::record::{RawRecord, Walker, header_bytes};
use bytes::Bytes;
use std::borrow::Cow;
use talweg_types::{Compression, TimestampMs, TopicConfig, limits};

/// What a client's batch is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidationLimits {
    /// Encoded bytes of the batch, header included.
    pub max_batch_bytes: u32,
    /// Key + value + headers of one record.
    pub max_record_bytes: u32,
    /// All records of the batch, unpacked.
    pub max_unpacked_bytes: u32,
    /// Latest accepted record timestamp (inclusive).
    pub max_timestamp: TimestampMs,
    pub max_records: u32,
    /// Headers of one record.
    pub max_headers: u32,
    /// A record without a key is refused: compaction tells records apart by it.
    pub needs_key: bool,
}

impl ValidationLimits {
    /// The limits of a topic for a batch that arrives at `now` (wall clock).
    pub fn for_topic(config: &TopicConfig, now: TimestampMs) -> Self {
        Self {
            max_batch_bytes: config.max_message_bytes,
            max_record_bytes: config.max_record_bytes,
            max_unpacked_bytes: config.max_unpacked_batch_bytes,
            max_timestamp: TimestampMs(now.0.saturating_add(config.message_timestamp_after_max_ms)),
            max_records: limits::BATCH_RECORDS_MAX,
            max_headers: limits::RECORD_HEADERS_MAX,
            needs_key: config.cleanup.compacts(),
        }
    }

    /// Whether a record with this key may enter; the one rule for both forms.
    pub fn takes_key(&self, key: Option<&[u8]>) -> bool {
        key.is_some() || !self.needs_key
    }
}

/// A batch from a client that passed every check; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedBatch {
    pub header: BatchHeader,
    /// The whole batch as received.
    pub bytes: Bytes,
    /// Offset delta and key of each record that has an idempotency key, in
    /// order. Keys may repeat.
    pub idempotency_keys: Vec<(i32, Bytes)>,
    /// Offset delta of the first record that has the largest timestamp.
    pub max_timestamp_delta: i32,
}

/// Checks that `bytes` is exactly one batch that a client may append.
///
/// The length limit and the CRC come first, so that nothing is unpacked that
/// was damaged on the way. What is checked, in order, is the table in
/// `docs/formats/record-batch.md`.
pub fn check_client_batch(
    bytes: Bytes,
    limits: &ValidationLimits,
) -> Result<CheckedBatch, BatchError> {
    let header = check_envelope(&bytes, limits)?;
    let codec = header.compression()?;
    check_attributes(&header)?;
    check_fields(&header, limits)?;
    let (idempotency_keys, max_timestamp_delta) = {
        let payload = unpack(codec, &bytes[HEADER_BYTES..], limits)?;
        let pass = Pass::run(&header, limits, &payload)?;
        let own = |(delta, key): (i32, &[u8])| {
            let key = match payload {
                Cow::Borrowed(_) => bytes.slice_ref(key),
                Cow::Owned(_) => Bytes::copy_from_slice(key),
            };
            (delta, key)
        };
        (
            pass.keys.into_iter().map(own).collect(),
            pass.max_timestamp_delta,
        )
    };
    Ok(CheckedBatch {
        header,
        bytes,
        idempotency_keys,
        max_timestamp_delta,
    })
}

/// Magic, length and CRC.
fn check_envelope(bytes: &[u8], limits: &ValidationLimits) -> Result<BatchHeader, BatchError> {
    if bytes.len() > limits.max_batch_bytes as usize {
        return Err(BatchError::TooLarge {
            limit: limits.max_batch_bytes,
            actual: bytes.len(),
        });
    }
    let header = BatchHeader::parse(bytes)?;
    let stated = header.total_bytes();
    if stated != bytes.len() {
        return Err(BatchError::Length {
            stated,
            actual: bytes.len(),
        });
    }
    let computed = compute_crc(bytes);
    if computed != header.crc {
        return Err(BatchError::Crc {
            stated: header.crc,
            computed,
        });
    }
    Ok(header)
}

fn check_attributes(header: &BatchHeader) -> Result<(), BatchError> {
    if header.is_control() {
        return Err(BatchError::ControlBatch);
    }
    if header.is_transactional() {
        return Err(BatchError::Transactional);
    }
    if header.is_log_append_time() {
        return Err(BatchError::LogAppendTime);
    }
    if header.attributes & !bits::CODEC != 0 {
        return Err(BatchError::AttributeBits(header.attributes));
    }
    Ok(())
}

fn check_fields(header: &BatchHeader, limits: &ValidationLimits) -> Result<(), BatchError> {
    let (id, epoch, sequence) = (
        header.producer_id.0,
        header.producer_epoch.0,
        header.base_sequence.0,
    );
    let numbered = id >= 0 && epoch >= 0 && sequence >= 0;
    if !numbered && (id, epoch, sequence) != (-1, -1, -1) {
        return Err(BatchError::ProducerFields {
            id,
            epoch,
            sequence,
        });
    }
    let count = header.record_count;
    if count < 1 {
        return Err(BatchError::RecordCount(count));
    }
    if count.unsigned_abs() > limits.max_records {
        return Err(BatchError::TooManyRecords {
            limit: limits.max_records,
            actual: count.unsigned_abs(),
        });
    }
    if header.last_offset_delta != count - 1 {
        return Err(BatchError::LastOffsetDelta {
            delta: header.last_offset_delta,
            count,
        });
    }
    if header.first_timestamp < TimestampMs::NONE {
        return Err(BatchError::FirstTimestamp(header.first_timestamp.0));
    }
    Ok(())
}

fn unpack<'a>(
    codec: Compression,
    body: &'a [u8],
    limits: &ValidationLimits,
) -> Result<Cow<'a, [u8]>, BatchError> {
    let limit = limits.max_unpacked_bytes as usize;
    match codec {
        Compression::None if body.len() > limit => Err(BatchError::UnpacksTooLarge { limit }),
        Compression::None => Ok(Cow::Borrowed(body)),
        packed => Ok(Cow::Owned(codec::unpack(packed, body, limit)?)),
    }
}

/// One pass over the records: what was seen so far.
struct Pass<'a> {
    keys: Vec<(i32, &'a [u8])>,
    max_timestamp: TimestampMs,
    max_timestamp_delta: i32,
}

impl<'a> Pass<'a> {
    fn run(
        header: &BatchHeader,
        limits: &ValidationLimits,
        payload: &'a [u8],
    ) -> Result<Self, BatchError> {
        let mut pass = Self {
            keys: Vec::new(),
            max_timestamp: TimestampMs(i64::MIN),
            max_timestamp_delta: 0,
        };
        let mut walker = Walker::new(payload);
        for delta in 0..header.record_count {
            // Not negative: the loop starts at 0.
            let index = delta.unsigned_abs() as usize;
            if walker.left() == 0 {
                let stated = header.record_count;
                return Err(BatchError::RecordsMissing {
                    stated,
                    found: index,
                });
            }
            walker
                .next_record()
                .and_then(|record| pass.on_record(header, limits, delta, &record))
                .map_err(|fault| fault.at(index))?;
        }
        if walker.left() > 0 {
            return Err(BatchError::TrailingBytes {
                bytes: walker.left(),
            });
        }
        if pass.max_timestamp != header.max_timestamp {
            return Err(BatchError::MaxTimestamp {
                stated: header.max_timestamp.0,
                actual: pass.max_timestamp.0,
            });
        }
        Ok(pass)
    }

    #[inline]
    fn on_record(
        &mut self,
        header: &BatchHeader,
        limits: &ValidationLimits,
        expected: i32,
        record: &RawRecord<'a>,
    ) -> Result<(), RecordFault> {
        if record.offset_delta != expected {
            return Err(RecordFault::OffsetDelta {
                expected,
                actual: record.offset_delta,
            });
        }
        if !limits.takes_key(record.key) {
            return Err(RecordFault::KeyMissing);
        }
        let timestamp = record.timestamp(header.first_timestamp)?;
        if timestamp < TimestampMs::NONE {
            return Err(RecordFault::TimestampNegative(timestamp.0));
        }
        if timestamp > limits.max_timestamp {
            let max = limits.max_timestamp.0;
            return Err(RecordFault::TimestampAhead {
                timestamp: timestamp.0,
                max,
            });
        }
        if timestamp > self.max_timestamp {
            self.max_timestamp = timestamp;
            self.max_timestamp_delta = expected;
        }
        let mut size = record.key_value_bytes();
        if record.headers.count > 0 {
            size += self.on_headers(limits, record)?;
        }
        if size > limits.max_record_bytes as usize {
            return Err(RecordFault::TooLarge {
                limit: limits.max_record_bytes,
                actual: size,
            });
        }
        Ok(())
    }

    /// Checks the headers, remembers an idempotency key and returns the bytes
    /// of names and values.
    fn on_headers(
        &mut self,
        limits: &ValidationLimits,
        record: &RawRecord<'a>,
    ) -> Result<usize, RecordFault> {
        let headers = record.headers;
        if headers.count > limits.max_headers {
            return Err(RecordFault::TooManyHeaders {
                limit: limits.max_headers,
                actual: headers.count,
            });
        }
        let mut size = 0;
        let mut key = None;
        headers.walk(|header| {
            size += header_bytes(header);
            if header.0 == limits::IDEMPOTENCY_HEADER.as_bytes() {
                key = Some(idempotency_key(header.1, key.is_some())?);
            }
            Ok(())
        })?;
        self.keys.extend(key.map(|key| (record.offset_delta, key)));
        Ok(size)
    }
}

fn idempotency_key(value: Option<&[u8]>, given_before: bool) -> Result<&[u8], RecordFault> {
    let limit = limits::IDEMPOTENCY_KEY_BYTES_MAX;
    match value {
        Some(key) if !given_before && (1..=limit).contains(&key.len()) => Ok(key),
        _ => Err(RecordFault::IdempotencyKey { limit }),
    }
}
