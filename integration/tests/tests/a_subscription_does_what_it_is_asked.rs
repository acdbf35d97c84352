//! What a member may ask of its stream, each on real processes: partitions that pause and
//! go on, a seek, the batch form, records that wait in place, topics by pattern, where it
//! begins without a committed offset.

mod operator;

use bytes::Bytes;
use operator::{PATIENCE, talweg};
use std::time::Duration;
use talweg_client::Subscriber;
use talweg_harness::{
    Member, Stack, eventually,
    member::{Commits, Heard, client, frame, position, subscription},
    raw::{self, RawProduce, connect, create_topic},
};
use talweg_proto::v1::{self, Acks, subscribe_response::Frame};
use tonic::transport::Channel;

async fn started(partitions: i32) -> (Stack, Channel, Bytes) {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    let id = create_topic(&channel, "t", partitions, &[]).await;
    (stack, channel, id)
}

async fn produce(channel: &Channel, topic: &str, partition: u32, values: &[&str]) {
    let mut produce = RawProduce::open(channel, Acks::All).await;
    for value in values {
        let record = v1::Record {
            partition: Some(partition),
            key: Some("k".into()),
            value: Some((*value).to_owned().into()),
            ..Default::default()
        };
        produce.record(topic, record).await.expect("appended");
    }
}

/// Values that came from a partition of `t`, in order.
fn values(heard: &Heard, partition: u32) -> Vec<String> {
    let of = heard.records.iter();
    let of = of.filter(|received| received.place == ("t".to_owned(), partition));
    let value = of.map(|received| received.record.value.as_deref().unwrap_or_default());
    value
        .map(|value| String::from_utf8_lossy(value).into_owned())
        .collect()
}

async fn joined(stack: &Stack, open: v1::SubscribeOpen, commits: Commits, own: usize) -> Member {
    let member = Member::join(&[stack.gateway(0)], open, commits).await;
    member
        .until("its partitions", PATIENCE, |heard| heard.owned.len() == own)
        .await;
    member
}

