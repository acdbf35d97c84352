//! Failures that others met with consumer groups, replayed on real processes. Each
//! test names its public source and says what was adapted.

mod operator;

use operator::{PATIENCE, list, talweg, try_talweg, until};
use serde_json::Value;
use std::time::{Duration, Instant};
use talweg_client::{ErrorCode, SubscribeEvent, Subscriber};
use talweg_harness::{
    Member, Stack, eventually,
    member::{Commits, client, subscription},
    raw::{self, RawProduce, connect, create_topic},
};
use talweg_proto::v1::{self, Acks};
use tonic::transport::Channel;

const SESSION: Duration = Duration::from_secs(2);

fn short(group: &str) -> v1::SubscribeOpen {
    v1::SubscribeOpen {
        session_timeout_ms: SESSION.as_millis() as u32,
        ..subscription(group, "t")
    }
}

async fn stack(partitions: i32, coordinators: usize) -> (Stack, Channel) {
    let stack = Stack::builder().coordinators(coordinators).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", partitions, &[]).await;
    (stack, channel)
}

async fn produce(channel: &Channel, partitions: u32, count: u32) {
    let mut produce = RawProduce::open(channel, Acks::All).await;
    for n in 0..count {
        let record = v1::Record {
            partition: Some(n % partitions),
            value: Some(n.to_string().into()),
            ..Default::default()
        };
        produce.record("t", record).await.expect("appended");
    }
}

/// What came of a commit of one offset, by a member or by nobody.
async fn commit(
    channel: &Channel,
    group: &str,
    by: Option<(&str, i32)>,
    offset: i64,
) -> Result<(), ErrorCode> {
    raw::commit_by(channel, group, by, ("t", 0), offset).await
}

fn committed(group: &Value, partition: u64) -> Option<i64> {
    let found = list(&group["offsets"])
        .iter()
        .find(|one| one["partition"] == partition);
    found.and_then(|one| one["committed_offset"].as_i64())
}

/// KAFKA-4704: a group was removed and its id used for plain offsets later; on
/// failover loading failed for all groups beside it. Adapted: one topic, ten groups.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b047_a_deleted_groups_name_is_used_again() {
    let (mut stack, channel) = stack(1, 1).await;
    produce(&channel, 1, 20).await;
    let member = Member::join(&[stack.gateway(0)], short("g"), Commits::Frames).await;
    member
        .until("a commit", PATIENCE, |heard| !heard.committed.is_empty())
        .await;
    member.leave(PATIENCE).await;
    talweg(&stack, "group delete g");
    assert_eq!(commit(&channel, "g", None, 7).await, Ok(()));
    for n in 0..10 {
        assert_eq!(
            commit(&channel, &format!("beside-{n}"), None, n).await,
            Ok(())
        );
    }
    stack.coordinators[0].kill9();
    tokio::task::block_in_place(|| stack.coordinators[0].start(PATIENCE));
    until(&stack, "group describe g", |group| {
        committed(group, 0) == Some(7)
    })
    .await;
    for n in 0..10 {
        let line = format!("group describe beside-{n}");
        until(&stack, &line, |group| committed(group, 0) == Some(n)).await;
    }
    stack.shards_agree().await;
}

/// KAFKA-16030, KAFKA-19862: a coordinator served a partial state. Adapted: two
/// coordinators are killed in turn, again while the other one loads; every answer
/// until then is a refusal, and then the last acknowledged offset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b048_a_half_loaded_shard_is_never_served() {
    let (mut stack, channel) = stack(1, 2).await;
    produce(&channel, 1, 200).await;
    for round in 1..=4_i64 {
        for group in 0..20 {
            let acknowledged =
                async || commit(&channel, &format!("g-{group}"), None, round * 40 + group).await;
            let done = eventually("committed", PATIENCE, || async {
                acknowledged().await.map_err(|code| format!("{code:?}"))
            });
            done.await;
        }
        let one = usize::try_from(round % 2).expect("0 or 1");
        stack.coordinators[one].kill9();
        for group in 0..20 {
            let line = format!("group describe g-{group}");
            let answer = eventually("an answer", PATIENCE, || async {
                try_talweg(&stack, &line)
            })
            .await;
            assert_eq!(committed(&answer, 0), Some(round * 40 + group), "{answer}");
        }
        tokio::task::block_in_place(|| stack.coordinators[one].start(PATIENCE));
    }
    stack.shards_agree().await;
}

