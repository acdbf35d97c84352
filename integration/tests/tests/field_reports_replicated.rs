//! Failures that others met with replicated partitions, replayed on real
//! processes. Each test names its public source and says what was adapted.

use bytes::Bytes;
use std::time::Duration;
use talweg_harness::{
    Load, Process, Stack, eventually, flip, free_port,
    http::call,
    raw::{
        self, PLENTY, RawFetch, RawProduce, batch, bounds, code, connect, create_topic, describe,
        detail, drain, from, in_sync, leader, numbered_batch, read_all,
    },
    replica,
};
use talweg_proto::v1::{
    self, Acks, ErrorCode, FetchOpen, Form, cluster_service_client::ClusterServiceClient,
    fetch_partition::Start, fetch_response, topic_service_client::TopicServiceClient,
};
use talweg_types::{ProducerEpoch, ProducerId, Sequence};
use tokio::task::block_in_place;
use tonic::transport::Channel;

const START: Duration = Duration::from_secs(30);
const STOP: Duration = Duration::from_secs(15);
/// For progress on a busy machine.
const PROGRESS: Duration = Duration::from_secs(30);

async fn produce(c: &Channel, partition: u32, bytes: Bytes) -> Result<i64, v1::ErrorDetail> {
    let mut stream = RawProduce::open(c, Acks::All).await;
    stream.batch("t", partition, bytes).await
}

async fn create(c: &Channel, name: &str, replication_factor: i32) -> Bytes {
    let request = v1::CreateTopicRequest {
        name: name.into(),
        partitions: Some(1),
        replication_factor: Some(replication_factor),
        ..Default::default()
    };
    let created = TopicServiceClient::new(c.clone())
        .create_topic(request)
        .await;
    let topic = created.expect("created").into_inner().topic;
    topic.expect("a topic").topic_id
}

async fn delete(c: &Channel, name: &str) {
    let request = v1::DeleteTopicRequest {
        name: name.into(),
        ..Default::default()
    };
    let deleted = TopicServiceClient::new(c.clone())
        .delete_topic(request)
        .await;
    deleted.expect("deleted");
}

fn texts(records: &[v1::FetchedRecord]) -> Vec<String> {
    let text = |r: &v1::FetchedRecord| {
        String::from_utf8_lossy(r.value.as_deref().unwrap_or(b"?")).into_owned()
    };
    records.iter().map(text).collect()
}

/// B001, redpanda-data/redpanda #3039: the leader is killed while a batch is in
/// flight; the retry gets the original offset and the value is there once.
/// Adapted: 4 rounds; half of the batches are answered before the kill.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b001_a_retry_after_the_leaders_death_gets_the_first_offset() {
    let mut stack = Stack::builder().storages(3).start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 1, &[]).await;
    for round in 0..4_i32 {
        in_sync(&c, "t", 3).await;
        let value = format!("v{round}");
        let bytes = numbered_batch(
            &[value.as_bytes()],
            ProducerId(91),
            ProducerEpoch(0),
            Sequence(round),
        );
        let victim = leader(&c, "t", 0).await;
        let mut stream = RawProduce::open(&c, Acks::All).await;
        stream.send_batch("t", 0, bytes.clone()).await;
        if round % 2 == 0 {
            stack.storages[victim].kill9();
        }
        let first = match stream.next().await.expect("lives") {
            Some(v1::produce_response::Frame::BatchAck(ack)) => ack.base_offsets[0],
            other => panic!("round {round}: {other:?}"),
        };
        if round % 2 == 1 {
            stack.storages[victim].kill9();
        }
        assert_eq!(first, i64::from(round));
        assert_eq!(
            produce(&c, 0, bytes).await,
            Ok(first),
            "the original offset"
        );
        block_in_place(|| stack.storages[victim].start(START));
    }
    assert_eq!(texts(&read_all(&c, "t", 0).await), ["v0", "v1", "v2", "v3"]);
}

