//! Under load a node is drained and undrained; a fourth storage node and a third
//! gateway join, get their share, and leave again. No writer's stream breaks and
//! no other process is restarted.

mod operator;

use operator::{
    PATIENCE, all_in_sync, another_gateway, another_storage, ids, list, node, talweg, until,
};
use serde_json::Value;
use std::time::Duration;
use talweg_harness::{Guard, Load, Process, Stack};
use talweg_proto::v1::Acks;

const PARTITIONS: u32 = 6;

fn pids(stack: &Stack) -> Vec<u32> {
    let all = [&stack.controller].into_iter();
    let all = all.chain(&stack.storages).chain(&stack.gateways);
    all.map(Process::pid).collect()
}

/// Replicas and leaders of the storage nodes.
fn counts(cluster: &Value) -> Vec<(u64, u64)> {
    let nodes = list(&cluster["nodes"]).iter();
    let storage = nodes.filter(|node| node["plane"] == "storage" && node["alive"] == true);
    let count = |node: &Value, key: &str| node[key].as_u64().expect("a count");
    storage
        .map(|node| (count(node, "replicas"), count(node, "leaders")))
        .collect()
}

fn even(counts: impl Iterator<Item = u64> + Clone) -> bool {
    let (most, least) = (counts.clone().max(), counts.min());
    most <= least.map(|least| least + 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_disturbed_by_nodes_that_come_and_go() {
    let mut stack = Stack::builder()
        .storages(3)
        .gateways(2)
        .set("controller", "preferred_leader_ms=500")
        .start();
    let processes = pids(&stack);
    talweg(
        &stack,
        &format!("topic create t --partitions {PARTITIONS} --replication-factor 3"),
    );
    talweg(
        &stack,
        "topic create u --partitions 1 --replication-factor 3",
    );
    all_in_sync(&stack, "t", 3).await;
    let load = Load::start(vec![stack.gateway(0)], "t", PARTITIONS, Acks::All).await;
    load.advance(0, 500, PATIENCE).await;
    let guard = Guard::begin(&mut stack, [load.watched()]).await;

    // Drained, it leads nothing and stays in sync; undrained, it leads again.
    talweg(&stack, "node drain 1");
    let drained = until(&stack, "cluster describe", |cluster| {
        node(cluster, 1)["drain"] == "drained"
    })
    .await;
    assert_eq!(node(&drained, 1)["leaders"], 0);
    load.advance(load.acknowledged(), 500, PATIENCE).await;
    all_in_sync(&stack, "t", 3).await;
    talweg(&stack, "node undrain 1");
    until(&stack, "cluster describe", |cluster| {
        node(cluster, 1)["leaders"].as_u64() > Some(1)
    })
    .await;

    // A node and a gateway join.
    let mut fourth = another_storage(&stack, "storage-late");
    let (mut third, url) = another_gateway(&stack, "gateway-late");
    until(&stack, "cluster describe", |cluster| {
        counts(cluster).len() == 4
    })
    .await;
    let late = Load::start(vec![url], "u", 1, Acks::All).await;
    let plan = talweg(&stack, "cluster balance --plan");
    assert!(
        !list(&plan["moves"]).is_empty() && plan["bytes_total"].as_u64() > Some(0),
        "{plan}"
    );
    assert_eq!(
        node(&talweg(&stack, "cluster describe"), 4)["replicas"],
        0,
        "a plan changes nothing"
    );
    let balanced = talweg(&stack, "cluster balance --execute --throttle 40000000");
    assert_eq!(
        (&balanced["done"], &balanced["executed"]),
        (&true.into(), &true.into())
    );
    until(&stack, "cluster describe", |cluster| {
        let counts = counts(cluster);
        even(counts.iter().map(|c| c.0)) && even(counts.iter().map(|c| c.1))
    })
    .await;
    let again = talweg(&stack, "cluster balance --execute");
    assert_eq!(again["moves_total"], 0, "twice is once: {again}");
    late.advance(late.acknowledged(), 100, PATIENCE).await;
    load.advance(load.acknowledged(), 500, PATIENCE).await;

    // And leave again.
    talweg(&stack, "node drain 4");
    talweg(&stack, "cluster balance --execute");
    let left = talweg(&stack, "cluster describe");
    assert_eq!(node(&left, 4)["replicas"], 0, "{left}");
    let finished = late.finish(&stack.gateway(1)).await;
    assert_eq!(finished.1, 1, "no stream of the third gateway broke");
    tokio::task::block_in_place(|| {
        third.stop(Duration::from_secs(10));
        fourth.stop(Duration::from_secs(10));
    });
    talweg(&stack, "node remove 4");
    load.advance(load.acknowledged(), 500, PATIENCE).await;
    let described = all_in_sync(&stack, "t", 3).await;
    for partition in list(&described["partitions"]) {
        assert!(!ids(&partition["replicas"]).contains(&4), "{partition}");
    }
    let settled = guard.end(&mut stack).await;
    let finished = load.finish_with_gap(&stack.gateway(1)).await;
    println!("{finished:?}");
    assert_eq!(finished.reconnects, PARTITIONS as usize, "no stream broke");
    assert_eq!(pids(&stack), processes);
    assert!(stack.storages.iter_mut().all(Process::is_running));
    settled.replicas_agree(&mut stack).await;
}