/// KAFKA-8500: two processes with one instance id were both kept. Adapted: ten rounds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b051_one_of_two_static_members_with_one_name() {
    let (stack, channel) = stack(2, 1).await;
    produce(&channel, 2, 10).await;
    let gateways = [stack.gateway(0)];
    for round in 0..10 {
        let open = || v1::SubscribeOpen {
            instance_id: format!("name-{round}"),
            ..short(&format!("g-{round}"))
        };
        let (clients, opens) = ([client(&gateways), client(&gateways)], [open(), open()]);
        let (one, two) = tokio::join!(
            Subscriber::open(&clients[0], opens[0].clone()),
            Subscriber::open(&clients[1], opens[1].clone())
        );
        let refused = match (one, two) {
            (Ok(_holds), Err(refusal)) | (Err(refusal), Ok(_holds)) => refusal,
            (one, two) => panic!("{:?} {:?}", one.err(), two.err()),
        };
        assert_eq!(refused.code, ErrorCode::InstanceInUse, "{refused:?}");
    }
    stack.shards_agree().await;
}

/// apache/kafka PR #23542: a static member's retry of its join was refused, for its
/// name was taken: by itself. Adapted: the stream breaks before it has read the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b052_a_static_member_is_not_locked_out_by_itself() {
    let (stack, channel) = stack(2, 1).await;
    produce(&channel, 2, 10).await;
    let gateways = [stack.gateway(0)];
    let open = v1::SubscribeOpen {
        instance_id: "me".into(),
        session_timeout_ms: 30_000,
        ..subscription("g", "t")
    };
    for _ in 0..5 {
        let joining = client(&gateways);
        let cut = tokio::time::timeout(
            Duration::from_millis(3),
            Subscriber::open(&joining, open.clone()),
        )
        .await;
        drop(cut);
        let begun = Instant::now();
        let stream = eventually("in again", PATIENCE, || async {
            Subscriber::open(&client(&gateways), open.clone())
                .await
                .map_err(|refusal| refusal.message)
        })
        .await;
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "{:?}",
            begun.elapsed()
        );
        let member = Member::run(stream, Commits::Frames);
        member
            .until("both partitions", PATIENCE, |heard| heard.owned.len() == 2)
            .await;
        member.kill();
    }
    stack.shards_agree().await;
}

/// confluentinc/librdkafka #1442, #1372: offsets expired while a consumer was alive on
/// a quiet topic. Adapted: three seconds instead of a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b054_offsets_of_a_living_group_do_not_expire() {
    const RETENTION: Duration = Duration::from_secs(3);
    let stack = Stack::builder()
        .coordinators(1)
        .set(
            "coordinator",
            &format!("offsets_retention_ms={}", RETENTION.as_millis()),
        )
        .start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", 1, &[]).await;
    produce(&channel, 1, 5).await;
    let member = Member::join(&[stack.gateway(0)], short("g"), Commits::Frames).await;
    member
        .until("a commit", PATIENCE, |heard| !heard.committed.is_empty())
        .await;
    tokio::time::sleep(RETENTION * 3).await;
    let group = talweg(&stack, "group describe g");
    assert_eq!(committed(&group, 0), Some(5), "{group}");
    member.leave(PATIENCE).await;
    eventually("they expire once it is gone", PATIENCE * 2, || async {
        match try_talweg(&stack, "group describe g") {
            Ok(group) => match committed(&group, 0) {
                None => Ok(()),
                Some(_) => Err(group.to_string()),
            },
            Err(refused) if refused.contains("UNKNOWN_GROUP") => Ok(()),
            Err(refused) => Err(refused),
        }
    })
    .await;
    stack.shards_agree().await;
}

/// segmentio/kafka-go #1308: a former owner's late commit moved the offset back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b055_a_late_commit_of_a_former_owner_is_refused() {
    let (stack, channel) = stack(1, 1).await;
    produce(&channel, 1, 10).await;
    let gateways = [stack.gateway(0)];
    let former = Subscriber::open(&client(&gateways), short("g"))
        .await
        .expect("joins");
    let (id, epoch) = (
        former.opened().member_id.clone(),
        former.opened().member_epoch,
    );
    drop(former);
    let owner = Member::join(&gateways, short("g"), Commits::Frames).await;
    owner
        .until("everything", PATIENCE, |heard| {
            heard
                .committed
                .last()
                .is_some_and(|(_, offset)| *offset == 10)
        })
        .await;
    let late = commit(&channel, "g", Some((&id, epoch)), 3).await;
    assert!(
        matches!(late, Err(ErrorCode::Fenced | ErrorCode::UnknownMember)),
        "{late:?}"
    );
    assert_eq!(commit(&channel, "g", None, 3).await, Err(ErrorCode::Fenced));
    assert_eq!(committed(&talweg(&stack, "group describe g"), 0), Some(10));
    owner.leave(PATIENCE).await;
    stack.shards_agree().await;
}

