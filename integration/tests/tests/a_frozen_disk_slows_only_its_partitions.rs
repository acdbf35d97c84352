//! Four storage nodes, each with a disk of its own; one disk at a time freezes
//! for two seconds. Nobody is elected, partitions without a replica on it notice
//! nothing, those with one wait no longer than the stall and half a second.
//!
//! Needs root, for loop mounts and `fsfreeze`; without it the test fails and says so.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use talweg_harness::{
    Guard, Stack, Watched, eventually,
    raw::{self, RawProduce, connect, create_topic},
};
use talweg_proto::v1::{Acks, PartitionDescription};
use tokio::task::JoinSet;
use tonic::transport::Channel;

const NODES: usize = 4;
const PARTITIONS: u32 = 8;
const TOPICS: [&str; 2] = ["replicated", "synced"];
const STALL: Duration = Duration::from_secs(2);
/// On top of the stall for those who wait for it, in all for those who do not.
const SLACK: Duration = Duration::from_millis(500);
const DISK_BYTES: u64 = 512 << 20;
const BACK: Duration = Duration::from_secs(40);

/// When a record was sent, and how long its acknowledgement took.
type Waits = Arc<Mutex<Vec<(Instant, Duration)>>>;

/// Writes records one after another to every partition, acks=all.
struct Probers {
    stop: Arc<AtomicBool>,
    waits: BTreeMap<(usize, u32), Waits>,
    tasks: JoinSet<()>,
}

impl Probers {
    async fn start(gateway: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut waits, mut tasks) = (BTreeMap::new(), JoinSet::new());
        for (topic, name) in TOPICS.into_iter().enumerate() {
            let channel = connect(gateway).await;
            for partition in 0..PARTITIONS {
                let mut stream = RawProduce::open(&channel, Acks::All).await;
                let (stop, own) = (Arc::clone(&stop), Waits::default());
                waits.insert((topic, partition), Arc::clone(&own));
                tasks.spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let sent = Instant::now();
                        let batch = raw::batch(&[b"probe"]);
                        let answer = stream.batch(name, partition, batch).await;
                        answer.expect("no error reaches a client");
                        own.lock()
                            .expect("not poisoned")
                            .push((sent, sent.elapsed()));
                        // A pace, not a wait for something.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                });
            }
        }
        Self { stop, waits, tasks }
    }

    /// Until every partition has answered something sent after `since`.
    async fn all_after(&self, since: Instant) {
        eventually("every partition answers", BACK, || async {
            let answered = |waits: &&Waits| {
                let waits = waits.lock().expect("not poisoned");
                waits.last().is_some_and(|(sent, _)| *sent > since)
            };
            match self.waits.values().filter(answered).count() {
                all if all == self.waits.len() => Ok(()),
                some => Err(format!("{some} of {}", self.waits.len())),
            }
        })
        .await;
    }

    /// The longest wait of a partition for anything sent since then.
    fn longest(&self, topic: usize, partition: u32, since: Instant) -> Duration {
        let waits = self.waits[&(topic, partition)]
            .lock()
            .expect("not poisoned");
        let since = waits.iter().filter(|(sent, took)| *sent + *took > since);
        since.map(|(_, took)| *took).max().unwrap_or_default()
    }

    async fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("a prober ended well");
        }
    }
}

/// Leader epochs and replicas of all partitions, once all are in sync.
async fn placed(channel: &Channel) -> Vec<Vec<(i32, Vec<u32>)>> {
    let mut placed = Vec::new();
    for topic in TOPICS {
        let partitions = raw::in_sync(channel, topic, 3).await;
        let known = |p: PartitionDescription| (p.leader_epoch, p.replicas);
        placed.push(partitions.into_iter().map(known).collect());
    }
    placed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_is_felt_where_the_disk_is_and_no_longer_than_it_lasts() {
    let mut stack = Stack::builder()
        .storages(NODES)
        .on_disks(DISK_BYTES)
        .start();
    let channel = connect(&stack.gateway(0)).await;
    for topic in TOPICS {
        create_topic(&channel, topic, PARTITIONS as i32, &[("durability", topic)]).await;
    }
    let before = placed(&channel).await;
    let probers = Probers::start(&stack.gateway(0)).await;
    probers.all_after(Instant::now()).await;
    let watched = TOPICS.map(|topic| Watched::alone(topic, PARTITIONS));
    let guard = Guard::begin(&mut stack, watched).await;
    let mut felt = 0;
    for (id, disk) in (1..).zip((0..NODES).map(|i| stack.disk(i))) {
        let begun = Instant::now();
        tokio::task::block_in_place(|| {
            disk.freeze();
            // The stall itself.
            std::thread::sleep(STALL);
            disk.thaw();
        });
        let stall = begun.elapsed();
        probers.all_after(Instant::now()).await;
        let after = placed(&channel).await;
        assert_eq!(after, before, "node {id}: an epoch moved");
        for (topic, name) in TOPICS.into_iter().enumerate() {
            for partition in 0..PARTITIONS {
                let waited = probers.longest(topic, partition, begun);
                let here = before[topic][partition as usize].1.contains(&id);
                let limit = if here { stall + SLACK } else { SLACK };
                println!(
                    "node {id} frozen for {stall:?}: {name}:{partition}, replica here: {here}, waited {waited:?}"
                );
                assert!(waited <= limit, "{name}:{partition} waited {waited:?}");
                felt += usize::from(here && waited >= STALL / 2);
            }
        }
    }
    assert!(felt > 0, "no partition felt any stall: nothing was frozen");
    let settled = guard.end(&mut stack).await;
    probers.stop().await;
    settled.replicas_agree(&mut stack).await;
}
