//! Failures that others met, replayed on real processes. Each test names its
//! public source and says what was adapted.

use bytes::Bytes;
use std::time::{Duration, Instant};
use talweg_batch::BatchBuilder;
use talweg_harness::{
    Stack, eventually,
    http::call,
    raw::{
        self, PLENTY, RawFetch, RawProduce, batch, code, connect, create_replicated, create_topic,
        from, now_ms, numbered_batch, read_all,
    },
};
use talweg_proto::v1::{
    self, Acks, Credit, ErrorCode, FetchOpen, Form, ProduceOpen, Record, fetch_partition::Start,
    fetch_request, fetch_response, offset_service_client::OffsetServiceClient, produce_request,
    produce_response, topic_service_client::TopicServiceClient,
};
use talweg_types::{Compression, ProducerEpoch, ProducerId, Sequence, TimestampMs};
use tonic::transport::Channel;

const RESTART: Duration = Duration::from_secs(20);

async fn produce(
    channel: &Channel,
    topic: &str,
    partition: u32,
    bytes: Bytes,
) -> Result<i64, v1::ErrorDetail> {
    RawProduce::open(channel, Acks::All)
        .await
        .batch(topic, partition, bytes)
        .await
}

async fn delete_before(
    channel: &Channel,
    topic: &str,
    before_offset: i64,
) -> Result<i64, ErrorCode> {
    let target = v1::DeleteRecordsTarget {
        topic: topic.into(),
        before_offset,
        ..Default::default()
    };
    let request = v1::DeleteRecordsRequest {
        targets: vec![target],
    };
    let answers = OffsetServiceClient::new(channel.clone())
        .delete_records(request)
        .await
        .expect("answered")
        .into_inner();
    match &answers.answers[0].error {
        Some(error) => Err(code(error)),
        None => Ok(answers.answers[0].log_start_offset),
    }
}

async fn log_start_reaches(channel: &Channel, topic: &str, at_least: i64) {
    eventually("the log start moves", Duration::from_secs(20), || async {
        let bounds = raw::bounds(channel, topic, 0).await?;
        if bounds.log_start_offset >= at_least {
            Ok(())
        } else {
            Err(format!("{bounds:?}"))
        }
    })
    .await;
}

/// B003, redpanda-data/redpanda #22670: an idle producer comes back after its
/// state expired. Adapted: expiry 1 s instead of 30 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b003_an_idle_producer_gets_the_specific_error_or_none() {
    let stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 1, &[("producer.id.expiration.ms", "1000")]).await;
    let numbered = |n: i32| numbered_batch(&[b"x"], ProducerId(77), ProducerEpoch(0), Sequence(n));
    for n in 0..8 {
        assert_eq!(produce(&c, "t", 0, numbered(n)).await, Ok(i64::from(n)));
    }
    let started = Instant::now();
    // Waits until the state is gone: a probe with a gap is refused differently then.
    eventually("the state expires", Duration::from_secs(20), || async {
        match produce(&c, "t", 0, numbered(100)).await {
            Err(e) if code(&e) == ErrorCode::UnknownProducer => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert!(
        started.elapsed() >= Duration::from_millis(900),
        "not before its time"
    );
    let error = produce(&c, "t", 0, numbered(8))
        .await
        .expect_err("state is gone");
    assert_eq!(
        code(&error),
        ErrorCode::UnknownProducer,
        "never a plain out-of-order error"
    );
    assert_eq!(
        produce(&c, "t", 0, numbered(0)).await,
        Ok(8),
        "re-initialised, it starts at 0"
    );
}

/// B004, KAFKA-7190 / KIP-360: short retention and trimming erase all records
/// of a producer; its sequence goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b004_retention_does_not_erase_a_producers_sequence() {
    let mut stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(
        &c,
        "t",
        1,
        &[
            ("retention.ms", "500"),
            ("segment.bytes", "4096"),
            ("file.delete.delay.ms", "0"),
        ],
    )
    .await;
    let numbered =
        |n: i32| numbered_batch(&[&[3; 900]], ProducerId(78), ProducerEpoch(0), Sequence(n));
    for n in 0..10 {
        assert_eq!(produce(&c, "t", 0, numbered(n)).await, Ok(i64::from(n)));
    }
    log_start_reaches(&c, "t", 10).await;
    assert_eq!(
        produce(&c, "t", 0, numbered(10)).await,
        Ok(10),
        "after retention"
    );
    assert_eq!(delete_before(&c, "t", -1).await, Ok(11));
    assert_eq!(
        produce(&c, "t", 0, numbered(11)).await,
        Ok(11),
        "after a trim"
    );
    log_start_reaches(&c, "t", 12).await;
    stack.storages[0].kill9();
    stack.storages[0].start(RESTART);
    assert_eq!(
        produce(&c, "t", 0, numbered(12)).await,
        Ok(12),
        "after kill -9"
    );
}

/// B005, redpanda-data/redpanda #5355; KAFKA-14034: the segment of a duplicate
/// is gone, its offset is remembered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b005_a_duplicate_of_a_deleted_batch_gets_its_offset() {
    let stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 1, &[("segment.bytes", "4096")]).await;
    produce(&c, "t", 0, batch(&[b"first"]))
        .await
        .expect("produce");
    let repeated = numbered_batch(&[b"s"], ProducerId(79), ProducerEpoch(0), Sequence(0));
    assert_eq!(produce(&c, "t", 0, repeated.clone()).await, Ok(1));
    for _ in 0..10 {
        produce(&c, "t", 0, batch(&[&[1; 900]]))
            .await
            .expect("produce");
    }
    assert_eq!(delete_before(&c, "t", -1).await, Ok(12));
    assert_eq!(
        produce(&c, "t", 0, repeated).await,
        Ok(1),
        "the offset remembered at append"
    );
    assert_eq!(
        raw::bounds(&c, "t", 0)
            .await
            .expect("bounds")
            .log_end_offset,
        12,
        "nothing appended"
    );
}

