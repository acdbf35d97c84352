//! The Produce stream over real sockets.

mod support;

use std::time::Duration;
use support::{
    Bench,
    client::{Fetch, Produce, Said, batch, batch_at, partition},
    ready,
};
use talweg_kit::errors::ErrorCode;
use talweg_proto::v1::{Acks, Credit, error_detail::Details, fetch_partition::Start};

/// Story: batches are answered in order with their offsets and how far they
/// got, and are there to be read.
#[tokio::test(flavor = "multi_thread")]
async fn batches_are_acknowledged_and_read_back() {
    let bench = Bench::start().await;
    let id = bench.controller.create_topic("t", 2, &[]);
    let channel = bench.channel();
    let mut produce = Produce::open(&channel, Acks::All).await;
    assert_eq!(produce.opened.node_id, 1);
    assert_eq!(produce.opened.delivery_timeout_ms, 30_000);
    assert_eq!(produce.opened.credit.expect("credit").bytes, 8 << 20);
    ready(&channel, "t").await;

    produce
        .send("t", 0, &[batch(&["a", "b"]), batch(&["c"])])
        .await;
    let ack = produce.ack().await;
    assert_eq!(
        (ack.up_to_sequence, &ack.base_offsets[..]),
        (1, &[0, 2][..])
    );
    assert_eq!(&ack.topic_id[..], id.as_bytes());
    let durability = ack.durability.expect("durability");
    assert_eq!(
        (durability.replicas_holding, durability.replicas_flushed),
        (1, 1),
        "synced at replication factor 1"
    );
    assert_eq!(produce.one("t", 1, batch(&["other"])).await, 0);

    let both = vec![
        partition("t", 0, Start::Earliest(true)),
        partition("t", 1, Start::Earliest(true)),
    ];
    let mut fetch = Fetch::open(&channel, both).await;
    let mut values = fetch.values(4).await;
    values.sort();
    assert_eq!(values, ["a", "b", "c", "other"]);
    drop(produce.frames);
    assert!(
        produce.answers.next().await.is_none(),
        "half-closed and answered: ends with OK"
    );
}

/// Story: a producer sends more than it was granted; that frame is refused, and
/// what was within the grant is done.
#[tokio::test(flavor = "multi_thread")]
async fn credit_is_enforced_and_given_back() {
    let bench = Bench::start_with(|config| config.mailbox_bytes = 64 << 20).await;
    bench.controller.create_topic("t", 1, &[]);
    let channel = bench.channel();
    ready(&channel, "t").await;
    let mut produce = Produce::open(&channel, Acks::All).await;
    let granted = produce.opened.credit.expect("credit");
    assert_eq!(granted.records, 10_000);
    let many: Vec<&str> = vec!["r"; 6_000];
    let half = batch(&many);
    // Two frames in one go: the second is above the grant whenever the first is unanswered.
    let mut exceeded = 0;
    for _ in 0..20 {
        let first = produce.send("t", 0, std::slice::from_ref(&half)).await;
        produce.send("t", 0, std::slice::from_ref(&half)).await;
        let mut open = [first, first + 1].len();
        while open > 0 {
            match produce.said().await {
                Some(Ok(Said::BatchAck(ack))) => open -= ack.base_offsets.len(),
                Some(Ok(Said::Refusal(refusal))) => {
                    let error = refusal.error.expect("error");
                    assert_eq!(error.code, ErrorCode::CreditExceeded as i32);
                    exceeded += 1;
                    open -= refusal.sequences.len();
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(exceeded > 0, "two frames of 6,000 records never met");
    let last = batch(&["last"]);
    produce.one("t", 0, last).await;
}

/// Story: acks none: success is silent but for credit, refusals are said.
#[tokio::test(flavor = "multi_thread")]
async fn acks_none_returns_credit_and_still_refuses() {
    let bench = Bench::start().await;
    bench.controller.create_topic("t", 1, &[]);
    let channel = bench.channel();
    ready(&channel, "t").await;
    let mut produce = Produce::open(&channel, Acks::None).await;
    let good = batch(&["a", "b"]);
    produce.send("t", 0, &[good.clone(), good.clone()]).await;
    let mut returned = Credit::default();
    while returned.records < 4 {
        match produce.said().await {
            Some(Ok(Said::Credit(credit))) => {
                returned.bytes += credit.bytes;
                returned.records += credit.records;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        returned,
        Credit {
            bytes: 2 * good.len() as i64,
            records: 4
        }
    );
    produce.send("nobody", 0, &[good]).await;
    assert_eq!(produce.refusal().await.0, ErrorCode::UnknownTopic);
    let strict = bench
        .controller
        .create_topic("strict", 1, &[("min.acks", "all")]);
    let (mut code, mut refusals) = (ErrorCode::UnknownTopic, 0);
    while code == ErrorCode::UnknownTopic && refusals < 1_000 {
        produce.send("strict", 0, &[batch(&["c"])]).await;
        code = produce.refusal().await.0;
        refusals += 1;
    }
    assert_eq!(code, ErrorCode::AcksTooWeak, "{strict}");
}

/// Story: an idempotent producer repeats a batch on another stream and gets the
/// first offset; a gap is named.
#[tokio::test(flavor = "multi_thread")]
async fn repeats_get_their_first_offset() {
    let bench = Bench::start().await;
    bench.controller.create_topic("t", 1, &[]);
    let channel = bench.channel();
    ready(&channel, "t").await;
    let mut produce = Produce::open(&channel, Acks::All).await;
    let first = batch_at(&["a", "b"], 1, Some(0));
    assert_eq!(produce.one("t", 0, first.clone()).await, 0);
    assert_eq!(produce.one("t", 0, batch_at(&["c"], 1, Some(2))).await, 2);
    let mut again = Produce::open(&channel, Acks::All).await;
    again.send("t", 0, &[first]).await;
    let ack = again.ack().await;
    assert_eq!((&ack.base_offsets[..], ack.duplicates), (&[0][..], 1));
    again.send("t", 0, &[batch_at(&["e"], 1, Some(4))]).await;
    let (code, refusal) = again.refusal().await;
    assert_eq!(code, ErrorCode::OutOfOrderSequence);
    let Some(Details::Sequence(detail)) = refusal.error.expect("error").details else {
        panic!("no detail")
    };
    assert_eq!((detail.expected_sequence, detail.actual_sequence), (3, 4));
}

/// Story: a quiet stream hears that its server lives.
#[tokio::test(flavor = "multi_thread")]
async fn idle_streams_hear_heartbeats() {
    let bench =
        Bench::start_with(|config| (config.heartbeat_min_ms, config.heartbeat_max_ms) = (20, 40))
            .await;
    bench.controller.create_topic("t", 1, &[]);
    let channel = bench.channel();
    let mut produce = Produce::open(&channel, Acks::All).await;
    for _ in 0..3 {
        let heard = tokio::time::timeout(Duration::from_secs(5), produce.answers.next()).await;
        let frame = heard.expect("in time").expect("open").expect("well").frame;
        assert!(matches!(frame, Some(Said::Heartbeat(_))), "{frame:?}");
    }
}
