//! The Fetch stream over real sockets.

mod support;

use std::time::Duration;
use support::{
    Bench, PATIENCE,
    client::{Fetch, Produce, Told, batch, batch_at, batch_of, fetch_open, partition, values},
    eventually,
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1::{
    Acks, Credit, DeleteRecordsRequest, DeleteRecordsTarget, FetchOpen, FetchPartition,
    FetchUpdate, Form, ListOffsetsRequest, OffsetQuery, RefreshCredentials, error_detail::Details,
    fetch_partition::Start, fetch_request::Frame, offset_query::At,
    offset_service_client::OffsetServiceClient,
};
use tonic::transport::Channel;

async fn topic(
    bench: &Bench,
    name: &str,
    partitions: u32,
    config: &[(&str, &str)],
) -> (uuid::Uuid, Channel) {
    let id = bench.controller.create_topic(name, partitions, config);
    let channel = bench.channel();
    eventually("all partitions are led", async || {
        let all = (0..partitions)
            .map(|p| partition(name, p, Start::Earliest(true)))
            .collect();
        Fetch::open(&channel, all).await.positions.len() == partitions as usize
    })
    .await;
    (id, channel)
}

async fn fill(channel: &Channel, topic: &str, partition: u32, batches: &[bytes::Bytes]) {
    let mut produce = Produce::open(channel, Acks::All).await;
    for batch in batches {
        produce.one(topic, partition, batch.clone()).await;
    }
}

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

/// Story: partitions join, leave and move on a live stream; frames carry the
/// generation of the request that they answer.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_change_on_a_live_stream() {
    let bench = Bench::start().await;
    let (id, channel) = topic(&bench, "t", 3, &[]).await;
    for p in 0..3 {
        fill(
            &channel,
            "t",
            p,
            &[batch(&[&format!("{p}a")]), batch(&[&format!("{p}b")])],
        )
        .await;
    }
    let mut fetch = Fetch::open(&channel, vec![partition("t", 0, Start::Earliest(true))]).await;
    assert_eq!(fetch.values(2).await, ["0a", "0b"]);
    let generation = |generation, request| FetchPartition {
        generation,
        ..request
    };
    fetch
        .update(FetchUpdate {
            update_id: 5,
            add: vec![
                generation(1, partition("t", 1, Start::Offset(1))),
                generation(2, partition("t", 0, Start::Earliest(true))),
                generation(3, partition("t", 1, Start::Offset(7))),
            ],
            seek: vec![generation(
                4,
                FetchPartition {
                    topic: String::new(),
                    topic_id: id.as_bytes().to_vec().into(),
                    partition: 0,
                    start: Some(Start::Offset(1)),
                    ..Default::default()
                },
            )],
            remove: vec![partition("t", 2, Start::Latest(true))],
        })
        .await;
    let (code, error) = fetch.error().await;
    assert_eq!((code, error.generation), (ErrorCode::DuplicatePartition, 2));
    let (code, error) = fetch.error().await;
    assert_eq!((code, error.generation), (ErrorCode::OffsetOutOfRange, 3));
    let Some(Ok(Told::Updated(updated))) = fetch.told().await else {
        panic!("not updated")
    };
    assert_eq!(updated.update_id, 5);
    assert_eq!(updated.positions.len(), 2);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let frame = fetch.batches().await;
        seen.push((
            frame.position.as_ref().expect("position").generation,
            values(&frame),
        ));
    }
    seen.sort();
    assert_eq!(
        seen,
        [(1, vec!["1b".to_owned()]), (4, vec!["0b".to_owned()])]
    );
    fetch
        .update(FetchUpdate {
            update_id: 6,
            remove: vec![partition("t", 1, Start::Latest(true))],
            ..Default::default()
        })
        .await;
    assert!(matches!(fetch.told().await, Some(Ok(Told::Updated(_)))));
    fill(&channel, "t", 1, &[batch(&["unseen"])]).await;
    fill(&channel, "t", 0, &[batch(&["seen"])]).await;
    assert_eq!(fetch.values(1).await, ["seen"]);
}