/// B009, infinyon/fluvio #4161, #2342: the size that decides is the encoded
/// batch's, named in the error, on every surface; the stream stays usable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b009_the_encoded_size_decides() {
    let stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(
        &c,
        "t",
        1,
        &[
            ("max.message.bytes", "10000"),
            ("max.record.bytes", "400000"),
        ],
    )
    .await;
    let sized = |payload: usize| batch(&[&vec![7; payload]]);
    let overhead = sized(9000).len() - 9000;
    let mut stream = RawProduce::open(&c, Acks::All).await;
    stream
        .batch("t", 0, sized(10_000 - overhead))
        .await
        .expect("exactly the limit");
    let error = stream
        .batch("t", 0, sized(10_001 - overhead))
        .await
        .expect_err("one above");
    assert_eq!(code(&error), ErrorCode::BatchTooLarge);
    assert!(
        error.message.contains("10000"),
        "names the limit: {}",
        error.message
    );
    let mut zipped = BatchBuilder::new(Compression::Zstd);
    zipped
        .push(TimestampMs(now_ms()), None, Some(&vec![0; 300_000]), [])
        .expect("push");
    stream
        .batch("t", 0, zipped.build().expect("build"))
        .await
        .expect("30 times the limit unpacked, small when packed");
    let thin = Record {
        value: Some(vec![0; 300_000].into()),
        ..Default::default()
    };
    let mut stream = RawProduce::open(&c, Acks::All).await;
    stream
        .record("t", thin)
        .await
        .expect("the gateway packs it as small");
    let mut noise = vec![0_u8; 300_000];
    rand::RngCore::fill_bytes(
        &mut <rand::rngs::SmallRng as rand::SeedableRng>::seed_from_u64(9),
        &mut noise,
    );
    let error = stream
        .record(
            "t",
            Record {
                value: Some(noise.clone().into()),
                ..Default::default()
            },
        )
        .await
        .expect_err("does not pack");
    assert_eq!(code(&error), ErrorCode::BatchTooLarge);
    stream
        .record(
            "t",
            Record {
                value: Some(Bytes::from_static(b"small")),
                ..Default::default()
            },
        )
        .await
        .expect("the stream lives");
    let text: String = noise.iter().map(|b| char::from(b'a' + b % 26)).collect();
    let answer = call(
        "POST",
        &format!("{}/v1/topics/t/records", stack.gateway_http(0)),
        &[],
        &format!("{{\"value\":\"{text}\"}}"),
    )
    .await;
    assert_eq!(
        (answer.status, answer.json["code"].as_str()),
        (413, Some("BATCH_TOO_LARGE")),
        "{:?}",
        answer.json
    );
}

