//! Frames that must not come on a Produce stream, each with its code.

mod support;

use bytes::Bytes;
use support::{
    Bench,
    client::{Produce, batch, batch_at, batch_of},
    eventually, ready,
};
use talweg_kit::errors::{Effect, ErrorCode};
use talweg_proto::v1::{
    Acks, BatchFrame, Heartbeat, Plane, ProduceOpen, RecordsFrame, RefreshCredentials,
    error_detail::Details, produce_request::Frame,
};

/// Story: each bad frame gets its own code; the stream goes on and the log is
/// as it was.
#[tokio::test(flavor = "multi_thread")]
async fn bad_frames_are_refused_one_by_one() {
    let bench = Bench::start().await;
    let limits = [
        ("max.message.bytes", "200000"),
        ("max.record.bytes", "100000"),
        ("min.acks", "1"),
        ("default.acks", "all"),
    ];
    let id = bench.controller.create_topic("t", 1, &limits);
    let moved = bench.controller.create_topic("moved", 1, &[]);
    bench
        .controller
        .add_node(2, Plane::Storage, "http://127.0.0.1:2");
    bench.controller.move_leader(moved, 0, 2);
    let orphan = bench.controller.create_topic("orphan", 1, &[]);
    bench.controller.move_leader(orphan, 0, 0);
    bench.controller.create_topic("__internal", 1, &[]);
    let channel = bench.channel();
    ready(&channel, "t").await;
    let mut produce = Produce::open(&channel, Acks::All).await;
    assert_eq!(produce.one("t", 0, batch(&["first"])).await, 0);

    let good = batch(&["x"]);
    let spoiled = |at: usize, value: u8| {
        let mut bytes = good.to_vec();
        bytes[at] = value;
        Bytes::from(bytes)
    };
    let to = |topic: &str, batches: Bytes| BatchFrame {
        topic: topic.into(),
        batches,
        ..Default::default()
    };
    let big = batch(&[
        &"y".repeat(90_000),
        &"y".repeat(90_000),
        &"y".repeat(90_000),
    ]);
    let cases: Vec<(&str, BatchFrame, ErrorCode)> = vec![
        ("no batch", to("t", Bytes::new()), ErrorCode::CorruptBatch),
        (
            "not a batch",
            to("t", Bytes::from_static(b"hello")),
            ErrorCode::CorruptBatch,
        ),
        (
            "wrong CRC",
            to("t", spoiled(17, 0)),
            ErrorCode::CorruptBatch,
        ),
        (
            "wrong magic",
            to("t", spoiled(16, 1)),
            ErrorCode::UnsupportedMagic,
        ),
        ("batch too large", to("t", big), ErrorCode::BatchTooLarge),
        (
            "record too large",
            to("t", batch_of(100_001)),
            ErrorCode::RecordTooLarge,
        ),
        (
            "far future",
            to("t", batch_at(&["z"], i64::MAX / 2, None)),
            ErrorCode::InvalidTimestamp,
        ),
        (
            "unknown topic",
            to("nobody", good.clone()),
            ErrorCode::UnknownTopic,
        ),
        ("no topic", to("", good.clone()), ErrorCode::InvalidArgument),
        (
            "short id",
            BatchFrame {
                topic_id: Bytes::from_static(&[1, 2]),
                ..to("", good.clone())
            },
            ErrorCode::InvalidArgument,
        ),
        (
            "name and another id",
            BatchFrame {
                topic_id: moved.as_bytes().to_vec().into(),
                ..to("t", good.clone())
            },
            ErrorCode::TopicIdChanged,
        ),
        (
            "old id",
            BatchFrame {
                topic_id: vec![9; 16].into(),
                ..to("t", good.clone())
            },
            ErrorCode::TopicIdChanged,
        ),
        (
            "partition 1 of 1",
            BatchFrame {
                partition: 1,
                ..to("t", good.clone())
            },
            ErrorCode::UnknownPartition,
        ),
        (
            "internal topic",
            to("__internal", good.clone()),
            ErrorCode::InternalTopic,
        ),
        (
            "internal topic that is not there",
            to("__nothing", good.clone()),
            ErrorCode::InternalTopic,
        ),
        (
            "led elsewhere",
            to("moved", good.clone()),
            ErrorCode::NotLeader,
        ),
        (
            "led by nobody",
            to("orphan", good.clone()),
            ErrorCode::NoLeader,
        ),
        (
            "older epoch",
            BatchFrame {
                leader_epoch: Some(0),
                ..to("t", good.clone())
            },
            ErrorCode::FencedLeaderEpoch,
        ),
        (
            "newer epoch",
            BatchFrame {
                leader_epoch: Some(5),
                ..to("t", good.clone())
            },
            ErrorCode::UnknownLeaderEpoch,
        ),
        (
            "unknown producer",
            to("t", batch_at(&["p"], 1, Some(7))),
            ErrorCode::UnknownProducer,
        ),
    ];
    for (story, frame, expected) in cases {
        let first_sequence = produce.next;
        produce.next += 1;
        produce
            .raw(Frame::Batch(BatchFrame {
                first_sequence,
                ..frame
            }))
            .await;
        let (code, refusal) = produce.refusal().await;
        assert_eq!(code, expected, "{story}");
        assert_eq!(refusal.sequences, [first_sequence], "{story}");
        let error = refusal.error.expect("error");
        assert_eq!(error.effect, Effect::NotDone as i32, "{story}");
        if expected == ErrorCode::NotLeader {
            let Some(Details::Leader(hint)) = error.details else {
                panic!("{error:?}")
            };
            assert_eq!(
                (hint.node_id, &hint.addresses[..]),
                (2, &["http://127.0.0.1:2".to_owned()][..])
            );
        }
    }
    // Sequences must continue; a refused frame of that kind uses none up.
    produce
        .raw(Frame::Batch(BatchFrame {
            first_sequence: produce.next + 1,
            ..to("t", good.clone())
        }))
        .await;
    assert_eq!(produce.refusal().await.0, ErrorCode::InvalidStreamSequence);
    produce
        .raw(Frame::Credentials(RefreshCredentials { token: "t".into() }))
        .await;
    assert_eq!(produce.refusal().await.0, ErrorCode::NotBuilt);
    produce
        .raw(Frame::Heartbeat(Heartbeat { time_ms: 0 }))
        .await;

    let second = produce.one("t", 0, batch(&["second"])).await;
    assert_eq!(second, 1, "nothing of all that is in the log");
    let by_id = BatchFrame {
        topic_id: id.as_bytes().to_vec().into(),
        first_sequence: produce.next,
        ..to("", good)
    };
    produce.raw(Frame::Batch(by_id)).await;
    assert_eq!(produce.ack().await.base_offsets, [2]);
}

