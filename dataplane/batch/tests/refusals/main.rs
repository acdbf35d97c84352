//! Batches whose length and CRC are right and whose content is not: the table
//! of what a client may not append, each row with its own typed error.

mod header_rows;
mod record_rows;
#[path = "../support/mod.rs"]
mod support;

use bytes::Bytes;
use support::{Raw, T0, field, plain_header, seal, test_limits, varint};
use talweg_batch::{
    BatchBuilder, BatchError, BatchErrorKind, BatchHeader, ValidationLimits, check_client_batch,
    decode_records, verify_crc,
};
use talweg_types::{
    Compression, ProducerEpoch, ProducerId, Sequence, TimestampMs, limits::IDEMPOTENCY_HEADER,
};

type Row = (&'static str, Bytes, BatchError);

/// Two plain records, the header changed by `change`.
fn with_header(change: impl FnOnce(&mut BatchHeader)) -> Bytes {
    let mut header = plain_header(2);
    change(&mut header);
    seal(header, &[Raw::at(0).bytes(), Raw::at(1).bytes()].concat())
}

/// A good record, then `second` as it is.
fn with_second(second: &[u8]) -> Bytes {
    seal(plain_header(2), &[&Raw::at(0).bytes(), second].concat())
}

/// A good record, then one changed by `change`, its length right.
fn with_record(change: impl FnOnce(&mut Raw)) -> Bytes {
    let mut raw = Raw::at(1);
    change(&mut raw);
    with_second(&raw.bytes())
}

/// A record's headers: a count and whatever follows.
fn headers(count: i64, rest: &[&[u8]]) -> Vec<u8> {
    [varint(count), rest.concat()].concat()
}

fn with_key(value: &[u8]) -> Bytes {
    with_record(|r| r.headers = headers(1, &[&field(IDEMPOTENCY_HEADER.as_bytes()), value]))
}

#[test]
fn wrong_content_under_a_right_crc_is_refused_with_its_own_error() {
    // A producer with a bug, or with bad intent, computes a good checksum over
    // nonsense. Each kind of nonsense is told by name, and none is appended.
    let tables = [header_rows::all(), record_rows::all()];
    let mut rows = 0;
    for (name, batch, expected) in tables.into_iter().flatten() {
        let refused = check_client_batch(batch.clone(), &test_limits());
        assert_eq!(refused, Err(expected), "{name}");
        support::exercise(&batch, &test_limits());
        rows += 1;
    }
    assert_eq!(rows, 79);
}

#[test]
fn the_rows_differ_from_a_good_batch_only_in_what_they_name() {
    // The frame around the wrong content is itself accepted, so that each row
    // of the table tests what it says.
    let full = |r: &mut Raw| {
        r.timestamp_delta = varint(-T0 - 1);
        r.key = varint(-1);
        r.value = varint(0);
        let named = [
            field("naïve ☕".as_bytes()),
            varint(-1),
            field(b""),
            field(b""),
        ]
        .concat();
        r.headers = headers(2, &[&named]);
    };
    for batch in [
        with_header(|_| {}),
        with_record(|_| {}),
        with_record(full),
        with_key(&field(b"x")),
    ] {
        verify_crc(&batch).expect("the CRC is right");
        assert!(support::exercise(&batch, &test_limits()));
    }
    let numbered = with_header(|h| {
        h.producer_id = ProducerId(1 << 62);
        h.producer_epoch = ProducerEpoch(0);
        h.base_sequence = Sequence(i32::MAX);
    });
    assert!(support::exercise(&numbered, &test_limits()));
}

#[test]
fn limits_are_inclusive_and_named_in_the_error() {
    // Exactly the limit passes; one more is refused, with both numbers.
    let mut builder = BatchBuilder::new(Compression::None);
    let headers = [(&b"name"[..], Some(&b"value"[..])), (b"null", None)];
    builder
        .push(TimestampMs(T0), Some(b"key"), Some(&[7; 100]), headers)
        .expect("small");
    let batch = builder.build().expect("one record");
    let record = 3 + 100 + 4 + 5 + 4;
    let unpacked = batch.len() - 61;
    let exact = ValidationLimits {
        max_batch_bytes: batch.len() as u32,
        max_record_bytes: record,
        max_unpacked_bytes: unpacked as u32,
        max_timestamp: TimestampMs(T0),
        max_records: 1,
        max_headers: 2,
        needs_key: false,
    };
    check_client_batch(batch.clone(), &exact).expect("all limits are inclusive");
    let table: Vec<(ValidationLimits, BatchErrorKind)> = vec![
        (
            ValidationLimits {
                max_batch_bytes: exact.max_batch_bytes - 1,
                ..exact
            },
            BatchErrorKind::TooLarge {
                limit: batch.len() as u64 - 1,
                actual: batch.len() as u64,
            },
        ),
        (
            ValidationLimits {
                max_record_bytes: record - 1,
                ..exact
            },
            BatchErrorKind::RecordTooLarge {
                index: 0,
                limit: 115,
                actual: 116,
            },
        ),
        (
            ValidationLimits {
                max_unpacked_bytes: exact.max_unpacked_bytes - 1,
                ..exact
            },
            BatchErrorKind::UnpacksTooLarge {
                limit: unpacked as u64 - 1,
            },
        ),
        (
            ValidationLimits {
                max_timestamp: TimestampMs(T0 - 1),
                ..exact
            },
            BatchErrorKind::TimestampOutOfRange { index: 0 },
        ),
        (
            ValidationLimits {
                max_records: 0,
                ..exact
            },
            BatchErrorKind::TooManyRecords {
                limit: 0,
                actual: 1,
            },
        ),
        (
            ValidationLimits {
                max_headers: 1,
                ..exact
            },
            BatchErrorKind::InvalidRecord { index: 0 },
        ),
    ];
    for (limits, kind) in table {
        let refused = check_client_batch(batch.clone(), &limits).expect_err("one too much");
        assert_eq!(refused.kind(), kind, "{refused}");
    }
    assert_eq!(
        decode_records(&batch, unpacked - 1),
        Err(BatchError::UnpacksTooLarge {
            limit: unpacked - 1
        })
    );
    assert_eq!(
        decode_records(&batch, unpacked).map(|records| records.len()),
        Ok(1)
    );
}

#[test]
fn a_record_without_a_key_is_refused_where_the_topic_is_compacted() {
    let topic = |policy: &str| {
        let mut topic = talweg_types::TopicConfig::default();
        topic.set("cleanup.policy", policy).expect("a policy");
        ValidationLimits::for_topic(&topic, TimestampMs(T0))
    };
    let batch = |key: Option<&[u8]>| {
        let mut builder = BatchBuilder::new(Compression::None);
        for key in [Some(&b"first"[..]), key] {
            let pushed = builder.push(TimestampMs(T0), key, Some(b"value"), []);
            pushed.expect("pushed");
        }
        builder.build().expect("built")
    };
    for policy in ["compact", "compact,delete"] {
        let refused = check_client_batch(batch(None), &topic(policy)).expect_err("no key");
        assert_eq!(refused.kind(), BatchErrorKind::InvalidRecord { index: 1 });
        // An empty key is one.
        check_client_batch(batch(Some(b"")), &topic(policy)).expect("keyed");
    }
    check_client_batch(batch(None), &topic("delete")).expect("needs none");
}
