//! Builds batches from records.
//!
//! Invariant: what [`BatchBuilder::build`] returns passes
//! [`crate::check_client_batch`], as far as the caller kept the size and
//! timestamp limits and did not ask for a transactional batch.

use crate::codec::Encoders;
use crate::error::{BatchError, RecordFault};
use crate::header::{BatchHeader, CRC_FROM, HEADER_BYTES, bits};
use crate::record::{HeaderRef, Record};
use crate::varint::{put_i32, put_i64, size_i64};
use bytes::Bytes;
use talweg_types::{
    Compression, LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs, limits,
};

/// Collects records and encodes them as one batch; may be used again after
/// [`Self::build`]. The caller bounds it, by [`Self::payload_bytes`].
pub struct BatchBuilder {
    codec: Compression,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    base_sequence: Sequence,
    transactional: bool,
    /// Room for the header, then the encoded records.
    bytes: Vec<u8>,
    records: i32,
    first_timestamp: TimestampMs,
    max_timestamp: TimestampMs,
    encoders: Encoders,
}

impl BatchBuilder {
    /// A builder of batches that no idempotent producer numbers.
    pub fn new(codec: Compression) -> Self {
        Self {
            codec,
            producer_id: ProducerId::NONE,
            producer_epoch: ProducerEpoch::NONE,
            base_sequence: Sequence::NONE,
            transactional: false,
            bytes: vec![0; HEADER_BYTES],
            records: 0,
            first_timestamp: TimestampMs::NONE,
            max_timestamp: TimestampMs::NONE,
            encoders: Encoders::new(),
        }
    }

    /// Numbers the batch. A batch built after it continues the sequence.
    #[must_use]
    pub fn with_producer(
        mut self,
        id: ProducerId,
        epoch: ProducerEpoch,
        base_sequence: Sequence,
    ) -> Self {
        self.set_producer(id, epoch, base_sequence);
        self
    }

    /// Numbers the next batch; see [`Self::with_producer`].
    pub fn set_producer(&mut self, id: ProducerId, epoch: ProducerEpoch, base_sequence: Sequence) {
        self.producer_id = id;
        self.producer_epoch = epoch;
        self.base_sequence = base_sequence;
    }

    /// Sets the transactional bit, which storage refuses until transactions
    /// are built.
    #[must_use]
    pub fn with_transactional(mut self, transactional: bool) -> Self {
        self.transactional = transactional;
        self
    }

    /// Adds a record. Refused, with nothing added, when a header name is not
    /// UTF-8, the timestamp is negative and not -1, or a length leaves an i32.
    pub fn push<'a, H>(
        &mut self,
        timestamp: TimestampMs,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: H,
    ) -> Result<(), BatchError>
    where
        H: IntoIterator<Item = HeaderRef<'a>>,
        H::IntoIter: Clone,
    {
        let limit = limits::BATCH_RECORDS_MAX;
        if self.records() >= limit as usize {
            return Err(BatchError::TooManyRecords {
                limit,
                actual: limit + 1,
            });
        }
        let first = if self.records == 0 {
            timestamp
        } else {
            self.first_timestamp
        };
        let headers = headers.into_iter();
        Plan {
            first,
            offset_delta: self.records,
            timestamp,
            key,
            value,
            headers,
        }
        .put(&mut self.bytes)
        .map_err(|fault| fault.at(self.records()))?;
        self.max_timestamp = if self.records == 0 {
            timestamp
        } else {
            self.max_timestamp.max(timestamp)
        };
        self.first_timestamp = first;
        self.records += 1;
        Ok(())
    }

    /// [`Self::push`] of a decoded record; its offset delta becomes the next.
    pub fn push_record(&mut self, record: &Record) -> Result<(), BatchError> {
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        self.push(record.timestamp, key, value, record.header_refs())
    }

    /// Records added since the last build.
    pub fn records(&self) -> usize {
        self.records.unsigned_abs() as usize
    }

    /// Encoded bytes of the records before compression, without the header.
    /// The batch will have at most [`HEADER_BYTES`] more than this, whatever
    /// the codec, since records that do not shrink are sent uncompressed.
    pub fn payload_bytes(&self) -> usize {
        self.bytes.len() - HEADER_BYTES
    }

    /// Encodes the batch and empties the builder, also when that fails.
    /// Without records: [`BatchError::RecordCount`].
    pub fn build(&mut self) -> Result<Bytes, BatchError> {
        let mut encoders = std::mem::take(&mut self.encoders);
        let built = self.build_with(&mut encoders);
        self.encoders = encoders;
        built
    }

    /// [`Self::build`] with encoders that several builders share.
    pub fn build_with(&mut self, encoders: &mut Encoders) -> Result<Bytes, BatchError> {
        if self.records == 0 {
            return Err(BatchError::RecordCount(0));
        }
        let built = self.encode(encoders);
        if built.is_ok() && !self.producer_id.is_none() {
            self.base_sequence = self.base_sequence.plus(self.records);
        }
        self.records = 0;
        self.bytes.clear();
        self.bytes.resize(HEADER_BYTES, 0);
        built
    }

    fn encode(&mut self, encoders: &mut Encoders) -> Result<Bytes, BatchError> {
        let plain = &self.bytes[HEADER_BYTES..];
        let packed = encoders.pack(self.codec, plain)?;
        if self.codec != Compression::None && packed.len() < plain.len() {
            let mut batch = Vec::with_capacity(HEADER_BYTES + packed.len());
            batch.resize(HEADER_BYTES, 0);
            batch.extend_from_slice(packed);
            return seal(batch, self.header(self.codec));
        }
        let capacity = self.bytes.len();
        let batch = std::mem::replace(&mut self.bytes, Vec::with_capacity(capacity));
        seal(batch, self.header(Compression::None))
    }

    /// The header but for length and CRC.
    fn header(&self, codec: Compression) -> BatchHeader {
        let transactional = if self.transactional {
            bits::TRANSACTIONAL
        } else {
            0
        };
        BatchHeader {
            base_offset: Offset::ZERO,
            batch_length: 0,
            leader_epoch: LeaderEpoch::NONE,
            crc: 0,
            attributes: codec as i16 | transactional,
            last_offset_delta: self.records - 1,
            first_timestamp: self.first_timestamp,
            max_timestamp: self.max_timestamp,
            producer_id: self.producer_id,
            producer_epoch: self.producer_epoch,
            base_sequence: self.base_sequence,
            record_count: self.records,
        }
    }
}

