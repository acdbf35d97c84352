//! What a storage node tells the controller of replicas that fail or have no room.

mod support;

use support::{
    Bench,
    client::{Produce, batch},
    eventually, topic,
};
use talweg_kit::errors::ErrorCode;
use talweg_proto::{
    controller::v1::ReplicasOfTopic,
    storage::v1::{DescribeReplicasRequest, replica_service_client::ReplicaServiceClient},
    v1::Acks,
};
use uuid::Uuid;

fn named(topics: &[ReplicasOfTopic], id: Uuid) -> Vec<u32> {
    let of = topics.iter().filter(|of| of.topic_id == id.as_bytes()[..]);
    of.flat_map(|of| of.partitions.clone()).collect()
}

/// Story: the folder's disk answers with an error; its replicas fail, and the
/// controller hears which before anybody asks. Another folder's go on.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_a_failed_folder_are_named_to_the_controller() {
    let other = tempfile::TempDir::new().expect("folder");
    let second = other.path().join("second");
    let bench = Bench::start_with(|config| config.data_dirs.push(second.clone())).await;
    let (id, channel) = topic(&bench, "t", 2, &[]).await;
    let mut produce = Produce::open(&channel, Acks::All).await;
    let everything = batch(&["a"]);
    for partition in 0..2 {
        produce.one("t", partition, everything.clone()).await;
    }
    // Partitions alternate between the folders; what is in the second one breaks
    // when it needs a new file.
    let moved = other.path().join("moved");
    std::fs::rename(&second, &moved).expect("renamed");
    std::fs::write(&second, "in the way").expect("written");
    let late = bench.controller.create_topic("u", 2, &[]);
    eventually("a produce fails", async || {
        let mut produce = Produce::open(&bench.channel(), Acks::All).await;
        let mut failed = 0;
        for partition in 0..2 {
            produce
                .send("u", partition, std::slice::from_ref(&everything))
                .await;
            if let Some(Ok(support::client::Said::Refusal(refusal))) = produce.said().await {
                let error = refusal.error.expect("error");
                failed += usize::from(error.code() == ErrorCode::FolderFailed);
            }
        }
        failed == 1
    })
    .await;
    eventually("the controller knows", async || {
        let health = bench.controller.health().unwrap_or_default();
        let (old, new) = (named(&health.failed, id), named(&health.failed, late));
        health.full.is_empty() && (old.len(), new.len()) == (1, 1)
    })
    .await;
    // The other folder's replica takes records as before.
    let health = bench.controller.health().unwrap_or_default();
    let works = 1 - named(&health.failed, id)[0];
    produce.one("t", works, everything).await;
    let asked = DescribeReplicasRequest::default();
    let mut replicas = ReplicaServiceClient::new(channel);
    let described = replicas.describe_replicas(asked).await.expect("described");
    for replica in described.into_inner().replicas {
        let failed = named(
            &health.failed,
            Uuid::from_slice(&replica.topic_id).expect("id"),
        );
        assert_eq!(
            failed.contains(&replica.partition),
            !replica.failure.is_empty()
        );
    }
}

/// Story: below the reserve everything is named as full, and nothing when there
/// is room again.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_a_full_folder_are_named_to_the_controller() {
    let bench = Bench::start_with(|config| config.disk_reserve_bytes = Some(u64::MAX)).await;
    let (id, channel) = topic(&bench, "t", 3, &[]).await;
    let mut produce = Produce::open(&channel, Acks::All).await;
    produce.send("t", 0, &[batch(&["a"])]).await;
    assert_eq!(produce.refusal().await.0, ErrorCode::DiskFull);
    eventually("the controller knows", async || {
        let health = bench.controller.health().unwrap_or_default();
        named(&health.full, id) == [0, 1, 2] && health.failed.is_empty()
    })
    .await;
}
