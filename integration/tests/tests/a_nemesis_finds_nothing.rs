//! Real processes in network namespaces, each storage node with a disk of its own,
//! under writers and a reader: killed, paused, cut off, slowed, delayed, with full and
//! frozen disks. The checker finds nothing, replicas agree, no bound steps back and
//! nothing is held that was not held before. Needs root.

use rand::{SeedableRng, rngs::SmallRng};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::time::{Duration, Instant};
use talweg_harness::{
    BACK, Cluster, Guard, Load, OneShot, Stack,
    nemesis::{Fault, Peers, Strike, Way},
    raw::{connect, create_topic},
    seed,
};
use talweg_proto::v1::Acks;

const PARTITIONS: u32 = 3;
const DISK_BYTES: u64 = 512 << 20;

/// Half a minute of faults, one of each kind.
fn fixed() -> Vec<Strike> {
    let cut = |peers, way| Fault::Cut(peers, way);
    [
        (Fault::Kill, 0, 0),
        (Fault::FullDisk, 1, 2_000),
        (Fault::Pause, 2, 4_000),
        (cut(Peers::Everybody, Way::Both), 0, 4_500),
        (Fault::FrozenDisk, 1, 2_000),
        (cut(Peers::Storages, Way::Out), 2, 2_500),
        (cut(Peers::Controllers, Way::In), 0, 3_500),
        (Fault::Slow, 1, 1_500),
        (Fault::Delay(100), 2, 1_500),
        (Fault::KillController, 0, 500),
        (cut(Peers::Gateways, Way::Both), 1, 2_000),
        (Fault::Kill, 2, 3_500),
    ]
    .map(|(fault, partition, lasts)| Strike::new(fault, partition, lasts))
    .to_vec()
}

/// Everything around the faults, which `next` gives until it has none.
async fn under_nemesis(mut next: impl FnMut() -> Option<Strike>) {
    let mut stack = Stack::builder()
        .storages(3)
        .controllers_on_etcd(2)
        .etcd_in_memory()
        .in_namespaces()
        .on_disks(DISK_BYTES)
        .set("controller", "election_ttl_ms=2000")
        .set("controller", "preferred_leader_ms=5000")
        .start();
    let url = stack.gateway(0);
    create_topic(&connect(&url).await, "t", PARTITIONS as i32, &[]).await;
    let cluster = Cluster::connect(&url, "t").await;
    cluster.all_in_sync(3).await;
    let load = Load::start(vec![url.clone()], "t", PARTITIONS, Acks::All).await;
    let load = load.read_by(&url).written_thinly_by(&url);
    let stop = Arc::new(AtomicBool::new(false));
    let once = OneShot {
        url: url.clone(),
        topic: "t".into(),
        partition: 0,
        number: PARTITIONS,
        acks: Acks::All,
        recorder: load.recorder(),
    };
    let stopped = Arc::clone(&stop);
    let once = tokio::spawn(async move { once.run(&stopped).await });
    load.advance(load.acknowledged(), 300, BACK).await;
    let guard = Guard::begin(&mut stack, [load.watched()]).await;
    while let Some(strike) = next() {
        strike.run(&mut stack, &cluster).await;
        load.advance(load.acknowledged(), 1, BACK).await;
    }
    cluster.all_in_sync(3).await;
    load.advance(load.acknowledged(), 300, BACK).await;
    let settled = guard.end(&mut stack).await;
    stop.store(true, Ordering::Relaxed);
    let once = once.await.expect("the client ended well");
    let finished = load.finish_with_gap(&url).await;
    let refused = once.iter().filter(|a| matches!(a.answer, Some(Err(_))));
    println!(
        "{finished:?}; {} batches sent once, {} refused",
        once.len(),
        refused.count()
    );
    settled.replicas_agree(&mut stack).await;
    let alarms = stack.alarms();
    assert!(alarms.is_empty(), "{alarms:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_seconds_of_every_fault_leave_a_clean_history() {
    let mut strikes = fixed().into_iter();
    under_nemesis(|| strikes.next()).await;
}

/// `TALWEG_NEMESIS_SECONDS` (300) of faults chosen by `TALWEG_SEED`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "five minutes; make soak"]
async fn minutes_of_random_faults_leave_a_clean_history() {
    let seconds = std::env::var("TALWEG_NEMESIS_SECONDS").ok();
    let seconds = seconds.and_then(|s| s.parse().ok()).unwrap_or(300);
    let (length, began) = (Duration::from_secs(seconds), Instant::now());
    let mut random = SmallRng::seed_from_u64(seed());
    under_nemesis(|| (began.elapsed() < length).then(|| Strike::random(&mut random, PARTITIONS)))
        .await;
}