/// Story: leadership goes, the topic goes: each stops its partition with a code,
/// also while the reader has no credit left.
#[tokio::test(flavor = "multi_thread")]
async fn readers_hear_when_their_partition_goes() {
    let bench = Bench::start().await;
    let (id, channel) = topic(&bench, "t", 2, &[("max.message.bytes", "1024")]).await;
    let (doomed, _) = topic(&bench, "doomed", 1, &[]).await;
    fill(&channel, "t", 1, &[batch_of(800), batch_of(800)]).await;
    let mut starved = Fetch::open_with(
        &channel,
        fetch_open(vec![partition("t", 1, Start::Earliest(true))], 1_024, 1),
    )
    .await
    .expect("opened");
    starved.batches().await;
    let mut fetch = Fetch::open(
        &channel,
        vec![
            partition("t", 0, Start::Earliest(true)),
            partition("t", 1, Start::Latest(true)),
            partition("doomed", 0, Start::Latest(true)),
        ],
    )
    .await;
    bench.controller.move_leader(id, 1, 0);
    assert_eq!(starved.error().await.0, ErrorCode::NoLeader);
    let (code, error) = fetch.error().await;
    assert_eq!((code, error.partition), (ErrorCode::NoLeader, 1));
    bench.controller.delete_topic(doomed);
    let (code, error) = fetch.error().await;
    assert_eq!(
        (code, &error.topic[..]),
        (ErrorCode::UnknownTopic, "doomed")
    );
    eventually("the deletion is confirmed", async || {
        bench.controller.confirmed() == [doomed]
    })
    .await;
    fill(&channel, "t", 0, &[batch(&["goes on"])]).await;
    assert_eq!(fetch.values(1).await, ["goes on"]);
    // Leadership comes back in a new epoch: the reader seeks and goes on.
    bench.controller.move_leader(id, 1, 1);
    eventually("it leads again", async || {
        let seek = vec![partition("t", 1, Start::Offset(1))];
        fetch
            .update(FetchUpdate {
                update_id: 1,
                seek,
                ..Default::default()
            })
            .await;
        loop {
            match fetch.told().await {
                Some(Ok(Told::Updated(updated))) => return !updated.positions.is_empty(),
                Some(Ok(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
    let frame = fetch.batches().await;
    assert_eq!(frame.position.expect("position").leader_epoch, 3);
}

/// Story: records are deleted below a reader; it is told the bounds. Offsets and
/// times are looked up by name.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_records_are_out_of_range() {
    let bench = Bench::start().await;
    let (_, channel) = topic(&bench, "t", 1, &[("max.message.bytes", "1024")]).await;
    let all: Vec<_> = (0..4).map(|n| batch_at(&["v"], n * 100, None)).collect();
    fill(&channel, "t", 0, &all).await;
    let mut behind = Fetch::open_with(
        &channel,
        fetch_open(vec![partition("t", 0, Start::Earliest(true))], 1_024, 1),
    )
    .await
    .expect("opened");
    behind.batches().await;
    let mut offsets = OffsetServiceClient::new(channel.clone());
    let target = |before_offset| DeleteRecordsTarget {
        topic: "t".into(),
        before_offset,
        ..Default::default()
    };
    let targets = vec![
        target(3),
        target(2),
        target(5),
        target(-2),
        DeleteRecordsTarget {
            topic: "x".into(),
            ..target(1)
        },
    ];
    let answers = offsets
        .delete_records(DeleteRecordsRequest { targets })
        .await
        .expect("answered")
        .into_inner()
        .answers;
    let codes: Vec<_> = answers
        .iter()
        .map(|a| a.error.as_ref().map_or(0, |error| error.code))
        .collect();
    let range = ErrorCode::OffsetOutOfRange as i32;
    let (invalid, unknown) = (
        ErrorCode::InvalidArgument as i32,
        ErrorCode::UnknownTopic as i32,
    );
    assert_eq!(codes, [0, 0, range, invalid, unknown]);
    assert_eq!(
        (answers[0].log_start_offset, answers[1].log_start_offset),
        (3, 3)
    );
    let (code, error) = behind.error().await;
    assert_eq!(code, ErrorCode::OffsetOutOfRange);
    let Some(Details::Bounds(bounds)) = error.error.expect("error").details else {
        panic!("no bounds")
    };
    assert_eq!((bounds.log_start_offset, bounds.high_watermark), (3, 4));

    let query = |at| OffsetQuery {
        topic: "t".into(),
        at,
        ..Default::default()
    };
    let queries = vec![
        query(None),
        query(Some(At::Earliest(true))),
        query(Some(At::Latest(true))),
        query(Some(At::TimestampMs(0))),
        query(Some(At::TimestampMs(301))),
        OffsetQuery {
            partition: 4,
            ..query(None)
        },
    ];
    let answers = offsets
        .list_offsets(ListOffsetsRequest { queries })
        .await
        .expect("answered")
        .into_inner()
        .answers;
    let found: Vec<_> = answers.iter().map(|answer| answer.offset).collect();
    assert_eq!(found, [None, Some(3), Some(4), Some(3), None, None]);
    assert_eq!(answers[3].timestamp_ms, Some(300));
    assert_eq!(answers[0].bounds.expect("bounds").log_end_offset, 4);
    assert_eq!(
        answers[5].error.as_ref().expect("error").code,
        ErrorCode::UnknownPartition as i32
    );
    let refused = offsets
        .get_lag(talweg_proto::v1::GetLagRequest::default())
        .await
        .expect_err("not built");
    assert_eq!(Refusal::from_status(&refused).code, ErrorCode::NotBuilt);
}

/// Story: on a quiet stream positions are told, those that changed; a busy
/// stream tells its idle partitions too.
#[tokio::test(flavor = "multi_thread")]
async fn positions_are_told_on_quiet_streams() {
    let bench =
        Bench::start_with(|config| (config.heartbeat_min_ms, config.heartbeat_max_ms) = (20, 40))
            .await;
    let (_, channel) = topic(&bench, "t", 2, &[]).await;
    let mut fetch = Fetch::open(&channel, vec![partition("t", 0, Start::Earliest(true))]).await;
    let Some(Ok(Told::Positions(quiet))) = fetch.told().await else {
        panic!("no positions")
    };
    assert!(
        quiet.positions.is_empty(),
        "nothing has changed since `opened`"
    );
    fill(&channel, "t", 0, &[batch(&["a"])]).await;
    assert_eq!(fetch.values(1).await, ["a"]);
    let mut offsets = OffsetServiceClient::new(channel.clone());
    let targets = vec![DeleteRecordsTarget {
        topic: "t".into(),
        before_offset: -1,
        ..Default::default()
    }];
    offsets
        .delete_records(DeleteRecordsRequest { targets })
        .await
        .expect("answered");
    loop {
        let Some(Ok(Told::Positions(told))) = fetch.told().await else {
            panic!("no positions")
        };
        let Some(position) = told.positions.first() else {
            continue;
        };
        assert_eq!(
            (
                position.log_start_offset,
                position.next_offset,
                position.high_watermark
            ),
            (1, 1, 1)
        );
        break;
    }
}

/// Story: a client ends its side; what its credit covers still comes, then the
/// stream ends well.
#[tokio::test(flavor = "multi_thread")]
async fn half_close_is_no_error() {
    let bench = Bench::start().await;
    let (_, channel) = topic(&bench, "t", 1, &[("max.message.bytes", "1024")]).await;
    fill(
        &channel,
        "t",
        0,
        &[batch_of(700), batch_of(700), batch_of(700)],
    )
    .await;
    let open = fetch_open(vec![partition("t", 0, Start::Earliest(true))], 1_600, 100);
    let fetch = Fetch::open_with(&channel, open).await.expect("opened");
    let Fetch {
        frames,
        mut answers,
        ..
    } = fetch;
    drop(frames);
    let mut records = 0;
    loop {
        let next = tokio::time::timeout(PATIENCE, answers.next())
            .await
            .expect("in time");
        match next.map(|response| response.expect("well").frame.expect("content")) {
            Some(Told::Batches(frame)) => records += values(&frame).len(),
            Some(Told::Closing(_)) | Some(Told::Positions(_)) => {}
            None => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(records, 2, "the third does not fit");
}

/// Story: one reader stops reading; another on the same connection goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_reader_slows_no_other() {
    let bench = Bench::start().await;
    let (_, channel) = topic(&bench, "t", 1, &[]).await;
    let all: Vec<_> = (0..24).map(|_| batch_of(1 << 19)).collect();
    fill(&channel, "t", 0, &all).await;
    let start = || vec![partition("t", 0, Start::Earliest(true))];
    let stalled: Vec<_> = futures_all(&channel, 8, start).await;
    let mut fetch = Fetch::open_with(&channel, fetch_open(start(), 2 << 20, 1_000))
        .await
        .expect("opened");
    let mut records = 0;
    while records < 24 {
        let frame = fetch.batches().await;
        records += values(&frame).len();
        fetch.credit(frame.batches.len() as i64, 10).await;
    }
    drop(stalled);
}

async fn futures_all(
    channel: &Channel,
    count: usize,
    start: impl Fn() -> Vec<FetchPartition>,
) -> Vec<Fetch> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(
            Fetch::open_with(channel, fetch_open(start(), 8 << 20, 1_000))
                .await
                .expect("opened"),
        );
    }
    all
}
