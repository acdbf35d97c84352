//! A storage node's life: start, stop, kill, drain, and what it does without a
//! controller.

mod support;

use std::time::{Duration, Instant};
use support::{
    Bench, PATIENCE,
    client::{Fetch, Produce, Said, Told, batch, batch_at, partition},
    eventually,
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    controller::v1::FolderBoot,
    storage::v1::{DescribeReplicasRequest, replica_service_client::ReplicaServiceClient},
    v1::{
        Acks, GetMetadataRequest, WatchMetadataRequest,
        cluster_service_client::ClusterServiceClient, fetch_partition::Start,
        watch_metadata_response::Update,
    },
};

/// Until a batch is done, whatever the node says meanwhile.
async fn produce_until_done(bench: &Bench, topic: &str, batch: bytes::Bytes) -> i64 {
    let mut offset = None;
    eventually("the batch is done", async || {
        let mut produce = Produce::open(&bench.channel(), Acks::All).await;
        produce.send(topic, 0, std::slice::from_ref(&batch)).await;
        match produce.said().await {
            Some(Ok(Said::BatchAck(ack))) => {
                offset = Some(ack.base_offsets[0]);
                true
            }
            Some(Ok(Said::Refusal(refusal))) => {
                let error = refusal.error.expect("error");
                assert!(error.retriable, "{error:?}");
                false
            }
            other => panic!("{other:?}"),
        }
    })
    .await;
    offset.expect("done")
}

async fn read(bench: &Bench, topic: &str, count: usize) -> Vec<String> {
    let mut fetch = Fetch::open(
        &bench.channel(),
        vec![partition(topic, 0, Start::Earliest(true))],
    )
    .await;
    fetch.values(count).await
}

/// Story: stopped and killed, again and again: what was acknowledged is there
/// once, sessions are remembered, epochs rise, and the folder says how it was left.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_records_survive_stop_and_kill() {
    let mut bench = Bench::start().await;
    bench.controller.create_topic("t", 1, &[]);
    for round in 0..4 {
        let value = round.to_string();
        let numbered = batch_at(&[&value], 1, Some(round));
        assert_eq!(
            produce_until_done(&bench, "t", numbered.clone()).await,
            i64::from(round)
        );
        assert_eq!(
            produce_until_done(&bench, "t", numbered).await,
            i64::from(round),
            "a repeat"
        );
        if round % 2 == 0 {
            assert!(
                bench.stop_node(Duration::from_secs(1)).await,
                "closed and marked clean"
            );
        } else {
            bench.kill_node().await;
        }
        bench.start_node().await;
    }
    assert_eq!(produce_until_done(&bench, "t", batch(&["last"])).await, 4);
    assert_eq!(read(&bench, "t", 5).await, ["0", "1", "2", "3", "last"]);
    let boots: Vec<_> = bench
        .controller
        .registered()
        .iter()
        .map(|register| register.folders[0].boot)
        .collect();
    let (clean, same) = (FolderBoot::Clean as i32, FolderBoot::SameBoot as i32);
    assert_eq!(boots, [FolderBoot::New as i32, clean, same, clean, same]);
    let registered = bench.controller.registered();
    assert_eq!(registered[0].node_id, 0, "asks for an id");
    assert!(
        registered[1..]
            .iter()
            .all(|register| register.node_id == 1 && register.cluster_id.len() == 16)
    );
    assert_eq!(bench.controller.left(), 2, "a clean stop says goodbye");
}

/// Story: the node is told to stop while streams are open; they are told, what
/// was accepted is answered, and the streams end well at the deadline although
/// their clients do nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_every_stream_well() {
    let mut bench = Bench::start().await;
    bench.controller.create_topic("t", 1, &[]);
    produce_until_done(&bench, "t", batch(&["a"])).await;
    let channel = bench.channel();
    let mut produce = Produce::open(&channel, Acks::All).await;
    let mut fetch = Fetch::open(&channel, vec![partition("t", 0, Start::Earliest(true))]).await;
    fetch.values(1).await;
    let mut unopened = talweg_kit::data_stream::open_produce(&channel, Default::default());
    let node = bench.take_node();
    let begun = Instant::now();
    let stopping = tokio::spawn(node.stop(Duration::from_millis(800)));

    let Some(Ok(Said::Drain(drain))) = produce.said().await else {
        panic!("no drain frame")
    };
    assert!(
        drain.deadline_ms <= 800 && drain.deadline_ms > 100,
        "{drain:?}"
    );
    let Some(Ok(Told::Drain(_))) = fetch.told().await else {
        panic!("no drain frame")
    };
    assert_eq!(
        produce
            .one("t", 0, batch(&["accepted while draining"]))
            .await,
        1
    );
    fetch.values(1).await;
    assert!(matches!(produce.said().await, Some(Ok(Said::Closing(_)))));
    assert!(produce.said().await.is_none(), "status OK");
    assert!(matches!(fetch.told().await, Some(Ok(Told::Closing(_)))));
    assert!(fetch.told().await.is_none(), "status OK");
    let _ = tokio::time::timeout(PATIENCE, unopened.1.next())
        .await
        .expect("ends too");
    assert!(stopping.await.expect("stopped"), "clean");
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
}

