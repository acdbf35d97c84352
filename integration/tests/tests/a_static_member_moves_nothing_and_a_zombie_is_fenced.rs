//! A static member that is restarted within its session gets its partitions back
//! and moves nobody's; a second claimant is refused while the first one lives. A member
//! that sleeps past its session and wakes is fenced: its commits are refused with a
//! code, and what it had not committed was read by its successor.

mod operator;

use operator::PATIENCE;
use std::time::Duration;
use talweg_client::{ErrorCode, SubscribeEvent, Subscriber};
use talweg_harness::{
    Member, Stack, eventually,
    member::{Commits, Heard, client, subscription},
    raw::{RawProduce, connect, create_topic},
};
use talweg_proto::v1::{self, Acks, subscribe_response::Frame};

const PARTITIONS: u32 = 4;
const SESSION: Duration = Duration::from_secs(3);

fn open(instance: &str) -> v1::SubscribeOpen {
    v1::SubscribeOpen {
        instance_id: instance.into(),
        session_timeout_ms: SESSION.as_millis() as u32,
        ..subscription("g", "t")
    }
}

async fn fill(stack: &Stack, records: u32) {
    let channel = connect(&stack.gateway(0)).await;
    let mut produce = RawProduce::open(&channel, Acks::All).await;
    for n in 0..records {
        let record = v1::Record {
            partition: Some(n % PARTITIONS),
            value: Some(n.to_string().into()),
            ..Default::default()
        };
        produce.record("t", record).await.expect("appended");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_static_member_within_its_session_moves_nothing() {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    let gateways = [stack.gateway(0)];
    let one = Member::join(&gateways, open("one"), Commits::Frames).await;
    let two = Member::join(&gateways, open("two"), Commits::Frames).await;
    for member in [&one, &two] {
        member
            .until("half each", PATIENCE, |heard| heard.owned.len() == 2)
            .await;
    }
    fill(&stack, 40).await;
    two.until("its half of the records", PATIENCE, |heard| {
        heard.records.len() == 20
    })
    .await;

    let taken = Subscriber::open(&client(&gateways), open("two")).await;
    let refusal = taken.err().expect("the holder lives");
    assert_eq!(refusal.code, ErrorCode::InstanceInUse, "{refusal:?}");

    let counts = |heard: &Heard| (heard.assigned.len(), heard.revoked.len());
    let (had, others) = (two.owned(), one.look(counts));
    two.until("all is committed", PATIENCE, |heard| {
        heard.committed.len() >= 2
    })
    .await;
    two.kill();
    // Until the gateway has told the coordinator that the stream is gone, it is in use.
    let again = eventually("the instance is free", SESSION, || async {
        let stream = Subscriber::open(&client(&gateways), open("two")).await;
        stream.map_err(|refusal| refusal.message)
    })
    .await;
    let again = Member::run(again, Commits::Frames);
    again
        .until("its partitions are back", PATIENCE, |heard| {
            heard.owned.len() == 2
        })
        .await;
    assert_eq!(again.owned(), had);
    fill(&stack, 8).await;
    again
        .until("what came since", PATIENCE, |heard| {
            heard.records.len() >= 4
        })
        .await;
    one.until("the other goes on", PATIENCE, |heard| {
        heard.records.len() >= 24
    })
    .await;
    assert_eq!(one.look(counts), others, "nothing of the other moved");
}

/// Frames of this stream until one is wanted.
async fn frame<T>(subscriber: &mut Subscriber, wanted: impl Fn(Frame) -> Option<T>) -> T {
    let hear = async {
        loop {
            match subscriber.next().await.expect("the stream lives") {
                SubscribeEvent::Frame(frame) => {
                    if let Some(found) = wanted(frame) {
                        return found;
                    }
                }
                event => panic!("{event:?}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, hear).await.expect("in time")
}

/// The zombie's process: it is stopped with SIGSTOP, so that not even its
/// connections answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_slept_past_its_session_is_fenced() {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    let gateways = [stack.gateway(0)];
    fill(&stack, 40).await;
    let short = v1::SubscribeOpen {
        session_timeout_ms: SESSION.as_millis() as u32,
        ..subscription("g", "t")
    };
    let mut zombie = Subscriber::open(&client(&gateways), short.clone())
        .await
        .expect("joins");
    let first = frame(&mut zombie, |frame| match frame {
        Frame::Records(records) => Some(records.position.expect("a position")),
        _ => None,
    })
    .await;
    // Nobody polls the stream any more: no heartbeat of the member's leaves.
    let heir = Member::join(&gateways, short, Commits::Frames).await;
    heir.until("all is the heir's", SESSION * 4, |heard| {
        heard.owned.len() == PARTITIONS as usize
    })
    .await;
    heir.until("every record", PATIENCE, |heard| heard.records.len() == 40)
        .await;

    let position = v1::SubscribePosition {
        topic_id: first.topic_id.clone(),
        partition: first.partition,
        offset: first.next_offset,
        ..Default::default()
    };
    zombie.commit(vec![position]).await;
    let refused = async {
        loop {
            match zombie.next().await {
                Ok(SubscribeEvent::Frame(Frame::Committed(committed))) => {
                    return talweg_client::Refusal::from_detail(committed.error.expect("refused"));
                }
                // What was buffered before it slept is not processed by anybody twice knowingly.
                Ok(SubscribeEvent::Frame(_)) => {}
                Ok(event) => panic!("{event:?}"),
                Err(refusal) => return refusal,
            }
        }
    };
    let refused = tokio::time::timeout(PATIENCE, refused)
        .await
        .expect("an answer");
    let known = [ErrorCode::Fenced, ErrorCode::UnknownMember];
    assert!(known.contains(&refused.code), "{refused:?}");
    let heard = heir.leave(PATIENCE).await;
    let mut last = std::collections::BTreeMap::new();
    for (place, offset) in heard.committed {
        let before = last.insert(place.clone(), offset);
        assert!(
            before.is_none_or(|before| before <= offset),
            "{place:?} stepped back to {offset}"
        );
    }
}
