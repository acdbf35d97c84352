//! Five nodes in three racks. A whole rack, two nodes, is killed at once: every
//! partition that is spread over racks is led elsewhere and acks=all goes on; with
//! replication factor 5 and min.insync 3 nothing is lost either.

mod operator;

use operator::{PATIENCE, all_in_sync, ids, list, talweg, until};
use serde_json::Value;
use std::time::Duration;
use talweg_harness::{Guard, Load, Stack};
use talweg_proto::v1::Acks;

/// Places of the nodes of rack r0; their ids are one more.
const RACK: [usize; 2] = [0, 3];

fn dead(id: u64) -> bool {
    RACK.iter().any(|place| *place as u64 + 1 == id)
}

fn led_elsewhere(topic: &Value) -> bool {
    list(&topic["partitions"])
        .iter()
        .all(|p| p["leader"].as_u64().is_some_and(|leader| !dead(leader)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rack_dies_and_nothing_is_lost() {
    let mut stack = Stack::builder().storages(5).racks(3).start();
    talweg(
        &stack,
        "topic create spread --partitions 5 --replication-factor 3",
    );
    talweg(
        &stack,
        "topic create wide --partitions 3 --replication-factor 5 --config min.insync.replicas=3",
    );
    let spread = all_in_sync(&stack, "spread", 3).await;
    all_in_sync(&stack, "wide", 5).await;
    for partition in list(&spread["partitions"]) {
        let there = ids(&partition["replicas"])
            .into_iter()
            .filter(|id| dead(*id));
        assert_eq!(there.count(), 1, "one replica a rack: {partition}");
    }
    let gateway = vec![stack.gateway(0)];
    let loads = [
        Load::start(gateway.clone(), "spread", 5, Acks::All).await,
        Load::start(gateway, "wide", 3, Acks::All).await,
    ];
    for load in &loads {
        load.advance(0, 300, PATIENCE).await;
    }
    let watched = [loads[0].watched(), loads[1].watched()];
    let guard = Guard::begin(&mut stack, watched).await;
    tokio::task::block_in_place(|| RACK.iter().for_each(|place| stack.storages[*place].kill9()));
    for topic in ["spread", "wide"] {
        until(&stack, &format!("topic describe {topic}"), led_elsewhere).await;
    }
    for load in &loads {
        load.advance(load.acknowledged(), 300, PATIENCE).await;
    }
    let wide = all_in_sync(&stack, "wide", 3).await;
    for replica in list(&wide["partitions"][0]["replicas_detail"]) {
        let away = dead(replica["node"].as_u64().expect("an id"));
        assert_eq!(away, !replica["unknown"].is_null(), "{replica}");
        assert_eq!(away, replica["log_end_offset"].is_null(), "{replica}");
    }
    tokio::task::block_in_place(|| {
        for place in RACK {
            stack.storages[place].start(Duration::from_secs(30));
        }
    });
    all_in_sync(&stack, "spread", 3).await;
    all_in_sync(&stack, "wide", 5).await;
    let settled = guard.end(&mut stack).await;
    for load in loads {
        let finished = load.finish_with_gap(&stack.gateway(0)).await;
        println!("{finished:?}");
        assert!(
            finished.longest_gap < Duration::from_secs(8),
            "{finished:?}"
        );
    }
    settled.replicas_agree(&mut stack).await;
}
