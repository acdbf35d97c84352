//! Three partitions, c1 has [0 1] and c2 has [2] by range; c2 reads five records and
//! dies before it commits; c1 gets the same five; the lag is 5, and 0 after its commit.

mod operator;

use operator::{PATIENCE, list, talweg, until};
use serde_json::Value;
use talweg_harness::{
    Member, Stack,
    member::{Commits, subscription},
    raw::{RawProduce, connect, create_topic},
};
use talweg_proto::v1::{self, Acks};

const SESSION_MS: u32 = 2_000;

fn member(name: &str) -> v1::SubscribeOpen {
    v1::SubscribeOpen {
        client_id: name.into(),
        assignor: "range".into(),
        session_timeout_ms: SESSION_MS,
        ..subscription("g", "t")
    }
}

fn lag_of(lag: &Value, partition: u64) -> Value {
    let found = list(&lag["lags"])
        .iter()
        .find(|one| one["partition"] == partition);
    found
        .unwrap_or_else(|| panic!("partition {partition} in {lag}"))
        .clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_owner_gets_what_was_read_and_not_committed() {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", 3, &[]).await;
    let gateways = [stack.gateway(0)];
    let c1 = Member::join(&gateways, member("c1"), Commits::Asked).await;
    c1.until("c1 has all", PATIENCE, |heard| heard.owned.len() == 3)
        .await;
    let c2 = Member::join(&gateways, member("c2"), Commits::Asked).await;
    let place = |partition| ("t".to_owned(), partition);
    c2.until("c2 has the last one", PATIENCE, |heard| {
        heard.owned.keys().eq([&place(2)])
    })
    .await;
    c1.until("c1 keeps two", PATIENCE, |heard| {
        heard.owned.keys().eq([&place(0), &place(1)])
    })
    .await;

    let mut produce = RawProduce::open(&channel, Acks::All).await;
    for value in ["a", "b", "c", "d", "e"] {
        let record = v1::Record {
            partition: Some(2),
            value: Some(value.into()),
            ..Default::default()
        };
        produce.record("t", record).await.expect("appended");
    }
    let values = |heard: &talweg_harness::member::Heard| {
        let in_two = heard
            .records
            .iter()
            .filter(|received| received.place == place(2));
        in_two
            .map(|received| (received.record.offset, received.record.value.clone()))
            .collect::<Vec<_>>()
    };
    c2.until("five records", PATIENCE, |heard| values(heard).len() == 5)
        .await;
    let read = values(&c2.kill());
    let lag = until(&stack, "group lag g", |lag| {
        lag_of(lag, 2)["lag_records"] == 5
    })
    .await;
    // Where the first owner began, and no more.
    assert_eq!(lag_of(&lag, 2)["committed_offset"], 0, "{lag}");

    c1.until("the same five", PATIENCE, |heard| values(heard).len() == 5)
        .await;
    assert_eq!(c1.look(|heard| values(heard)), read);
    let lag = talweg(&stack, "group lag g --topic t");
    assert_eq!(lag_of(&lag, 2)["lag_records"], 5, "{lag}");
    assert_eq!(lag_of(&lag, 2)["member"], c1.id(), "{lag}");
    c1.commit();
    let lag = until(&stack, "group lag g", |lag| {
        lag_of(lag, 2)["lag_records"] == 0
    })
    .await;
    assert_eq!(lag_of(&lag, 2)["committed_offset"], 5);
    assert_eq!(lag_of(&lag, 2)["lag_seconds"], 0.0);
    let heard = c1.leave(PATIENCE).await;
    assert_eq!(
        heard.assigned.len(),
        4,
        "partition 0 and 1 stayed: {:?}",
        heard.assigned
    );
    let group = talweg(&stack, "group describe g");
    assert_eq!(group["state"], "empty", "{group}");
    stack.shards_agree().await;
    assert_eq!(stack.alarms(), Vec::<String>::new());
}