/// Story: clients that follow the drain at once let the node stop at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_is_followed_is_quick() {
    let mut bench = Bench::start().await;
    bench.controller.create_topic("t", 1, &[]);
    produce_until_done(&bench, "t", batch(&["a"])).await;
    let channel = bench.channel();
    let mut produce = Produce::open(&channel, Acks::All).await;
    let node = bench.take_node();
    let begun = Instant::now();
    let stopping = tokio::spawn(node.stop(Duration::from_secs(10)));
    assert!(matches!(produce.said().await, Some(Ok(Said::Drain(_)))));
    let sequence = produce.send("t", 0, &[batch(&["last"])]).await;
    drop(produce.frames);
    let ended = async {
        let mut acked = false;
        while let Some(frame) = produce.answers.next().await {
            if let Some(Said::BatchAck(ack)) = frame.expect("well").frame {
                acked |= ack.up_to_sequence == sequence;
            }
        }
        acked
    };
    assert!(
        tokio::time::timeout(PATIENCE, ended).await.expect("ends"),
        "answered before the end"
    );
    assert!(stopping.await.expect("stopped"));
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
}

/// Story: the controller goes away; producing and reading go on, and when it
/// is back the node is the same process to it.
#[tokio::test(flavor = "multi_thread")]
async fn the_node_serves_without_a_controller() {
    let mut bench = Bench::start().await;
    let id = bench.controller.create_topic("t", 1, &[]);
    produce_until_done(&bench, "t", batch(&["with"])).await;
    bench.controller.kill();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    produce_until_done(&bench, "t", batch(&["without"])).await;
    assert_eq!(read(&bench, "t", 2).await, ["with", "without"]);
    bench.controller.serve().await;
    bench.controller.configure(id, "max.message.bytes", "1024");
    eventually("it hears of changes again", async || {
        let mut produce = Produce::open(&bench.channel(), Acks::All).await;
        produce.send("t", 0, &[support::client::batch_of(2_000)]).await;
        matches!(produce.said().await, Some(Ok(Said::Refusal(refusal)))
            if refusal.error.as_ref().is_some_and(|error| error.code == ErrorCode::BatchTooLarge as i32))
    })
    .await;
    eventually("it has registered again", async || {
        bench.controller.registered().len() >= 2
    })
    .await;
    let registered = bench.controller.registered();
    assert!(
        registered
            .iter()
            .all(|register| register.process_id == registered[0].process_id)
    );
    assert!(produce_until_done(&bench, "t", batch(&["same incarnation"])).await > 1);
}

