//! How many commits a second the runtime decides, encodes, batches and releases on
//! one core, without a log: each append is acknowledged 200 decisions later.
//!
//! `cargo run --release -p talweg-coordinator-runtime --example commits [groups] [partitions]`

use std::{collections::VecDeque, sync::Arc, time::Instant};
use talweg_batch::BatchBuilder;
use talweg_coordinator_runtime::{Encoded, Input, Limits, Loading, Now, Output};
use talweg_group::{
    Bounds, Commit, CommitItem, CommitKind, Committer, Event, Group, Settings, Topic, Topics,
};
use talweg_types::{
    Compression, LeaderEpoch, MonotonicMs, Offset, PartitionIndex, TimestampMs, TopicId,
    TopicPartition,
};

/// Decisions while one append is on its way: 2 ms at 100,000 a second.
const LAG: usize = 200;
const COMMITS: usize = 1_000_000;

fn main() {
    let mut numbers = std::env::args()
        .skip(1)
        .filter_map(|text| text.parse().ok());
    let groups: usize = numbers.next().unwrap_or(10_000);
    let partitions: usize = numbers.next().unwrap_or(10);
    let id = TopicId::from_slice(&[1; 16]).expect("16 bytes");
    let racks = vec![vec![]; partitions];
    let topic = Topic {
        id,
        racks,
        derived: false,
    };
    let topics = Topics::new([("t".to_owned(), topic)]);
    let limits = Limits::for_batches_of(1 << 20);
    let loading = Loading::<Group>::default();
    let mut shard = loading
        .finish(Settings::default(), limits, Now::default())
        .expect("empty");
    let names: Vec<Arc<str>> = (0..groups).map(|n| format!("group-{n}").into()).collect();
    let (mut appends, mut batches, mut records, mut bytes, mut answers) =
        (VecDeque::new(), 0_u64, 0_u64, 0_u64, 0_u64);
    let mut end = 0;
    let begun = Instant::now();
    for n in 0..COMMITS {
        let ms = u64::try_from(n / 100).expect("small");
        let now = Now {
            monotonic: MonotonicMs(ms),
            wall: TimestampMs(1 + i64::try_from(ms).expect("small")),
        };
        let event = commit(id, n / groups % partitions, n);
        let name = Arc::clone(&names[n % groups]);
        let token = u64::try_from(n).expect("small");
        let mut inputs = vec![Input::Request { token, name, event }];
        if let Some((due, id, count)) = appends.front().copied()
            && due <= n
        {
            appends.pop_front();
            end += count;
            let last_offset = Offset(end - 1);
            inputs.push(Input::Appended { id, last_offset });
        }
        for input in inputs {
            for output in shard.step(now, &topics, input) {
                match output {
                    Output::Append { id, records: made } => {
                        let batch = encode(&made);
                        batches += 1;
                        records += made.len() as u64;
                        bytes += batch as u64;
                        let count = i64::try_from(made.len()).expect("small");
                        appends.push_back((n + LAG, id, count));
                    }
                    Output::Answer { .. } => answers += 1,
                    _ => {}
                }
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss)]
    let rate = answers as f64 / seconds;
    println!(
        "{groups} groups x {partitions} partitions: {answers} commits in {seconds:.2} s = {rate:.0}/s, \
         {} records and {} bytes a batch, resident {}",
        records / batches.max(1),
        bytes / batches.max(1),
        resident()
    );
}

fn commit(id: TopicId, partition: usize, offset: usize) -> Event {
    let item = CommitItem {
        at: TopicPartition {
            topic_id: id,
            partition: PartitionIndex(u32::try_from(partition).expect("small")),
        },
        offset: Offset(i64::try_from(offset).expect("small")),
        leader_epoch: LeaderEpoch(0),
        metadata: String::new(),
        bounds: Bounds::Log {
            log_start: Offset(0),
            high_watermark: Offset::MAX,
        },
    };
    Event::Commit(Commit {
        by: Committer::Standalone,
        kind: CommitKind::Commit,
        items: vec![item],
    })
}

fn encode(records: &[Encoded]) -> usize {
    let mut builder = BatchBuilder::new(Compression::None);
    for Encoded { key, value } in records {
        let nothing = std::iter::empty::<(&[u8], Option<&[u8]>)>();
        let pushed = builder.push(TimestampMs(1), Some(&key[..]), value.as_deref(), nothing);
        pushed.expect("a record");
    }
    builder.build().expect("a batch").len()
}

/// As the kernel says it.
fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    line.map_or_else(String::new, |line| {
        line.trim_start_matches("VmRSS:").trim().to_owned()
    })
}
