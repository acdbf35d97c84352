//! Batches by hand: every field can be wrong while length and CRC are right.
//! The varint writer is on purpose not the crate's, and can pad.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod packers;

use bytes::Bytes;
use talweg_batch::{
    BatchBuilder, BatchError, BatchHeader, HEADER_BYTES, Record, RecordFault, ValidationLimits,
    check_client_batch, decode_records, split_batches, verify_crc,
};
use talweg_types::{
    Compression, LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs, limits,
};

pub const T0: i64 = 1_700_000_000_000;

/// The defaults, an hour and some past [`T0`].
pub fn test_limits() -> ValidationLimits {
    ValidationLimits {
        max_batch_bytes: limits::MAX_MESSAGE_BYTES_DEFAULT,
        max_record_bytes: limits::MAX_RECORD_BYTES_DEFAULT,
        max_unpacked_bytes: limits::UNPACKED_BATCH_BYTES_DEFAULT,
        max_timestamp: TimestampMs(T0 + 100_000_000),
        max_records: limits::BATCH_RECORDS_MAX,
        max_headers: limits::RECORD_HEADERS_MAX,
        needs_key: false,
    }
}

/// The header of `records` plain records, all at [`T0`].
pub fn plain_header(records: i32) -> BatchHeader {
    BatchHeader {
        base_offset: Offset(0),
        batch_length: 0,
        leader_epoch: LeaderEpoch(0),
        crc: 0,
        attributes: 0,
        last_offset_delta: records - 1,
        first_timestamp: TimestampMs(T0),
        max_timestamp: TimestampMs(T0),
        producer_id: ProducerId::NONE,
        producer_epoch: ProducerEpoch::NONE,
        base_sequence: Sequence::NONE,
        record_count: records,
    }
}

/// Header and body with the right length and the right CRC.
pub fn seal(header: BatchHeader, body: &[u8]) -> Bytes {
    let mut bytes = header.encode().to_vec();
    bytes.extend_from_slice(body);
    repair(&mut bytes, true);
    bytes.into()
}

/// Makes the CRC right, and the length if asked, as far as the bytes go.
pub fn repair(bytes: &mut [u8], length: bool) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    if length {
        let stated = u32::try_from(bytes.len() - 12).expect("test batches are small");
        bytes[8..12].copy_from_slice(&stated.to_be_bytes());
    }
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
}

/// A varint in at least `least` bytes: above the needed number it is overlong.
pub fn padded_varint(value: i64, least: usize) -> Vec<u8> {
    let mut raw = ((value << 1) ^ (value >> 63)) as u64;
    let mut out = Vec::new();
    loop {
        let low = (raw & 0x7f) as u8;
        raw >>= 7;
        if raw == 0 && out.len() + 1 >= least {
            out.push(low);
            return out;
        }
        out.push(low | 0x80);
    }
}

pub fn varint(value: i64) -> Vec<u8> {
    padded_varint(value, 1)
}

/// A record's fields as they go on the wire, lengths included.
#[derive(Clone)]
pub struct Raw {
    pub attributes: u8,
    pub timestamp_delta: Vec<u8>,
    pub offset_delta: Vec<u8>,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub headers: Vec<u8>,
}

impl Raw {
    /// Key `k`, value `v`, no headers, no delay.
    pub fn at(offset_delta: i64) -> Self {
        Self {
            attributes: 0,
            timestamp_delta: varint(0),
            offset_delta: varint(offset_delta),
            key: field(b"k"),
            value: field(b"v"),
            headers: varint(0),
        }
    }

    pub fn body(&self) -> Vec<u8> {
        let mut out = vec![self.attributes];
        for part in [
            &self.timestamp_delta,
            &self.offset_delta,
            &self.key,
            &self.value,
            &self.headers,
        ] {
            out.extend_from_slice(part);
        }
        out
    }

    pub fn bytes(&self) -> Vec<u8> {
        let body = self.body();
        [varint(body.len() as i64), body].concat()
    }
}

/// A field with its length in front.
pub fn field(bytes: &[u8]) -> Vec<u8> {
    [varint(bytes.len() as i64), bytes.to_vec()].concat()
}

pub fn at(index: usize, fault: RecordFault) -> BatchError {
    BatchError::Record { index, fault }
}

/// Everything that must hold of any bytes at all. Returns whether a client
/// could append them.
pub fn exercise(bytes: &Bytes, limits: &ValidationLimits) -> bool {
    let max_unpacked = limits.max_unpacked_bytes as usize;
    let whole = verify_crc(bytes).is_ok();
    let decoded = decode_records(bytes, max_unpacked);
    let parts: Vec<_> = split_batches(bytes.clone()).collect();
    let split: usize = parts.iter().flatten().map(Bytes::len).sum();
    assert!(split <= bytes.len());
    let Ok(checked) = check_client_batch(bytes.clone(), limits) else {
        return false;
    };
    assert!(whole, "accepted with a wrong CRC");
    assert_eq!(parts, [Ok(bytes.clone())]);
    let records = decoded.expect("what was accepted must decode");
    assert_accepted(&checked, &records, limits);
    true
}

fn assert_accepted(
    checked: &talweg_batch::CheckedBatch,
    records: &[Record],
    limits: &ValidationLimits,
) {
    let header = &checked.header;
    assert_eq!(records.len(), header.record_count as usize);
    let largest = records.iter().map(|record| record.timestamp).max();
    assert_eq!(largest, Some(header.max_timestamp));
    let first = records
        .iter()
        .find(|record| record.timestamp == header.max_timestamp);
    assert_eq!(
        first.map(|record| record.offset_delta),
        Some(checked.max_timestamp_delta)
    );
    let mut keys = Vec::new();
    for (delta, record) in records.iter().enumerate() {
        assert_eq!(record.offset_delta as usize, delta);
        let size = talweg_batch::record_bytes(
            record.key.as_deref(),
            record.value.as_deref(),
            record.header_refs(),
        );
        assert!(size <= limits.max_record_bytes as usize);
        for (name, value) in &record.headers {
            std::str::from_utf8(name).expect("names are UTF-8");
            if name == limits::IDEMPOTENCY_HEADER {
                keys.push((record.offset_delta, value.clone().expect("not null")));
            }
        }
    }
    assert_eq!(checked.idempotency_keys, keys);
    assert_same_bytes_again(checked, records);
}

/// The encoding is unique, but for the free choice of the first timestamp.
fn assert_same_bytes_again(checked: &talweg_batch::CheckedBatch, records: &[Record]) {
    let header = &checked.header;
    if header.compression() != Ok(Compression::None)
        || records[0].timestamp != header.first_timestamp
    {
        return;
    }
    let mut builder = BatchBuilder::new(Compression::None).with_producer(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    );
    for record in records {
        builder.push_record(record).expect("an accepted record");
    }
    let again = builder.build().expect("accepted records");
    assert_eq!(
        again[talweg_batch::STAMP_BYTES..],
        checked.bytes[talweg_batch::STAMP_BYTES..]
    );
}
