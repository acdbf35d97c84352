//! Rules of records, frames and packing, as tables.

use super::super::{
    check::Rules,
    credit::Amount,
    open::Opening,
    session::{Now, Session},
};
use super::model::{ModelLanes, WALL_MS, at, values_of, view};
use bytes::Bytes;
use proptest::prelude::*;
use talweg_batch::{
    BatchBuilder, BatchHeader, ValidationLimits, check_client_batch, partition_for_key,
};
use talweg_client::delivery::{DeliveryCore, LinkId, Want};
use talweg_kit::errors::ErrorCode as Code;
use talweg_proto::v1::{self, produce_response::Frame};
use talweg_types::{Acks, Compression, ProducerId, TimestampMs, TopicPartition, limits};

const NOW: Now = Now {
    mono_ms: 1_000,
    wall_ms: WALL_MS,
};

fn session() -> Session {
    let opening = Opening {
        compression: Some(Compression::None),
        ..Opening::default()
    };
    let mut session = Session::new(
        opening,
        Amount {
            bytes: 1 << 20,
            records: 100,
        },
        0,
    );
    session.set_producer(ProducerId(5));
    session
}

fn lanes() -> ModelLanes {
    ModelLanes(DeliveryCore::new(true, 1))
}

fn record(value: &[u8]) -> v1::Record {
    v1::Record {
        value: Some(Bytes::copy_from_slice(value)),
        ..Default::default()
    }
}

fn frame(first_sequence: u64, records: Vec<v1::Record>) -> v1::RecordsFrame {
    v1::RecordsFrame {
        topic: "t".into(),
        first_sequence,
        records,
        ..Default::default()
    }
}

fn answers(session: &mut Session) -> Vec<Frame> {
    std::iter::from_fn(|| session.next_answer()).collect()
}

/// Refusals as (code, sequences).
fn refusals(session: &mut Session) -> Vec<(Code, Vec<u64>)> {
    let refusal = |frame| match frame {
        Frame::Refusal(it) => (it.error.expect("a detail").code(), it.sequences),
        other => panic!("{other:?}"),
    };
    answers(session).into_iter().map(refusal).collect()
}

/// What the lanes of all partitions want to send on one link.
fn sends(lanes: &mut ModelLanes) -> Vec<(TopicPartition, Bytes)> {
    let mut sent = Vec::new();
    for partition in lanes.0.take_ready() {
        while let Want::Send(batch) = lanes.0.next(partition, LinkId(1), NOW.mono_ms) {
            lanes.0.mark_sent(partition, LinkId(1), sent.len() as u64);
            sent.push((partition, batch.bytes));
        }
    }
    sent
}

/// Each bad record among good ones gets its own code and disturbs none of them.
#[test]
fn a_refused_record_disturbs_no_other() {
    let header = |name: &str| v1::Header {
        name: name.into(),
        value: None,
    };
    let bad: Vec<(Code, v1::Record)> = vec![
        (
            Code::InvalidTimestamp,
            v1::Record {
                timestamp_ms: Some(-1),
                ..record(b"x")
            },
        ),
        (
            Code::InvalidTimestamp,
            v1::Record {
                timestamp_ms: Some(WALL_MS + 3_600_001),
                ..record(b"x")
            },
        ),
        (
            Code::InvalidTimestamp,
            v1::Record {
                timestamp_ms: Some(i64::MAX),
                ..record(b"x")
            },
        ),
        (Code::RecordTooLarge, record(&[0; 1_025])),
        (
            Code::RecordTooLarge,
            v1::Record {
                headers: vec![header(&"h".repeat(1_025))],
                ..record(b"")
            },
        ),
        (
            Code::InvalidRecord,
            v1::Record {
                headers: vec![header(limits::IDEMPOTENCY_HEADER)],
                ..record(b"x")
            },
        ),
        (
            Code::InvalidRecord,
            v1::Record {
                headers: vec![header(""); 1_001],
                ..record(b"x")
            },
        ),
        (
            Code::UnknownPartition,
            v1::Record {
                partition: Some(3),
                ..record(b"x")
            },
        ),
        (
            Code::UnknownPartition,
            v1::Record {
                partition: Some(u32::MAX),
                ..record(b"x")
            },
        ),
        (
            Code::InvalidIdempotencyKey,
            v1::Record {
                idempotency_key: "k".repeat(129),
                ..record(b"x")
            },
        ),
        (
            Code::NotBuilt,
            v1::Record {
                due_time_ms: Some(WALL_MS),
                ..record(b"x")
            },
        ),
    ];
    for (code, bad) in bad {
        let (mut session, mut lanes) = (session(), lanes());
        let good = || v1::Record {
            partition: Some(1),
            ..record(b"12345678")
        };
        let view = view(&[("max.record.bytes", "1024")]);
        session.on_records(
            frame(0, vec![good(), bad.clone(), good()]),
            &view,
            NOW,
            &mut lanes,
        );
        assert_eq!(refusals(&mut session), [(code, vec![1])], "{bad:?}");
        let sent = sends(&mut lanes);
        assert_eq!(
            sent.iter()
                .map(|(_, batch)| values_of(batch).len())
                .sum::<usize>(),
            2,
            "{bad:?}"
        );
    }
}