/// IBM/sarama #1608, #3200: slow handlers kept the group rebalancing. Adapted: one
/// member never finishes, its time is two seconds, its session far longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b057_a_slow_member_is_removed_once() {
    let (stack, channel) = stack(2, 1).await;
    produce(&channel, 2, 10).await;
    let gateways = [stack.gateway(0)];
    let slow = v1::SubscribeOpen {
        processing_timeout_ms: 2_000,
        session_timeout_ms: 30_000,
        ..subscription("g", "t")
    };
    let slow = Member::join(&gateways, slow, Commits::Asked).await;
    slow.until("records", PATIENCE, |heard| !heard.records.is_empty())
        .await;
    let quick = Member::join(&gateways, short("g"), Commits::Frames).await;
    slow.until("it is told", PATIENCE, |heard| heard.ended.is_some())
        .await;
    quick
        .until("all is the other's", PATIENCE, |heard| {
            heard.owned.len() == 2 && heard.records.len() >= 10
        })
        .await;
    let epoch = talweg(&stack, "group describe g")["group_epoch"].clone();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let group = talweg(&stack, "group describe g");
    assert_eq!(
        (&group["group_epoch"], &group["state"]),
        (&epoch, &Value::from("stable")),
        "{group}"
    );
    quick.leave(PATIENCE).await;
    stack.shards_agree().await;
}

/// dpkp/kafka-python #1547, #1435: a member whose session was over went on reading.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b058_a_member_out_of_its_group_is_sent_nothing_more() {
    let (stack, channel) = stack(1, 1).await;
    let gateways = [stack.gateway(0)];
    let mut sleeper = Subscriber::open(&client(&gateways), short("g"))
        .await
        .expect("joins");
    let heir = Member::join(&gateways, short("g"), Commits::Frames).await;
    heir.until("it is the heir's", SESSION * 4, |heard| {
        heard.owned.len() == 1
    })
    .await;
    produce(&channel, 1, 10).await;
    heir.until("everything", PATIENCE, |heard| heard.records.len() == 10)
        .await;
    let ends = async {
        loop {
            match sleeper.next().await {
                Ok(SubscribeEvent::Frame(v1::subscribe_response::Frame::Records(records))) => {
                    panic!("{records:?}")
                }
                Ok(_) => {}
                Err(refusal) => return refusal,
            }
        }
    };
    let refusal = tokio::time::timeout(PATIENCE, ends).await.expect("it ends");
    assert!(
        matches!(refusal.code, ErrorCode::Fenced | ErrorCode::UnknownMember),
        "{refusal:?}"
    );
    stack.shards_agree().await;
}

/// nats-io/nats-server PR #6469: records that were handed out when the coordinator
/// died were skipped for ever. Adapted: five deaths between delivery and commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b061_what_was_handed_out_is_committed_or_comes_again() {
    let (mut stack, channel) = stack(2, 2).await;
    let gateways = [stack.gateway(0)];
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..5_u32 {
        produce(&channel, 2, 20).await;
        let member = Member::join(&gateways, short("g"), Commits::Asked).await;
        member
            .until("records", PATIENCE, |heard| heard.records.len() >= 20)
            .await;
        let one = round as usize % 2;
        stack.coordinators[one].kill9();
        member.commit();
        tokio::task::block_in_place(|| stack.coordinators[one].start(PATIENCE));
        member
            .until("the commit is answered", PATIENCE, |heard| {
                heard.committed.len() + heard.commits_refused.len() >= 2
            })
            .await;
        seen.extend(member.look(|heard| {
            let places = heard
                .records
                .iter()
                .map(|received| (received.place.1, received.record.offset));
            places.collect::<Vec<_>>()
        }));
        member.leave(PATIENCE).await;
    }
    let all = (0..2).flat_map(|partition| (0..50).map(move |offset| (partition, offset)));
    assert!(all.eq(seen), "nothing is skipped");
    stack.shards_agree().await;
}

