//! The Fetch stream over real sockets.

mod support;

use std::time::Duration;
use support::{
    Bench,
    client::{Fetch, batch, batch_at, batch_of, fetch_open, partition, values},
    fill, topic,
};
use talweg_kit::errors::ErrorCode;
use talweg_proto::v1::{
    Credit, FetchOpen, FetchPartition, Form, RefreshCredentials, error_detail::Details,
    fetch_partition::Start, fetch_request::Frame,
};

/// Story: a reader begins at an offset, a time, either end; the first batch may
/// begin before what was due.
#[tokio::test(flavor = "multi_thread")]
async fn readers_begin_where_they_ask() {
    let bench = Bench::start().await;
    let (_, channel) = topic(&bench, "t", 1, &[]).await;
    let batches = [
        batch_at(&["a", "b", "c"], 100, None),
        batch_at(&["d"], 300, None),
        batch_at(&["e"], 200, None),
    ];
    fill(&channel, "t", 0, &batches).await;
    for (story, start, at, expected) in [
        (
            "earliest",
            Start::Earliest(true),
            0,
            &["a", "b", "c", "d", "e"][..],
        ),
        ("inside a batch", Start::Offset(1), 1, &["b", "c", "d", "e"]),
        ("the last", Start::Offset(4), 4, &["e"]),
        ("a time", Start::TimestampMs(101), 3, &["d", "e"]),
        (
            "an exact time",
            Start::TimestampMs(100),
            0,
            &["a", "b", "c", "d", "e"],
        ),
    ] {
        let mut fetch = Fetch::open(&channel, vec![partition("t", 0, start)]).await;
        assert_eq!(fetch.positions[0].next_offset, at, "{story}");
        assert_eq!(fetch.values(expected.len()).await, expected, "{story}");
    }
    let ends = [
        ("latest", Start::Latest(true)),
        ("the end", Start::Offset(5)),
        ("no such time", Start::TimestampMs(301)),
    ];
    let mut tails = Vec::new();
    for (story, start) in ends {
        let fetch = Fetch::open(&channel, vec![partition("t", 0, start)]).await;
        assert_eq!(fetch.positions[0].next_offset, 5, "{story}");
        tails.push(fetch);
    }
    fill(&channel, "t", 0, &[batch(&["late"])]).await;
    for mut tail in tails {
        assert_eq!(tail.values(1).await, ["late"]);
    }
}