#[test]
fn bad_frames_are_refused_whole_and_change_nothing() {
    let numbers = |frame: &v1::RecordsFrame| (0..frame.records.len() as u64).collect::<Vec<_>>();
    let base = || frame(0, vec![record(b"12345678"); 2]);
    type Settings<'a> = &'a [(&'a str, &'a str)];
    let cases: Vec<(Code, v1::RecordsFrame, Settings)> = vec![
        (
            Code::UnknownTopic,
            v1::RecordsFrame {
                topic: "nope".into(),
                ..base()
            },
            &[],
        ),
        (
            Code::InvalidArgument,
            v1::RecordsFrame {
                topic: String::new(),
                ..base()
            },
            &[],
        ),
        (
            Code::InvalidArgument,
            v1::RecordsFrame {
                topic_id: vec![1; 5].into(),
                ..base()
            },
            &[],
        ),
        (
            Code::TopicIdChanged,
            v1::RecordsFrame {
                topic_id: vec![2; 16].into(),
                ..base()
            },
            &[],
        ),
        (
            Code::InternalTopic,
            v1::RecordsFrame {
                topic: "__consumer_offsets".into(),
                ..base()
            },
            &[],
        ),
        (
            Code::FrameTooLarge,
            frame(0, vec![record(&[0; 700_000]); 2]),
            &[],
        ),
        (
            Code::AcksTooWeak,
            base(),
            &[("min.acks", "all"), ("default.acks", "all")],
        ),
    ];
    for (code, bad, config) in cases {
        let opening = Opening {
            acks: Some(Acks::One),
            ..Opening::default()
        };
        let mut session = Session::new(
            opening,
            Amount {
                bytes: 4 << 20,
                records: 100,
            },
            0,
        );
        session.set_producer(ProducerId(5));
        let (mut lanes, view, sequences) = (lanes(), view(config), numbers(&bad));
        session.on_records(bad.clone(), &view, NOW, &mut lanes);
        assert_eq!(
            refusals(&mut session),
            [(code, sequences)],
            "{:?}",
            bad.topic
        );
        assert!(session.is_quiet() && lanes.0.unanswered() == 0);
        // The stream goes on behind the numbers that were used up.
        session.on_records(frame(2, vec![]), &self::view(&[]), NOW, &mut lanes);
        assert_eq!(answers(&mut session).len(), 0);
    }
}

#[test]
fn sequences_must_follow_and_credit_must_hold() {
    let (mut session, mut lanes, view) = (session(), lanes(), view(&[]));
    session.on_records(frame(1, vec![record(b"12345678")]), &view, NOW, &mut lanes);
    assert_eq!(
        refusals(&mut session),
        [(Code::InvalidStreamSequence, vec![1])]
    );
    let many = |count: usize| vec![record(b"12345678"); count];
    session.on_records(frame(0, many(60)), &view, NOW, &mut lanes);
    session.on_records(frame(60, many(41)), &view, NOW, &mut lanes);
    assert_eq!(
        refusals(&mut session),
        [(Code::CreditExceeded, (60..101).collect())]
    );
    session.on_records(frame(101, many(40)), &view, NOW, &mut lanes);
    assert!(answers(&mut session).is_empty(), "what fits is taken");
}