/// confluentinc/librdkafka #5586: a partition was never started because one look-up hit
/// an old coordinator. Adapted: coordinators are killed while ten members join.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b151_every_partition_starts_although_coordinators_move() {
    let (mut stack, channel) = stack(20, 2).await;
    produce(&channel, 20, 20).await;
    let gateways = [stack.gateway(0)];
    let mut members = Vec::new();
    for n in 0..10_usize {
        if n % 3 == 0 {
            stack.coordinators[n / 3 % 2].kill9();
        }
        members.push(Member::join(&gateways, subscription("g", "t"), Commits::Frames).await);
        if n % 3 == 0 {
            tokio::task::block_in_place(|| stack.coordinators[n / 3 % 2].start(PATIENCE));
        }
    }
    eventually(
        "two partitions each, and every record",
        PATIENCE * 2,
        || async {
            let shares: Vec<_> = members.iter().map(|member| member.owned().len()).collect();
            let mut seen = std::collections::BTreeSet::new();
            for member in &members {
                seen.extend(member.look(|heard| {
                    heard
                        .records
                        .iter()
                        .map(|received| received.place.1)
                        .collect::<Vec<_>>()
                }));
            }
            match shares.iter().all(|share| *share == 2) && seen.len() == 20 {
                true => Ok(()),
                false => Err(format!("{shares:?}, {} partitions read", seen.len())),
            }
        },
    )
    .await;
    stack.shards_agree().await;
}

/// twmb/franz-go #57: an automatic commit confirmed what was not handled yet. Adapted:
/// a member with commit-on-ack that acknowledged half of what it was sent leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b157_only_what_was_acknowledged_is_stored() {
    let (stack, channel) = stack(1, 1).await;
    produce(&channel, 1, 10).await;
    let open = v1::SubscribeOpen {
        commit_on_ack: true,
        ..short("g")
    };
    let gateways = [stack.gateway(0)];
    let mut member = Subscriber::open(&client(&gateways), open)
        .await
        .expect("joins");
    let mut seen = 0;
    while seen < 10 {
        let event = tokio::time::timeout(PATIENCE, member.next())
            .await
            .expect("in time");
        if let SubscribeEvent::Frame(v1::subscribe_response::Frame::Records(frame)) =
            event.expect("lives")
        {
            seen += frame.records.len();
            let position = frame.position.expect("a position");
            let half = v1::SubscribePosition {
                topic_id: position.topic_id,
                offset: 5,
                ..Default::default()
            };
            member.ack(vec![half]).await;
        }
    }
    member.leave().await;
    while member.next().await.expect("a goodbye") != SubscribeEvent::Closed {}
    assert_eq!(committed(&talweg(&stack, "group describe g"), 0), Some(5));
    stack.shards_agree().await;
}

/// redpanda-data/redpanda #19888, #3397: a command said that it had succeeded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b160_a_command_that_failed_says_so() {
    let (stack, channel) = stack(1, 1).await;
    produce(&channel, 1, 1).await;
    let member = Member::join(&[stack.gateway(0)], short("g"), Commits::Frames).await;
    member
        .until("a commit", PATIENCE, |heard| !heard.committed.is_empty())
        .await;
    for (line, code) in [
        ("group describe nobody", "UNKNOWN_GROUP"),
        ("group delete nobody", "UNKNOWN_GROUP"),
        ("group delete g", "GROUP_NOT_EMPTY"),
        (
            "group reset g --topic t --to earliest --execute",
            "GROUP_NOT_EMPTY",
        ),
        ("group reset g --topic no --to earliest", "UNKNOWN_TOPIC"),
        ("group lag nobody", "UNKNOWN_GROUP"),
        ("dlq purge t --execute", "INVALID_ARGUMENT"),
    ] {
        let refused = try_talweg(&stack, line).expect_err(line);
        assert!(refused.contains(code), "{line}: {refused}");
    }
    member.leave(PATIENCE).await;
    let dry = talweg(&stack, "group reset g --topic t --to earliest");
    assert_eq!(
        (&dry["executed"], &dry["changes"][0]["to"]),
        (&Value::from(false), &Value::from(0)),
        "{dry}"
    );
    assert_eq!(
        committed(&talweg(&stack, "group describe g"), 0),
        Some(1),
        "a dry run"
    );
    talweg(&stack, "group reset g --topic t --to -1 --execute");
    assert_eq!(committed(&talweg(&stack, "group describe g"), 0), Some(0));
    stack.shards_agree().await;
}