/// Story: a topic disappears from the view without a tombstone: nothing is
/// served, nothing is deleted. With a tombstone its files go and that is confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn absence_is_not_deletion() {
    let mut bench = Bench::start().await;
    let (kept, doomed) = (
        bench.controller.create_topic("kept", 1, &[]),
        bench.controller.create_topic("doomed", 1, &[]),
    );
    for topic in ["kept", "doomed"] {
        produce_until_done(&bench, topic, batch(&["a"])).await;
    }
    let folder = |id: uuid::Uuid| bench.data().join(format!("{id}-0"));
    let (kept_folder, doomed_folder) = (folder(kept), folder(doomed));
    assert!(kept_folder.is_dir() && doomed_folder.is_dir());
    bench.controller.forget_topic(kept);
    bench.controller.delete_topic(doomed);
    eventually("confirmed", async || {
        bench.controller.confirmed() == [doomed]
    })
    .await;
    assert!(!doomed_folder.exists());
    let mut produce = Produce::open(&bench.channel(), Acks::All).await;
    produce.send("kept", 0, &[batch(&["b"])]).await;
    assert_eq!(produce.refusal().await.0, ErrorCode::UnknownTopic);
    assert!(kept_folder.is_dir());
    // Found on disk at the next start, in no view: still left alone; a tombstone
    // that comes while the node is down is obeyed when it is back.
    drop(produce);
    bench.stop_node(Duration::from_millis(200)).await;
    bench.start_node().await;
    assert!(kept_folder.is_dir());
    bench.stop_node(Duration::from_millis(200)).await;
    bench.controller.delete_topic(kept);
    bench.start_node().await;
    eventually("confirmed", async || {
        bench.controller.confirmed() == [doomed, kept]
    })
    .await;
    assert!(!kept_folder.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_node_stops() {
    let bench = Bench::start().await;
    bench.controller.fence();
    let stopped = tokio::time::timeout(PATIENCE, bench.node().join())
        .await
        .expect("in time");
    assert!(
        matches!(stopped, talweg_storage::Stopped::Fenced(_)),
        "{stopped}"
    );
}

/// Story: clients ask the storage node where leaders are, and follow changes.
#[tokio::test(flavor = "multi_thread")]
async fn metadata_comes_from_the_view() {
    let bench = Bench::start().await;
    let id = bench.controller.create_topic("t", 2, &[]);
    produce_until_done(&bench, "t", batch(&["a"])).await;
    let mut cluster = ClusterServiceClient::new(bench.channel());
    let metadata = cluster
        .get_metadata(GetMetadataRequest::default())
        .await
        .expect("known")
        .into_inner()
        .metadata;
    let metadata = metadata.expect("metadata");
    assert_eq!(metadata.topics[0].partitions.len(), 2);
    assert_eq!(
        metadata.nodes[0].grpc_address,
        format!("http://{}", bench.node().grpc_addr())
    );
    let mut watch = cluster
        .watch_metadata(WatchMetadataRequest {})
        .await
        .expect("known")
        .into_inner();
    let first = watch.message().await.expect("well").expect("open").update;
    assert!(matches!(first, Some(Update::Snapshot(part)) if part.first && part.last));
    bench.controller.move_leader(id, 1, 0);
    let Some(Update::Delta(delta)) = watch.message().await.expect("well").expect("open").update
    else {
        panic!("no delta")
    };
    let partitions = &delta.metadata.as_ref().expect("metadata").topics[0].partitions;
    assert_eq!((partitions[0].leader, partitions[1].leader), (1, 0));
    assert!(delta.previous_revision >= metadata.revision);

    let mut replicas = ReplicaServiceClient::new(bench.channel());
    eventually("leadership of one has gone", async || {
        let answer = replicas
            .describe_replicas(DescribeReplicasRequest::default())
            .await
            .expect("answered");
        let mut all = answer.into_inner().replicas;
        all.sort_by_key(|replica| replica.partition);
        assert_eq!(all.len(), 2);
        let bounds = all[0].bounds.expect("bounds");
        assert_eq!(
            (
                bounds.log_end_offset,
                bounds.flushed_end_offset,
                bounds.high_watermark
            ),
            (1, 1, 1)
        );
        all[0].leader && !all[1].leader && all[0].failure.is_empty()
    })
    .await;
    let bad = DescribeReplicasRequest {
        topic_ids: vec![vec![1].into()],
    };
    let refusal =
        Refusal::from_status(&replicas.describe_replicas(bad).await.expect_err("refused"));
    assert_eq!(refusal.code, ErrorCode::InvalidArgument);
}

/// Story: many partitions are made, written to, and served again after a kill.
#[tokio::test(flavor = "multi_thread")]
async fn many_partitions_come_back() {
    let mut bench = Bench::start().await;
    bench.controller.create_topic("t", 300, &[]);
    eventually("all are led", async || counts(&bench).await == 300).await;
    let mut produce = Produce::open(&bench.channel(), Acks::All).await;
    for partition in 0..300 {
        produce.send("t", partition, &[batch(&["a"])]).await;
    }
    for _ in 0..300 {
        produce.ack().await;
    }
    drop(produce);
    bench.kill_node().await;
    bench.start_node().await;
    eventually("all are led again", async || counts(&bench).await == 300).await;
    let all = (0..300)
        .map(|p| partition("t", p, Start::Earliest(true)))
        .collect();
    let mut fetch = Fetch::open(&bench.channel(), all).await;
    assert_eq!(fetch.values(300).await.len(), 300);
}

async fn counts(bench: &Bench) -> usize {
    let mut replicas = ReplicaServiceClient::new(bench.channel());
    let answer = replicas
        .describe_replicas(DescribeReplicasRequest::default())
        .await
        .expect("answered");
    answer
        .into_inner()
        .replicas
        .iter()
        .filter(|replica| replica.leader)
        .count()
}
