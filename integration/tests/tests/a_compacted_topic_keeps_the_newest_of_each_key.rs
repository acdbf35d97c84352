//! A compacted topic on three nodes, written and compacted while storage nodes
//! are killed: whoever reads from the start rebuilds the newest value of each key,
//! and old values are gone on every node.

use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use talweg_harness::{
    Stack, eventually, http,
    raw::{self, RawProduce, code, connect, create_topic},
    seed,
};
use talweg_proto::v1::{self, Acks, ErrorCode};
use tokio::{sync::watch, task::JoinHandle};
use tonic::transport::Channel;

const START: Duration = Duration::from_secs(30);
const KEYS: usize = 12;
const KILLS: usize = 9;

/// By key: the newest value that was acknowledged, and the newest that was sent.
type Written = BTreeMap<String, (u64, u64)>;

fn record(key: &str, value: u64) -> v1::Record {
    let mut bytes = value.to_string().into_bytes();
    bytes.resize(600, b' ');
    v1::Record {
        key: Some(key.to_owned().into_bytes().into()),
        value: Some(bytes.into()),
        partition: Some(0),
        ..Default::default()
    }
}

/// Writes rising values, one at a time, and goes on after every broken stream.
struct Writer {
    written: watch::Receiver<Written>,
    stop: Arc<watch::Sender<bool>>,
    task: JoinHandle<()>,
}

impl Writer {
    fn start(channel: Channel) -> Self {
        let (tell, written) = watch::channel(Written::new());
        let stop = Arc::new(watch::Sender::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut value = 0;
            let mut stream = RawProduce::open(&channel, Acks::All).await;
            while !*stopped.borrow() {
                value += 1;
                let key = format!("key-{}", value as usize % KEYS);
                tell.send_modify(|all| all.entry(key.clone()).or_default().1 = value);
                if stream.record("t", record(&key, value)).await.is_ok() {
                    tell.send_modify(|all| all.entry(key.clone()).or_default().0 = value);
                } else {
                    stream = RawProduce::open(&channel, Acks::All).await;
                }
            }
        });
        Self {
            written,
            stop,
            task,
        }
    }

    fn acknowledged(&self) -> u64 {
        let written = self.written.borrow();
        written.values().map(|(acked, _)| *acked).max().unwrap_or(0)
    }

    async fn advance(&self, by: u64) {
        let target = self.acknowledged() + by;
        eventually("the writer goes on", Duration::from_secs(60), || async {
            match self.acknowledged() >= target {
                true => Ok(()),
                false => Err(self.acknowledged().to_string()),
            }
        })
        .await;
    }

    async fn finish(self) -> Written {
        self.stop.send_replace(true);
        self.task.await.expect("the writer ends well");
        self.written.borrow().clone()
    }
}

/// What a reader from the start rebuilds, and how many records it saw.
async fn rebuild(channel: &Channel) -> (BTreeMap<String, u64>, usize) {
    let found = raw::read_all(channel, "t", 0).await;
    let mut state = BTreeMap::new();
    for record in &found {
        let key = String::from_utf8_lossy(record.key.as_deref().expect("a key")).into_owned();
        let value = String::from_utf8_lossy(record.value.as_deref().expect("a value"));
        state.insert(key, value.trim().parse().expect("a number"));
    }
    (state, found.len())
}

fn holds(state: &BTreeMap<String, u64>, before: &Written, after: &Written) {
    for (key, (acked, _)) in before {
        let (_, sent) = after[key];
        let value = state.get(key).copied().unwrap_or(0);
        assert!(
            (*acked..=sent).contains(&value),
            "{key} is {value}; {acked} was acknowledged before, {sent} sent since"
        );
    }
}

async fn compactions(stack: &Stack) -> Vec<f64> {
    let mut counts = Vec::new();
    for port in stack.ports_of("storage") {
        counts.push(http::metric(port, "talweg_storage_compactions_total").await);
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compacted_topic_keeps_the_newest_of_each_key() {
    let mut random = SmallRng::seed_from_u64(seed());
    let mut stack = Stack::builder().storages(3).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(
        &channel,
        "t",
        1,
        &[
            ("cleanup.policy", "compact"),
            ("segment.bytes", "16384"),
            ("max.message.bytes", "8192"),
            ("retention.ms", "1"),
        ],
    )
    .await;
    let mut stream = RawProduce::open(&channel, Acks::All).await;
    let keyless = v1::Record {
        key: None,
        ..record("", 1)
    };
    let refused = stream.record("t", keyless).await.expect_err("no key");
    assert_eq!(code(&refused), ErrorCode::InvalidRecord);
    let writer = Writer::start(channel.clone());
    for kill in 0..KILLS {
        writer.advance(random.random_range(50..400)).await;
        stack.storages[kill % 3].kill9();
        writer.advance(random.random_range(1..100)).await;
        stack.storages[kill % 3].start(START);
        writer.advance(20).await;
        let before = writer.written.borrow().clone();
        let (state, _) = rebuild(&channel).await;
        let after = writer.written.borrow().clone();
        holds(&state, &before, &after);
    }
    writer.advance(400).await;
    let written = writer.finish().await;
    let (state, _) = rebuild(&channel).await;
    holds(&state, &written, &written);
    let sent: u64 = written.values().map(|(_, sent)| *sent).max().unwrap_or(0);
    eventually("old values are gone", Duration::from_secs(60), || async {
        let (again, records) = rebuild(&channel).await;
        holds(&again, &written, &written);
        // One segment is open and up to half of the rest may wait.
        match records < sent as usize / 4 {
            true => Ok(()),
            false => Err(format!("{records} records of {sent} sent")),
        }
    })
    .await;
    eventually(
        "every node has compacted",
        Duration::from_secs(60),
        || async {
            let counts = compactions(&stack).await;
            match counts.len() == 3 && counts.iter().all(|count| *count > 0.0) {
                true => Ok(()),
                false => Err(format!("{counts:?}")),
            }
        },
    )
    .await;
}