#[test]
fn a_batch_frame_is_taken_apart_by_headers_alone() {
    let batch = |count: usize| {
        let mut builder = BatchBuilder::new(Compression::None);
        for _ in 0..count {
            builder
                .push(TimestampMs(WALL_MS), None, Some(b"12345678"), [])
                .expect("a record");
        }
        builder.build().expect("a batch")
    };
    let frame = |first_sequence, batches: Bytes| v1::BatchFrame {
        topic: "t".into(),
        partition: 1,
        first_sequence,
        batches,
        ..Default::default()
    };
    let (mut session, mut lanes, view) =
        (session(), lanes(), view(&[("max.message.bytes", "1200")]));
    let two = [batch(2), batch(3)].concat();
    session.on_batches(frame(0, two.into()), &view, NOW, &mut lanes);
    assert_eq!(sends(&mut lanes).len(), 2, "each batch by itself");

    // A batch, then bytes that are none: all is refused under one number.
    let broken = [&batch(1)[..], &[0; 70]].concat();
    session.on_batches(frame(2, broken.into()), &view, NOW, &mut lanes);
    assert_eq!(refusals(&mut session), [(Code::UnsupportedMagic, vec![2])]);
    assert!(sends(&mut lanes).is_empty());
    // How many the client counted is not known: it may go on further.
    session.on_batches(frame(9, Bytes::new()), &view, NOW, &mut lanes);
    assert_eq!(refusals(&mut session), [(Code::CorruptBatch, vec![9])]);
    session.on_batches(frame(10, batch(80)), &view, NOW, &mut lanes);
    assert_eq!(refusals(&mut session), [(Code::BatchTooLarge, vec![10])]);

    let other = |change: fn(&mut v1::BatchFrame)| {
        let mut it = frame(11, batch(1));
        change(&mut it);
        it
    };
    let cases: [(Code, v1::BatchFrame); 4] = [
        (Code::UnknownPartition, other(|it| it.partition = 3)),
        (
            Code::FencedLeaderEpoch,
            other(|it| it.leader_epoch = Some(1)),
        ),
        (
            Code::UnknownLeaderEpoch,
            other(|it| it.leader_epoch = Some(3)),
        ),
        (Code::InternalTopic, other(|it| it.topic = "__x".into())),
    ];
    for (nth, (code, mut bad)) in cases.into_iter().enumerate() {
        bad.first_sequence = 11 + nth as u64;
        session.on_batches(bad, &view, NOW, &mut lanes);
        assert_eq!(refusals(&mut session), [(code, vec![11 + nth as u64])]);
    }
}

#[test]
fn keys_go_where_kafka_puts_them_and_keyless_records_stick_for_a_batch() {
    let (mut session, mut lanes, view) = (session(), lanes(), view(&[]));
    let keyed = |key: &[u8]| v1::Record {
        key: Some(Bytes::copy_from_slice(key)),
        ..record(b"12345678")
    };
    session.on_records(
        frame(0, vec![keyed(b"21"), keyed(b"foobar"), keyed(b"")]),
        &view,
        NOW,
        &mut lanes,
    );
    let mut to: Vec<u32> = sends(&mut lanes)
        .iter()
        .map(|(at, _)| at.partition.0)
        .collect();
    let mut expected: Vec<u32> = [&b"21"[..], b"foobar", b""]
        .map(|key| partition_for_key(key, 3).0)
        .to_vec();
    to.sort_unstable();
    to.dedup();
    expected.sort_unstable();
    expected.dedup();
    assert_eq!(to, expected);

    let (mut session, mut lanes) = (self::session(), self::lanes());
    let mut seen = Vec::new();
    for nth in 0..4 {
        session.on_records(
            frame(nth * 5, vec![record(b"12345678"); 5]),
            &view,
            NOW,
            &mut lanes,
        );
        let sent = sends(&mut lanes);
        assert!(sent.len() <= 1, "five keyless records are one batch");
        seen.extend(
            sent.iter()
                .map(|(at, batch)| (at.partition.0, values_of(batch).len())),
        );
    }
    assert_eq!(
        seen,
        [(0, 5), (1, 5), (2, 5)],
        "one partition after the other; the fourth waits for company"
    );
}

#[test]
fn a_record_with_an_idempotency_key_goes_alone_and_without_a_number() {
    let (mut session, mut lanes, view) = (session(), lanes(), view(&[]));
    let keyed = |id: &str| v1::Record {
        idempotency_key: id.into(),
        partition: Some(2),
        ..record(b"12345678")
    };
    let plain = || v1::Record {
        partition: Some(2),
        ..record(b"12345678")
    };
    session.on_records(
        frame(0, vec![plain(), plain(), keyed("a"), plain(), keyed("b")]),
        &view,
        NOW,
        &mut lanes,
    );
    let shape: Vec<(usize, bool)> = sends(&mut lanes)
        .iter()
        .map(|(_, batch)| {
            (
                values_of(batch).len(),
                BatchHeader::parse(batch).expect("a header").has_producer(),
            )
        })
        .collect();
    assert_eq!(
        shape,
        [(2, true), (1, false), (1, true), (1, false)],
        "in order, keyed ones alone"
    );

    // The same key goes to the same partition, whatever the stream did before.
    let (mut one, mut other) = (self::session(), self::session());
    let loose = || v1::Record {
        idempotency_key: "order-17".into(),
        ..record(b"12345678")
    };
    let (mut first, mut second) = (self::lanes(), self::lanes());
    one.on_records(frame(0, vec![loose()]), &view, NOW, &mut first);
    other.on_records(
        frame(0, vec![plain(), plain(), loose()]),
        &view,
        NOW,
        &mut second,
    );
    let expected = partition_for_key(b"order-17", 3);
    assert_eq!(sends(&mut first)[0].0.partition, expected);
    assert!(
        sends(&mut second)
            .iter()
            .any(|(at, _)| at.partition == expected)
    );
}

