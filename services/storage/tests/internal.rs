//! What coordinators ask of a storage node: appends in a shard epoch behind a fence,
//! and how far positions are behind.

mod support;

use bytes::Bytes;
use support::{
    Bench,
    client::{Produce, Said, batch},
    eventually, fill, topic,
};
use talweg_batch::BatchBuilder;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    storage::v1::{
        AppendInternalRequest, AppendInternalResponse, Backlog, BacklogQuery,
        MeasureBacklogRequest, append_internal_request::What,
        internal_log_service_client::InternalLogServiceClient,
    },
    v1::{
        Acks, DeleteRecordsRequest, DeleteRecordsTarget, offset_service_client::OffsetServiceClient,
    },
};
use talweg_types::{Compression, ProducerEpoch, ProducerId, Sequence, TimestampMs};
use tonic::transport::Channel;
use uuid::Uuid;

const OFFSETS: &str = "__consumer_offsets";

fn numbered(producer: i64, sequence: i32, value: &[u8]) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None).with_producer(
        ProducerId(producer),
        ProducerEpoch(0),
        Sequence(sequence),
    );
    builder
        .push(TimestampMs(1_000), Some(b"key"), Some(value), [])
        .expect("pushed");
    builder.build().expect("built")
}

async fn append(
    channel: &Channel,
    topic: Uuid,
    shard_epoch: i32,
    what: Option<What>,
) -> Result<AppendInternalResponse, Refusal> {
    let request = AppendInternalRequest {
        topic_id: Bytes::copy_from_slice(topic.as_bytes()),
        partition: 0,
        shard_epoch,
        what,
    };
    let answer = InternalLogServiceClient::new(channel.clone())
        .append_internal(request)
        .await;
    answer
        .map(tonic::Response::into_inner)
        .map_err(|status| Refusal::from_status(&status))
}

fn fence() -> Option<What> {
    Some(What::Fence(true))
}

fn one(producer: i64, sequence: i32) -> Option<What> {
    Some(What::Batch(numbered(producer, sequence, b"value")))
}

fn code(result: Result<AppendInternalResponse, Refusal>) -> ErrorCode {
    result.expect_err("refused").code
}

