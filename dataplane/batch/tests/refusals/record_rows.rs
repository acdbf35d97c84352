//! Rows with a wrong record: its length, its fields, its headers.

use super::support::{Raw, T0, at, field, padded_varint, plain_header, seal, varint};
use super::{Row, headers, with_key, with_record, with_second};
use talweg_batch::{BatchError, RecordFault as Fault};
use talweg_types::limits::IDEMPOTENCY_HEADER;

pub fn all() -> Vec<Row> {
    [length_rows(), field_rows(), record_header_rows()].concat()
}

fn length_rows() -> Vec<Row> {
    let body = Raw::at(1).body();
    let size = body.len() as i64;
    let sized = |length: i64| with_second(&[varint(length), body.clone()].concat());
    vec![
        (
            "record longer than the batch",
            sized(size + 1),
            at(
                1,
                Fault::BeyondBatch {
                    length: size as i32 + 1,
                    left: body.len(),
                },
            ),
        ),
        (
            "record length huge",
            sized(i64::from(i32::MAX)),
            at(
                1,
                Fault::BeyondBatch {
                    length: i32::MAX,
                    left: body.len(),
                },
            ),
        ),
        (
            "record shorter than its fields",
            sized(size - 1),
            at(1, Fault::FieldsMissing),
        ),
        (
            "record of no bytes",
            with_second(&[0]),
            at(1, Fault::FieldsMissing),
        ),
        (
            "record length negative",
            sized(-1),
            at(1, Fault::NegativeLength(-1)),
        ),
        (
            "record swallows the next",
            {
                let first = Raw::at(0).body();
                let second = Raw::at(1).bytes();
                let swallowed = varint((first.len() + second.len()) as i64);
                seal(plain_header(2), &[swallowed, first, second].concat())
            },
            at(0, Fault::Unaccounted(Raw::at(1).bytes().len())),
        ),
        (
            "a byte after the last record",
            { with_second(&[Raw::at(1).bytes(), vec![0]].concat()) },
            BatchError::TrailingBytes { bytes: 1 },
        ),
        (
            "overlong record length",
            with_second(&[padded_varint(size, 2), body.clone()].concat()),
            at(1, Fault::VarintOverlong),
        ),
        (
            "record length in six bytes",
            with_second(&[padded_varint(size, 6), body.clone()].concat()),
            at(1, Fault::VarintOverlong),
        ),
        (
            "record length above an i32",
            sized(1 << 40),
            at(1, Fault::VarintOverlong),
        ),
        (
            "batch ends inside a varint",
            with_second(&[0x80]),
            at(1, Fault::VarintCut),
        ),
    ]
}

fn field_rows() -> Vec<Row> {
    let left = |raw: &Raw| raw.value.len() + raw.headers.len();
    let plain = Raw::at(1);
    let key_left = 1 + left(&plain);
    let key = |length: i64| with_record(|r| r.key = [varint(length), vec![b'k']].concat());
    let value = |length: i64| with_record(|r| r.value = [varint(length), vec![b'v']].concat());
    vec![
        (
            "attributes of a record",
            with_record(|r| r.attributes = 1),
            at(1, Fault::Attributes(1)),
        ),
        (
            "overlong timestamp delta",
            with_record(|r| r.timestamp_delta = padded_varint(0, 2)),
            at(1, Fault::VarintOverlong),
        ),
        (
            "timestamp delta of 11 bytes",
            with_record(|r| r.timestamp_delta = padded_varint(0, 11)),
            at(1, Fault::VarintOverlong),
        ),
        (
            "offset deltas with a gap",
            with_record(|r| r.offset_delta = varint(2)),
            at(
                1,
                Fault::OffsetDelta {
                    expected: 1,
                    actual: 2,
                },
            ),
        ),
        (
            "offset delta repeated",
            with_record(|r| r.offset_delta = varint(0)),
            at(
                1,
                Fault::OffsetDelta {
                    expected: 1,
                    actual: 0,
                },
            ),
        ),
        (
            "offset deltas backwards",
            seal(
                plain_header(2),
                &[Raw::at(1).bytes(), Raw::at(0).bytes()].concat(),
            ),
            at(
                0,
                Fault::OffsetDelta {
                    expected: 0,
                    actual: 1,
                },
            ),
        ),
        (
            "offset delta negative",
            with_record(|r| r.offset_delta = varint(-1)),
            at(
                1,
                Fault::OffsetDelta {
                    expected: 1,
                    actual: -1,
                },
            ),
        ),
        (
            "key length -2",
            key(-2),
            at(
                1,
                Fault::KeyLength {
                    length: -2,
                    left: key_left,
                },
            ),
        ),
        (
            "key longer than the record",
            key(key_left as i64 + 1),
            at(
                1,
                Fault::KeyLength {
                    length: key_left as i32 + 1,
                    left: key_left,
                },
            ),
        ),
        (
            "key length huge",
            key(i32::MAX.into()),
            at(
                1,
                Fault::KeyLength {
                    length: i32::MAX,
                    left: key_left,
                },
            ),
        ),
        (
            "value length -2",
            value(-2),
            at(
                1,
                Fault::ValueLength {
                    length: -2,
                    left: 2,
                },
            ),
        ),
        (
            "value longer than the record",
            value(3),
            at(1, Fault::ValueLength { length: 3, left: 2 }),
        ),
        (
            "timestamp negative",
            with_record(|r| r.timestamp_delta = varint(-T0 - 2)),
            at(1, Fault::TimestampNegative(-2)),
        ),
        (
            "timestamp too far ahead",
            with_record(|r| r.timestamp_delta = varint(100_000_001)),
            at(
                1,
                Fault::TimestampAhead {
                    timestamp: T0 + 100_000_001,
                    max: T0 + 100_000_000,
                },
            ),
        ),
        (
            "timestamp out of range",
            with_record(|r| r.timestamp_delta = varint(i64::MAX)),
            at(1, Fault::TimestampOverflow { delta: i64::MAX }),
        ),
    ]
}

