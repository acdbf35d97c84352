//! What only the log and the coordinators write, and what a reader meets:
//! compacted batches, append time, markers, several batches back to back.

mod support;

use bytes::Bytes;
use support::{Raw, T0, at, plain_header, seal, test_limits};
use talweg_batch::{
    BatchBuilder, BatchError, BatchHeader, ControlError, EndTransactionMarker, MarkerKind,
    RecordFault, Records, STAMP_BYTES, check_client_batch, control_batch, decode_records,
    split_batches, stamp_prefix, verify_crc,
};
use talweg_types::{
    Compression, LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs,
    limits::IDEMPOTENCY_HEADER,
};

const MAX: usize = 1 << 20;

fn deltas(batch: &Bytes) -> Result<Vec<i32>, BatchError> {
    let records = decode_records(batch, MAX)?;
    Ok(records.iter().map(|record| record.offset_delta).collect())
}

fn one(codec: Compression, value: &[u8]) -> Bytes {
    let mut builder = BatchBuilder::new(codec);
    builder
        .push(TimestampMs(T0), None, Some(value), [])
        .expect("a small record");
    builder.build().expect("one record")
}

#[test]
fn compacted_batches_keep_their_offsets_and_stay_readable() {
    // Compaction takes records out and leaves the offsets of the others; a
    // batch may even be left empty. Clients may not send such batches.
    let mut header = plain_header(2);
    header.last_offset_delta = 9;
    let sparse = seal(header, &[Raw::at(3).bytes(), Raw::at(7).bytes()].concat());
    assert_eq!(deltas(&sparse), Ok(vec![3, 7]));
    assert!(check_client_batch(sparse, &test_limits()).is_err());
    header.record_count = 0;
    let empty = seal(header, &[]);
    assert_eq!(deltas(&empty), Ok(vec![]));
    assert_eq!(
        BatchHeader::parse(&empty).map(|h| h.next_offset()),
        Ok(Offset(10))
    );
    header.record_count = 2;
    let beyond = seal(header, &[Raw::at(3).bytes(), Raw::at(10).bytes()].concat());
    let fault = RecordFault::OffsetDelta {
        expected: 4,
        actual: 10,
    };
    assert_eq!(deltas(&beyond), Err(at(1, fault)));
}

#[test]
fn append_time_replaces_the_records_own_timestamps() {
    // Logs of others may have timestamp type LogAppendTime: then the batch's
    // largest timestamp counts for every record.
    let mut header = plain_header(1);
    header.attributes = 8;
    header.max_timestamp = TimestampMs(T0 + 5);
    let batch = seal(header, &Raw::at(0).bytes());
    let records = decode_records(&batch, MAX).expect("a good batch");
    assert_eq!(records[0].timestamp, TimestampMs(T0 + 5));
}

#[test]
fn records_are_given_one_by_one_and_end_at_the_first_error() {
    // A reader of a damaged batch gets what is before the damage, then one
    // error, then nothing.
    let batch = seal(
        plain_header(3),
        &[Raw::at(0).bytes(), Raw::at(1).bytes()].concat(),
    );
    let mut records = Records::new(&batch, MAX).expect("a header");
    assert_eq!(records.header().record_count, 3);
    assert!(matches!(records.next(), Some(Ok(_))));
    assert!(matches!(records.next(), Some(Ok(_))));
    let missing = BatchError::RecordsMissing {
        stated: 3,
        found: 2,
    };
    assert_eq!(records.next(), Some(Err(missing)));
    assert_eq!(records.next(), None);
}

#[test]
fn a_leader_stamps_a_batch_without_touching_what_the_crc_covers() {
    // The stored batch is the client's, but for offset and epoch.
    let batch = one(Compression::Zstd, &[7; 1000]);
    let header = BatchHeader::parse(&batch).expect("our own");
    let prefix = stamp_prefix(&header, Offset(1 << 40), LeaderEpoch(9));
    let stored = Bytes::from([&prefix[..], &batch[STAMP_BYTES..]].concat());
    verify_crc(&stored).expect("the CRC still holds");
    let expected = BatchHeader {
        base_offset: Offset(1 << 40),
        leader_epoch: LeaderEpoch(9),
        ..header
    };
    assert_eq!(BatchHeader::parse(&stored), Ok(expected));
    assert_eq!(expected.next_offset(), Offset((1 << 40) + 1));
    assert_eq!(decode_records(&stored, MAX), decode_records(&batch, MAX));
    assert_eq!(expected.encode(), stored[..61]);
}