/// Completes a batch whose first 61 bytes are still empty: length, header, CRC.
pub(crate) fn seal(mut batch: Vec<u8>, mut header: BatchHeader) -> Result<Bytes, BatchError> {
    header.batch_length = i32::try_from(batch.len() - 12).map_err(|_| BatchError::TooLarge {
        limit: i32::MAX as u32,
        actual: batch.len(),
    })?;
    batch[..HEADER_BYTES].copy_from_slice(&header.encode());
    header.crc = crc32c::crc32c(&batch[CRC_FROM..]);
    batch[..HEADER_BYTES].copy_from_slice(&header.encode());
    Ok(Bytes::from(batch))
}

/// One record on its way into a payload.
pub(crate) struct Plan<'k, H> {
    /// What the timestamp delta counts from.
    pub first: TimestampMs,
    pub offset_delta: i32,
    pub timestamp: TimestampMs,
    pub key: Option<&'k [u8]>,
    pub value: Option<&'k [u8]>,
    pub headers: H,
}

impl<'a, H: Iterator<Item = HeaderRef<'a>> + Clone> Plan<'_, H> {
    /// Checks everything before it writes anything.
    pub(crate) fn put(self, out: &mut Vec<u8>) -> Result<(), RecordFault> {
        if self.timestamp < TimestampMs::NONE {
            return Err(RecordFault::TimestampNegative(self.timestamp.0));
        }
        // Both are -1 or more, so only the range i64::MIN is left out.
        let timestamp_delta = self
            .timestamp
            .0
            .checked_sub(self.first.0)
            .ok_or(RecordFault::TimestampOverflow { delta: i64::MAX })?;
        let mut body = 1
            + size_i64(timestamp_delta)
            + size_i64(self.offset_delta.into())
            + nullable_size(self.key)
            + nullable_size(self.value);
        let mut count = 0_i64;
        for (name, value) in self.headers.clone() {
            if std::str::from_utf8(name).is_err() {
                return Err(RecordFault::HeaderNameNotUtf8);
            }
            body += nullable_size(Some(name)) + nullable_size(value);
            count += 1;
        }
        body += size_i64(count);
        let (Ok(length), Ok(count)) = (i32::try_from(body), i32::try_from(count)) else {
            return Err(RecordFault::TooLarge {
                limit: i32::MAX as u32,
                actual: body,
            });
        };
        out.reserve(body + 5);
        put_i32(out, length);
        out.push(0);
        put_i64(out, timestamp_delta);
        put_i32(out, self.offset_delta);
        put_nullable(out, self.key);
        put_nullable(out, self.value);
        put_i32(out, count);
        for (name, value) in self.headers {
            put_nullable(out, Some(name));
            put_nullable(out, value);
        }
        Ok(())
    }
}

fn nullable_size(field: Option<&[u8]>) -> usize {
    field.map_or(1, |bytes| size_i64(bytes.len() as i64) + bytes.len())
}

fn put_nullable(out: &mut Vec<u8>, field: Option<&[u8]>) {
    match field {
        // A slice is never longer than i64::MAX; the record's length, which
        // contains it, was checked to be an i32.
        Some(bytes) => {
            put_i64(out, bytes.len() as i64);
            out.extend_from_slice(bytes);
        }
        None => put_i32(out, -1),
    }
}