/// B010, nats-io/nats-server #3272: the same retry is answered alike before and
/// after purge and restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b010_a_retry_is_answered_alike_before_and_after_a_restart() {
    let mut stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 1, &[]).await;
    let retried = numbered_batch(&[b"a", b"b"], ProducerId(80), ProducerEpoch(0), Sequence(0));
    assert_eq!(produce(&c, "t", 0, retried.clone()).await, Ok(0));
    assert_eq!(delete_before(&c, "t", -1).await, Ok(2));
    assert_eq!(produce(&c, "t", 0, retried.clone()).await, Ok(0));
    stack.storages[0].stop(Duration::from_secs(6));
    stack.storages[0].start(RESTART);
    assert_eq!(
        produce(&c, "t", 0, retried.clone()).await,
        Ok(0),
        "after a clean restart"
    );
    stack.storages[0].kill9();
    stack.storages[0].start(RESTART);
    assert_eq!(produce(&c, "t", 0, retried).await, Ok(0), "after kill -9");
    assert_eq!(
        raw::bounds(&c, "t", 0)
            .await
            .expect("bounds")
            .log_end_offset,
        2
    );
}

/// B017, infinyon/fluvio #3788: start at the end means at the end. Adapted:
/// replication factor 1 only, through two gateways and the leader itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b017_latest_is_exactly_what_comes_next() {
    let mut stack = Stack::builder().gateways(2).start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 1, &[]).await;
    for _ in 0..100 {
        produce(&c, "t", 0, batch(&[b"old"]))
            .await
            .expect("produce");
    }
    stack.storages[0].kill9();
    stack.storages[0].start(RESTART);
    let mut streams = Vec::new();
    for url in [stack.gateway(0), stack.gateway(1)] {
        let channel = connect(&url).await;
        let open = FetchOpen {
            partitions: vec![from("t", 0, Start::Latest(true))],
            credit: Some(PLENTY),
            ..Default::default()
        };
        let (stream, opened) = RawFetch::open_with(&channel, open).await;
        assert_eq!(
            opened.positions[0].next_offset, 100,
            "right after a leader change too"
        );
        streams.push(stream);
    }
    for _ in 0..5 {
        produce(&c, "t", 0, batch(&[b"new"]))
            .await
            .expect("produce");
    }
    for stream in &mut streams {
        let found = stream.take(5).await;
        assert!(
            found
                .iter()
                .zip(100..)
                .all(|((_, r), o)| r.offset == o && r.value.as_deref() == Some(b"new")),
            "{found:?}"
        );
    }
}

/// B022, confluentinc/librdkafka #2363, #2625: an offset inside the bounds of
/// any earlier answer is never out of range, over restarts. Adapted: one replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b022_an_advised_offset_is_never_out_of_range() {
    let mut stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 1, &[]).await;
    for round in 0..5 {
        produce(&c, "t", 0, batch(&[b"x"])).await.expect("produce");
        let known = raw::bounds(&c, "t", 0).await.expect("bounds");
        stack.storages[0].kill9();
        stack.storages[0].start(RESTART);
        for offset in [known.log_start_offset, known.high_watermark] {
            let mut stream = RawFetch::records(&c, vec![from("t", 0, Start::Offset(offset))]).await;
            produce(&c, "t", 0, batch(&[b"y"])).await.expect("produce");
            assert_eq!(stream.take(1).await[0].1.offset, offset, "round {round}");
        }
    }
}