#[test]
fn records_are_sent_at_once_when_nothing_is_in_flight_and_packed_when_something_is() {
    let (mut session, mut lanes, view) = (session(), lanes(), view(&[]));
    let to_one = |value: &[u8]| v1::Record {
        partition: Some(1),
        ..record(value)
    };
    session.on_records(frame(0, vec![to_one(b"12345678")]), &view, NOW, &mut lanes);
    assert_eq!(sends(&mut lanes).len(), 1, "a lone record goes at once");
    for nth in 1..4 {
        session.on_records(
            frame(nth, vec![to_one(b"12345678")]),
            &view,
            NOW,
            &mut lanes,
        );
    }
    assert!(
        sends(&mut lanes).is_empty(),
        "they wait while one is in flight"
    );
    assert_eq!(
        session.next_time(NOW),
        Some(NOW.mono_ms + limits::PACK_LINGER_MS)
    );
    let later = Now {
        mono_ms: NOW.mono_ms + limits::PACK_LINGER_MS,
        ..NOW
    };
    session.on_time(&view, later, &mut lanes);
    let sent = sends(&mut lanes);
    assert_eq!(
        sent.iter()
            .map(|(_, batch)| values_of(batch).len())
            .collect::<Vec<_>>(),
        [3],
        "after the linger"
    );

    // What fills a batch goes without waiting.
    session.on_records(
        frame(4, vec![to_one(&[7; 30_000]); 5]),
        &view,
        NOW,
        &mut lanes,
    );
    let full = sends(&mut lanes);
    assert_eq!(
        full.iter()
            .map(|(_, batch)| values_of(batch).len())
            .collect::<Vec<_>>(),
        [2, 2]
    );
    assert!(
        full.iter()
            .all(|(_, batch)| batch.len() <= limits::PACK_BATCH_BYTES as usize)
    );
    // The answer to the first one frees nothing for the rest while more is in flight.
    assert_eq!(lanes.0.unanswered(), 4);
    assert!(!session.is_quiet());
    assert_eq!(at(1).partition.0, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// What passes the check of a record passes the leader's check of its batch,
    /// and what does not would not.
    #[test]
    fn the_check_of_a_record_is_the_leaders(
        key in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
        value in prop::option::of(prop::collection::vec(any::<u8>(), 0..80)),
        headers in prop::collection::vec((".{0,12}", prop::option::of(prop::collection::vec(any::<u8>(), 0..10))), 0..4),
        timestamp in prop_oneof![Just(None), (-3_i64..3).prop_map(Some), (3_599_990_i64..3_600_010).prop_map(|it| Some(WALL_MS + it))],
        id in "[a-z]{0,3}",
    ) {
        let view = view(&[("max.record.bytes", "100")]);
        let topic = view.by_name("t").expect("the topic");
        let record = v1::Record {
            key: key.map(Bytes::from),
            value: value.map(Bytes::from),
            headers: headers.into_iter().map(|(name, value)| v1::Header { name, value: value.map(Bytes::from) }).collect(),
            timestamp_ms: timestamp,
            idempotency_key: id,
            ..Default::default()
        };
        let rules = Rules::new(topic, TimestampMs(WALL_MS));
        let ours = rules.check(0, &record);
        let mut builder = BatchBuilder::new(Compression::None);
        let pushed = builder.push(rules.timestamp(&record), record.key.as_deref(), record.value.as_deref(), super::super::check::headers(&record));
        let limits = ValidationLimits::for_topic(&topic.config, TimestampMs(WALL_MS));
        let theirs = pushed.and_then(|()| check_client_batch(builder.build()?, &limits).map(drop));
        // -1 is "no timestamp" in a batch; a thin client leaves the field out instead.
        if record.timestamp_ms != Some(-1) {
            prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{:?} against {:?}", ours, theirs);
        }
    }
}
