//! A partition under load moves to another node with a limit: the limit holds,
//! over the death of the controller too; then the same move goes on without one,
//! and another is cancelled. The writers notice nothing.

mod operator;

use operator::{PATIENCE, all_in_sync, ids, list, talweg, try_talweg, until};
use serde_json::Value;
use std::time::{Duration, Instant};
use talweg_harness::{
    Guard, Load, Stack, eventually,
    raw::{self, RawProduce, connect},
};
use talweg_proto::v1::{
    Acks, DeleteRecordsRequest, DeleteRecordsTarget, offset_service_client::OffsetServiceClient,
    produce_response::Frame,
};
use tonic::transport::Channel;

/// Batches of most of a MiB that are there before.
const BATCHES: usize = 24;
const BATCH_BYTES: usize = 1_000_000;
/// Bytes per second: far less than the machine does, far more than the load.
const LIMIT: u64 = 2_000_000;
/// Over which the rate is measured.
const SPAN: Duration = Duration::from_secs(5);

async fn fill(channel: &Channel) {
    let mut produce = RawProduce::open(channel, Acks::All).await;
    let value: Vec<u8> = (0..BATCH_BYTES).map(|i| (i * i % 251) as u8).collect();
    for _ in 0..BATCHES {
        produce.send_batch("t", 0, raw::batch(&[&value])).await;
        match produce.next().await {
            Ok(Some(Frame::BatchAck(_))) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn bytes_done(status: &Value) -> Option<u64> {
    list(&status["reassignments"]).first()?["bytes_done"].as_u64()
}

/// Bytes copied, and when: as soon as there are more than `above`.
async fn copied(stack: &Stack, above: u64) -> (Instant, u64) {
    eventually("bytes are copied", PATIENCE, || async {
        let before = Instant::now();
        let status = try_talweg(stack, "partition status")?;
        let took = before.elapsed();
        // A slow answer says little about when it was true.
        match bytes_done(&status).filter(|done| *done > above && took < Duration::from_millis(400))
        {
            Some(done) => Ok((before + took / 2, done)),
            None => Err(format!("{status} after {took:?}")),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_holds_and_writers_notice_nothing() {
    let mut stack = Stack::builder()
        .storages(4)
        .controllers_on_etcd(2)
        .set("controller", "election_ttl_ms=2000")
        .start();
    let channel = connect(&stack.gateway(0)).await;
    talweg(
        &stack,
        "topic create t --partitions 1 --replication-factor 3",
    );
    let before = all_in_sync(&stack, "t", 3).await;
    let old = ids(&before["partitions"][0]["replicas"]);
    let new = (1..=4).find(|id| !old.contains(id)).expect("four nodes");
    fill(&channel).await;
    let load = Load::start(vec![stack.gateway(0)], "t", 1, Acks::All).await;
    load.advance(0, 100, PATIENCE).await;
    let guard = Guard::begin(&mut stack, [load.watched()]).await;

    // The preferred leader stays: a follower is replaced.
    let to = format!("{},{},{new}", old[0], old[1]);
    let begun = talweg(
        &stack,
        &format!("partition reassign t:0 --to {to} --throttle {LIMIT}"),
    );
    let first = copied(&stack, LIMIT).await;
    stack.controller.kill9();
    tokio::time::sleep_until((first.0 + SPAN).into()).await;
    let second = copied(&stack, first.1).await;
    let rate = (second.1 - first.1) as f64 / (second.0 - first.0).as_secs_f64();
    let share = rate / LIMIT as f64;
    println!("{rate:.0} bytes/s are {share:.3} of the limit");
    assert!(
        (0.8..=1.2).contains(&share),
        "{rate} bytes/s, {first:?} {second:?}"
    );
    let status = talweg(&stack, "partition status");
    let moving = &list(&status["reassignments"])[0];
    assert_eq!(
        moving["reassignment_id"], begun["reassignment_id"],
        "the same move"
    );
    assert_eq!(moving["throttle_bytes_per_second"], LIMIT);

    // Given again without a limit it is over soon.
    let done = talweg(&stack, &format!("partition reassign t:0 --to {to} --wait"));
    assert_eq!(done["done"], true);
    let after = all_in_sync(&stack, "t", 3).await;
    assert_eq!(
        ids(&after["partitions"][0]["replicas"]),
        [old[0], old[1], new]
    );

    // Another one is taken back, and what it copied goes.
    let gone = eventually("the old replica is deleted", PATIENCE, || async {
        let line = format!(
            "partition reassign t:0 --to {},{new},{} --throttle 100000",
            old[0], old[2]
        );
        try_talweg(&stack, &line)
    });
    gone.await;
    talweg(&stack, "partition cancel t:0");
    let status = talweg(&stack, "partition status");
    assert!(list(&status["reassignments"]).is_empty(), "{status}");
    until(&stack, "cluster describe", |cluster| {
        operator::node(cluster, old[2])["replicas"] == 0
    })
    .await;
    let after = all_in_sync(&stack, "t", 3).await;
    assert_eq!(
        ids(&after["partitions"][0]["replicas"]),
        [old[0], old[1], new]
    );
    for replica in list(&after["partitions"][0]["replicas_detail"]) {
        assert!(
            replica["unknown"].is_null() && replica["in_sync"] == true,
            "{replica}"
        );
        assert!(replica["last_caught_up_ms"].as_i64() > Some(0), "{replica}");
    }

    // The checker knows of the load only.
    let target = DeleteRecordsTarget {
        topic: "t".into(),
        partition: 0,
        before_offset: BATCHES as i64,
        ..Default::default()
    };
    let request = DeleteRecordsRequest {
        targets: vec![target],
    };
    OffsetServiceClient::new(channel)
        .delete_records(request)
        .await
        .expect("deleted");
    tokio::task::block_in_place(|| stack.restart_controller(0));
    let settled = guard.end(&mut stack).await;
    let (acknowledged, streams) = load.finish(&stack.gateway(0)).await;
    println!("{acknowledged} records");
    assert_eq!(streams, 1, "no stream broke");
    settled.replicas_agree(&mut stack).await;
}
