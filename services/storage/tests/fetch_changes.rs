//! Fetch streams that live on: partitions come, move and go, clients stall or
//! end their side.

mod support;

use support::{
    Bench, PATIENCE,
    client::{Fetch, Told, batch, batch_at, batch_of, fetch_open, partition, values},
    eventually, fill, topic,
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1::{
    DeleteRecordsRequest, DeleteRecordsTarget, FetchPartition, FetchUpdate, ListOffsetsRequest,
    OffsetQuery, error_detail::Details, fetch_partition::Start, offset_query::At,
    offset_service_client::OffsetServiceClient,
};
use tonic::transport::Channel;

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