#[test]
fn markers_come_back_and_clients_cannot_send_them() {
    // A coordinator ends a transaction; only it may.
    for kind in [MarkerKind::Abort, MarkerKind::Commit] {
        let marker = EndTransactionMarker {
            kind,
            coordinator_epoch: 77,
        };
        let batch = control_batch(ProducerId(5), ProducerEpoch(2), marker, TimestampMs(T0))
            .expect("a marker");
        verify_crc(&batch).expect("its CRC");
        let header = BatchHeader::parse(&batch).expect("its header");
        assert!(header.is_control() && header.is_transactional() && header.has_producer());
        assert_eq!(header.base_sequence, Sequence::NONE);
        let records = decode_records(&batch, MAX).expect("one record");
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].key.as_deref(), Some(&[0, 0, 0, kind as u8][..]));
        assert_eq!(records[0].value.as_deref(), Some(&[0, 0, 0, 0, 0, 77][..]));
        assert_eq!(EndTransactionMarker::from_record(&records[0]), Ok(marker));
        let refused = check_client_batch(batch, &test_limits());
        assert_eq!(refused, Err(BatchError::ControlBatch));
    }
}

#[test]
fn control_records_of_another_kind_are_told_from_markers() {
    // Kinds that later versions add must not be read as commits.
    let batch = one(Compression::None, b"");
    let plain = decode_records(&batch, MAX).expect("one record").remove(0);
    type Field = Option<&'static [u8]>;
    let table: [(Field, Field, _); 6] = [
        (None, None, Err(ControlError::Key)),
        (Some(&[0, 0, 0]), None, Err(ControlError::Key)),
        (Some(&[0, 0, 0, 2]), None, Err(ControlError::Kind(2))),
        (
            Some(&[0xff, 0xff, 0, 1]),
            None,
            Err(ControlError::Version(-1)),
        ),
        (
            Some(&[0, 0, 0, 1]),
            Some(&[0, 0, 0, 0, 0]),
            Err(ControlError::Value),
        ),
        (
            Some(&[0, 1, 0, 1, 9]),
            Some(&[0, 1, 0, 0, 0, 3, 9]),
            Ok(EndTransactionMarker {
                kind: MarkerKind::Commit,
                coordinator_epoch: 3,
            }),
        ),
    ];
    for (key, value, expected) in table {
        let mut record = plain.clone();
        record.key = key.map(Bytes::from_static);
        record.value = value.map(Bytes::from_static);
        assert_eq!(
            EndTransactionMarker::from_record(&record),
            expected,
            "{key:?} {value:?}"
        );
    }
}

#[test]
fn batches_back_to_back_are_taken_apart_and_a_torn_last_one_is_an_error() {
    // A fetch answer holds whole batches; one cut at its end must not pass for
    // a shorter answer.
    let batches = [
        one(Compression::None, b"a"),
        one(Compression::Gzip, &[0; 500]),
    ];
    let joined = Bytes::from(batches.concat());
    let parts: Result<Vec<_>, _> = split_batches(joined.clone()).collect();
    assert_eq!(parts.as_deref(), Ok(&batches[..]));
    assert_eq!(split_batches(Bytes::new()).next(), None);
    for cut in batches[0].len() + 1..joined.len() {
        let mut parts = split_batches(joined.slice(..cut));
        assert_eq!(parts.next(), Some(Ok(batches[0].clone())));
        assert!(matches!(
            parts.next(),
            Some(Err(BatchError::TooShort { .. } | BatchError::Length { .. }))
        ));
        assert_eq!(parts.next(), None, "ends after its first error");
    }
}

