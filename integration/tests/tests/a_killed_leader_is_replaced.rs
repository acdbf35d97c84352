//! Three storage nodes, replication factor 3, `min.insync.replicas` 2: leaders
//! are killed under load, and nothing acknowledged is lost, doubled or reordered.

use std::{process::Command, time::Duration};
use talweg_harness::{
    Load, Stack, binary, eventually,
    raw::{connect, create_topic},
};
use talweg_proto::v1::{
    Acks, DescribeTopicRequest, PartitionDescription, topic_service_client::TopicServiceClient,
};
use tonic::transport::Channel;

const PARTITIONS: u32 = 3;
/// For a killed node to be in sync again.
const BACK: Duration = Duration::from_secs(40);

async fn describe(channel: &Channel, topic: &str) -> Result<Vec<PartitionDescription>, String> {
    let request = DescribeTopicRequest {
        name: topic.into(),
        ..Default::default()
    };
    let mut topics = TopicServiceClient::new(channel.clone());
    let described = topics.describe_topic(request).await;
    let described = described.map_err(|status| status.to_string())?.into_inner();
    Ok(described.partitions)
}

/// Waits until every partition has a leader and three in sync.
async fn all_in_sync(channel: &Channel, topic: &str) -> Vec<PartitionDescription> {
    eventually("all in sync", BACK, || async {
        let partitions = describe(channel, topic).await?;
        let whole = |p: &PartitionDescription| p.leader > 0 && p.in_sync.len() == 3;
        match partitions.iter().all(whole) {
            true => Ok(partitions),
            false => Err(format!("{partitions:?}")),
        }
    })
    .await
}

/// The digest of a replica's records below `to`, from its files.
fn digest(stack: &Stack, storage: usize, id: &str, partition: u32, to: i64) -> String {
    let folder = stack
        .storage_data(storage)
        .join(format!("{id}-{partition}"));
    let output = Command::new(binary("talweg"))
        .args(["log", "dump", "--digest", "--to", &to.to_string(), "--json"])
        .arg(&folder)
        .output()
        .expect("talweg runs");
    assert!(
        output.status.success(),
        "{}: {}",
        folder.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("text");
    let line = text.lines().last().expect("a line");
    let found: serde_json::Value = serde_json::from_str(line).expect("json");
    found["sha256"].as_str().expect("a digest").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_killed_under_load_lose_nothing_and_replicas_agree() {
    let mut stack = Stack::builder().storages(3).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    let partitions = all_in_sync(&channel, "t").await;
    assert!(partitions.iter().all(|p| p.replicas.len() == 3));
    let load = Load::start(vec![stack.gateway(0)], "t", PARTITIONS, Acks::All).await;
    for round in 0..6_usize {
        load.advance(load.acknowledged(), 60, Duration::from_secs(20))
            .await;
        let partitions = all_in_sync(&channel, "t").await;
        let victim = partitions[round % PARTITIONS as usize].leader as usize - 1;
        stack.storages[victim].kill9();
        load.advance(load.acknowledged(), 60, Duration::from_secs(20))
            .await;
        tokio::task::block_in_place(|| stack.storages[victim].start(Duration::from_secs(20)));
    }
    // One that stops cleanly hands over first.
    let partitions = all_in_sync(&channel, "t").await;
    let stopped = partitions[0].leader as usize - 1;
    stack.storages[stopped].terminate();
    load.advance(load.acknowledged(), 60, Duration::from_secs(20))
        .await;
    tokio::task::block_in_place(|| {
        let (_, status) = stack.storages[stopped].wait_exit(Duration::from_secs(10));
        assert!(status.success(), "{status}");
        stack.storages[stopped].start(Duration::from_secs(20));
    });
    let partitions = all_in_sync(&channel, "t").await;
    let finished = load.finish_with_gap(&stack.gateway(0)).await;
    println!("{finished:?}");
    // A leader is replaced in well under a second; the rest is a busy machine.
    assert!(
        finished.longest_gap < Duration::from_secs(5),
        "{finished:?}"
    );
    let id = topic_id(&channel, "t").await;
    let ends = eventually("equal ends", BACK, || async {
        let now = describe(&channel, "t").await?;
        let ends: Vec<i64> = now
            .iter()
            .map(|p| p.bounds.as_ref().map_or(-1, |bounds| bounds.high_watermark))
            .collect();
        if ends.iter().all(|end| *end > 0) {
            Ok(ends)
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await;
    assert_eq!(partitions.len(), ends.len());
    tokio::task::block_in_place(|| {
        for storage in &mut stack.storages {
            storage.stop(Duration::from_secs(10));
        }
    });
    for (partition, end) in (0..).zip(ends) {
        let digests: Vec<_> = (0..3)
            .map(|storage| digest(&stack, storage, &id, partition, end))
            .collect();
        assert!(
            digests.iter().all(|d| *d == digests[0]),
            "partition {partition}: {digests:?}"
        );
    }
}

/// The controllers stand on a real etcd; the active one is killed and a leader
/// with it: the next controller does not wait for the election lease. Then etcd
/// goes away for a while and writers do not notice; a leader that is killed
/// afterwards is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_and_etcd_may_go_and_the_next_controller_goes_on() {
    let mut stack = Stack::builder()
        .storages(3)
        .controllers_on_etcd(2)
        .set("controller", "election_ttl_ms=10000")
        .start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    all_in_sync(&channel, "t").await;
    let load = Load::start(vec![stack.gateway(0)], "t", PARTITIONS, Acks::All).await;
    load.advance(load.acknowledged(), 60, Duration::from_secs(20))
        .await;
    let leader = all_in_sync(&channel, "t").await[0].leader as usize - 1;
    stack.controller.kill9();
    stack.storages[leader].kill9();
    load.advance(load.acknowledged(), 60, Duration::from_secs(20))
        .await;
    tokio::task::block_in_place(|| stack.storages[leader].start(Duration::from_secs(20)));
    all_in_sync(&channel, "t").await;
    load.advance(load.acknowledged(), 300, Duration::from_secs(20))
        .await;
    let etcd = stack.etcd.as_mut().expect("etcd");
    etcd.pause();
    load.advance(load.acknowledged(), 300, Duration::from_secs(20))
        .await;
    stack.etcd.as_ref().expect("etcd").resume();
    let partitions = all_in_sync(&channel, "t").await;
    let victim = partitions[0].leader as usize - 1;
    stack.storages[victim].kill9();
    load.advance(load.acknowledged(), 60, Duration::from_secs(20))
        .await;
    tokio::task::block_in_place(|| stack.storages[victim].start(Duration::from_secs(20)));
    all_in_sync(&channel, "t").await;
    let finished = load.finish_with_gap(&stack.gateway(0)).await;
    println!("{finished:?}");
    // The lease of the dead controller alone would take ten seconds.
    assert!(
        finished.longest_gap < Duration::from_secs(5),
        "{finished:?}"
    );
}

async fn topic_id(channel: &Channel, topic: &str) -> String {
    let request = DescribeTopicRequest {
        name: topic.into(),
        ..Default::default()
    };
    let mut topics = TopicServiceClient::new(channel.clone());
    let described = topics.describe_topic(request).await.expect("described");
    let topic = described.into_inner().topic.expect("a topic");
    uuid::Uuid::from_slice(&topic.topic_id)
        .expect("16 bytes")
        .to_string()
}