/// B023, infinyon/fluvio #4098, #4523: a first batch larger than the credit is
/// delivered whole. Adapted: batches up to our 3 MiB limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b023_the_largest_batch_comes_whole_whatever_the_limits() {
    let stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(
        &c,
        "t",
        1,
        &[
            ("max.message.bytes", "3145728"),
            ("max.record.bytes", "3000000"),
        ],
    )
    .await;
    let sizes = [500_000, 1_100_000, 2_000_000, 3_000_000];
    for size in sizes {
        produce(&c, "t", 0, batch(&[&vec![5; size]]))
            .await
            .expect("produce");
    }
    for form in [Form::Records, Form::Batches] {
        let credit = Credit {
            bytes: 3_145_728,
            records: 1,
        };
        let open = FetchOpen {
            partitions: vec![from("t", 0, Start::Earliest(true))],
            credit: Some(credit),
            form: form.into(),
            ..Default::default()
        };
        let (mut stream, _) = RawFetch::open_with(&c, open).await;
        for (offset, size) in sizes.iter().enumerate() {
            let (next, bytes, got) = loop {
                match stream.next().await.expect("lives").expect("goes on") {
                    fetch_response::Frame::Records(f) => {
                        let len = f.records[0].value.as_ref().map_or(0, Bytes::len);
                        break (f.position.expect("position").next_offset, len + 64, len);
                    }
                    fetch_response::Frame::Batches(f) => {
                        let records =
                            talweg_batch::decode_records(&f.batches, 16 << 20).expect("whole");
                        let len = records[0].value.as_ref().map_or(0, Bytes::len);
                        break (
                            f.position.expect("position").next_offset,
                            f.batches.len(),
                            len,
                        );
                    }
                    _ => {}
                }
            };
            assert_eq!((next, got), (offset as i64 + 1, *size), "{form:?}");
            stream
                .send(fetch_request::Frame::Credit(Credit {
                    bytes: bytes as i64,
                    records: 1,
                }))
                .await;
        }
    }
    let answer = call(
        "GET",
        &format!(
            "{}/v1/topics/t/partitions/0/records?offset=3&max_bytes=65536",
            stack.gateway_http(0)
        ),
        &[],
        "",
    )
    .await;
    assert_eq!(
        answer.json["next_offset"],
        serde_json::json!(4),
        "over HTTP too"
    );
}

/// B082, redpanda-data/redpanda PR #22905: deleting what is deleted is no error,
/// and the start never moves back, over a restart too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b082_deleting_deleted_records_is_a_no_op() {
    let mut stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 1, &[]).await;
    for _ in 0..100 {
        produce(&c, "t", 0, batch(&[b"x"])).await.expect("produce");
    }
    for (before, expected) in [
        (50, Ok(50)),
        (50, Ok(50)),
        (40, Ok(50)),
        (0, Ok(50)),
        (101, Err(ErrorCode::OffsetOutOfRange)),
        (-2, Err(ErrorCode::InvalidArgument)),
        (100, Ok(100)),
        (-1, Ok(100)),
    ] {
        assert_eq!(
            delete_before(&c, "t", before).await,
            expected,
            "before {before}"
        );
    }
    stack.storages[0].kill9();
    stack.storages[0].start(RESTART);
    assert_eq!(
        raw::bounds(&c, "t", 0)
            .await
            .expect("bounds")
            .log_start_offset,
        100
    );
    assert_eq!(produce(&c, "t", 0, batch(&[b"x"])).await, Ok(100));
}

/// B106, redpanda-data/redpanda PR #3815: a recreated topic has a new id and a
/// leader everywhere, and nothing goes to the old one. Adapted: 20 rounds, two gateways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b106_a_recreated_topic_is_another_topic() {
    let stack = Stack::builder().gateways(2).start();
    let (a, b) = (
        connect(&stack.gateway(0)).await,
        connect(&stack.gateway(1)).await,
    );
    let mut ids = std::collections::BTreeSet::new();
    for round in 0..20 {
        let id = create_topic(&a, "t", 1, &[]).await;
        assert!(ids.insert(id.clone()), "a new id each time");
        for (gateway, expected) in [(&a, 0), (&b, 1)] {
            eventually(
                "the gateway knows the new topic",
                Duration::from_secs(5),
                || async {
                    let request = v1::DescribeTopicRequest {
                        name: "t".into(),
                        ..Default::default()
                    };
                    let described = TopicServiceClient::new(gateway.clone())
                        .describe_topic(request)
                        .await
                        .map_err(|e| e.to_string())?;
                    let topic = described.into_inner().topic.ok_or("no topic")?;
                    if topic.topic_id == id {
                        Ok(())
                    } else {
                        Err("the old id".into())
                    }
                },
            )
            .await;
            assert_eq!(
                produce(gateway, "t", 0, batch(&[format!("{round}").as_bytes()])).await,
                Ok(expected)
            );
        }
        let found = read_all(&b, "t", 0).await;
        assert!(
            found
                .iter()
                .all(|r| r.value.as_deref() == Some(format!("{round}").as_bytes())),
            "old data: {found:?}"
        );
        let request = v1::DeleteTopicRequest {
            name: "t".into(),
            ..Default::default()
        };
        TopicServiceClient::new(a.clone())
            .delete_topic(request)
            .await
            .expect("delete");
    }
}