#[test]
fn a_builder_goes_on_with_the_next_sequence_and_keeps_nothing_else() {
    // One builder makes all batches of a producer; a repeat of a sequence
    // would be taken for a duplicate and dropped.
    let last = Sequence(i32::MAX);
    let mut builder =
        BatchBuilder::new(Compression::None).with_producer(ProducerId(1), ProducerEpoch(0), last);
    assert_eq!(builder.build(), Err(BatchError::RecordCount(0)));
    for (sequence, timestamp) in [(last, 9), (Sequence(0), 5), (Sequence(1), -1)] {
        builder
            .push(TimestampMs(timestamp), Some(b"k"), None, [])
            .expect("a small record");
        assert_eq!(builder.records(), 1);
        let payload = builder.payload_bytes();
        let batch = builder.build().expect("one record");
        assert_eq!((builder.records(), builder.payload_bytes()), (0, 0));
        assert_eq!(batch.len(), 61 + payload);
        let header = check_client_batch(batch, &test_limits())
            .expect("our own")
            .header;
        assert_eq!(header.base_sequence, sequence);
        assert_eq!(header.first_timestamp, TimestampMs(timestamp));
        assert_eq!(header.max_timestamp, TimestampMs(timestamp));
    }
}

#[test]
fn a_builder_refuses_what_the_check_would_refuse_and_adds_nothing() {
    // Better told where the record is made than at the leader.
    let mut builder = BatchBuilder::new(Compression::None);
    builder
        .push(TimestampMs(0), None, None, [])
        .expect("the least record");
    let before = builder.payload_bytes();
    let refused = builder.push(TimestampMs(-2), None, None, []);
    assert_eq!(refused, Err(at(1, RecordFault::TimestampNegative(-2))));
    let refused = builder.push(TimestampMs(0), None, None, [(&b"\xff"[..], None)]);
    assert_eq!(refused, Err(at(1, RecordFault::HeaderNameNotUtf8)));
    assert_eq!((builder.records(), builder.payload_bytes()), (1, before));
    let batch = builder.build().expect("one record");
    assert_eq!(deltas(&batch), Ok(vec![0]));
    let mut builder = BatchBuilder::new(Compression::None);
    builder
        .push(TimestampMs::NONE, None, None, [])
        .expect("no timestamp");
    let refused = builder.push(TimestampMs(i64::MAX), None, None, []);
    assert_eq!(
        refused,
        Err(at(1, RecordFault::TimestampOverflow { delta: i64::MAX }))
    );
}

#[test]
fn idempotency_keys_are_found_in_every_codec_with_their_offset() {
    // The key must be recognised whether or not the batch is compressed.
    let name = IDEMPOTENCY_HEADER.as_bytes();
    for codec in Compression::ALL {
        let mut builder = BatchBuilder::new(*codec);
        for at in 0..40_u8 {
            let key = [at; 3];
            let headers = [(&b"other"[..], None), (name, Some(&key[..]))];
            let taken = if at % 2 == 1 { 2 } else { 1 };
            let headers = headers.into_iter().take(taken);
            builder
                .push(TimestampMs(T0), None, Some(&[0; 50]), headers)
                .expect("small");
        }
        let batch = builder.build().expect("40 records");
        let checked = check_client_batch(batch, &test_limits()).expect("our own");
        assert_eq!(checked.header.compression(), Ok(*codec));
        let expected: Vec<_> = (0..40)
            .filter(|at| at % 2 == 1)
            .map(|at| (at, Bytes::from(vec![at as u8; 3])))
            .collect();
        assert_eq!(checked.idempotency_keys, expected, "{codec}");
    }
}

#[test]
fn a_record_may_be_earlier_than_the_first_and_the_largest_time_is_found() {
    // Timestamps are the client's: out of order, or none at all (-1).
    let mut builder = BatchBuilder::new(Compression::None);
    for timestamp in [T0, T0 - 7, T0 + 3, -1, T0 + 3] {
        builder
            .push(TimestampMs(timestamp), None, None, [])
            .expect("small");
    }
    let batch = builder.build().expect("five records");
    let checked = check_client_batch(batch.clone(), &test_limits()).expect("our own");
    assert_eq!(checked.header.max_timestamp, TimestampMs(T0 + 3));
    assert_eq!(checked.max_timestamp_delta, 2);
    let timestamps: Vec<_> = decode_records(&batch, MAX)
        .expect("our own")
        .iter()
        .map(|record| record.timestamp.0)
        .collect();
    assert_eq!(timestamps, [T0, T0 - 7, T0 + 3, -1, T0 + 3]);
}
