//! Processes are killed at random moments under load and started again after a
//! while: every acknowledged record is there, in order, once.

use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::time::Duration;
use talweg_harness::{Dev, Load, Process, Stack, raw, seed};
use talweg_proto::v1::Acks;

const PARTITIONS: u32 = 3;
const START: Duration = Duration::from_secs(20);

/// Down times from 0 to 6 s: most restarts are quick, as a supervisor's are, some
/// take longer than a session.
fn down_time(random: &mut SmallRng) -> Duration {
    let long = random.random_ratio(1, 12);
    Duration::from_millis(if long {
        random.random_range(2_000..=6_000)
    } else {
        random.random_range(0..=500)
    })
}

async fn nemesis(load: &Load, process: &mut Process, kills: usize, random: &mut SmallRng) {
    for _ in 0..kills {
        let since = load.acknowledged();
        load.advance(since, 1, START).await;
        tokio::time::sleep(Duration::from_millis(random.random_range(0..400))).await;
        process.kill9();
        tokio::time::sleep(down_time(random)).await;
        process.start(START);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_records_survive_50_kills_of_storage() {
    let mut random = SmallRng::seed_from_u64(seed());
    let mut stack = Stack::builder().start();
    let url = stack.gateway(0);
    raw::create_topic(
        &raw::connect(&url).await,
        "t",
        PARTITIONS as i32,
        &[("durability", "synced")],
    )
    .await;
    let load = Load::start(vec![url.clone()], "t", PARTITIONS, Acks::All).await;
    nemesis(&load, &mut stack.storages[0], 50, &mut random).await;
    let (acked, reconnects) = load.finish(&url).await;
    eprintln!("{acked} records acknowledged over 50 kills, {reconnects} streams");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_records_survive_kills_of_dev() {
    let mut random = SmallRng::seed_from_u64(seed());
    let mut dev = Dev::start();
    raw::create_topic(&raw::connect(&dev.url()).await, "t", PARTITIONS as i32, &[]).await;
    let load = Load::start(vec![dev.url()], "t", PARTITIONS, Acks::All).await;
    nemesis(&load, &mut dev.process, 15, &mut random).await;
    let (acked, reconnects) = load.finish(&dev.url()).await;
    assert!(reconnects > 15, "each kill breaks streams");
    eprintln!("{acked} records acknowledged over 15 kills of talweg dev");
}