/// B007, confluentinc/librdkafka #4134: two of three nodes are frozen for longer
/// than the session and thawed; nothing that was read disappears, nothing is
/// missing or twice. Adapted: producers number their batches and send the same
/// bytes again, which is what our answer "unknown" asks for; two rounds of 4 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b007_two_frozen_nodes_leave_no_gap() {
    let stack = Stack::builder().storages(3).start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 2, &[]).await;
    in_sync(&c, "t", 3).await;
    let load = Load::start(vec![stack.gateway(0)], "t", 2, Acks::All).await;
    for frozen in [[0, 1], [1, 2]] {
        load.advance(load.acknowledged(), 60, PROGRESS).await;
        let mut known = Vec::new();
        for partition in 0..2 {
            known.push(
                bounds(&c, "t", partition)
                    .await
                    .expect("bounds")
                    .high_watermark,
            );
        }
        frozen
            .iter()
            .for_each(|node: &usize| stack.storages[*node].pause());
        tokio::time::sleep(Duration::from_secs(4)).await;
        frozen
            .iter()
            .for_each(|node| stack.storages[*node].resume());
        load.advance(load.acknowledged(), 60, PROGRESS).await;
        in_sync(&c, "t", 3).await;
        for (partition, before) in (0..).zip(known) {
            let now = bounds(&c, "t", partition)
                .await
                .expect("bounds")
                .high_watermark;
            assert!(now >= before, "partition {partition}: {before} → {now}");
        }
    }
    load.finish(&stack.gateway(0)).await;
}

/// B017, infinyon/fluvio #3788: start at the end is the end on one replica and
/// on three, through each gateway, right after a leader change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b017_the_end_is_the_end_on_three_replicas_too() {
    let mut stack = Stack::builder().storages(3).gateways(2).start();
    let c = connect(&stack.gateway(0)).await;
    let topics = ["one", "three"];
    create(&c, topics[0], 1).await;
    create(&c, topics[1], 3).await;
    in_sync(&c, "three", 3).await;
    let hundred = vec![&b"old"[..]; 100];
    for topic in topics {
        let mut stream = RawProduce::open(&c, Acks::All).await;
        assert_eq!(stream.batch(topic, 0, batch(&hundred)).await, Ok(0));
    }
    let victim = leader(&c, "three", 0).await;
    stack.storages[victim].kill9();
    block_in_place(|| stack.storages[victim].start(START));
    let mut readers = Vec::new();
    for topic in topics {
        leader(&c, topic, 0).await;
        for gateway in 0..2 {
            let channel = connect(&stack.gateway(gateway)).await;
            let open = FetchOpen {
                partitions: vec![from(topic, 0, Start::Latest(true))],
                credit: Some(PLENTY),
                ..Default::default()
            };
            let (reader, opened) = RawFetch::open_with(&channel, open).await;
            assert_eq!(opened.positions[0].next_offset, 100, "{topic}");
            readers.push(reader);
        }
        let mut stream = RawProduce::open(&c, Acks::All).await;
        for _ in 0..5 {
            stream
                .batch(topic, 0, batch(&[b"new"]))
                .await
                .expect("produce");
        }
    }
    for reader in &mut readers {
        let found = reader.take(5).await;
        let right = |((_, r), offset): (&(u32, v1::FetchedRecord), i64)| {
            r.offset == offset && r.value.as_deref() == Some(b"new")
        };
        assert!(found.iter().zip(100..).all(right), "{found:?}");
    }
}

