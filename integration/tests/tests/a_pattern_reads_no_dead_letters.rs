//! A group that reads `orders.*` sets a record aside. The dead letter comes back to
//! nobody who subscribed by pattern; who names its topic reads it, and a record that
//! fails there has nowhere to go: its partition pauses with the reason.

mod operator;

use operator::{PATIENCE, list, talweg, until};
use talweg_harness::{
    Member, Stack,
    member::{Commits, Received, subscription},
    raw::{RawProduce, connect, create_topic},
};
use talweg_proto::v1::{self, Acks, ErrorCode};

async fn position_of(stack: &Stack, received: &Received) -> v1::SubscribePosition {
    let topic = talweg(stack, &format!("topic describe {}", received.place.0));
    let id: uuid::Uuid = topic["topic_id"]
        .as_str()
        .expect("an id")
        .parse()
        .expect("a UUID");
    v1::SubscribePosition {
        topic_id: id.as_bytes().to_vec().into(),
        partition: received.place.1,
        offset: received.record.offset,
        ..Default::default()
    }
}

fn by_pattern(group: &str) -> v1::SubscribeOpen {
    v1::SubscribeOpen {
        topics: Vec::new(),
        pattern: "orders.*".into(),
        ..subscription(group, "orders")
    }
}

async fn refuse(stack: &Stack, member: &Member, topic: &str) {
    let at = |received: &Received| received.place.0 == topic;
    member
        .until("the record", PATIENCE, |heard| heard.records.iter().any(at))
        .await;
    let received = member.look(|heard| heard.records.iter().find(|it| at(it)).cloned());
    let position = position_of(stack, &received.expect("there")).await;
    member.nack(position, "no good", true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_come_to_who_names_them() {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "orders", 1, &[]).await;
    let gateways = [stack.gateway(0)];
    let member = Member::join(&gateways, by_pattern("g"), Commits::Asked).await;
    let mut produce = RawProduce::open(&channel, Acks::All).await;
    let bad = v1::Record {
        value: Some("bad".into()),
        ..Default::default()
    };
    produce.record("orders", bad).await.expect("appended");
    refuse(&stack, &member, "orders").await;
    until(&stack, "dlq list --group g", |listed| {
        let mut topics = list(&listed["dead_letters"]).iter();
        topics.any(|it| it["topic"] == "orders.g.dlq" && it["records"] == 1)
    })
    .await;

    // Another group by pattern, and the first one with a new topic that the pattern
    // means: both have seen all topics by then.
    let other = Member::join(&gateways, by_pattern("h"), Commits::Asked).await;
    create_topic(&channel, "orders.eu", 1, &[]).await;
    for (member, group) in [(&member, "g"), (&other, "h")] {
        member
            .until("the new topic", PATIENCE, |heard| {
                heard.owned.contains_key(&("orders.eu".to_owned(), 0))
            })
            .await;
        let topics = member.look(|heard| heard.assigned.clone());
        let derived = topics.iter().find(|((topic, _), _)| topic.contains("dlq"));
        assert_eq!(derived, None, "group {group}");
    }

    let fixer = Member::join(&gateways, subscription("f", "orders.g.dlq"), Commits::Asked).await;
    refuse(&stack, &fixer, "orders.g.dlq").await;
    let paused = |error: &v1::FetchPartitionError| {
        error.topic == "orders.g.dlq"
            && error
                .error
                .as_ref()
                .is_some_and(|it| it.code() == ErrorCode::PartitionPaused)
    };
    fixer
        .until("it pauses and says so", PATIENCE, |heard| {
            heard.partition_errors.iter().any(paused)
        })
        .await;
    let topics = talweg(&stack, "topic list");
    assert!(!topics.to_string().contains("dlq.f"), "{topics}");
}