/// Story: a coordinator takes a shard and writes; another takes it over; the first one
/// wakes up and is refused, also after the node was killed and started again.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_shuts_the_older_coordinator_out_and_outlives_a_kill() {
    let mut bench = Bench::start().await;
    let (id, channel) = topic(&bench, OFFSETS, 1, &[]).await;
    let early = append(&channel, id, 1, one(7, 0)).await;
    assert_eq!(code(early), ErrorCode::ShardFenced, "the fence comes first");
    let fenced = append(&channel, id, 1, fence()).await.expect("fenced");
    assert_eq!((fenced.base_offset, fenced.last_offset), (0, 0));
    let first = append(&channel, id, 1, one(7, 0)).await.expect("appended");
    assert_eq!((first.base_offset, first.duplicate), (1, false));
    assert_eq!(first.durability.expect("said").replicas_flushed, 1);
    let again = append(&channel, id, 1, one(7, 0)).await.expect("a repeat");
    assert_eq!((again.base_offset, again.duplicate), (1, true));
    let second = append(&channel, id, 3, fence()).await.expect("fenced");
    assert_eq!(second.base_offset, 2);
    for what in [one(7, 0), one(7, 1), fence()] {
        let old = append(&channel, id, 1, what).await;
        assert_eq!(code(old), ErrorCode::ShardFenced);
    }
    append(&channel, id, 3, one(8, 0)).await.expect("appended");

    bench.kill_node().await;
    bench.start_node().await;
    let channel = bench.channel();
    let mut next = None;
    eventually("the shard is led again", async || {
        match append(&channel, id, 3, one(8, 1)).await {
            Ok(done) => next = Some(done.base_offset),
            Err(refusal) => assert!(refusal.is_retriable(), "{refusal}"),
        }
        next.is_some()
    })
    .await;
    assert_eq!(next, Some(4));
    let old = append(&channel, id, 2, one(7, 1)).await;
    assert_eq!(code(old), ErrorCode::ShardFenced);
    let repeat = append(&channel, id, 3, one(8, 0)).await.expect("a repeat");
    assert_eq!((repeat.base_offset, repeat.duplicate), (3, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_appends_have_their_own_codes() {
    let bench = Bench::start().await;
    let (id, channel) = topic(&bench, OFFSETS, 1, &[]).await;
    let (users, _) = topic(&bench, "users", 1, &[]).await;
    append(&channel, id, 1, fence()).await.expect("fenced");
    let unnumbered = Some(What::Batch(batch(&["x"])));
    let mut damaged = numbered(7, 0, b"value").to_vec();
    damaged[70] ^= 1;
    let rows = [
        (id, 0, fence(), ErrorCode::InvalidArgument),
        (id, -4, fence(), ErrorCode::InvalidArgument),
        (id, 1, None, ErrorCode::InvalidArgument),
        (id, 1, Some(What::Fence(false)), ErrorCode::InvalidArgument),
        (id, 1, unnumbered, ErrorCode::InvalidArgument),
        (
            id,
            1,
            Some(What::Batch(damaged.into())),
            ErrorCode::CorruptBatch,
        ),
        (id, 1, one(7, 5), ErrorCode::UnknownProducer),
        (id, 2, one(7, 0), ErrorCode::ShardFenced),
        (users, 1, fence(), ErrorCode::InternalTopic),
        (Uuid::from_u128(99), 1, fence(), ErrorCode::UnknownTopic),
    ];
    for (n, (topic, epoch, what, expected)) in rows.into_iter().enumerate() {
        let refused = append(&channel, topic, epoch, what).await;
        assert_eq!(code(refused), expected, "row {n}");
    }
}

/// Clients read internal topics and change nothing in them.
#[tokio::test(flavor = "multi_thread")]
async fn clients_do_not_write_to_internal_topics() {
    let bench = Bench::start().await;
    let (id, channel) = topic(&bench, OFFSETS, 1, &[]).await;
    append(&channel, id, 1, fence()).await.expect("fenced");
    let mut produce = Produce::open(&channel, Acks::All).await;
    produce.send(OFFSETS, 0, &[batch(&["x"])]).await;
    let Some(Ok(Said::Refusal(refusal))) = produce.said().await else {
        panic!("not refused");
    };
    let error = Refusal::from_detail(refusal.error.expect("error"));
    assert_eq!(error.code, ErrorCode::InternalTopic);
    let by_id = DeleteRecordsTarget {
        topic_id: Bytes::copy_from_slice(id.as_bytes()),
        before_offset: -1,
        ..DeleteRecordsTarget::default()
    };
    let request = DeleteRecordsRequest {
        targets: vec![by_id],
    };
    let answer = OffsetServiceClient::new(channel.clone())
        .delete_records(request)
        .await;
    let answers = answer.expect("answered").into_inner().answers;
    let error = Refusal::from_detail(answers[0].error.clone().expect("refused"));
    assert_eq!(error.code, ErrorCode::InternalTopic);
}

async fn backlog(channel: &Channel, topic: Uuid, offsets: &[i64]) -> Vec<Backlog> {
    let query = |offset: &i64| BacklogQuery {
        topic_id: Bytes::copy_from_slice(topic.as_bytes()),
        partition: 0,
        offset: *offset,
        committed: false,
    };
    let request = MeasureBacklogRequest {
        queries: offsets.iter().map(query).collect(),
    };
    let answer = InternalLogServiceClient::new(channel.clone())
        .measure_backlog(request)
        .await;
    answer.expect("answered").into_inner().backlogs
}

/// Lag in bytes shrinks towards the end and is nothing there; time-based retention says
/// how long the oldest unread record has.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_is_measured_from_a_position_to_the_end() {
    let bench = Bench::start().await;
    let config = [("segment.bytes", "8192"), ("retention.ms", "3600000")];
    let (id, channel) = topic(&bench, "t", 1, &config).await;
    let large = "x".repeat(1_000);
    let batches: Vec<Bytes> = (0..40).map(|_| batch(&[large.as_str()])).collect();
    fill(&channel, "t", 0, &batches).await;
    let measured = backlog(&channel, id, &[0, 20, 40, -1, 400]).await;
    let [start, middle, end, bad, beyond] = &measured[..] else {
        panic!("{measured:?}");
    };
    assert_eq!((start.log_start_offset, start.end_offset), (0, 40));
    let whole: usize = batches.iter().map(Bytes::len).sum();
    assert_eq!(usize::try_from(start.bytes).expect("small"), whole);
    let half = i64::try_from(whole).expect("small") / 2;
    assert!((middle.bytes - half).abs() <= 8_192, "{middle:?}");
    assert!(middle.bytes < start.bytes);
    let hour = 3_600_000;
    let loss = start.loss_ms.expect("by time");
    assert!((0..=hour).contains(&loss) && loss > hour - 60_000, "{loss}");
    assert!(start.oldest_append_ms <= middle.oldest_append_ms);
    assert!(start.oldest_append_ms.is_some() && !start.approximate);
    for at_end in [end, beyond] {
        assert_eq!((at_end.bytes, at_end.oldest_append_ms), (0, None));
        assert_eq!(at_end.loss_ms, None);
    }
    assert!(bad.error.is_some());

    let (big, _) = topic(
        &bench,
        "big",
        1,
        &[("retention.bytes", "1000"), ("retention.ms", "-1")],
    )
    .await;
    fill(&channel, "big", 0, &batches[..2]).await;
    let full = backlog(&channel, big, &[0]).await;
    assert_eq!(
        full[0].loss_ms,
        Some(0),
        "retention by size is there already"
    );

    // Neither limit is for a topic that is only compacted.
    let compacted = [
        ("cleanup.policy", "compact"),
        ("retention.bytes", "1000"),
        ("retention.ms", "3600000"),
    ];
    let (kept, _) = topic(&bench, "kept", 1, &compacted).await;
    fill(&channel, "kept", 0, &[numbered(1, 0, large.as_bytes())]).await;
    let kept = backlog(&channel, kept, &[0]).await;
    assert!(kept[0].bytes > 0);
    assert_eq!(kept[0].loss_ms, None, "nothing is lost by retention");
}