/// B029, KAFKA-14704: a leader holds records that nobody confirmed and is
/// replaced; no reader ever sees them, however early it reads there. Adapted:
/// the followers are killed instead of cut off, then the old leader is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b029_an_unconfirmed_tail_is_never_read() {
    let mut stack = Stack::builder().storages(3).start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 1, &[]).await;
    in_sync(&c, "t", 3).await;
    produce(&c, 0, batch(&[b"sure"])).await.expect("produce");
    let old = leader(&c, "t", 0).await;
    let others: Vec<_> = (0..3).filter(|node| *node != old).collect();
    // One after the other, so that the set falls below its minimum at the last.
    for (node, left) in others.iter().zip([2, 1]) {
        stack.storages[*node].kill9();
        in_sync(&c, "t", left).await;
    }
    let direct = connect(&stack.storage(old)).await;
    let mut stream = RawProduce::open(&direct, Acks::Leader).await;
    for _ in 0..100 {
        let taken = stream.batch("t", 0, batch(&[b"unconfirmed"])).await;
        taken.expect("acks=1 within the session time-out");
    }
    stack.storages[old].kill9();
    for node in others.iter().rev() {
        block_in_place(|| stack.storages[*node].start(START));
    }
    let mut stream = RawProduce::open(&c, Acks::All).await;
    let more = vec![&b"sure"[..]; 150];
    assert_eq!(
        stream.batch("t", 0, batch(&more)).await,
        Ok(1),
        "over the old tail"
    );
    block_in_place(|| stack.storages[old].start(START));
    // Through a gateway and at the old leader itself, until it is in sync again.
    let direct = connect(&stack.storage(old)).await;
    let mut seen_directly = 0;
    loop {
        for record in read_all(&c, "t", 0).await {
            assert_eq!(
                record.value.as_deref(),
                Some(&b"sure"[..]),
                "at {}",
                record.offset
            );
        }
        seen_directly += read_replica(&direct).await;
        let partitions = describe(&c, "t").await.expect("described");
        if partitions[0].in_sync.len() == 3 {
            break;
        }
    }
    println!("{seen_directly} frames were read at the old leader");
    assert_eq!(
        bounds(&c, "t", 0).await.expect("bounds").log_end_offset,
        151
    );
}

/// Reads what a storage node gives of the partition, from the start; how many frames.
async fn read_replica(direct: &Channel) -> usize {
    let open = FetchOpen {
        partitions: vec![from("t", 0, Start::Earliest(true))],
        credit: Some(PLENTY),
        form: Form::Batches.into(),
        ..Default::default()
    };
    let (mut stream, _) = RawFetch::open_with(direct, open).await;
    let mut frames = 0;
    loop {
        match stream.next().await.expect("lives").expect("goes on") {
            fetch_response::Frame::Batches(frame) => {
                frames += 1;
                let records = talweg_batch::decode_records(&frame.batches, 16 << 20);
                for record in records.expect("whole batches") {
                    assert_eq!(record.value.as_deref(), Some(&b"sure"[..]));
                }
            }
            // It leads nothing, or there is no more.
            fetch_response::Frame::PartitionError(_) | fetch_response::Frame::Positions(_) => {
                return frames;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// B032, KAFKA-15021: a replica that shuts down does not hold the watermark up.
/// Adapted: each node in turn, whatever it leads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b032_a_leaving_replica_does_not_hold_the_watermark() {
    let mut stack = Stack::builder().storages(3).start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 3, &[]).await;
    in_sync(&c, "t", 3).await;
    let load = Load::start(vec![stack.gateway(0)], "t", 3, Acks::All).await;
    for node in 0..3 {
        load.advance(load.acknowledged(), 90, PROGRESS).await;
        block_in_place(|| stack.storages[node].stop(STOP));
        load.advance(load.acknowledged(), 90, PROGRESS).await;
        block_in_place(|| stack.storages[node].start(START));
        in_sync(&c, "t", 3).await;
    }
    let finished = load.finish_with_gap(&stack.gateway(0)).await;
    println!("{finished:?}");
    assert!(
        finished.longest_gap < Duration::from_secs(2),
        "the story's produce time-out: {finished:?}"
    );
}

/// B035, KAFKA-8346 / KIP-461: one batch that cannot be copied holds up its own
/// partition only, and that one goes on once the cause is gone, without a restart.
/// Adapted: 12 partitions on two nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b035_one_bad_batch_does_not_stop_the_other_partitions() {
    const PARTITIONS: u32 = 12;
    let mut stack = Stack::builder()
        .storages(2)
        // Followers are served from the files, where the damage is.
        .set("storage", "tail_bytes=0")
        .start();
    let c = connect(&stack.gateway(0)).await;
    let config = [("min.insync.replicas", "1")];
    let id = create_topic(&c, "t", PARTITIONS as i32, &config).await;
    in_sync(&c, "t", 2).await;
    block_in_place(|| stack.storages[1].stop(STOP));
    for partition in 0..PARTITIONS {
        for _ in 0..20 {
            produce(&c, partition, batch(&[b"value"]))
                .await
                .expect("produce");
        }
    }
    let segment = replica(&stack.storage_data(0), &id, 0).join(format!("{:020}.log", 0));
    let position = 10 * batch(&[b"value"]).len() + 64;
    flip(&segment, position as u64);
    block_in_place(|| stack.storages[1].start(START));
    eventually("all but one in sync", PROGRESS, || async {
        let partitions = describe(&c, "t").await?;
        match partitions[1..].iter().all(|p| p.in_sync.len() == 2) {
            true => Ok(()),
            false => Err(format!("{partitions:?}")),
        }
    })
    .await;
    for partition in 1..PARTITIONS {
        produce(&c, partition, batch(&[b"more"]))
            .await
            .expect("both take it");
    }
    let bad = &describe(&c, "t").await.expect("described")[0];
    assert_eq!(
        (bad.leader, bad.in_sync.as_slice()),
        (1, &[1][..]),
        "not the damaged one"
    );
    flip(&segment, position as u64);
    in_sync(&c, "t", 2).await;
}

/// B036, infinyon/fluvio #4472, #4452: a follower that is far behind catches up
/// while writes go on, with batches of the largest size too. Adapted: 48 MB in
/// batches of 3 MB, the most that we allow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b036_a_follower_far_behind_catches_up() {
    let mut stack = Stack::builder().storages(3).start();
    let c = connect(&stack.gateway(0)).await;
    let config = [
        ("max.message.bytes", "3145728"),
        ("max.record.bytes", "3145000"),
    ];
    create_topic(&c, "t", 1, &config).await;
    in_sync(&c, "t", 3).await;
    let behind = (leader(&c, "t", 0).await + 1) % 3;
    block_in_place(|| stack.storages[behind].stop(STOP));
    let large = batch(&[&vec![7; 3_000_000]]);
    let mut stream = RawProduce::open(&c, Acks::All).await;
    for offset in 0..16 {
        assert_eq!(stream.batch("t", 0, large.clone()).await, Ok(offset));
    }
    block_in_place(|| stack.storages[behind].start(START));
    let load = tokio::spawn({
        let c = c.clone();
        async move {
            for _ in 0..100 {
                produce(&c, 0, batch(&[b"small"]))
                    .await
                    .expect("writes go on");
            }
        }
    });
    in_sync(&c, "t", 3).await;
    load.await.expect("the load");
    assert_eq!(
        bounds(&c, "t", 0).await.expect("bounds").high_watermark,
        116
    );
}

