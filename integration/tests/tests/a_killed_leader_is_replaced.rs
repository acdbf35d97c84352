//! Three storage nodes, replication factor 3, `min.insync.replicas` 2: leaders
//! are killed and paused under load, and nothing acknowledged is lost, doubled or
//! reordered. The long forms (`make soak`) are the same with more rounds.

use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::time::Duration;
use talweg_harness::{
    Cluster, Finished, Guard, Load, Stack,
    nemesis::SESSION,
    raw::{connect, create_topic},
    seed,
};
use talweg_proto::v1::Acks;

const PARTITIONS: u32 = 3;
const PROGRESS: Duration = Duration::from_secs(20);
const START: Duration = Duration::from_secs(20);

/// A cluster with a topic `t` whose replicas are all in sync.
async fn replicated(stack: &Stack) -> Cluster {
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    let cluster = Cluster::connect(&stack.gateway(0), "t").await;
    let partitions = cluster.all_in_sync(3).await;
    assert!(partitions.iter().all(|p| p.replicas.len() == 3));
    cluster
}

/// Writers that number their batches, writers that leave that to the gateway, and
/// a reader; and what they are held to.
async fn load_of(stack: &mut Stack) -> (Load, Guard) {
    let url = stack.gateway(0);
    let load = Load::start(vec![url.clone()], "t", PARTITIONS, Acks::All).await;
    let load = load.read_by(&url).written_thinly_by(&url);
    load.advance(0, 60, PROGRESS).await;
    let guard = Guard::begin(stack, [load.watched()]).await;
    (load, guard)
}

/// The judgement on a load whose gateway never went away: a gateway follows leaders
/// without a word to those who leave the numbering to it.
async fn judged(stack: &mut Stack, load: Load, guard: Guard) -> Finished {
    let settled = guard.end(stack).await;
    let finished = load.finish_with_gap(&stack.gateway(0)).await;
    println!("{finished:?}");
    let thin = finished.thin;
    assert_eq!((thin.failed, thin.unknown, thin.broken), (0, 0, 0));
    settled.replicas_agree(stack).await;
    finished
}

/// How a leader is taken away.
#[derive(Clone, Copy)]
enum Blow {
    /// SIGKILL; started again up to two session time-outs after its partitions are led elsewhere.
    Kill { longest_down: Duration },
    /// SIGSTOP for so long.
    Stop(Duration),
}

/// Strikes the leader of a random partition again and again; from each blow to
/// the first acknowledgement of a record that was sent to that partition after it.
async fn strike_leaders(
    stack: &mut Stack,
    cluster: &Cluster,
    load: &Load,
    (rounds, blow): (usize, Blow),
    random: &mut SmallRng,
) -> Vec<Duration> {
    let mut times = Vec::new();
    for round in 1..=rounds {
        load.advance(load.acknowledged(), 60, PROGRESS).await;
        cluster.all_in_sync(3).await;
        let partition = random.random_range(0..PARTITIONS);
        let victim = cluster.leader(partition).await;
        let since = load.recorder().now();
        match blow {
            Blow::Kill { .. } => stack.storages[victim].kill9(),
            Blow::Stop(_) => stack.storages[victim].pause(),
        }
        let took = load.recovered(partition, since, PROGRESS).await;
        println!("{round} of {rounds}: {took:?} without the leader of {partition}");
        times.push(took);
        match blow {
            Blow::Kill { longest_down } => {
                let longest = u64::try_from(longest_down.as_millis()).expect("seconds");
                let down = Duration::from_millis(random.random_range(0..=longest));
                tokio::time::sleep(down).await;
                tokio::task::block_in_place(|| stack.storages[victim].start(START));
            }
            Blow::Stop(length) => {
                let rest = (since + length).saturating_sub(load.recorder().now());
                tokio::time::sleep(rest).await;
                stack.storages[victim].resume();
            }
        }
    }
    times
}

/// Median, 95th of a hundred and greatest, printed.
fn percentiles(what: &str, mut times: Vec<Duration>) -> (Duration, Duration, Duration) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() * share).div_ceil(100).max(1) - 1];
    let found = (at(50), at(95), at(100));
    println!(
        "{what}: p50 {:?}, p95 {:?}, max {:?}",
        found.0, found.1, found.2
    );
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_killed_under_load_lose_nothing_and_replicas_agree() {
    let mut random = SmallRng::seed_from_u64(seed());
    let mut stack = Stack::builder().storages(3).start();
    let cluster = replicated(&stack).await;
    let (load, guard) = load_of(&mut stack).await;
    let longest_down = Duration::from_millis(500);
    let plan = (6, Blow::Kill { longest_down });
    let times = strike_leaders(&mut stack, &cluster, &load, plan, &mut random).await;
    let (_, _, slowest) = percentiles("kill to the next acknowledgement", times);
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    // One that stops cleanly hands over first.
    cluster.all_in_sync(3).await;
    let stopped = cluster.leader(0).await;
    stack.storages[stopped].terminate();
    load.advance(load.acknowledged(), 60, PROGRESS).await;
    tokio::task::block_in_place(|| {
        let (_, status) = stack.storages[stopped].wait_exit(Duration::from_secs(10));
        assert!(status.success(), "{status}");
        stack.storages[stopped].start(START);
    });
    cluster.all_in_sync(3).await;
    judged(&mut stack, load, guard).await;
}

