//! A member that grants 8 MiB, ends up with two hundred partitions and goes on granting is
//! never sent more than that and one largest batch beyond what it granted; fifty members that
//! stop reading do not slow readers at a fixed rate, and the gateway holds little for them.

mod operator;

use operator::PATIENCE;
use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};
use talweg_client::{SubscribeEvent, Subscriber, payload::fetched_record_bytes};
use talweg_harness::{
    Member, Stack,
    member::{Commits, Received, client, subscription},
    raw::{RawProduce, batch, connect, create_topic, now_ms},
};
use talweg_proto::v1::{self, Acks, produce_response, subscribe_response::Frame};
use tonic::transport::Channel;

const PARTITIONS: u32 = 200;
const BUDGET: usize = 8 << 20;
const LARGEST: usize = 1 << 20;
const STALLED: usize = 50;
const LAG: Duration = Duration::from_secs(1);
/// At the tail, each in a group of its own; a megabyte a second for each.
const READERS: usize = 5;
const RECORD: usize = 10_000;
const PACE: Duration = Duration::from_millis(10);
/// Nothing more comes: the budget is used up.
const SILENCE: Duration = Duration::from_millis(300);

/// Half a MiB in each partition.
async fn fill(channel: &Channel) {
    let mut produce = RawProduce::open(channel, Acks::All).await;
    let value: Vec<u8> = (0..500_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    for partition in 0..PARTITIONS {
        produce.send_batch("t", partition, batch(&[&value])).await;
        match produce.next().await {
            Ok(Some(produce_response::Frame::BatchAck(_))) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn open(group: &str, budget: usize) -> v1::SubscribeOpen {
    v1::SubscribeOpen {
        credit: Some(v1::Credit {
            bytes: budget as i64,
            records: 100_000,
        }),
        ..subscription(group, "t")
    }
}

/// A member that lets its budget run full again and again, and counts.
struct Thrifty {
    subscriber: Subscriber,
    owned: BTreeSet<u32>,
    /// Received and not granted again: bytes of each frame and its records.
    held: VecDeque<(usize, usize)>,
    outstanding: usize,
    most: usize,
    received: usize,
    seen: BTreeSet<(u32, i64)>,
}

impl Thrifty {
    async fn join(gateways: &[String]) -> Self {
        let subscriber = Subscriber::open(&client(gateways), open("g", BUDGET)).await;
        Self {
            subscriber: subscriber.expect("joins"),
            owned: BTreeSet::new(),
            held: VecDeque::new(),
            outstanding: 0,
            most: 0,
            received: 0,
            seen: BTreeSet::new(),
        }
    }

    /// Reads until it is so; grants half of what it holds whenever nothing more comes.
    async fn until(&mut self, what: &str, hope: impl Fn(&Self) -> bool) {
        let late = Instant::now() + PATIENCE * 2;
        while !hope(self) {
            assert!(
                Instant::now() < late,
                "{what}: {} owned, {} bytes",
                self.owned.len(),
                self.received
            );
            let event = tokio::time::timeout(SILENCE, self.subscriber.next()).await;
            match event {
                Ok(event) => self.on(event.expect("the stream lives")).await,
                Err(_) => self.grant_half().await,
            }
        }
    }

    async fn on(&mut self, event: SubscribeEvent) {
        match event {
            SubscribeEvent::Frame(Frame::Assigned(assigned)) => {
                let given = assigned.partitions.iter().map(|it| it.partition);
                self.owned.extend(given);
            }
            SubscribeEvent::Frame(Frame::Revoking(revoking)) => {
                for partition in &revoking.partitions {
                    self.owned.remove(&partition.partition);
                }
                self.subscriber.revoked(revoking.partitions).await;
            }
            SubscribeEvent::Frame(Frame::Records(frame)) => self.take(&frame),
            SubscribeEvent::Frame(_) => {}
            event => panic!("{event:?}"),
        }
    }

    fn take(&mut self, frame: &v1::FetchedRecords) {
        let bytes = frame.records.iter().map(fetched_record_bytes).sum();
        let partition = frame.position.as_ref().expect("a position").partition;
        let offsets = frame.records.iter().map(|record| record.offset);
        self.seen.extend(offsets.map(|offset| (partition, offset)));
        self.held.push_back((bytes, frame.records.len()));
        self.received += bytes;
        self.outstanding += bytes;
        self.most = self.most.max(self.outstanding);
        assert!(
            self.outstanding <= BUDGET + BUDGET / 10 + LARGEST,
            "{} of {} partitions",
            self.outstanding,
            self.owned.len()
        );
    }

    async fn grant_half(&mut self) {
        let half = self.held.len().div_ceil(2);
        let (mut bytes, mut records) = (0, 0);
        for (frame, count) in self.held.drain(..half) {
            bytes += frame;
            records += count;
        }
        self.outstanding -= bytes;
        if records > 0 {
            self.subscriber.grant(bytes as i64, records as i64).await;
        }
    }
}

/// How old a record of the tail was when it came; it carries when it was sent.
fn behind_ms(received: &Received) -> i64 {
    let key = received.record.key.as_deref().expect("a key");
    let sent: i64 = String::from_utf8_lossy(key).parse().expect("a time");
    now_ms() - received.at.elapsed().as_millis() as i64 - sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_mib_over_two_hundred_partitions() {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    let gateways = [stack.gateway(0)];
    let all = PARTITIONS as usize;
    let other = Member::join(&gateways, subscription("g", "t"), Commits::Asked).await;
    other
        .until("all of them", PATIENCE, |heard| heard.owned.len() == all)
        .await;
    let mut member = Thrifty::join(&gateways).await;
    member
        .until("its half", |member| member.owned.len() == all / 2)
        .await;
    fill(&channel).await;
    member
        .until("more than two budgets", |member| {
            member.received > 2 * BUDGET
        })
        .await;
    // The other one has committed nothing: its half comes from the start.
    other.leave(PATIENCE).await;
    member
        .until("all of them", |member| member.owned.len() == all)
        .await;
    member
        .until("every record", |member| member.seen.len() == all)
        .await;
    println!(
        "{} bytes received, at most {} not granted again",
        member.received, member.most
    );
    assert!(member.most >= BUDGET / 2, "{}: it is used", member.most);
    stack.shards_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_stop_reading_slow_nobody() {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    create_topic(&channel, "tail", 1, &[]).await;
    fill(&channel).await;
    let gateways = [stack.gateway(0)];
    let before = stack.gateways[0].private_bytes();
    let mut stalled = Vec::new();
    for n in 0..STALLED {
        let open = open(&format!("stalled-{n}"), 2 << 20);
        stalled.push(
            Subscriber::open(&client(&gateways), open)
                .await
                .expect("joins"),
        );
    }
    let mut readers = Vec::new();
    for n in 0..READERS {
        let open = subscription(&format!("tail-{n}"), "tail");
        let reader = Member::join(&gateways, open, Commits::Frames).await;
        reader
            .until("its partition", PATIENCE, |heard| heard.owned.len() == 1)
            .await;
        readers.push(reader);
    }
    let mut produce = RawProduce::open(&channel, Acks::All).await;
    let end = Instant::now() + Duration::from_secs(5);
    let mut pace = tokio::time::interval(PACE);
    let mut sent = 0;
    while Instant::now() < end {
        pace.tick().await;
        let record = v1::Record {
            key: Some(now_ms().to_string().into()),
            value: Some(vec![b'v'; RECORD].into()),
            ..Default::default()
        };
        produce.record("tail", record).await.expect("appended");
        sent += 1;
    }
    let mut worst = 0;
    for reader in &readers {
        reader
            .until("all", LAG * 2, |heard| heard.records.len() == sent)
            .await;
        let behind = reader.look(|heard| heard.records.iter().map(behind_ms).max());
        worst = worst.max(behind.expect("records"));
    }
    let held = stack.gateways[0].private_bytes().saturating_sub(before) >> 20;
    println!(
        "{READERS} readers were at most {worst} ms behind; the gateway holds {held} MiB more for {STALLED} members"
    );
    assert!(worst <= LAG.as_millis() as i64, "{worst} ms");
    // What they have granted, one largest batch each, and the promise of the gateway.
    assert!(held <= (STALLED * (2 + 1) + 64) as u64, "{held} MiB");
    stack.shards_agree().await;
}