/// B043, KAFKA-16452: a replica has lost its watermark file and is put in charge
/// as soon as it may be; the visible end does not fall.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b043_a_lost_watermark_does_not_move_the_visible_end_back() {
    let mut stack = Stack::builder().storages(3).start();
    let c = connect(&stack.gateway(0)).await;
    let id = create_topic(&c, "t", 1, &[]).await;
    in_sync(&c, "t", 3).await;
    for _ in 0..50 {
        produce(&c, 0, batch(&[b"x"])).await.expect("produce");
    }
    let victim = (leader(&c, "t", 0).await + 1) % 3;
    block_in_place(|| stack.storages[victim].stop(STOP));
    let lost = replica(&stack.storage_data(victim), &id, 0).join("partition");
    std::fs::remove_file(&lost).expect("it was there");
    block_in_place(|| stack.storages[victim].start(START));
    let others: Vec<u32> = (1..=3).filter(|node| *node != victim as u32 + 1).collect();
    drain(&c, &others).await;
    eventually("it leads", PROGRESS, || async {
        let end = bounds(&c, "t", 0).await.map(|b| b.high_watermark);
        assert!(!matches!(end, Ok(..50)), "the visible end fell: {end:?}");
        match leader(&c, "t", 0).await == victim {
            true => Ok(()),
            false => Err("not yet".into()),
        }
    })
    .await;
    in_sync(&c, "t", 3).await;
    assert_eq!(read_all(&c, "t", 0).await.len(), 50);
    assert_eq!(produce(&c, 0, batch(&[b"x"])).await, Ok(50));
}