/// B107, twmb/franz-go PR #1426: a reader of the old topic is told, it does not spin
/// and is not moved to the new one. Adapted: fetch streams, groups are not built.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b107_a_reader_of_a_deleted_topic_is_told() {
    let stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    let id = create_topic(&c, "t", 1, &[]).await;
    produce(&c, "t", 0, batch(&[b"old"]))
        .await
        .expect("produce");
    let mut reader = RawFetch::records(&c, vec![from("t", 0, Start::Earliest(true))]).await;
    reader.take(1).await;
    let request = v1::DeleteTopicRequest {
        name: "t".into(),
        ..Default::default()
    };
    TopicServiceClient::new(c.clone())
        .delete_topic(request)
        .await
        .expect("delete");
    create_topic(&c, "t", 1, &[]).await;
    produce(&c, "t", 0, batch(&[b"new"]))
        .await
        .expect("produce");
    let error = reader.error().await;
    assert!(
        matches!(
            code(&error),
            ErrorCode::UnknownTopic | ErrorCode::TopicIdChanged
        ),
        "{error:?}"
    );
    let old = v1::FetchPartition {
        topic_id: id,
        ..from("t", 0, Start::Earliest(true))
    };
    let error = RawFetch::records(&c, vec![old]).await.error().await;
    assert_eq!(
        code(&error),
        ErrorCode::TopicIdChanged,
        "a name that now means another id"
    );
}

/// B108, KAFKA-14616: a topic is recreated while its node is down; the node comes
/// back with the old data and does not serve it. Adapted: one replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b108_a_returning_node_does_not_serve_the_old_topics_data() {
    let mut stack = Stack::builder().storages(2).start();
    let c = connect(&stack.gateway(0)).await;
    create_replicated(&c, "t", 2, 1, &[]).await;
    for p in 0..2 {
        produce(&c, "t", p, batch(&[b"old"]))
            .await
            .expect("produce");
    }
    stack.storages[1].stop(Duration::from_secs(6));
    let request = v1::DeleteTopicRequest {
        name: "t".into(),
        ..Default::default()
    };
    TopicServiceClient::new(c.clone())
        .delete_topic(request)
        .await
        .expect("delete");
    create_replicated(&c, "t", 2, 1, &[]).await;
    stack.storages[1].start(RESTART);
    for p in 0..2 {
        produce(&c, "t", p, batch(&[b"new"]))
            .await
            .expect("produce");
        let found = read_all(&c, "t", p).await;
        assert_eq!(
            found.iter().map(|r| r.value.as_deref()).collect::<Vec<_>>(),
            [Some(&b"new"[..])]
        );
    }
}

/// B126, hyperium/tonic #515: a stream opens at once although neither side has
/// spoken, on gateway and storage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b126_a_stream_opens_before_anyone_speaks() {
    let stack = Stack::builder().start();
    for url in [stack.gateway(0), stack.storage(0)] {
        let c = connect(&url).await;
        let started = Instant::now();
        let mut produce = RawProduce::silent(&c).await;
        let mut fetch = RawFetch::silent(&c).await;
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "headers without a word"
        );
        produce
            .send(produce_request::Frame::Open(ProduceOpen {
                acks: Acks::All.into(),
                ..Default::default()
            }))
            .await;
        assert!(matches!(
            produce.next().await,
            Ok(Some(produce_response::Frame::Opened(_)))
        ));
        fetch
            .send(fetch_request::Frame::Open(FetchOpen {
                credit: Some(PLENTY),
                form: Form::Batches.into(),
                ..Default::default()
            }))
            .await;
        assert!(matches!(
            fetch.next().await,
            Ok(Some(fetch_response::Frame::Opened(_)))
        ));
    }
}

