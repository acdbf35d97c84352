//! Bad input of every kind gets a typed error that names it, the server's
//! state is the same afterwards, and what can go on goes on.

use bytes::Bytes;
use std::collections::BTreeMap;
use talweg_harness::{
    Stack,
    raw::{
        self, PLENTY, RawFetch, RawProduce, batch, code, connect, create_topic, detail, from,
        now_ms,
    },
};
use talweg_proto::v1::{
    self, Acks, Credit, ErrorCode, ErrorDetail, FetchOpen, FetchUpdate, Header, ProduceOpen,
    Record, fetch_partition::Start, fetch_request, fetch_response,
    offset_service_client::OffsetServiceClient, produce_request, produce_response,
    producer_service_client::ProducerServiceClient, topic_service_client::TopicServiceClient,
};
use tonic::transport::Channel;

const T: &str = "t";

/// Everything that a client can see of the topics.
async fn state(channel: &Channel) -> BTreeMap<String, String> {
    let mut topics = TopicServiceClient::new(channel.clone());
    let listed = topics
        .list_topics(v1::ListTopicsRequest {})
        .await
        .expect("list")
        .into_inner()
        .topics;
    let mut seen = BTreeMap::new();
    for topic in listed {
        let request = v1::DescribeTopicRequest {
            name: topic.name.clone(),
            ..Default::default()
        };
        let mut described = topics
            .describe_topic(request)
            .await
            .expect("describe")
            .into_inner();
        for partition in &mut described.partitions {
            partition.replicas_detail.clear(); // so do flushes and clocks of replicas
        }
        for bounds in described
            .partitions
            .iter_mut()
            .filter_map(|p| p.bounds.as_mut())
        {
            bounds.flushed_end_offset = 0; // flushing goes on by itself
        }
        // Of a map only the sorted content is comparable.
        let settings = described
            .topic
            .as_mut()
            .map(|t| std::mem::take(&mut t.config));
        let settings: BTreeMap<_, _> = settings.unwrap_or_default().into_iter().collect();
        seen.insert(topic.name, format!("{settings:?} {described:?}"));
    }
    seen
}

async fn create(channel: &Channel, request: v1::CreateTopicRequest) -> ErrorDetail {
    let status = TopicServiceClient::new(channel.clone())
        .create_topic(request)
        .await
        .expect_err("refused");
    detail(&status)
}

fn named(name: &str) -> v1::CreateTopicRequest {
    v1::CreateTopicRequest {
        name: name.into(),
        ..Default::default()
    }
}

fn configured(key: &str, value: &str) -> v1::CreateTopicRequest {
    v1::CreateTopicRequest {
        config: [(key.to_owned(), value.to_owned())].into(),
        ..named("configured")
    }
}

async fn alter(channel: &Channel, request: v1::AlterTopicRequest) -> ErrorDetail {
    detail(
        &TopicServiceClient::new(channel.clone())
            .alter_topic(request)
            .await
            .expect_err("refused"),
    )
}

/// One batch on a stream of its own; afterwards the stream must still take a good one
/// (which is why the state is compared without it: it goes to another topic).
async fn bad_batch(channel: &Channel, topic: &str, partition: u32, bytes: Bytes) -> ErrorDetail {
    let mut stream = RawProduce::open(channel, Acks::All).await;
    let error = stream
        .batch(topic, partition, bytes)
        .await
        .expect_err("refused");
    stream
        .batch("scratch", 0, batch(&[b"the stream lives"]))
        .await
        .expect("a good batch after a bad one");
    error
}

async fn bad_record(channel: &Channel, topic: &str, record: Record) -> ErrorDetail {
    let mut stream = RawProduce::open(channel, Acks::All).await;
    let error = stream.record(topic, record).await.expect_err("refused");
    let good = Record {
        value: Some(Bytes::from_static(b"the stream lives")),
        ..Default::default()
    };
    stream
        .record("scratch", good)
        .await
        .expect("a good record after a bad one");
    error
}

fn value(bytes: usize) -> Record {
    Record {
        value: Some(vec![b'x'; bytes].into()),
        ..Default::default()
    }
}