/// B108, KAFKA-14616: a topic is recreated while one of three nodes is down; the
/// node comes back, leads, and has only the new values.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b108_a_node_that_missed_a_recreation_leads_with_the_new_topic() {
    let mut stack = Stack::builder().storages(3).start();
    let c = connect(&stack.gateway(0)).await;
    let old = create_topic(&c, "t", 1, &[]).await;
    in_sync(&c, "t", 3).await;
    produce(&c, 0, batch(&[b"old", b"old"]))
        .await
        .expect("produce");
    in_sync(&c, "t", 3).await;
    block_in_place(|| stack.storages[2].stop(STOP));
    delete(&c, "t").await;
    let new = create(&c, "t", 2).await;
    assert_ne!(old, new);
    eventually("taken", PROGRESS, || async {
        let taken = produce(&c, 0, batch(&[b"new"])).await;
        taken.map_err(|e| e.message)
    })
    .await;
    let data = stack.storage_data(2);
    assert!(replica(&data, &old, 0).exists(), "the old data waits there");
    block_in_place(|| stack.storages[2].start(START));
    // While it was away the new topic was placed on the others.
    let request = v1::ReassignPartitionRequest {
        topic: "t".into(),
        partition: 0,
        to: vec![3, 1],
        throttle_bytes_per_second: 0,
    };
    let moved = ClusterServiceClient::new(c.clone())
        .reassign_partition(request)
        .await;
    moved.expect("begun");
    eventually("it is moved", PROGRESS, || async {
        let partitions = describe(&c, "t").await?;
        match partitions[0].replicas.contains(&3) && partitions[0].in_sync.len() == 2 {
            true => Ok(()),
            false => Err(format!("{partitions:?}")),
        }
    })
    .await;
    drain(&c, &[1, 2]).await;
    eventually("it leads", PROGRESS, || async {
        match leader(&c, "t", 0).await {
            2 => Ok(()),
            other => Err(format!("{other} leads")),
        }
    })
    .await;
    assert_eq!(texts(&read_all(&c, "t", 0).await), ["new"]);
    eventually("the old data is gone", PROGRESS, || async {
        match replica(&data, &old, 0).exists() {
            false => Ok(()),
            true => Err("still there".into()),
        }
    })
    .await;
}

/// B112, etcd-io/etcd #11947, #9992: etcd takes no writes (NOSPACE). Produce and
/// fetch go on, changes get a clear error, and all is well once it is disarmed;
/// an idle cluster writes nothing. Adapted: the alarm is raised, not waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b112_an_etcd_without_space_stops_changes_only() {
    let stack = Stack::builder().storages(3).controllers_on_etcd(2).start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 1, &[]).await;
    in_sync(&c, "t", 3).await;
    let etcd = stack.etcd_url.clone().expect("etcd");
    let ask = |path: &'static str, body: &'static str| {
        let url = format!("{etcd}/v3/{path}");
        async move { call("POST", &url, &[], body).await.json }
    };
    let revision = || async {
        let status = ask("kv/range", r#"{"key":"AA=="}"#).await;
        let text = status["header"]["revision"].as_str().map(str::to_owned);
        text.unwrap_or_else(|| panic!("{status}"))
    };
    let before = revision().await;
    produce(&c, 0, batch(&[b"x"])).await.expect("produce");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        revision().await,
        before,
        "sessions and records write nothing"
    );
    ask(
        "maintenance/alarm",
        r#"{"action":"ACTIVATE","memberID":"0","alarm":"NOSPACE"}"#,
    )
    .await;
    let request = || v1::CreateTopicRequest {
        name: "u".into(),
        partitions: Some(1),
        ..Default::default()
    };
    let mut topics = TopicServiceClient::new(c.clone());
    let refused = topics.create_topic(request()).await.expect_err("no space");
    let refused = detail(&refused);
    assert!(
        matches!(code(&refused), ErrorCode::Unavailable),
        "{refused:?}"
    );
    assert!(refused.retriable, "{refused:?}");
    assert_eq!(produce(&c, 0, batch(&[b"y"])).await, Ok(1));
    assert_eq!(texts(&read_all(&c, "t", 0).await), ["x", "y"]);
    ask(
        "maintenance/alarm",
        r#"{"action":"DEACTIVATE","memberID":"0","alarm":"NOSPACE"}"#,
    )
    .await;
    eventually("changes are taken again", PROGRESS, || async {
        let created = TopicServiceClient::new(c.clone())
            .create_topic(request())
            .await;
        match created {
            Ok(_) => Ok(()),
            // An attempt before may have been done after all.
            Err(status) if code(&detail(&status)) == ErrorCode::TopicExists => Ok(()),
            Err(status) => Err(status.to_string()),
        }
    })
    .await;
}