/// B132, TraceMachina/nativelink #320: far more client streams than one upstream
/// connection carries, and control calls beside them. Adapted: 1,200 streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b132_many_streams_do_not_starve_control_calls() {
    let stack = Stack::builder().start();
    let mut channels = Vec::new();
    for _ in 0..6 {
        channels.push(connect(&stack.gateway(0)).await);
    }
    create_topic(&channels[0], "t", 1, &[]).await;
    let mut streams = Vec::new();
    for i in 0..1_200 {
        let mut stream = RawProduce::open(&channels[i % 6], Acks::All).await;
        stream
            .batch("t", 0, batch(&[b"x"]))
            .await
            .expect("each stream works");
        streams.push(stream);
        if i % 100 == 0 {
            let started = Instant::now();
            raw::bounds(&channels[5], "t", 0)
                .await
                .expect("control call");
            assert!(
                started.elapsed() < Duration::from_secs(2),
                "control calls are not starved"
            );
        }
    }
    assert_eq!(
        raw::bounds(&channels[0], "t", 0)
            .await
            .expect("bounds")
            .high_watermark,
        1_200
    );
}

/// B139, linkedin/kafka PR #409: a damaged size, checksum or offset in one
/// partition does not stop the others. Adapted: 6 partitions, one replica, so the
/// damage is reported and not repaired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b139_damage_in_one_partition_leaves_the_others_alone() {
    let mut stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 6, &[]).await;
    for p in 0..6 {
        for i in 0..20 {
            produce(&c, "t", p, batch(&[format!("{i}").as_bytes()]))
                .await
                .expect("produce");
        }
    }
    stack.storages[0].stop(Duration::from_secs(6));
    let one = batch(&[b"0"]).len();
    for (p, byte) in [(0, 8 + 3), (1, 17), (2, 7), (3, 64)] {
        damage(&stack.storage_data(0), p, 5 * one + byte);
    }
    stack.storages[0].start(RESTART);
    for p in 4..6 {
        assert_eq!(
            read_all(&c, "t", p).await.len(),
            20,
            "partition {p} is whole"
        );
    }
    for p in 0..4 {
        let mut stream = RawFetch::records(&c, vec![from("t", p, Start::Earliest(true))]).await;
        let error = stream.error().await;
        assert_eq!(
            code(&error),
            ErrorCode::DataDamaged,
            "partition {p}: {error:?}"
        );
        let Some(v1::error_detail::Details::Damage(range)) = error.details else {
            panic!("no range: {error:?}")
        };
        assert_eq!(range.from_offset, 5, "partition {p}");
        let seek = vec![from("t", p, Start::Offset(range.next_good_offset))];
        stream
            .send(fetch_request::Frame::Update(v1::FetchUpdate {
                update_id: 1,
                seek,
                ..Default::default()
            }))
            .await;
        let rest = loop {
            if let fetch_response::Frame::Records(f) =
                stream.next().await.expect("lives").expect("goes on")
            {
                break f.records;
            }
        };
        assert_eq!(
            rest[0].offset, range.next_good_offset,
            "the rest of partition {p} serves"
        );
    }
}

/// Flips a bit of the only segment of a partition.
fn damage(data: &std::path::Path, partition: u32, position: usize) {
    let folder = walk(data)
        .into_iter()
        .find(|f| f.is_dir() && f.display().to_string().ends_with(&format!("-{partition}")));
    let folder = folder
        .unwrap_or_else(|| panic!("no folder of partition {partition} in {}", data.display()));
    let segment = walk(&folder)
        .into_iter()
        .find(|f| f.extension().is_some_and(|e| e == "log"))
        .expect("a segment");
    let mut bytes = std::fs::read(&segment).expect("read");
    bytes[position] ^= 0x10;
    std::fs::write(&segment, bytes).expect("write");
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("folder") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            found.extend(walk(&path));
        }
        found.push(path);
    }
    found
}

