//! A leader's disk answers with an error while its process lives: the controller
//! takes its replicas out of the in-sync sets, others lead, and writers go on.
//! Restarted on a disk that works it is in sync again.

mod operator;

use operator::{PATIENCE, all_in_sync, ids, list, node, talweg, until};
use serde_json::Value;
use std::{fs, time::Duration};
use talweg_harness::{Guard, Load, Stack};
use talweg_proto::v1::Acks;

const PARTITIONS: u32 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_folder_leads_nothing() {
    let mut stack = Stack::builder().storages(3).start();
    talweg(
        &stack,
        "topic create t --partitions 3 --replication-factor 3 --config segment.bytes=65536",
    );
    let before = all_in_sync(&stack, "t", 3).await;
    let victim = before["partitions"][0]["leader"]
        .as_u64()
        .expect("a leader");
    let place = victim as usize - 1;
    let load = Load::start(vec![stack.gateway(0)], "t", PARTITIONS, Acks::All).await;
    load.advance(0, 300, PATIENCE).await;
    let guard = Guard::begin(&mut stack, [load.watched()]).await;

    // What is open stays open; the next segment cannot be made.
    let topic_id = before["topic_id"].as_str().expect("an id");
    let folder = stack.storage_data(place).join(format!("{topic_id}-0"));
    let aside = stack.folder().join("aside");
    fs::rename(&folder, &aside).expect("renamed");
    let elsewhere = |topic: &Value| {
        list(&topic["partitions"]).iter().all(|p| {
            p["leader"].as_u64().is_some_and(|leader| leader != victim)
                && !ids(&p["in_sync"]).contains(&victim)
        })
    };
    let after = until(&stack, "topic describe t", elsewhere).await;
    let failed = |p: &Value| {
        let replicas = list(&p["replicas_detail"]).iter();
        let mut of_victim = replicas.filter(|replica| replica["node"] == victim);
        of_victim.all(|replica| !replica["failure"].is_null())
    };
    assert!(list(&after["partitions"]).iter().all(failed), "{after}");
    // With the next heartbeat.
    until(&stack, "cluster describe", |cluster| {
        let described = node(cluster, victim);
        described["alive"] == true && !described["folders"][0]["failure"].is_null()
    })
    .await;
    load.advance(load.acknowledged(), 500, PATIENCE).await;

    stack.storages[place].kill9();
    fs::rename(&aside, &folder).expect("renamed back");
    tokio::task::block_in_place(|| stack.storages[place].start(Duration::from_secs(30)));
    all_in_sync(&stack, "t", 3).await;
    let settled = guard.end(&mut stack).await;
    let finished = load.finish_with_gap(&stack.gateway(0)).await;
    println!("{finished:?}");
    assert!(
        finished.longest_gap < Duration::from_secs(8),
        "{finished:?}"
    );
    settled.replicas_agree(&mut stack).await;
}