/// B115, nats-io/nats-server #2792: two of three nodes have lost their disks and
/// start first; nothing is created anew under the old name, no empty replica
/// leads, and with the good one all is there. A node with data is refused by
/// another cluster's controller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b115_wiped_nodes_do_not_make_the_cluster_look_new() {
    let mut stack = Stack::builder().storages(3).start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 1, &[]).await;
    in_sync(&c, "t", 3).await;
    for _ in 0..20 {
        produce(&c, 0, batch(&[b"x"])).await.expect("produce");
    }
    stack.storages.iter_mut().for_each(Process::kill9);
    for wiped in 0..2 {
        std::fs::remove_dir_all(stack.storage_data(wiped)).expect("wiped");
        block_in_place(|| stack.storages[wiped].start(START));
    }
    let existing = TopicServiceClient::new(c.clone())
        .create_topic(v1::CreateTopicRequest {
            name: "t".into(),
            partitions: Some(1),
            ..Default::default()
        })
        .await
        .expect_err("it is there");
    assert_eq!(code(&detail(&existing)), ErrorCode::TopicExists);
    let partitions = describe(&c, "t").await.expect("described");
    assert_eq!(
        partitions[0].leader, 0,
        "no empty replica leads: {partitions:?}"
    );
    block_in_place(|| stack.storages[2].start(START));
    assert_eq!(leader(&c, "t", 0).await, 2);
    // The wiped ones have new ids: an operator puts them in the lost ones' place.
    let request = v1::ReassignPartitionRequest {
        topic: "t".into(),
        partition: 0,
        to: vec![3, 4, 5],
        throttle_bytes_per_second: 0,
    };
    let mut cluster = ClusterServiceClient::new(c.clone());
    cluster.reassign_partition(request).await.expect("begun");
    in_sync(&c, "t", 3).await;
    eventually("all is there", PROGRESS, || async {
        let end = bounds(&c, "t", 0).await?.high_watermark;
        if end == 20 {
            Ok(())
        } else {
            Err(format!("{end}"))
        }
    })
    .await;
    assert_eq!(read_all(&c, "t", 0).await.len(), 20);

    let other = Stack::builder().start();
    stack.storages[2].kill9();
    let settings = [
        format!("grpc=127.0.0.1:{}", free_port()),
        format!("http=127.0.0.1:{}", free_port()),
        format!("data_dirs={}", stack.storage_data(2).display()),
        format!("controllers={}", other.controller()),
    ];
    let args = settings.into_iter().flat_map(|s| ["--set".into(), s]);
    let mut stranger = Process::new("stranger", "talweg-storage", args.collect(), stack.folder());
    stranger.spawn();
    let (_, status) = block_in_place(|| stranger.wait_exit(START));
    assert!(!status.success(), "it must not serve another cluster");
    assert!(
        stranger.log().contains("cluster"),
        "{}",
        stranger.log_tail()
    );
}

