//! Ten thousand groups with ten committed offsets each: how fast commits go in, how
//! much memory they take, how soon a killed coordinator serves again, and that it then
//! knows all of them. Figures are printed; docs/performance.md has them.
//!
//! `TALWEG_COMMITS_PER_SECOND`: offsets a second that the best round must reach (0).

mod operator;

use operator::PATIENCE;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use talweg_harness::{
    Stack, eventually,
    raw::{connect, create_topic},
};
use talweg_proto::v1::{
    self, CommitOffsetsRequest, CommittedOffset, FetchOffsetsRequest,
    offset_service_client::OffsetServiceClient,
};
use tonic::transport::Channel;

const GROUPS: usize = 10_000;
const PARTITIONS: u32 = 10;
const CALLERS: usize = 64;
/// From the start of a coordinator to all groups served.
const SERVES: Duration = Duration::from_secs(3);

fn wanted_per_second() -> f64 {
    let wanted = std::env::var("TALWEG_COMMITS_PER_SECOND");
    wanted.map_or(0.0, |text| text.parse().expect("a number"))
}

fn offsets(group: usize, round: i64) -> Vec<CommittedOffset> {
    let offset = |partition| CommittedOffset {
        topic: "t".into(),
        partition,
        offset: round,
        leader_epoch: -1,
        metadata: format!("{group}"),
        ..Default::default()
    };
    (0..PARTITIONS).map(offset).collect()
}

/// Every group commits once; offsets a second.
async fn round(channel: &Channel, round: i64) -> f64 {
    let next = Arc::new(AtomicUsize::new(0));
    let begun = Instant::now();
    let callers = (0..CALLERS).map(|_| {
        let (next, mut client) = (Arc::clone(&next), OffsetServiceClient::new(channel.clone()));
        tokio::spawn(async move {
            loop {
                let group = next.fetch_add(1, Ordering::Relaxed);
                if group >= GROUPS {
                    return;
                }
                let request = CommitOffsetsRequest {
                    group: format!("group-{group}"),
                    offsets: offsets(group, round),
                    ..Default::default()
                };
                let answer = client.commit_offsets(request).await.expect("committed");
                let refused = answer
                    .into_inner()
                    .errors
                    .into_iter()
                    .find(|error| error.code != 0);
                assert_eq!(refused, None);
            }
        })
    });
    for caller in futures::future::join_all(callers).await {
        caller.expect("a caller ends well");
    }
    (GROUPS * PARTITIONS as usize) as f64 / begun.elapsed().as_secs_f64()
}

async fn stored(channel: &Channel, group: usize) -> Result<Vec<v1::CommittedOffset>, String> {
    let request = FetchOffsetsRequest {
        group: format!("group-{group}"),
        topic: "t".into(),
    };
    let mut client = OffsetServiceClient::new(channel.clone());
    let answer = client
        .fetch_offsets(request)
        .await
        .map_err(|status| status.to_string())?;
    Ok(answer.into_inner().offsets)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute; make soak"]
async fn a_coordinator_with_ten_thousand_groups() {
    let mut stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    let records = (0..PARTITIONS).map(|partition| v1::Record {
        partition: Some(partition),
        value: Some("v".into()),
        ..Default::default()
    });
    let mut produce = talweg_harness::raw::RawProduce::open(&channel, v1::Acks::All).await;
    for record in records.cycle().take(100) {
        produce.record("t", record).await.expect("appended");
    }
    let mut best = 0.0_f64;
    for n in 1..=5 {
        let rate = round(&channel, n).await;
        println!("round {n}: {rate:.0} offsets/s");
        best = best.max(rate);
    }
    let wanted = wanted_per_second();
    assert!(best >= wanted, "{best:.0} of {wanted} offsets/s");
    let coordinator = &mut stack.coordinators[0];
    println!("private memory {} MiB", coordinator.private_bytes() >> 20);
    coordinator.kill9();
    let begun = Instant::now();
    tokio::task::block_in_place(|| coordinator.start(PATIENCE));
    for group in (0..GROUPS).step_by(101) {
        let found = eventually("its offsets", PATIENCE, || stored(&channel, group)).await;
        assert_eq!(found.len(), PARTITIONS as usize, "{group}");
        assert!(
            found.iter().all(|offset| offset.offset == 5),
            "{group}: {found:?}"
        );
    }
    let serves = begun.elapsed();
    println!("all served {serves:?} after the start");
    assert!(serves <= SERVES, "{serves:?}");
    stack.shards_agree().await;
}