async fn stored(channel: &Channel, partition: u32, wanted: i64) {
    eventually("it is stored", PATIENCE, || async {
        match raw::stored(channel, "g", "t").await?.get(&partition) {
            Some(offset) if *offset == wanted => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_pauses_and_goes_on() {
    let (stack, channel, id) = started(2).await;
    let member = joined(&stack, subscription("g", "t"), Commits::Frames, 2).await;
    for partition in 0..2 {
        produce(&channel, "t", partition, &["a"]).await;
    }
    member
        .until("one of each", PATIENCE, |heard| heard.records.len() == 2)
        .await;
    member.pause(position(&id, 0, 0));
    // Frames keep their order: when the seek is answered with records, the pause is in force.
    member.seek(position(&id, 1, 0));
    member
        .until("it is sent again", PATIENCE, |heard| {
            values(heard, 1) == ["a", "a"]
        })
        .await;
    for partition in 0..2 {
        produce(&channel, "t", partition, &["b", "c", "d"]).await;
    }
    member
        .until("all of the other one", PATIENCE, |heard| {
            values(heard, 1).len() == 5
        })
        .await;
    assert_eq!(member.look(|heard| values(heard, 0)), ["a"], "paused");
    member.go_on(position(&id, 0, 0));
    member
        .until("it goes on", PATIENCE, |heard| values(heard, 0).len() == 4)
        .await;
    assert_eq!(member.look(|heard| values(heard, 0)), ["a", "b", "c", "d"]);
    let heard = member.leave(PATIENCE).await;
    assert_eq!(heard.partition_errors, vec![]);
    stack.shards_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seek_goes_back_and_may_be_committed() {
    let (stack, channel, id) = started(1).await;
    produce(&channel, "t", 0, &["a", "b", "c", "d", "e"]).await;
    let member = joined(&stack, subscription("g", "t"), Commits::Frames, 1).await;
    member
        .until("all", PATIENCE, |heard| heard.records.len() == 5)
        .await;
    stored(&channel, 0, 5).await;
    member.seek(position(&id, 0, 3));
    member
        .until("from there", PATIENCE, |heard| heard.records.len() == 7)
        .await;
    let all = member.look(|heard| values(heard, 0));
    assert_eq!(all[5..], ["d", "e"]);
    let heard = member.leave(PATIENCE).await;
    assert_eq!(heard.commits_refused, vec![]);
    stored(&channel, 0, 5).await;

    // Without a seek a commit never goes back, after one it does.
    let mut subscriber = Subscriber::open(&client(&[stack.gateway(0)]), subscription("g", "t"))
        .await
        .expect("joins");
    let mut commit = async |offset, seek| {
        if seek {
            subscriber.seek(vec![position(&id, 0, 1)]).await;
            frame(&mut subscriber, PATIENCE, |it| {
                matches!(it, Frame::Records(_)).then_some(())
            })
            .await;
        } else {
            frame(&mut subscriber, PATIENCE, |it| {
                matches!(it, Frame::Assigned(_)).then_some(())
            })
            .await;
        }
        subscriber.commit(vec![position(&id, 0, offset)]).await;
        let answer = frame(&mut subscriber, PATIENCE, |it| match it {
            Frame::Committed(committed) => Some(committed.error),
            _ => None,
        });
        answer.await.map(|error| raw::code(&error))
    };
    let refused = commit(2, false).await;
    assert_eq!(refused, Some(v1::ErrorCode::BelowCommitted));
    assert_eq!(commit(2, true).await, None);
    stored(&channel, 0, 2).await;
    subscriber.leave().await;
    stack.shards_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_come_as_they_were_sent() {
    let (stack, channel, id) = started(1).await;
    let sent = raw::batch(&[b"one", b"two", b"three"]);
    let mut produce = RawProduce::open(&channel, Acks::All).await;
    for _ in 0..2 {
        produce.batch("t", 0, sent.clone()).await.expect("appended");
    }
    let open = v1::SubscribeOpen {
        form: v1::Form::Batches.into(),
        ..subscription("g", "t")
    };
    let mut subscriber = Subscriber::open(&client(&[stack.gateway(0)]), open)
        .await
        .expect("joins");
    let (mut records, mut next) = (Vec::new(), 0);
    while next < 6 {
        let batches = frame(&mut subscriber, PATIENCE, |it| match it {
            Frame::Batches(batches) => Some(batches),
            Frame::Records(records) => panic!("{records:?}"),
            _ => None,
        })
        .await;
        next = batches.position.expect("a position").next_offset;
        for batch in talweg_batch::split_batches(batches.batches) {
            let batch = batch.expect("a whole batch");
            records.extend(talweg_batch::decode_records(&batch, 1 << 20).expect("it decodes"));
        }
    }
    subscriber.commit(vec![position(&id, 0, next)]).await;
    let refused = frame(&mut subscriber, PATIENCE, |it| match it {
        Frame::Committed(committed) => Some(committed.error),
        _ => None,
    });
    assert_eq!(refused.await, None);
    let values: Vec<_> = records
        .iter()
        .map(|it| it.value.as_deref().expect("a value"))
        .collect();
    assert_eq!(
        values,
        [&b"one"[..], b"two", b"three", b"one", b"two", b"three"]
    );
    stored(&channel, 0, 6).await;
    subscriber.leave().await;
    stack.shards_agree().await;
}

/// Order per key is kept: what comes after a failed record waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_record_waits_in_place() {
    const BACKOFF: Duration = Duration::from_secs(1);
    let (stack, channel, id) = started(2).await;
    let open = v1::SubscribeOpen {
        dead_letter_policy: Some(v1::DeadLetterPolicy {
            max_attempts: 3,
            backoff_ms: vec![BACKOFF.as_millis() as u32],
            block: true,
            ..Default::default()
        }),
        ..subscription("g", "t")
    };
    let member = joined(&stack, open, Commits::Asked, 2).await;
    produce(&channel, "t", 1, &["x"]).await;
    produce(&channel, "t", 0, &["bad"]).await;
    let bad = |heard: &Heard| {
        let of = heard.records.iter().filter(|it| it.place.1 == 0);
        let of = of.filter(|it| it.record.value.as_deref() == Some(b"bad"));
        of.map(|it| it.at).collect::<Vec<_>>()
    };
    for attempt in 1..=3 {
        member
            .until("the record", PATIENCE, |heard| bad(heard).len() == attempt)
            .await;
        let times = member.look(bad);
        let waited = times.windows(2).map(|pair| pair[1] - pair[0]);
        let early = waited.min().filter(|waited| *waited < BACKOFF * 9 / 10);
        assert_eq!(early, None, "before its back-off");
        member.nack(position(&id, 0, 0), "no good", false);
        if attempt == 1 {
            // Frames keep their order: when the seek has its answer, the nack is in force.
            member.seek(position(&id, 1, 0));
            member
                .until("the other one again", PATIENCE, |heard| {
                    values(heard, 1).len() == 2
                })
                .await;
            produce(&channel, "t", 0, &["next"]).await;
        }
    }
    // The third time it is set aside, and what was sent after it counts.
    let dead = eventually("a dead letter", PATIENCE, || async {
        let bounds = raw::bounds(&channel, "t.g.dlq", 0).await?;
        match bounds.high_watermark {
            1 => Ok(raw::read_all(&channel, "t.g.dlq", 0).await),
            end => Err(end.to_string()),
        }
    })
    .await;
    member
        .until("the next one", PATIENCE, |heard| {
            values(heard, 0).last().is_some_and(|last| last == "next")
        })
        .await;
    // Each time it came before what is behind it.
    let all = member.look(|heard| values(heard, 0));
    let rounds: Vec<_> = all.split(|value| value == "bad").collect();
    assert_eq!(rounds.len(), 4, "{all:?}");
    assert!(rounds[0].is_empty() && rounds[1].is_empty(), "{all:?}");
    assert!(rounds.iter().all(|after| after.len() <= 1), "{all:?}");
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].value.as_deref(), Some(&b"bad"[..]));
    let topics = talweg(&stack, "topic list");
    let retry = operator::list(&topics["topics"]).iter().any(|topic| {
        topic["name"]
            .as_str()
            .is_some_and(|name| name.contains(".retry."))
    });
    assert!(!retry, "no retry topic: {topics}");
    member.commit();
    stored(&channel, 0, 2).await;
    member.leave(PATIENCE).await;
    stack.shards_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pattern_finds_topics_that_come_later() {
    let (stack, channel, _) = started(1).await;
    create_topic(&channel, "orders-a", 1, &[]).await;
    let open = v1::SubscribeOpen {
        topics: Vec::new(),
        pattern: "orders-.*".into(),
        ..subscription("g", "t")
    };
    let member = joined(&stack, open, Commits::Frames, 1).await;
    create_topic(&channel, "orders-b", 2, &[]).await;
    create_topic(&channel, "no-orders-c", 1, &[]).await;
    produce(&channel, "orders-b", 1, &["new"]).await;
    member
        .until("the new one", PATIENCE, |heard| heard.owned.len() == 3)
        .await;
    member
        .until("its record", PATIENCE, |heard| heard.records.len() == 1)
        .await;
    let places: Vec<_> = member.owned().into_iter().collect();
    let expected = [("orders-a", 0), ("orders-b", 0), ("orders-b", 1)];
    assert_eq!(
        places,
        expected.map(|(topic, partition)| (topic.to_owned(), partition))
    );
    let revoked = member.leave(PATIENCE).await.revoked;
    assert_eq!(revoked, vec![], "nothing was asked back for it");
    stack.shards_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_it_begins_without_a_committed_offset() {
    let (stack, channel, id) = started(1).await;
    produce(&channel, "t", 0, &["a", "b"]).await;
    let policy = |group: &str, policy: v1::ResetPolicy| v1::SubscribeOpen {
        reset_policy: policy.into(),
        ..subscription(group, "t")
    };
    let latest = policy("g", v1::ResetPolicy::Latest);
    let member = joined(&stack, latest.clone(), Commits::Frames, 1).await;
    // The end that it chose is stored, so that nothing after it is missed.
    stored(&channel, 0, 2).await;
    produce(&channel, "t", 0, &["c"]).await;
    member
        .until("only what is new", PATIENCE, |heard| {
            !heard.records.is_empty()
        })
        .await;
    assert_eq!(member.look(|heard| values(heard, 0)), ["c"]);
    member.leave(PATIENCE).await;
    produce(&channel, "t", 0, &["d"]).await;
    let member = joined(&stack, latest, Commits::Frames, 1).await;
    member
        .until("what came meanwhile", PATIENCE, |heard| {
            values(heard, 0) == ["d"]
        })
        .await;
    member.leave(PATIENCE).await;

    let none = policy("n", v1::ResetPolicy::None);
    let member = joined(&stack, none.clone(), Commits::Frames, 1).await;
    member
        .until("it is refused", PATIENCE, |heard| {
            !heard.partition_errors.is_empty()
        })
        .await;
    let errors = member.look(|heard| heard.partition_errors.clone());
    let error = errors[0].error.as_ref().expect("an error");
    assert_eq!(
        raw::code(error),
        v1::ErrorCode::OffsetOutOfRange,
        "{error:?}"
    );
    // It may say where.
    member.seek(position(&id, 0, 3));
    member
        .until("from there", PATIENCE, |heard| values(heard, 0) == ["d"])
        .await;
    member.leave(PATIENCE).await;
    produce(&channel, "t", 0, &["e"]).await;
    let member = joined(&stack, none, Commits::Frames, 1).await;
    member
        .until("on from the commit", PATIENCE, |heard| {
            values(heard, 0) == ["e"]
        })
        .await;
    let heard = member.leave(PATIENCE).await;
    assert_eq!(heard.partition_errors, vec![]);
    stack.shards_agree().await;
}