/// The controllers stand on a real etcd; the active one is killed and a leader
/// with it: the next controller does not wait for the election lease. Then etcd
/// goes away for a while and writers do not notice; a leader that is killed
/// afterwards is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_and_etcd_may_go_and_the_next_controller_goes_on() {
    let mut stack = Stack::builder()
        .storages(3)
        .controllers_on_etcd(2)
        .set("controller", "election_ttl_ms=10000")
        .start();
    let cluster = replicated(&stack).await;
    let (load, guard) = load_of(&mut stack).await;
    load.advance(load.acknowledged(), 60, PROGRESS).await;
    let leader = cluster.leader(0).await;
    stack.controller.kill9();
    stack.storages[leader].kill9();
    load.advance(load.acknowledged(), 60, PROGRESS).await;
    tokio::task::block_in_place(|| stack.storages[leader].start(START));
    cluster.all_in_sync(3).await;
    load.advance(load.acknowledged(), 300, PROGRESS).await;
    tokio::task::block_in_place(|| stack.restart_controller(0));
    let etcd = stack.etcd.as_mut().expect("etcd");
    etcd.pause();
    load.advance(load.acknowledged(), 300, PROGRESS).await;
    stack.etcd.as_ref().expect("etcd").resume();
    cluster.all_in_sync(3).await;
    let victim = cluster.leader(0).await;
    stack.storages[victim].kill9();
    load.advance(load.acknowledged(), 60, PROGRESS).await;
    tokio::task::block_in_place(|| stack.storages[victim].start(START));
    cluster.all_in_sync(3).await;
    let finished = judged(&mut stack, load, guard).await;
    // The lease of the dead controller alone would take ten seconds.
    assert!(
        finished.longest_gap < Duration::from_secs(5),
        "{finished:?}"
    );
}

/// Three nodes and three controllers, etcd's data in memory.
fn full_size() -> Stack {
    Stack::builder()
        .storages(3)
        .controllers_on_etcd(3)
        .etcd_in_memory()
        .start()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "ten minutes; make soak"]
async fn a_hundred_killed_leaders_are_replaced_within_a_second() {
    let mut random = SmallRng::seed_from_u64(seed());
    let mut stack = full_size();
    let cluster = replicated(&stack).await;
    let (load, guard) = load_of(&mut stack).await;
    let longest_down = SESSION * 2;
    let plan = (100, Blow::Kill { longest_down });
    let times = strike_leaders(&mut stack, &cluster, &load, plan, &mut random).await;
    let quick = |time: &&Duration| **time <= Duration::from_secs(1);
    let within = times.iter().filter(quick).count();
    let (median, _, slowest) = percentiles("kill to the next acknowledgement", times);
    println!("{within} of 100 within 1 s");
    cluster.all_in_sync(3).await;
    judged(&mut stack, load, guard).await;
    assert!(median <= Duration::from_millis(300), "{median:?}");
    assert!(within >= 95, "{within}");
    assert!(slowest <= Duration::from_secs(5), "{slowest:?}");
}

/// Nobody refuses a connection for a process that is stopped: only the session's end tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "eight minutes; make soak"]
async fn thirty_stopped_leaders_are_replaced_within_a_session() {
    let mut random = SmallRng::seed_from_u64(seed());
    let mut stack = full_size();
    let cluster = replicated(&stack).await;
    let (load, guard) = load_of(&mut stack).await;
    let plan = (30, Blow::Stop(Duration::from_secs(10)));
    let times = strike_leaders(&mut stack, &cluster, &load, plan, &mut random).await;
    let (_, _, slowest) = percentiles("SIGSTOP to the next acknowledgement", times);
    cluster.all_in_sync(3).await;
    judged(&mut stack, load, guard).await;
    // The session's end, the election, and a round of writing it down and telling it.
    assert!(slowest <= SESSION + Duration::from_secs(1), "{slowest:?}");
}

/// The active controller is killed ten times; before each kill the same time
/// passes without one. The greatest silence between acknowledgements is the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "two minutes; make soak"]
async fn a_killed_controller_is_not_noticed_by_writers() {
    const WINDOW: Duration = Duration::from_secs(5);
    let mut stack = full_size();
    let cluster = replicated(&stack).await;
    let (load, guard) = load_of(&mut stack).await;
    load.advance(load.acknowledged(), 300, PROGRESS).await;
    let recorder = load.recorder();
    let (mut control, mut killed) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..10 {
        let active = cluster.active_controller(&stack).await;
        for kill in [false, true] {
            let from = recorder.now();
            if kill {
                stack.controller_at(active).kill9();
            }
            // Both windows have the same length; nothing else ends them.
            tokio::time::sleep(WINDOW).await;
            let to = recorder.now();
            let gap = (0..PARTITIONS).map(|p| recorder.longest_gap(p, from, to));
            let gap = gap.max().expect("partitions");
            let greatest = if kill { &mut killed } else { &mut control };
            *greatest = gap.max(*greatest);
        }
        tokio::task::block_in_place(|| stack.restart_controller(active));
    }
    println!("longest silence: control {control:?}, with kills {killed:?}");
    let finished = judged(&mut stack, load, guard).await;
    assert_eq!(finished.reconnects, PARTITIONS as usize, "no stream broke");
    let allowed = control * 2 + Duration::from_millis(50);
    assert!(killed <= allowed, "{killed:?}, control {control:?}");
}