/// A whole batch with some header bytes changed and the CRC made right again.
fn forged(change: impl Fn(&mut Vec<u8>)) -> Bytes {
    let mut bytes = batch(&[b"one", b"two"]).to_vec();
    change(&mut bytes);
    let crc = crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes.into()
}

fn crc32c(data: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 };
        }
    }
    !crc
}

/// A gigabyte of zeros in a few kilobytes.
fn bomb() -> Bytes {
    let mut builder = talweg_batch::BatchBuilder::new(talweg_types::Compression::Zstd);
    let zeros = vec![0u8; 1 << 20];
    for _ in 0..64 {
        builder
            .push(talweg_types::TimestampMs(now_ms()), None, Some(&zeros), [])
            .expect("push");
    }
    builder.build().expect("build")
}

/// The status that ends a Produce stream after these frames, or the refusal of one of them.
async fn produce_ends(channel: &Channel, frames: Vec<produce_request::Frame>) -> ErrorDetail {
    let mut stream = RawProduce::silent(channel).await;
    for frame in frames {
        stream.send(frame).await;
    }
    loop {
        match stream.next().await {
            Err(status) => return detail(&status),
            Ok(Some(produce_response::Frame::Opened(_))) => {}
            Ok(Some(produce_response::Frame::Refusal(refusal))) => {
                return refusal.error.expect("an error");
            }
            Ok(other) => panic!("expected an error, got {other:?}"),
        }
    }
}

async fn fetch_ends(channel: &Channel, frames: Vec<fetch_request::Frame>) -> ErrorDetail {
    let mut stream = RawFetch::silent(channel).await;
    for frame in frames {
        stream.send(frame).await;
    }
    loop {
        match stream.next().await {
            Err(status) => return detail(&status),
            Ok(Some(fetch_response::Frame::Opened(_) | fetch_response::Frame::Positions(_))) => {}
            Ok(other) => panic!("expected an error, got {other:?}"),
        }
    }
}

fn fetch_open(credit: Credit) -> FetchOpen {
    let partitions = vec![from(T, 0, Start::Latest(true))];
    FetchOpen {
        partitions,
        credit: Some(credit),
        form: v1::Form::Records.into(),
        ..Default::default()
    }
}

