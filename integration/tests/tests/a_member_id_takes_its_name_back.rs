//! A process behind an instance id hangs with its stream open. A new one that kept
//! nothing but its member id takes its partitions over and fences it; whoever names
//! another member's id, or one that the group does not have, is refused with a code.

mod operator;

use operator::PATIENCE;
use talweg_client::{ErrorCode, Refusal, SubscribeEvent, Subscriber};
use talweg_harness::{
    Stack,
    member::{client, subscription},
    raw::{connect, create_topic},
};
use talweg_proto::v1::{self, subscribe_response::Frame};

const PARTITIONS: usize = 4;

fn open(instance: &str, member_id: &str) -> v1::SubscribeOpen {
    v1::SubscribeOpen {
        instance_id: instance.into(),
        member_id: member_id.into(),
        // A stream that is fenced hears so with its next sign of life.
        session_timeout_ms: 3_000,
        ..subscription("g", "t")
    }
}

/// Until this many partitions were assigned, or the stream's end.
async fn owns(subscriber: &mut Subscriber, partitions: usize) -> Result<(), Refusal> {
    let hear = async {
        let mut owned = 0;
        while owned < partitions {
            if let SubscribeEvent::Frame(Frame::Assigned(assigned)) = subscriber.next().await? {
                owned += assigned.partitions.len();
            }
        }
        Ok(())
    };
    let heard = tokio::time::timeout(PATIENCE, hear).await;
    heard.expect("in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_process_with_the_old_ones_member_id() {
    let stack = Stack::builder().gateways(2).coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    let (here, there) = (client(&[stack.gateway(0)]), client(&[stack.gateway(1)]));
    let mut hangs = Subscriber::open(&here, open("one", "")).await.expect("in");
    owns(&mut hangs, PARTITIONS).await.expect("all of them");
    let id = hangs.opened().member_id.clone();

    let stranger = uuid::Uuid::from_u128(7).to_string();
    for (instance, member_id, code) in [
        ("one", "", ErrorCode::InstanceInUse),
        ("one", stranger.as_str(), ErrorCode::UnknownMember),
        ("two", id.as_str(), ErrorCode::InvalidArgument),
        ("", id.as_str(), ErrorCode::InvalidArgument),
    ] {
        let refused = Subscriber::open(&there, open(instance, member_id)).await;
        let refusal = refused.err().expect("refused");
        assert_eq!(refusal.code, code, "{instance:?} {member_id:?}: {refusal}");
    }

    let mut again = Subscriber::open(&there, open("one", &id))
        .await
        .expect("taken over");
    assert_eq!(again.opened().member_id, id, "the same member");
    owns(&mut again, PARTITIONS).await.expect("the same share");
    let refusal = owns(&mut hangs, usize::MAX).await.expect_err("it is out");
    assert_eq!(refusal.code, ErrorCode::Fenced, "{refusal}");
    stack.shards_agree().await;
}