/// Story: bad requests for a partition stop that partition only, each with its code.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_partition_disturbs_no_other() {
    let bench = Bench::start().await;
    let (id, channel) = topic(&bench, "t", 2, &[]).await;
    fill(&channel, "t", 0, &[batch(&["a"]), batch(&["b"])]).await;
    let at = |offset| partition("t", 0, Start::Offset(offset));
    let cases: Vec<(&str, FetchPartition, ErrorCode)> = vec![
        ("above the end", at(3), ErrorCode::OffsetOutOfRange),
        ("below zero", at(-1), ErrorCode::OffsetOutOfRange),
        (
            "unknown topic",
            partition("x", 0, Start::Earliest(true)),
            ErrorCode::UnknownTopic,
        ),
        (
            "no topic",
            partition("", 0, Start::Earliest(true)),
            ErrorCode::InvalidArgument,
        ),
        (
            "unknown partition",
            partition("t", 2, Start::Earliest(true)),
            ErrorCode::UnknownPartition,
        ),
        (
            "no start",
            FetchPartition {
                start: None,
                ..at(0)
            },
            ErrorCode::InvalidArgument,
        ),
        (
            "false start",
            partition("t", 0, Start::Latest(false)),
            ErrorCode::InvalidArgument,
        ),
        (
            "another id",
            FetchPartition {
                topic_id: vec![7; 16].into(),
                ..at(0)
            },
            ErrorCode::TopicIdChanged,
        ),
        (
            "id of 3 bytes",
            FetchPartition {
                topic_id: vec![7; 3].into(),
                ..at(0)
            },
            ErrorCode::InvalidArgument,
        ),
        (
            "older epoch",
            FetchPartition {
                leader_epoch: Some(0),
                ..at(0)
            },
            ErrorCode::FencedLeaderEpoch,
        ),
        (
            "newer epoch",
            FetchPartition {
                leader_epoch: Some(9),
                ..at(0)
            },
            ErrorCode::UnknownLeaderEpoch,
        ),
        (
            "another history",
            FetchPartition {
                last_epoch: Some(0),
                ..at(1)
            },
            ErrorCode::LogTruncated,
        ),
    ];
    let mut all = vec![FetchPartition {
        generation: 99,
        ..partition("t", 1, Start::Earliest(true))
    }];
    all.extend(
        cases
            .iter()
            .enumerate()
            .map(|(n, (_, case, _))| FetchPartition {
                generation: n as u64,
                ..case.clone()
            }),
    );
    all.push(partition("t", 1, Start::Earliest(true)));
    let mut fetch = Fetch::open(&channel, all).await;
    assert_eq!(fetch.positions.len(), 1);
    assert_eq!(
        (
            fetch.positions[0].generation,
            &fetch.positions[0].topic_id[..]
        ),
        (99, &id.as_bytes()[..])
    );
    for (n, (story, _, expected)) in cases.iter().enumerate() {
        let (code, error) = fetch.error().await;
        assert_eq!((code, error.generation), (*expected, n as u64), "{story}");
        if *expected == ErrorCode::OffsetOutOfRange {
            let Some(Details::Bounds(bounds)) = error.error.expect("error").details else {
                panic!("no bounds")
            };
            assert_eq!((bounds.log_start_offset, bounds.high_watermark), (0, 2));
        }
    }
    assert_eq!(fetch.error().await.0, ErrorCode::DuplicatePartition);
    fill(&channel, "t", 1, &[batch(&["served"])]).await;
    assert_eq!(fetch.values(1).await, ["served"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_opens_and_credits_end_the_stream() {
    let bench = Bench::start().await;
    let (_, channel) = topic(&bench, "t", 1, &[("max.message.bytes", "5000")]).await;
    let open = fetch_open(vec![partition("t", 0, Start::Earliest(true))], 5_000, 10);
    let credit = |bytes, records| FetchOpen {
        credit: Some(Credit { bytes, records }),
        ..open.clone()
    };
    let many = (0..10_001)
        .map(|n| partition("t", n, Start::Earliest(true)))
        .collect();
    for (story, open, code) in [
        (
            "below the largest batch",
            credit(4_999, 10),
            ErrorCode::CreditTooSmall,
        ),
        ("negative", credit(-1, 10), ErrorCode::InvalidCredit),
        ("no records", credit(5_000, 0), ErrorCode::InvalidCredit),
        (
            "too large",
            credit((256 << 20) + 1, 10),
            ErrorCode::InvalidCredit,
        ),
        (
            "none",
            FetchOpen {
                credit: None,
                ..open.clone()
            },
            ErrorCode::InvalidCredit,
        ),
        (
            "thin form",
            FetchOpen {
                form: Form::Records as i32,
                ..open.clone()
            },
            ErrorCode::NotBuilt,
        ),
        (
            "no form is the thin one",
            FetchOpen {
                form: 0,
                ..open.clone()
            },
            ErrorCode::NotBuilt,
        ),
        (
            "unknown form",
            FetchOpen {
                form: 12,
                ..open.clone()
            },
            ErrorCode::InvalidArgument,
        ),
        (
            "unknown isolation",
            FetchOpen {
                isolation: 5,
                ..open.clone()
            },
            ErrorCode::InvalidArgument,
        ),
        (
            "long client id",
            FetchOpen {
                client_id: "c".repeat(129),
                ..open.clone()
            },
            ErrorCode::InvalidArgument,
        ),
        (
            "a token",
            FetchOpen {
                resume_token: vec![1].into(),
                ..open.clone()
            },
            ErrorCode::InvalidResumeToken,
        ),
        (
            "too many partitions",
            FetchOpen {
                partitions: many,
                ..open.clone()
            },
            ErrorCode::LimitExceeded,
        ),
    ] {
        let refusal = Fetch::open_with(&channel, open)
            .await
            .err()
            .unwrap_or_else(|| panic!("{story}"));
        assert_eq!(refusal.code, code, "{story}");
    }
    for (bytes, records) in [(-1, 0), (0, -5), (i64::MAX, 0)] {
        let fetch = Fetch::open_with(&channel, open.clone())
            .await
            .expect("opened");
        fetch.credit(bytes, records).await;
        assert_eq!(fetch.ends_with().await.code, ErrorCode::InvalidCredit);
    }
    let fetch = Fetch::open_with(&channel, open.clone())
        .await
        .expect("opened");
    fetch.raw(Frame::Open(open.clone())).await;
    assert_eq!(fetch.ends_with().await.code, ErrorCode::ProtocolViolation);
    let mut fetch = Fetch::open_with(&channel, open).await.expect("opened");
    fetch
        .raw(Frame::Credentials(RefreshCredentials { token: "t".into() }))
        .await;
    assert_eq!(fetch.error().await.0, ErrorCode::NotBuilt);
    fill(&channel, "t", 0, &[batch(&["goes on"])]).await;
    assert_eq!(fetch.values(1).await, ["goes on"]);
}

/// Story: nothing goes out beyond the credit; each grant lets the next through,
/// and nothing is lost in between.
#[tokio::test(flavor = "multi_thread")]
async fn credit_is_a_budget_over_all_partitions() {
    let bench = Bench::start().await;
    let (_, channel) = topic(&bench, "t", 2, &[("max.message.bytes", "20000")]).await;
    for p in 0..2 {
        let all: Vec<_> = (0..5).map(|_| batch_of(10_000)).collect();
        fill(&channel, "t", p, &all).await;
    }
    let both = (0..2)
        .map(|p| partition("t", p, Start::Earliest(true)))
        .collect();
    let mut fetch = Fetch::open_with(&channel, fetch_open(both, 25_000, 1_000))
        .await
        .expect("opened");
    let (mut left, mut seen) = (25_000i64, [0; 2]);
    while seen != [5, 5] {
        let frame = tokio::time::timeout(Duration::from_millis(200), fetch.batches()).await;
        let Ok(frame) = frame else {
            assert!(left < 10_100, "{left} bytes were left and nothing came");
            fetch.credit(10_100, 1).await;
            left += 10_100;
            continue;
        };
        left -= frame.batches.len() as i64;
        assert!(left >= 0, "beyond the credit");
        assert_eq!(frame.credit_left.expect("credit").bytes, left);
        let position = frame.position.as_ref().expect("position");
        seen[position.partition as usize] += values(&frame).len();
        assert_eq!(
            position.next_offset,
            seen[position.partition as usize] as i64
        );
        assert!(
            seen[0].abs_diff(seen[1]) <= 2,
            "one partition runs ahead: {seen:?}"
        );
    }
}

/// Story: records are a budget too: batches are never cut, and one of them goes
/// although it has more records than are left, when nothing is outstanding.
#[tokio::test(flavor = "multi_thread")]
async fn records_are_counted_by_whole_batches() {
    let bench = Bench::start().await;
    let (_, channel) = topic(&bench, "t", 1, &[]).await;
    fill(
        &channel,
        "t",
        0,
        &[
            batch(&["a", "b", "c"]),
            batch(&["d", "e"]),
            batch(&["f", "g", "h", "i"]),
        ],
    )
    .await;
    let open = fetch_open(vec![partition("t", 0, Start::Earliest(true))], 2 << 20, 5);
    let mut fetch = Fetch::open_with(&channel, open).await.expect("opened");
    let first = fetch.batches().await;
    assert_eq!(values(&first), ["a", "b", "c", "d", "e"]);
    assert_eq!(first.credit_left.expect("credit").records, 0);
    fetch.credit(0, 3).await;
    let quiet = tokio::time::timeout(Duration::from_millis(100), fetch.batches()).await;
    assert!(quiet.is_err(), "four records do not fit three");
    fetch.credit(0, 1).await;
    assert_eq!(values(&fetch.batches().await), ["f", "g", "h", "i"]);
}
