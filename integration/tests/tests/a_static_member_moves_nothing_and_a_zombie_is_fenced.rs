//! A static member that is restarted within its session gets its partitions back
//! and moves nobody's; a second claimant is refused while the first one lives. A member
//! whose process is stopped past its session and goes on is fenced: its commits are
//! refused with a code, of what waits in its buffers nothing is stored, and its successor
//! went on exactly where it had committed.

mod operator;

use operator::PATIENCE;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use talweg_client::{ErrorCode, SubscribeEvent, Subscriber};
use talweg_harness::{
    Member, Process, Stack, eventually,
    member::{Commits, Heard, Received, client, subscription},
    raw::{self, RawProduce, connect, create_topic},
};
use talweg_proto::v1::{self, Acks, subscribe_response::Frame};
use tonic::transport::Channel;

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
    stack.shards_agree().await;
}

/// Set for the process of the zombie: the gateway, and a file that tells it to go on.
const GATEWAY: &str = "TALWEG_ZOMBIE_GATEWAY";
const GO_ON: &str = "TALWEG_ZOMBIE_GOES_ON";

/// What the zombie says on standard error, a line each.
fn said(zombie: &Process, what: &str) -> Vec<String> {
    let log = zombie.log();
    let mark = format!("zombie {what} ");
    let lines = log.lines().filter_map(|line| line.strip_prefix(&mark));
    lines.map(str::to_owned).collect()
}

/// `partition offset`
fn place(text: &str) -> (u32, i64) {
    let (partition, offset) = text.split_once(' ').expect("two words");
    (
        partition.parse().expect("a partition"),
        offset.parse().expect("an offset"),
    )
}

fn committing(position: &v1::PartitionPosition, offset: i64) -> Vec<v1::SubscribePosition> {
    vec![v1::SubscribePosition {
        topic_id: position.topic_id.clone(),
        partition: position.partition,
        offset,
        ..Default::default()
    }]
}

/// The zombie: commits half of its first frame, then neither reads nor is there, and
/// goes on with what its buffers hold as if nothing had been.
#[tokio::test]
#[ignore = "the process of the zombie, which its story starts"]
async fn the_zombie() {
    let (Ok(gateway), Ok(go_on)) = (std::env::var(GATEWAY), std::env::var(GO_ON)) else {
        return;
    };
    let gateways = [gateway];
    let mut member = Subscriber::open(&client(&gateways), short())
        .await
        .expect("joins");
    let id = member.opened().member_id.clone();
    let mut epoch = member.opened().member_epoch;
    let first = loop {
        match member.next().await.expect("the stream lives") {
            SubscribeEvent::Frame(Frame::Assigned(assigned)) => epoch = assigned.member_epoch,
            SubscribeEvent::Frame(Frame::Records(records)) => break records,
            event => eprintln!("zombie heard {event:?}"),
        }
    };
    let position = first.position.expect("a position");
    let half = first.records[first.records.len() / 2].offset;
    member.commit(committing(&position, half)).await;
    loop {
        if let SubscribeEvent::Frame(Frame::Committed(committed)) =
            member.next().await.expect("the stream lives")
        {
            assert_eq!(committed.error, None);
            break;
        }
    }
    eprintln!("zombie committed {} {half}", position.partition);
    println!("the zombie is ready");
    // Stopped and resumed meanwhile; it reads nothing.
    while !std::path::Path::new(&go_on).exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    member
        .commit(committing(&position, position.next_offset))
        .await;
    loop {
        match member.next().await {
            Ok(SubscribeEvent::Frame(Frame::Records(records))) => {
                let at = records.position.expect("a position");
                for record in &records.records {
                    eprintln!("zombie read {} {}", at.partition, record.offset);
                }
                member.commit(committing(&at, at.next_offset)).await;
            }
            Ok(SubscribeEvent::Frame(Frame::Committed(committed))) => match committed.error {
                Some(error) => eprintln!("zombie refused {:?}", raw::code(&error)),
                None => eprintln!("zombie stored {committed:?}"),
            },
            Ok(event) => eprintln!("zombie heard {event:?}"),
            Err(refusal) => {
                eprintln!("zombie refused {:?}", refusal.code);
                break;
            }
        }
    }
    // As one that bypasses the stream, with what it knew.
    let channel = connect(&gateways[0]).await;
    let at = ("t", position.partition);
    let late = raw::commit_by(&channel, "g", Some((&id, epoch)), at, half).await;
    eprintln!("zombie late {late:?}");
    eprintln!("zombie over .");
}

fn short() -> v1::SubscribeOpen {
    v1::SubscribeOpen {
        session_timeout_ms: SESSION.as_millis() as u32,
        ..subscription("g", "t")
    }
}