async fn bad_partition(channel: &Channel, partition: v1::FetchPartition) -> ErrorDetail {
    let mut stream = RawFetch::records(channel, vec![partition]).await;
    let error = stream.error().await;
    let add = vec![from(T, 1, Start::Earliest(true))];
    stream
        .send(fetch_request::Frame::Update(FetchUpdate {
            update_id: 7,
            add,
            ..Default::default()
        }))
        .await;
    loop {
        match stream
            .next()
            .await
            .expect("the stream lives")
            .expect("the stream goes on")
        {
            fetch_response::Frame::Updated(updated) if updated.update_id == 7 => return error,
            fetch_response::Frame::Positions(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn delete_records(channel: &Channel, partition: u32, before_offset: i64) -> ErrorDetail {
    let target = v1::DeleteRecordsTarget {
        topic: T.into(),
        partition,
        before_offset,
        ..Default::default()
    };
    let request = v1::DeleteRecordsRequest {
        targets: vec![target],
    };
    let answers = OffsetServiceClient::new(channel.clone())
        .delete_records(request)
        .await
        .expect("answered");
    answers
        .into_inner()
        .answers
        .remove(0)
        .error
        .expect("refused")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bad_input_gets_its_own_code() {
    let stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(
        &c,
        T,
        2,
        &[
            ("max.message.bytes", "65536"),
            ("max.record.bytes", "60000"),
            ("min.acks", "1"),
            ("default.acks", "all"),
        ],
    )
    .await;
    create_topic(&c, "scratch", 1, &[]).await;
    let mut stream = RawProduce::open(&c, Acks::All).await;
    stream
        .batch(T, 0, batch(&[b"0", b"1", b"2"]))
        .await
        .expect("seed");

    let mut wrong = Vec::new();
    let mut cases = 0;
    let mut before = state(&c).await;
    before.remove("scratch");
    macro_rules! case {
        ($name:literal, $code:ident, $call:expr) => {{
            eprintln!("case: {}", $name);
            let answered = tokio::time::timeout(raw::PATIENCE, $call).await;
            let error: ErrorDetail = answered.expect("an answer in time");
            cases += 1;
            if code(&error) != ErrorCode::$code || error.message.len() < 8 {
                wrong.push(format!(
                    "{}: expected {:?}, got {error:?}",
                    $name,
                    ErrorCode::$code
                ));
            }
            let mut after = state(&c).await;
            after.remove("scratch");
            if after != before {
                wrong.push(format!(
                    "{}: the state changed: {before:?} -> {after:?}",
                    $name
                ));
            }
        }};
    }

    // Topics.
    case!("no name", InvalidName, create(&c, named("")));
    case!(
        "over-long name",
        InvalidName,
        create(&c, named(&"n".repeat(250)))
    );
    case!("bad character", InvalidName, create(&c, named("a b")));
    case!("reserved name", InternalTopic, create(&c, named("__mine")));
    case!("taken name", TopicExists, create(&c, named(T)));
    case!(
        "zero partitions",
        InvalidPartitions,
        create(
            &c,
            v1::CreateTopicRequest {
                partitions: Some(0),
                ..named("p")
            }
        )
    );
    case!(
        "negative partitions",
        InvalidPartitions,
        create(
            &c,
            v1::CreateTopicRequest {
                partitions: Some(-1),
                ..named("p")
            }
        )
    );
    case!(
        "too many partitions",
        LimitExceeded,
        create(
            &c,
            v1::CreateTopicRequest {
                partitions: Some(10_001),
                ..named("p")
            }
        )
    );
    case!(
        "zero replicas",
        InvalidReplicationFactor,
        create(
            &c,
            v1::CreateTopicRequest {
                replication_factor: Some(0),
                ..named("r")
            }
        )
    );
    case!(
        "three replicas",
        NotEnoughNodes,
        create(
            &c,
            v1::CreateTopicRequest {
                replication_factor: Some(3),
                ..named("r")
            }
        )
    );
    case!(
        "unknown key",
        InvalidConfig,
        create(&c, configured("no.such.key", "1"))
    );
    case!(
        "key without effect",
        NotBuilt,
        create(&c, configured("message.timestamp.type", "CreateTime"))
    );
    case!(
        "unknown cleanup policy",
        InvalidConfig,
        create(&c, configured("cleanup.policy", "compost"))
    );
    case!(
        "value out of range",
        InvalidConfig,
        create(&c, configured("max.message.bytes", "3145729"))
    );
    case!(
        "value of another type",
        InvalidConfig,
        create(&c, configured("retention.ms", "soon"))
    );
    case!(
        "default acks below the minimum",
        InvalidConfig,
        create(
            &c,
            v1::CreateTopicRequest {
                config: [
                    ("min.acks".to_owned(), "all".to_owned()),
                    ("default.acks".to_owned(), "1".to_owned())
                ]
                .into(),
                ..named("acks")
            }
        )
    );
    case!(
        "fewer partitions",
        InvalidPartitions,
        alter(
            &c,
            v1::AlterTopicRequest {
                name: T.into(),
                partitions: Some(1),
                ..Default::default()
            }
        )
    );
    case!(
        "alter of an unknown topic",
        UnknownTopic,
        alter(
            &c,
            v1::AlterTopicRequest {
                name: "nope".into(),
                partitions: Some(9),
                ..Default::default()
            }
        )
    );
    case!("delete of an unknown topic", UnknownTopic, async {
        let request = v1::DeleteTopicRequest {
            name: "nope".into(),
            ..Default::default()
        };
        detail(
            &TopicServiceClient::new(c.clone())
                .delete_topic(request)
                .await
                .expect_err("refused"),
        )
    });
    case!("name and id that disagree", TopicIdChanged, async {
        let request = v1::DeleteTopicRequest {
            name: T.into(),
            topic_id: vec![7; 16].into(),
        };
        detail(
            &TopicServiceClient::new(c.clone())
                .delete_topic(request)
                .await
                .expect_err("refused"),
        )
    });

    // Batches.
    let good = batch(&[b"x"]);
    case!(
        "empty batch frame",
        CorruptBatch,
        bad_batch(&c, T, 0, Bytes::new())
    );
    case!(
        "cut batch",
        CorruptBatch,
        bad_batch(&c, T, 0, good.slice(..good.len() - 1))
    );
    case!(
        "trailing bytes",
        CorruptBatch,
        bad_batch(&c, T, 0, [&good[..], b"more"].concat().into())
    );
    case!(
        "wrong CRC",
        CorruptBatch,
        bad_batch(&c, T, 0, {
            let mut bytes = good.to_vec();
            *bytes.last_mut().expect("bytes") ^= 1;
            bytes.into()
        })
    );
    case!(
        "wrong magic",
        UnsupportedMagic,
        bad_batch(&c, T, 0, forged(|b| b[16] = 1))
    );
    case!(
        "unknown codec",
        UnsupportedCodec,
        bad_batch(&c, T, 0, forged(|b| b[22] = 5))
    );
    case!(
        "control bit",
        InvalidRecord,
        bad_batch(&c, T, 0, forged(|b| b[22] |= 0x20))
    );
    case!(
        "transactional bit",
        NotBuilt,
        bad_batch(&c, T, 0, forged(|b| b[22] |= 0x10))
    );
    case!(
        "wrong count",
        CorruptBatch,
        bad_batch(&c, T, 0, forged(|b| b[60] = 3))
    );
    case!(
        "wrong last delta",
        CorruptBatch,
        bad_batch(&c, T, 0, forged(|b| b[26] = 7))
    );
    case!(
        "batch over the limit",
        BatchTooLarge,
        bad_batch(&c, T, 0, batch(&[&[7; 40_000], &[7; 40_000]]))
    );
    case!(
        "record over the limit",
        RecordTooLarge,
        bad_batch(&c, T, 0, batch(&[&[7; 60_001]]))
    );
    case!(
        "decompression bomb",
        UnpacksTooLarge,
        bad_batch(&c, T, 0, bomb())
    );
    case!(
        "timestamp of next year",
        InvalidTimestamp,
        bad_batch(&c, T, 0, {
            let mut builder = talweg_batch::BatchBuilder::new(talweg_types::Compression::None);
            let when = talweg_types::TimestampMs(now_ms() + 365 * 86_400_000);
            builder.push(when, None, Some(b"x"), []).expect("push");
            builder.build().expect("build")
        })
    );
    case!(
        "unknown topic",
        UnknownTopic,
        bad_batch(&c, "nope", 0, good.clone())
    );
    case!(
        "unknown partition",
        UnknownPartition,
        bad_batch(&c, T, 2, good.clone())
    );
    case!(
        "a topic of ours",
        InternalTopic,
        bad_batch(&c, "__consumer_offsets", 0, good.clone())
    );
    case!("acks too weak", AcksTooWeak, async {
        let mut stream = RawProduce::open(&c, Acks::None).await;
        stream.batch(T, 0, good.clone()).await.expect_err("refused")
    });
    case!(
        "sequence of an unknown producer",
        UnknownProducer,
        bad_batch(&c, T, 0, {
            use talweg_types::{ProducerEpoch, ProducerId, Sequence};
            raw::numbered_batch(
                &[b"x"],
                ProducerId(4_000_000),
                ProducerEpoch(0),
                Sequence(5),
            )
        })
    );

    // Records.
    case!(
        "record over the limit, thin",
        RecordTooLarge,
        bad_record(&c, T, value(60_001))
    );
    case!(
        "record above every limit",
        RecordTooLarge,
        bad_record(&c, T, value(3_200_000))
    );
    case!(
        "unknown partition, thin",
        UnknownPartition,
        bad_record(
            &c,
            T,
            Record {
                partition: Some(9),
                ..value(1)
            }
        )
    );
    case!(
        "timestamp ahead, thin",
        InvalidTimestamp,
        bad_record(
            &c,
            T,
            Record {
                timestamp_ms: Some(now_ms() + 7_200_000),
                ..value(1)
            }
        )
    );
    case!(
        "negative timestamp, thin",
        InvalidTimestamp,
        bad_record(
            &c,
            T,
            Record {
                timestamp_ms: Some(-5),
                ..value(1)
            }
        )
    );
    case!(
        "due time",
        NotBuilt,
        bad_record(
            &c,
            T,
            Record {
                due_time_ms: Some(now_ms()),
                ..value(1)
            }
        )
    );
    case!(
        "long idempotency key",
        InvalidIdempotencyKey,
        bad_record(
            &c,
            T,
            Record {
                idempotency_key: "k".repeat(129),
                ..value(1)
            }
        )
    );
    case!(
        "our header",
        InvalidRecord,
        bad_record(
            &c,
            T,
            Record {
                headers: vec![Header {
                    name: "__talweg-idempotency-key".into(),
                    value: None
                }],
                ..value(1)
            }
        )
    );
    case!(
        "unknown topic, thin",
        UnknownTopic,
        bad_record(&c, "nope", value(1))
    );

    // Streams.
    let open = || {
        produce_request::Frame::Open(ProduceOpen {
            acks: Acks::All.into(),
            ..Default::default()
        })
    };
    case!(
        "second open",
        ProtocolViolation,
        produce_ends(&c, vec![open(), open()])
    );
    case!(
        "frame before open",
        ProtocolViolation,
        produce_ends(
            &c,
            vec![produce_request::Frame::Heartbeat(v1::Heartbeat {
                time_ms: 0
            })]
        )
    );
    case!(
        "unknown acks",
        InvalidArgument,
        produce_ends(
            &c,
            vec![produce_request::Frame::Open(ProduceOpen {
                acks: 9,
                ..Default::default()
            })]
        )
    );
    case!(
        "delivery time-out too long",
        InvalidArgument,
        produce_ends(
            &c,
            vec![produce_request::Frame::Open(ProduceOpen {
                delivery_timeout_ms: 900_001,
                ..Default::default()
            })]
        )
    );
    case!(
        "transaction",
        NotBuilt,
        produce_ends(
            &c,
            vec![produce_request::Frame::Open(ProduceOpen {
                transactional_id: "x".into(),
                ..Default::default()
            })]
        )
    );
    case!(
        "refreshed credentials",
        NotBuilt,
        produce_ends(
            &c,
            vec![
                open(),
                produce_request::Frame::Credentials(v1::RefreshCredentials { token: "x".into() })
            ]
        )
    );
    case!("sequence with a gap", InvalidStreamSequence, async {
        let mut stream = RawProduce::open(&c, Acks::All).await;
        stream
            .send(produce_request::Frame::Batch(v1::BatchFrame {
                topic: T.into(),
                first_sequence: 4,
                batches: good.clone(),
                ..Default::default()
            }))
            .await;
        match stream.next().await {
            Err(status) => detail(&status),
            Ok(Some(produce_response::Frame::Refusal(refusal))) => refusal.error.expect("an error"),
            other => panic!("{other:?}"),
        }
    });
    case!("produce credit exceeded", CreditExceeded, async {
        let mut stream = RawProduce::open(&c, Acks::All).await;
        // One frame above the grant is taken while nothing is unanswered; the ones behind it are not.
        for _ in 0..10 {
            let many = (0..5_000).map(|_| value(1)).collect();
            stream.send_records("scratch", many).await;
        }
        loop {
            // What fitted the grant is appended as usual.
            match stream.next().await {
                Ok(Some(produce_response::Frame::Refusal(refusal))) => {
                    break refusal.error.expect("an error");
                }
                Ok(Some(produce_response::Frame::RecordsAck(_))) => {}
                other => panic!("{other:?}"),
            }
        }
    });
    case!(
        "fetch: second open",
        ProtocolViolation,
        fetch_ends(
            &c,
            vec![
                fetch_request::Frame::Open(fetch_open(PLENTY)),
                fetch_request::Frame::Open(fetch_open(PLENTY))
            ]
        )
    );
    case!(
        "fetch: frame before open",
        ProtocolViolation,
        fetch_ends(&c, vec![fetch_request::Frame::Credit(PLENTY)])
    );
    case!(
        "fetch: credit too small",
        CreditTooSmall,
        fetch_ends(
            &c,
            vec![fetch_request::Frame::Open(fetch_open(Credit {
                bytes: 65_535,
                records: 10
            }))]
        )
    );
    case!(
        "fetch: no credit",
        InvalidCredit,
        fetch_ends(
            &c,
            vec![fetch_request::Frame::Open(fetch_open(Credit {
                bytes: 1 << 20,
                records: 0
            }))]
        )
    );
    case!(
        "fetch: negative first credit",
        InvalidCredit,
        fetch_ends(
            &c,
            vec![fetch_request::Frame::Open(fetch_open(Credit {
                bytes: -1,
                records: 1
            }))]
        )
    );
    case!(
        "fetch: negative credit",
        InvalidCredit,
        fetch_ends(
            &c,
            vec![
                fetch_request::Frame::Open(fetch_open(PLENTY)),
                fetch_request::Frame::Credit(Credit {
                    bytes: -1,
                    records: 0
                })
            ]
        )
    );
    case!(
        "fetch: enormous credit",
        InvalidCredit,
        fetch_ends(
            &c,
            vec![fetch_request::Frame::Open(fetch_open(Credit {
                bytes: i64::MAX,
                records: 1
            }))]
        )
    );
    case!(
        "fetch: unknown form",
        InvalidArgument,
        fetch_ends(
            &c,
            vec![fetch_request::Frame::Open(FetchOpen {
                form: 9,
                ..fetch_open(PLENTY)
            })]
        )
    );
    case!(
        "fetch: unknown topic",
        UnknownTopic,
        bad_partition(&c, from("nope", 0, Start::Earliest(true)))
    );
    case!(
        "fetch: unknown partition",
        UnknownPartition,
        bad_partition(&c, from(T, 7, Start::Earliest(true)))
    );
    case!(
        "fetch: above the end",
        OffsetOutOfRange,
        bad_partition(&c, from(T, 0, Start::Offset(4)))
    );
    case!(
        "fetch: negative offset",
        OffsetOutOfRange,
        bad_partition(&c, from(T, 0, Start::Offset(-1)))
    );
    case!(
        "fetch: no start",
        InvalidArgument,
        bad_partition(
            &c,
            v1::FetchPartition {
                topic: T.into(),
                ..Default::default()
            }
        )
    );
    case!("fetch: same partition twice", DuplicatePartition, async {
        let twice = vec![
            from("scratch", 0, Start::Latest(true)),
            from("scratch", 0, Start::Latest(true)),
        ];
        RawFetch::records(&c, twice).await.error().await
    });

    // Offsets and producers.
    case!(
        "delete records beyond the end",
        OffsetOutOfRange,
        delete_records(&c, 0, 4)
    );
    case!(
        "delete records, negative",
        InvalidArgument,
        delete_records(&c, 0, -2)
    );
    case!(
        "delete records, unknown partition",
        UnknownPartition,
        delete_records(&c, 5, 0)
    );
    case!("transactional producer", NotBuilt, async {
        let request = v1::InitProducerRequest {
            transactional_id: "x".into(),
            ..Default::default()
        };
        detail(
            &ProducerServiceClient::new(c.clone())
                .init_producer(request)
                .await
                .expect_err("refused"),
        )
    });

    assert!(
        wrong.is_empty(),
        "{} of {cases} cases:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(cases >= 30, "{cases} cases");

    // Below the log start, after a deletion that is allowed.
    let target = v1::DeleteRecordsTarget {
        topic: T.into(),
        partition: 0,
        before_offset: 2,
        ..Default::default()
    };
    let request = v1::DeleteRecordsRequest {
        targets: vec![target],
    };
    OffsetServiceClient::new(c.clone())
        .delete_records(request)
        .await
        .expect("deleted");
    let error = bad_partition(&c, from(T, 0, Start::Offset(1))).await;
    assert_eq!(code(&error), ErrorCode::OffsetOutOfRange);
    let Some(v1::error_detail::Details::Bounds(bounds)) = error.details else {
        panic!("no bounds: {error:?}")
    };
    assert_eq!((bounds.log_start_offset, bounds.high_watermark), (2, 3));
}