/// B145, nisshi-io/nisshi PR #723; KAFKA-2878: frames that claim impossible
/// lengths are refused by a limit before anything is allocated. Adapted: the
/// lengths inside batches; gRPC's own length is bounded by the server's message limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b145_a_length_field_does_not_allocate() {
    let stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 1, &[]).await;
    let before = (
        stack.gateways[0].private_bytes(),
        stack.storages[0].private_bytes(),
    );
    for length in [i32::MAX, -1, 0, i32::MIN] {
        let mut bytes = batch(&[b"x"]).to_vec();
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        let error = produce(&c, "t", 0, bytes.into())
            .await
            .expect_err("refused");
        assert!(
            matches!(
                code(&error),
                ErrorCode::CorruptBatch | ErrorCode::BatchTooLarge
            ),
            "{error:?}"
        );
    }
    let mut bytes = batch(&[b"x"]).to_vec();
    bytes[57..61].copy_from_slice(&i32::MAX.to_be_bytes()); // record count
    assert!(produce(&c, "t", 0, bytes.into()).await.is_err());
    let after = (
        stack.gateways[0].private_bytes(),
        stack.storages[0].private_bytes(),
    );
    assert!(
        after.0 < before.0 + (32 << 20) && after.1 < before.1 + (32 << 20),
        "{before:?} -> {after:?}"
    );
    produce(&c, "t", 0, batch(&[b"fine"]))
        .await
        .expect("normal clients go on");
}

/// B146, hyperium/tonic PR #2484: batches that unpack beyond the limit, with
/// every codec, stop at the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b146_unpacking_stops_at_the_limit() {
    let stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(
        &c,
        "t",
        1,
        &[
            ("max.unpacked.batch.bytes", "1048576"),
            ("max.record.bytes", "3000000"),
        ],
    )
    .await;
    let before = stack.storages[0].private_bytes();
    for codec in [
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ] {
        let mut builder = BatchBuilder::new(codec);
        for _ in 0..8 {
            builder
                .push(TimestampMs(now_ms()), None, Some(&vec![0; 1 << 20]), [])
                .expect("push");
        }
        let error = produce(&c, "t", 0, builder.build().expect("build"))
            .await
            .expect_err("refused");
        assert_eq!(
            code(&error),
            ErrorCode::UnpacksTooLarge,
            "{codec}: {error:?}"
        );
    }
    let grown = stack.storages[0].private_bytes().saturating_sub(before);
    assert!(grown < 48 << 20, "grown by {grown}");
}

/// B160, redpanda-data/redpanda #19888, #3397: the command line does not say
/// success on failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b160_the_command_line_says_what_failed() {
    let stack = Stack::builder().start();
    let run = |args: &[&str], input: &str| {
        use std::io::Write;
        let mut child = std::process::Command::new(talweg_harness::binary("talweg"))
            .args(["-b", &stack.gateway(0), "--json"])
            .args(args)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("talweg");
        child
            .stdin
            .take()
            .expect("stdin")
            .write_all(input.as_bytes())
            .expect("input");
        let output = child.wait_with_output().expect("output");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let (status, _, error) = run(&["topic", "describe", "nope"], "");
    assert_eq!(status, Some(1));
    let error: serde_json::Value = serde_json::from_str(error.trim()).expect("one JSON error");
    assert_eq!(error["error"]["code"], "UNKNOWN_TOPIC");
    assert_eq!(
        run(
            &[
                "topic",
                "create",
                "t",
                "--partitions",
                "1",
                "--config",
                "max.record.bytes=10"
            ],
            ""
        )
        .0,
        Some(0)
    );
    let (status, out, _) = run(
        &["produce", "t"],
        "short\nthis line is far too long\nfine\n",
    );
    assert_eq!(status, Some(1), "partial failure is failure: {out}");
    let lines: Vec<serde_json::Value> = out
        .lines()
        .map(|l| serde_json::from_str(l).expect("JSON lines"))
        .collect();
    let summary = &lines.last().expect("a summary")["summary"];
    assert_eq!(
        (&summary["acknowledged"], &summary["failed"]),
        (&2.into(), &1.into()),
        "{out}"
    );
    let mut acked: Vec<_> = lines.iter().filter_map(|l| l["line"].as_i64()).collect();
    acked.sort_unstable();
    assert_eq!(acked, [1, 3], "each acknowledged line is listed");
    assert_eq!(run(&["consume", "nope", "--until-end"], "").0, Some(1));
    assert_eq!(run(&["topic", "create"], "").0, Some(2), "wrong usage");
    let (status, out, error) = run(&["consume", "t", "--until-end"], "");
    assert_eq!((status, out.lines().count()), (Some(0), 2), "{error}");
}