/// Story: one bad batch in a frame disturbs no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_batch_in_a_frame_disturbs_no_other() {
    let bench = Bench::start().await;
    bench.controller.create_topic("t", 1, &[]);
    let channel = bench.channel();
    ready(&channel, "t").await;
    let mut produce = Produce::open(&channel, Acks::All).await;
    let mut bad = batch(&["bad"]).to_vec();
    bad[20] ^= 1;
    produce
        .send("t", 0, &[batch(&["one"]), bad.into(), batch(&["two"])])
        .await;
    let (code, refusal) = produce.refusal().await;
    assert_eq!(
        (code, &refusal.sequences[..]),
        (ErrorCode::CorruptBatch, &[1][..])
    );
    let ack = produce.ack().await;
    assert_eq!(
        (ack.up_to_sequence, &ack.base_offsets[..]),
        (2, &[0, 1][..])
    );
    // Bytes behind the last whole batch: nobody can say how many batches that
    // was meant to be, so all of it is refused, and the next frame may go on anywhere.
    let torn = Bytes::from([&batch(&["three"])[..], &b"torn"[..]].concat());
    produce.send("t", 0, &[torn]).await;
    let (code, refusal) = produce.refusal().await;
    assert_eq!(
        (code, &refusal.sequences[..]),
        (ErrorCode::CorruptBatch, &[3][..])
    );
    produce.next = 9;
    let offset = produce
        .one("t", 0, batch(&["after a frame that could not be counted"]))
        .await;
    assert_eq!(offset, 2, "nothing of the torn frame is in the log");
}

/// Story: what breaks the protocol ends the stream with a code.
#[tokio::test(flavor = "multi_thread")]
async fn protocol_violations_end_the_stream() {
    let bench = Bench::start().await;
    bench
        .controller
        .add_node(7, Plane::Gateway, "http://127.0.0.1:7070");
    eventually("the gateway is known", async || {
        let channel = bench.channel();
        let produce = Produce::open(&channel, Acks::All).await;
        produce.raw(Frame::Records(RecordsFrame::default())).await;
        let refusal = produce.ends_with().await;
        assert_eq!(refusal.code, ErrorCode::NotBuilt);
        let Some(Details::Leader(hint)) = refusal.details else {
            panic!("{refusal:?}")
        };
        hint.addresses == ["http://127.0.0.1:7070"]
    })
    .await;
    let channel = bench.channel();
    let produce = Produce::open(&channel, Acks::All).await;
    produce.raw(Frame::Open(ProduceOpen::default())).await;
    assert_eq!(
        produce.ends_with().await.code,
        ErrorCode::ProtocolViolation,
        "second open"
    );

    let (frames, mut answers) = talweg_kit::data_stream::open_produce(&channel, Default::default());
    let early = Frame::Batch(BatchFrame {
        topic: "t".into(),
        ..Default::default()
    });
    frames
        .send(support::client::produce_frame(early))
        .await
        .expect("sent");
    let status = answers
        .next()
        .await
        .expect("an answer")
        .expect_err("refused");
    assert_eq!(
        talweg_kit::errors::Refusal::from_status(&status).code,
        ErrorCode::ProtocolViolation
    );

    let open = ProduceOpen {
        acks: Acks::All as i32,
        ..Default::default()
    };
    for (open, code) in [
        (
            ProduceOpen {
                client_id: "c".repeat(129),
                ..open.clone()
            },
            ErrorCode::InvalidArgument,
        ),
        (
            ProduceOpen {
                acks: 9,
                ..open.clone()
            },
            ErrorCode::InvalidArgument,
        ),
        (
            ProduceOpen {
                compression: 77,
                ..open.clone()
            },
            ErrorCode::InvalidArgument,
        ),
        (
            ProduceOpen {
                delivery_timeout_ms: 99,
                ..open.clone()
            },
            ErrorCode::InvalidArgument,
        ),
        (
            ProduceOpen {
                delivery_timeout_ms: 900_001,
                ..open.clone()
            },
            ErrorCode::InvalidArgument,
        ),
        (
            ProduceOpen {
                linger_ms: Some(1_001),
                ..open.clone()
            },
            ErrorCode::InvalidArgument,
        ),
        (
            ProduceOpen {
                transactional_id: "tx".into(),
                ..open.clone()
            },
            ErrorCode::NotBuilt,
        ),
        (
            ProduceOpen {
                resume_token: Bytes::from_static(b"?"),
                ..open
            },
            ErrorCode::InvalidResumeToken,
        ),
    ] {
        let refusal = Produce::open_with(&channel, open.clone())
            .await
            .err()
            .expect("refused");
        assert_eq!(refusal.code, code, "{open:?}");
    }
}
