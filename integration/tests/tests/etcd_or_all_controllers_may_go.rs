//! etcd goes away, later all controllers do, each for a while: produce and fetch
//! go on, changes of metadata are refused with a delay, and all heals.
//!
//! `TALWEG_OUTAGE_SECONDS`: how long each is away (10; the soak takes 60).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use talweg_harness::{
    Guard, Load, Process, Stack, eventually,
    raw::{self, RawFetch, connect, create_topic, detail},
};
use talweg_proto::v1::{
    Acks, CreateTopicRequest, Credit, ErrorCode, fetch_partition::Start, fetch_request,
    fetch_response, topic_service_client::TopicServiceClient,
};
use tokio::{task::JoinHandle, time::timeout};
use tonic::{Status, transport::Channel};

const PARTITIONS: u32 = 3;
/// Between two acknowledgements of a writer, and between two frames of the reader.
const SLACK: Duration = Duration::from_secs(1);
/// For a refusal.
const REFUSED: Duration = Duration::from_secs(10);
const BACK: Duration = Duration::from_secs(40);

fn outage() -> Duration {
    let seconds = std::env::var("TALWEG_OUTAGE_SECONDS").ok();
    let seconds = seconds.map_or(10, |text| text.parse().expect("seconds"));
    Duration::from_secs(seconds)
}

/// A consumer of a whole topic.
struct Reader {
    stop: Arc<AtomicBool>,
    records: Arc<AtomicU64>,
    /// The longest time without a frame, when it ends.
    reading: JoinHandle<Duration>,
}

impl Reader {
    async fn start(channel: &Channel, topic: &str) -> Self {
        let from = |partition| raw::from(topic, partition, Start::Earliest(true));
        let mut stream = RawFetch::records(channel, (0..PARTITIONS).map(from).collect()).await;
        let (stop, records) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (told, count) = (Arc::clone(&stop), Arc::clone(&records));
        let reading = tokio::spawn(async move {
            let (mut longest, mut last) = (Duration::ZERO, Instant::now());
            while !told.load(Ordering::Relaxed) {
                let frame = stream.next().await.expect("the stream lives");
                longest = longest.max(last.elapsed());
                last = Instant::now();
                match frame.expect("the stream goes on") {
                    fetch_response::Frame::Records(frame) => {
                        count.fetch_add(frame.records.len() as u64, Ordering::Relaxed);
                        // More than was counted, so that credit never runs out.
                        let credit = Credit {
                            bytes: 200 * i64::try_from(frame.records.len()).expect("few"),
                            records: i64::try_from(frame.records.len()).expect("few"),
                        };
                        stream.send(fetch_request::Frame::Credit(credit)).await;
                    }
                    fetch_response::Frame::Positions(_) => {}
                    other => panic!("a consumer was told {other:?}"),
                }
            }
            longest
        });
        Self {
            stop,
            records,
            reading,
        }
    }

    /// Ends it once it has seen `records`; the longest silence.
    async fn finish(self, records: u64) -> Duration {
        eventually("the consumer sees all", BACK, || async {
            match self.records.load(Ordering::Relaxed) {
                seen if seen >= records => Ok(()),
                seen => Err(format!("{seen} of {records}")),
            }
        })
        .await;
        self.stop.store(true, Ordering::Relaxed);
        self.reading.await.expect("the reader ended well")
    }
}

async fn create(channel: &Channel, name: &str) -> Result<(), Status> {
    let request = CreateTopicRequest {
        name: name.into(),
        partitions: Some(1),
        idempotency_key: name.into(),
        ..Default::default()
    };
    let mut topics = TopicServiceClient::new(channel.clone());
    topics.create_topic(request).await.map(drop)
}

/// The change is refused, in time, as something to try again after a delay.
async fn refused(channel: &Channel, name: &str) {
    let answer = timeout(REFUSED, create(channel, name)).await;
    let status = answer.expect("an answer in time").expect_err("refused");
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
    let detail = detail(&status);
    assert_eq!(detail.code, i32::from(ErrorCode::Unavailable), "{detail:?}");
    assert!(detail.retriable && detail.retry_after_ms > 0, "{detail:?}");
}

/// What is to go away.
fn of(stack: &mut Stack, etcd: bool) -> Vec<&mut Process> {
    match etcd {
        true => stack.etcd.iter_mut().collect(),
        false => std::iter::once(&mut stack.controller)
            .chain(&mut stack.standbys)
            .collect(),
    }
}

/// One outage under load, and what comes after it.
async fn story(stack: &mut Stack, etcd: bool) {
    let what = if etcd { "etcd" } else { "controllers" };
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, what, PARTITIONS as i32, &[]).await;
    raw::in_sync(&channel, what, 3).await;
    let load = Load::start(vec![stack.gateway(0)], what, PARTITIONS, Acks::All).await;
    let reader = Reader::start(&channel, what).await;
    load.advance(0, 60, Duration::from_secs(20)).await;
    let guard = Guard::begin(stack, [load.watched()]).await;

    of(stack, etcd).into_iter().for_each(Process::kill9);
    let gone = Instant::now();
    let late = format!("{what}-late");
    // Those who are there go on with what they have for the first moments.
    let (end, mut refusals) = (outage(), 0);
    while gone.elapsed() < end {
        load.advance(load.acknowledged(), 30, SLACK * 2).await;
        refused(&channel, &late).await;
        refusals += 1;
    }
    assert!(refusals > 0, "never asked in {end:?}");
    of(stack, etcd).into_iter().for_each(Process::spawn);

    eventually("changes are taken again", BACK, || async {
        create(&channel, &late).await.map_err(|e| e.to_string())
    })
    .await;
    load.advance(load.acknowledged(), 60, Duration::from_secs(20))
        .await;
    let settled = guard.end(stack).await;
    let seen = load.acknowledged();
    let silence = reader.finish(seen).await;
    let finished = load.finish_with_gap(&stack.gateway(0)).await;
    println!("{what}: {finished:?}, the consumer's longest silence {silence:?}");
    // Each writer's one stream ends when it is told to stop, and never before.
    assert_eq!(finished.reconnects, PARTITIONS as usize, "no error");
    assert!(finished.longest_gap < SLACK, "{finished:?}");
    assert!(silence < SLACK, "{silence:?}");
    settled.replicas_agree(stack).await;
    tokio::task::block_in_place(|| {
        for storage in &mut stack.storages {
            storage.start(Duration::from_secs(20));
        }
    });
    a_dead_leader_is_replaced(stack, &channel, what).await;
}

async fn a_dead_leader_is_replaced(stack: &mut Stack, channel: &Channel, after: &str) {
    let topic = &format!("{after}-back");
    create_topic(channel, topic, PARTITIONS as i32, &[]).await;
    let partitions = raw::in_sync(channel, topic, 3).await;
    let victim = partitions[0].leader as usize - 1;
    let load = Load::start(vec![stack.gateway(0)], topic, PARTITIONS, Acks::All).await;
    load.advance(0, 30, Duration::from_secs(20)).await;
    stack.storages[victim].kill9();
    load.advance(load.acknowledged(), 60, Duration::from_secs(20))
        .await;
    tokio::task::block_in_place(|| stack.storages[victim].start(Duration::from_secs(20)));
    raw::in_sync(channel, topic, 3).await;
    load.finish(&stack.gateway(0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_do_not_notice_and_changes_wait() {
    let mut stack = Stack::builder()
        .storages(3)
        .controllers_on_etcd(2)
        .set("controller", "election_ttl_ms=2000")
        .start();
    story(&mut stack, true).await;
    story(&mut stack, false).await;
}