/// B116, redpanda-data/redpanda #7355, #9452: a move to a node that dies half way
/// is cancelled, and a dead node can be drained, brought back and removed.
/// Adapted: 6 partitions; the node is frozen first, so that no move ends early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b116_a_move_to_a_dead_node_can_be_cancelled() {
    const PARTITIONS: u32 = 6;
    let mut stack = Stack::builder().storages(4).start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "other", 1, &[]).await;
    drain(&c, &[4]).await;
    create_topic(&c, "t", PARTITIONS as i32, &[]).await;
    let before = in_sync(&c, "t", 3).await;
    assert!(
        before.iter().all(|p| !p.replicas.contains(&4)),
        "it is drained"
    );
    produce(&c, 0, batch(&[b"x"])).await.expect("produce");
    let mut cluster = ClusterServiceClient::new(c.clone());
    let undrain = v1::UndrainNodeRequest { node_id: 4 };
    cluster.undrain_node(undrain).await.expect("undrained");
    stack.storages[3].pause();
    for partition in 0..PARTITIONS {
        let request = v1::ReassignPartitionRequest {
            topic: "t".into(),
            partition,
            to: vec![4, 1, 2],
            throttle_bytes_per_second: 0,
        };
        cluster.reassign_partition(request).await.expect("begun");
    }
    stack.storages[3].kill9();
    let moves = cluster
        .list_reassignments(v1::ListReassignmentsRequest {})
        .await;
    let moves = moves.expect("listed").into_inner().reassignments;
    assert_eq!(moves.len(), PARTITIONS as usize);
    for moving in moves {
        let request = v1::CancelReassignmentRequest {
            reassignment_id: moving.reassignment_id,
        };
        cluster
            .cancel_reassignment(request)
            .await
            .expect("cancelled");
    }
    eventually("no move is left", PROGRESS, || async {
        let listed = ClusterServiceClient::new(c.clone())
            .list_reassignments(v1::ListReassignmentsRequest {})
            .await
            .map_err(|e| e.to_string())?
            .into_inner();
        match listed.reassignments.is_empty() {
            true => Ok(()),
            false => Err(format!("{listed:?}")),
        }
    })
    .await;
    let sets = |all: &[v1::PartitionDescription]| {
        let sets = all.iter().map(|p| {
            let mut replicas = p.replicas.clone();
            replicas.sort_unstable();
            replicas
        });
        sets.collect::<Vec<_>>()
    };
    // The gateway may describe what it knew a moment ago.
    eventually("all is as it was", PROGRESS, || async {
        let after = describe(&c, "t").await?;
        let whole = after.iter().all(|p| p.leader > 0 && p.in_sync.len() == 3);
        match whole && sets(&before) == sets(&after) {
            true => Ok(()),
            false => Err(format!("{after:?}")),
        }
    })
    .await;
    drain(&c, &[4]).await;
    // Dead, it can be drained; what holds a replica cannot be removed.
    delete(&c, "other").await;
    eventually("the dead node is removed", PROGRESS, || async {
        let request = v1::RemoveNodeRequest { node_id: 4 };
        let removed = ClusterServiceClient::new(c.clone())
            .remove_node(request)
            .await;
        removed.map(drop).map_err(|e| e.to_string())
    })
    .await;
    produce(&c, 0, batch(&[b"y"])).await.expect("produce");
}

/// B118, KAFKA-16234: one of two disks of a node comes back empty. What lay on it
/// does not lead from nothing; it is copied again, then counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b118_a_lost_disk_comes_back_as_a_learner() {
    const PARTITIONS: u32 = 4;
    let disks = tempfile::TempDir::with_prefix("talweg-disks-").expect("temp folder");
    let (first, second) = (disks.path().join("first"), disks.path().join("second"));
    let dirs = format!("data_dirs={},{}", first.display(), second.display());
    let mut stack = Stack::builder()
        .storages(3)
        .set_one("storage", 2, &dirs)
        .start();
    let c = connect(&stack.gateway(0)).await;
    let id = create_topic(&c, "t", PARTITIONS as i32, &[]).await;
    in_sync(&c, "t", 3).await;
    for partition in 0..PARTITIONS {
        produce(&c, partition, batch(&[b"a", b"b"]))
            .await
            .expect("produce");
    }
    in_sync(&c, "t", 3).await;
    let on_second: Vec<u32> = (0..PARTITIONS)
        .filter(|p| replica(&second, &id, *p).exists())
        .collect();
    assert!(
        !on_second.is_empty() && on_second.len() < PARTITIONS as usize,
        "{on_second:?}"
    );
    block_in_place(|| stack.storages[2].stop(STOP));
    std::fs::remove_dir_all(&second).expect("the disk is lost");
    for other in 0..2 {
        stack.storages[other].kill9();
    }
    block_in_place(|| stack.storages[2].start(START));
    // Alone it may not lead what it has lost, nor hand on what it never had.
    let partitions = describe(&c, "t").await.expect("described");
    for partition in &on_second {
        assert_eq!(partitions[*partition as usize].leader, 0, "{partitions:?}");
    }
    for other in 0..2 {
        block_in_place(|| stack.storages[other].start(START));
    }
    in_sync(&c, "t", 3).await;
    for partition in 0..PARTITIONS {
        assert_eq!(texts(&read_all(&c, "t", partition).await), ["a", "b"]);
        let copied = [&first, &second].map(|disk| replica(disk, &id, partition).exists());
        assert_eq!(
            copied.iter().filter(|there| **there).count(),
            1,
            "{partition}"
        );
    }
}