/// Stored offsets now, none of which may be lower than before.
async fn no_step_back(channel: &Channel, last: &mut BTreeMap<u32, i64>) {
    let now = eventually("offsets", PATIENCE, || raw::stored(channel, "g", "t")).await;
    for (partition, offset) in now {
        let before = last.insert(partition, offset);
        assert!(
            before.is_none_or(|before| before <= offset),
            "partition {partition} stepped back from {before:?} to {offset}"
        );
    }
}

/// The zombie's process is stopped with SIGSTOP, so that not even its connections
/// answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_slept_past_its_session_is_fenced() {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    let gateways = [stack.gateway(0)];
    let witness = Member::join(&gateways, subscription("w", "t"), Commits::Frames).await;
    fill(&stack, 40).await;
    let go_on = stack.folder().join("go-on");
    let program = std::env::current_exe().expect("this test");
    let args = ["--exact", "the_zombie", "--ignored", "--nocapture"];
    let args = args.map(str::to_owned).to_vec();
    let mut zombie = Process::foreign("zombie", &program, args, stack.folder())
        .env(GATEWAY, &gateways[0])
        .env(GO_ON, &go_on.display().to_string());
    tokio::task::block_in_place(|| zombie.start(PATIENCE));
    // What the gateway has sent to another group as well waits in the zombie's buffers.
    fill(&stack, 8).await;
    witness
        .until("all of it", PATIENCE, |heard| heard.records.len() == 48)
        .await;
    zombie.pause();
    let committed: BTreeMap<_, _> = said(&zombie, "committed")
        .iter()
        .map(|it| place(it))
        .collect();
    assert_eq!(committed.len(), 1);
    let mut stored = BTreeMap::new();
    no_step_back(&channel, &mut stored).await;

    let heir = Member::join(&gateways, short(), Commits::Frames).await;
    heir.until("all is the heir's", SESSION * 4, |heard| {
        heard.owned.len() == PARTITIONS as usize
    })
    .await;
    let unread = 48 - committed.values().sum::<i64>();
    heir.until("every record", PATIENCE, |heard| {
        heard.records.len() as i64 == unread
    })
    .await;
    no_step_back(&channel, &mut stored).await;

    zombie.resume();
    std::fs::write(&go_on, "").expect("written");
    let late = Instant::now() + PATIENCE;
    while said(&zombie, "over").is_empty() {
        assert!(Instant::now() < late, "{}", zombie.log_tail());
        no_step_back(&channel, &mut stored).await;
    }
    let refused = said(&zombie, "refused");
    let fenced = |code: &String| ["Fenced", "UnknownMember"].contains(&code.as_str());
    assert!(
        !refused.is_empty() && refused.iter().all(fenced),
        "{refused:?}"
    );
    assert_eq!(said(&zombie, "stored"), Vec::<String>::new());
    let late = said(&zombie, "late");
    assert!(
        ["Err(Fenced)", "Err(UnknownMember)"].contains(&late[0].as_str()),
        "{late:?}"
    );
    // What it had in its buffers was its own once, and is the heir's now.
    let buffered: Vec<_> = said(&zombie, "read").iter().map(|it| place(it)).collect();
    assert!(!buffered.is_empty(), "nothing was in its buffers");
    for (partition, offset) in buffered {
        assert!(
            offset < 12,
            "{partition}: {offset} was sent to a fenced member"
        );
    }
    no_step_back(&channel, &mut stored).await;
    fill(&stack, 8).await;
    heir.until("what came since", PATIENCE, |heard| {
        heard.records.len() as i64 == unread + 8
    })
    .await;
    let heard = heir.leave(PATIENCE).await;
    no_step_back(&channel, &mut stored).await;
    let end = 14;
    assert_eq!(
        stored,
        (0..PARTITIONS).map(|partition| (partition, end)).collect()
    );
    no_skip(&heard, &committed, end);
    stack.shards_agree().await;
    assert_eq!(stack.alarms(), Vec::<String>::new());
}

/// The heir got all from what was committed on, in order and once.
fn no_skip(heard: &Heard, committed: &BTreeMap<u32, i64>, end: i64) {
    for partition in 0..PARTITIONS {
        let of = |received: &&Received| received.place.1 == partition;
        let got: Vec<i64> = heard
            .records
            .iter()
            .filter(of)
            .map(|received| received.record.offset)
            .collect();
        let from = committed.get(&partition).copied().unwrap_or(0);
        assert_eq!(
            got,
            (from..end).collect::<Vec<_>>(),
            "partition {partition}"
        );
    }
    assert_eq!(heard.commits_refused, vec![]);
}