fn record_header_rows() -> Vec<Row> {
    let name = field(b"name");
    let value = field(b"value");
    let with = |bytes: Vec<u8>| with_record(|r| r.headers = bytes);
    let key = Fault::IdempotencyKey { limit: 128 };
    let twice = [field(IDEMPOTENCY_HEADER.as_bytes()), field(b"a")].concat();
    vec![
        (
            "header count negative",
            with(headers(-1, &[])),
            at(1, Fault::HeaderCount { count: -1, left: 0 }),
        ),
        (
            "header count huge",
            with(headers(i32::MAX.into(), &[&name, &value])),
            at(
                1,
                Fault::HeaderCount {
                    count: i32::MAX,
                    left: 11,
                },
            ),
        ),
        (
            "a header too few",
            with(headers(2, &[&name, &value])),
            at(1, Fault::FieldsMissing),
        ),
        (
            "a header too many",
            with(headers(1, &[&name, &value, &name, &value])),
            at(1, Fault::Unaccounted(11)),
        ),
        (
            "bytes where no headers are",
            with(headers(0, &[&[0]])),
            at(1, Fault::Unaccounted(1)),
        ),
        (
            "header name null",
            with(headers(1, &[&varint(-1), &value])),
            at(1, Fault::HeaderNameNull),
        ),
        (
            "header name length -2",
            with(headers(1, &[&varint(-2), &value])),
            at(
                1,
                Fault::HeaderNameLength {
                    length: -2,
                    left: 6,
                },
            ),
        ),
        (
            "header name beyond the record",
            with(headers(1, &[&varint(9), &value])),
            at(1, Fault::HeaderNameLength { length: 9, left: 6 }),
        ),
        (
            "header name not UTF-8",
            with(headers(1, &[&field(&[0xff, 0xfe]), &value])),
            at(1, Fault::HeaderNameNotUtf8),
        ),
        (
            "header value length -2",
            with(headers(1, &[&name, &varint(-2)])),
            at(
                1,
                Fault::HeaderValueLength {
                    length: -2,
                    left: 0,
                },
            ),
        ),
        (
            "header value beyond the record",
            with(headers(1, &[&name, &varint(1)])),
            at(1, Fault::HeaderValueLength { length: 1, left: 0 }),
        ),
        (
            "1,001 headers",
            with(headers(1001, &[&[0, 0].repeat(1001)])),
            at(
                1,
                Fault::TooManyHeaders {
                    limit: 1000,
                    actual: 1001,
                },
            ),
        ),
        ("idempotency key null", with_key(&varint(-1)), at(1, key)),
        ("idempotency key empty", with_key(&field(b"")), at(1, key)),
        (
            "idempotency key of 129 bytes",
            with_key(&field(&[b'x'; 129])),
            at(1, key),
        ),
        (
            "two idempotency keys",
            with(headers(2, &[&twice, &twice])),
            at(1, key),
        ),
    ]
}