/// B143, apache/pulsar #20968: every process is restarted in turn under load,
/// each step waiting for all replicas; everything acknowledged is read, and no
/// error that retrying does not mend. Adapted: one round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b143_a_rolling_restart_loses_nothing() {
    let mut stack = Stack::builder()
        .storages(3)
        .gateways(2)
        .controllers_on_etcd(2)
        .set("controller", "election_ttl_ms=2000")
        .start();
    let urls = vec![stack.gateway(0), stack.gateway(1)];
    let c = connect(&urls[1]).await;
    create_topic(&c, "t", 2, &[]).await;
    in_sync(&c, "t", 3).await;
    let load = Load::start(urls.clone(), "t", 2, Acks::All).await;
    let step = async |c: &Channel, load: &Load| {
        load.advance(load.acknowledged(), 60, PROGRESS).await;
        in_sync(c, "t", 3).await;
    };
    for node in 0..3 {
        block_in_place(|| {
            stack.storages[node].stop(STOP);
            stack.storages[node].start(START);
        });
        step(&c, &load).await;
    }
    block_in_place(|| {
        stack.controller.stop(STOP);
        stack
            .controller
            .start_at(port_of(&stack.controller()), START);
    });
    step(&c, &load).await;
    for (gateway, url) in urls.iter().enumerate() {
        block_in_place(|| {
            stack.gateways[gateway].stop(STOP);
            stack.gateways[gateway].start(START);
        });
        let c = connect(url).await;
        step(&c, &load).await;
    }
    load.finish(&urls[0]).await;
}

fn port_of(url: &str) -> u16 {
    let port = url.rsplit(':').next().and_then(|port| port.parse().ok());
    port.expect("a port")
}

/// B163, Jepsen Bufstream 0.1.0: no fault at all; topics come and go, segments
/// roll, another topic expires. What was acknowledged can be read. Adapted: 3,000
/// records of numbered producers on four partitions through two gateways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b163_a_healthy_cluster_loses_nothing() {
    let stack = Stack::builder().storages(3).gateways(2).start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 4, &[("segment.bytes", "8192")]).await;
    let expiring = [("retention.ms", "200"), ("segment.bytes", "4096")];
    create_topic(&c, "noise", 1, &expiring).await;
    in_sync(&c, "t", 3).await;
    let load = Load::start(vec![stack.gateway(0), stack.gateway(1)], "t", 4, Acks::All).await;
    let mut round = 0;
    while load.acknowledged() < 3_000 {
        let name = format!("passing-{round}");
        create_topic(&c, &name, 2, &[]).await;
        let mut noise = RawProduce::open(&c, Acks::Leader).await;
        for _ in 0..4 {
            let taken = noise.batch("noise", 0, batch(&[&[1; 2_000]])).await;
            taken.expect("a healthy cluster");
        }
        delete(&c, &name).await;
        round += 1;
        load.advance(load.acknowledged(), 30, PROGRESS).await;
    }
    let (acknowledged, _) = load.finish(&stack.gateway(1)).await;
    assert!(acknowledged >= 3_000 && round > 2, "{acknowledged} {round}");
    eventually("the other topic expires", PROGRESS, || async {
        let bounds = raw::bounds(&c, "noise", 0).await.expect("bounds");
        match bounds.log_start_offset {
            0 => Err(format!("{bounds:?}")),
            _ => Ok(()),
        }
    })
    .await;
}
