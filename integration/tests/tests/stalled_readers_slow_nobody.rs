//! A hundred streams grant 1 MiB and stop reading; readers at a fixed rate stay
//! at the tail, and memory grows by no more than what was granted.

use bytes::Bytes;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};
use talweg_harness::{
    Stack,
    raw::{self, RawFetch, RawProduce, batch, connect, create_topic, from},
};
use talweg_proto::v1::{
    Acks, Credit, FetchOpen, Form, fetch_partition::Start, fetch_request, fetch_response,
};

const STALLED: usize = 100;
const GRANT: i64 = 1 << 20;
/// The topic's backlog; a gigabyte in `make soak`.
const BACKLOG_MB: usize = 128;
const READERS: usize = 10;
/// Each reader's fixed rate is the writer's: 2 MB/s.
const RATE_BYTES: usize = 2_000_000;
const LAG: Duration = Duration::from_secs(1);

fn backlog_mb() -> usize {
    std::env::var("TALWEG_BACKLOG_MB")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(BACKLOG_MB)
}

fn open(grant: i64, start: Start) -> FetchOpen {
    FetchOpen {
        partitions: vec![from("t", 0, start)],
        credit: Some(Credit {
            bytes: grant,
            records: 1_000_000,
        }),
        form: Form::Batches.into(),
        ..Default::default()
    }
}

/// 100 KB of incompressible values with the time of sending in front.
fn timed_batch(random: &[u8]) -> Bytes {
    let now = raw::now_ms().to_be_bytes();
    batch(&[&[&now[..], random].concat()])
}

/// Reads at the tail and remembers the greatest age of a batch at its arrival.
async fn tail(url: String, worst: Arc<AtomicI64>, ready: Arc<tokio::sync::Barrier>) {
    let channel = connect(&url).await;
    let (mut stream, _) = RawFetch::open_with(&channel, open(4 << 20, Start::Latest(true))).await;
    ready.wait().await;
    while let Ok(Some(frame)) = stream.next().await {
        let fetch_response::Frame::Batches(frame) = frame else {
            continue;
        };
        let records =
            talweg_batch::decode_records(&frame.batches, 64 << 20).expect("a whole batch");
        let value = records[0].value.as_ref().expect("a value");
        let sent = i64::from_be_bytes(value[..8].try_into().expect("8 bytes"));
        worst.fetch_max(raw::now_ms() - sent, Ordering::Relaxed);
        let credit = Credit {
            bytes: frame.batches.len() as i64,
            records: records.len() as i64,
        };
        stream.send(fetch_request::Frame::Credit(credit)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_stalled_readers_slow_nobody() {
    let stack = Stack::builder().start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", 1, &[("durability", "replicated")]).await;
    let noise: Vec<u8> = (0..1_000_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let mut writer = RawProduce::open(&channel, Acks::All).await;
    // The gateway holds what a client has credit for and one batch more: 1.8 MB for
    // each stalled stream.
    let size = 900_000;
    for _ in 0..=(backlog_mb() << 20) / size {
        writer
            .batch("t", 0, batch(&[&noise[..size]]))
            .await
            .expect("backlog");
    }
    let before = (
        stack.gateways[0].private_bytes(),
        stack.storages[0].private_bytes(),
    );
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        let own = connect(&stack.gateway(0)).await;
        let (stream, _) = RawFetch::open_with(&own, open(GRANT, Start::Earliest(true))).await;
        stalled.push((own, stream)); // never read again
    }
    let worst = Arc::new(AtomicI64::new(0));
    let ready = Arc::new(tokio::sync::Barrier::new(READERS + 1));
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            tokio::spawn(tail(
                stack.gateway(0),
                Arc::clone(&worst),
                Arc::clone(&ready),
            ))
        })
        .collect();
    ready.wait().await;
    let size = 100_000;
    let (start, pause) = (
        Instant::now(),
        Duration::from_secs_f64(size as f64 / RATE_BYTES as f64),
    );
    let mut due = start;
    while start.elapsed() < Duration::from_secs(8) {
        writer
            .batch("t", 0, timed_batch(&noise[..size]))
            .await
            .expect("produce goes on");
        due += pause;
        tokio::time::sleep_until(due.into()).await;
    }
    let worst = Duration::from_millis(worst.load(Ordering::Relaxed).unsigned_abs());
    assert!(worst > Duration::ZERO, "the readers read something");
    assert!(worst < LAG, "a reader was {worst:?} behind");
    let allowed = STALLED as u64 * GRANT as u64 + READERS as u64 * (4 << 20) + (64 << 20);
    for (name, before, now) in [
        ("gateway", before.0, stack.gateways[0].private_bytes()),
        ("storage", before.1, stack.storages[0].private_bytes()),
    ] {
        let grown = now.saturating_sub(before);
        eprintln!(
            "{name}: grown by {} MiB of {} MiB allowed; worst lag {worst:?}",
            grown >> 20,
            allowed >> 20
        );
        assert!(grown < allowed, "{name} grew by {grown} bytes");
    }
    readers.iter().for_each(|r| r.abort());
}

/// One unread stream on a shared connection does not stop the others on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unread_stream_does_not_stop_its_neighbours() {
    let stack = Stack::builder().start();
    let shared = connect(&stack.gateway(0)).await;
    create_topic(&shared, "t", 1, &[]).await;
    let noise = vec![7_u8; 500_000];
    let mut writer = RawProduce::open(&shared, Acks::All).await;
    for _ in 0..20 {
        writer
            .batch("t", 0, batch(&[&noise]))
            .await
            .expect("produce");
    }
    let (unread, _) = RawFetch::open_with(&shared, open(2 << 20, Start::Earliest(true))).await;
    let (mut read, _) = RawFetch::open_with(&shared, open(64 << 20, Start::Earliest(true))).await;
    let mut batches = 0;
    let stop = AtomicBool::new(false);
    while batches < 20 && !stop.load(Ordering::Relaxed) {
        match read.next().await.expect("lives").expect("goes on") {
            fetch_response::Frame::Batches(frame) => {
                batches += talweg_batch::split_batches(frame.batches).count()
            }
            fetch_response::Frame::Positions(_) => {}
            other => panic!("{other:?}"),
        }
    }
    writer
        .batch("t", 0, batch(&[b"and produce goes on"]))
        .await
        .expect("produce on the shared connection");
    drop(unread);
}
