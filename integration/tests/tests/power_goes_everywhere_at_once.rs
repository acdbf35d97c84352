//! All storage nodes lose power at once, under load, and return in every order;
//! their index folders are as they were, older, or gone. What was acknowledged
//! on a `synced` topic is there. A `replicated` one comes back by itself, says
//! from where on something may be missing, and nothing below is. Replicas agree.
//!
//! The nodes' logs lie on a file system that forgets what was never flushed when
//! the process is killed; `talweg-storage-power-loss` is that program.

use bytes::Bytes;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use talweg_harness::{
    Guard, Load, Process, Stack, digest, eventually, free_port,
    raw::{self, RawProduce, connect, create_topic},
};
use talweg_proto::{
    controller::v1::{
        PartitionState, WatchClusterRequest, controller_service_client::ControllerServiceClient,
        watch_cluster_response::Update,
    },
    v1::Acks,
};
use tonic::transport::Channel;

const ORDERS: [[usize; 3]; 6] = [
    [0, 1, 2],
    [0, 2, 1],
    [1, 0, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
];
const PARTITIONS: u32 = 2;
const START: Duration = Duration::from_secs(30);
const BACK: Duration = Duration::from_secs(60);
/// Acknowledged right before the power goes, in each partition.
const BURST: usize = 20;

/// What was acknowledged, by partition and offset.
type Log = BTreeMap<(u32, i64), Vec<u8>>;

/// What of `acked` is not in `found`; an error for what must be there: it lies
/// below what the partition's record says may be missing.
fn missing(acked: &Log, found: &Log, from: &BTreeMap<u32, i64>) -> Result<usize, String> {
    let mut lost = 0;
    for ((partition, offset), value) in acked {
        match (found.get(&(*partition, *offset)), from.get(partition)) {
            (Some(there), _) if there == value => {}
            (_, Some(from)) if offset >= from => lost += 1,
            (there, from) => {
                return Err(format!(
                    "partition {partition}, offset {offset}: {value:?} was acknowledged, {there:?} is there; may be missing from {from:?}"
                ));
            }
        }
    }
    Ok(lost)
}

/// The judge finds what it is there for.
#[test]
fn doctored_losses_are_found() {
    let log = |offsets: &[i64]| -> Log {
        let value = |offset: &i64| ((0, *offset), vec![u8::try_from(*offset).expect("small")]);
        offsets.iter().map(value).collect()
    };
    let acked = log(&[0, 1, 2, 3]);
    let from = BTreeMap::from([(0, 2)]);
    assert_eq!(
        missing(&acked, &log(&[0, 1, 2, 3]), &BTreeMap::new()),
        Ok(0)
    );
    assert_eq!(missing(&acked, &log(&[0, 1, 2]), &from), Ok(1));
    assert_eq!(missing(&acked, &log(&[0, 1]), &from), Ok(2));
    let judged = |found: &Log, from: &BTreeMap<u32, i64>| missing(&acked, found, from);
    judged(&log(&[0, 1, 2]), &BTreeMap::new()).expect_err("no record speaks of it");
    judged(&log(&[0, 2, 3]), &from).expect_err("below what may be missing");
    let mut other = log(&[0, 1, 2, 3]);
    other.insert((0, 1), b"another".to_vec());
    judged(&other, &from).expect_err("another record in its place");
}

/// Three nodes that lose power when they are killed.
struct Nodes {
    processes: Vec<Process>,
    data: Vec<PathBuf>,
    /// An earlier index of each.
    earlier: Vec<PathBuf>,
}

impl Nodes {
    fn start(stack: &Stack) -> Self {
        let data: Vec<_> = (0..3)
            .map(|i| stack.folder().join(format!("disk-{i}/data")))
            .collect();
        let process = |(i, data): (usize, &PathBuf)| {
            let settings = [
                format!("grpc=127.0.0.1:{}", free_port()),
                format!("http=127.0.0.1:{}", free_port()),
                format!("data_dirs={}", data.display()),
                format!("controllers={}", stack.controller()),
            ];
            let args = settings
                .into_iter()
                .flat_map(|s| ["--set".to_owned(), s])
                .collect();
            let program = "talweg-storage-power-loss";
            let mut process = Process::new(&format!("node-{i}"), program, args, stack.folder());
            process.start(START);
            process
        };
        let processes = data.iter().enumerate().map(process).collect();
        let earlier = (0..3)
            .map(|i| stack.folder().join(format!("index-{i}")))
            .collect();
        Self {
            processes,
            data,
            earlier,
        }
    }

    /// All at once: nobody flushes after another one has stopped.
    fn lose_power(&mut self) {
        self.processes.iter().for_each(Process::pause);
        self.processes.iter_mut().for_each(Process::kill9);
    }

    /// One index stays as it is, one is of an earlier moment, one is gone.
    fn mix_up_indexes(&self, round: usize) {
        for node in 0..3 {
            let (index, earlier) = (self.data[node].join("index"), &self.earlier[node]);
            match (node + round) % 3 {
                0 => copy(&index, earlier),
                1 if earlier.exists() => {
                    fs::remove_dir_all(&index).expect("removed");
                    copy(earlier, &index);
                }
                _ => fs::remove_dir_all(&index).expect("removed"),
            }
        }
    }
}

/// A folder of files.
fn copy(from: &Path, to: &Path) {
    if to.exists() {
        fs::remove_dir_all(to).expect("removed");
    }
    fs::create_dir(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

/// A topic's partitions as the controller has them.
async fn partitions(stack: &Stack, id: &Bytes) -> Vec<PartitionState> {
    let mut controller = ControllerServiceClient::connect(stack.controller())
        .await
        .expect("the controller is there");
    let request = WatchClusterRequest { node_id: 0 };
    let watch = controller.watch_cluster(request).await.expect("a watch");
    let (mut watch, mut found) = (watch.into_inner(), Vec::new());
    loop {
        let message = watch.message().await.expect("the watch lives");
        let Some(Update::Snapshot(part)) = message.and_then(|message| message.update) else {
            panic!("a watch begins with a snapshot");
        };
        found.extend(part.view.unwrap_or_default().partitions);
        if part.last {
            found.retain(|partition| partition.topic_id == *id);
            return found;
        }
    }
}

/// Waits until all are led and in sync by three.
async fn whole(stack: &Stack, id: &Bytes) -> Vec<PartitionState> {
    eventually("led, and all in sync", BACK, || async {
        let found = partitions(stack, id).await;
        let whole = |p: &PartitionState| p.leader > 0 && p.in_sync.len() == 3;
        match found.len() == PARTITIONS as usize && found.iter().all(whole) {
            true => Ok(found),
            false => Err(format!("{found:?}")),
        }
    })
    .await
}

/// Writes a little to every partition with acks=all; what was acknowledged.
async fn burst(channel: &Channel, topic: &str, round: usize) -> Log {
    let mut stream = RawProduce::open(channel, Acks::All).await;
    let mut acked = Log::new();
    for number in 0..BURST {
        for partition in 0..PARTITIONS {
            let value = format!("round {round}, record {number}").into_bytes();
            let batch = raw::batch(&[&value]);
            let offset = stream
                .batch(topic, partition, batch)
                .await
                .expect("acknowledged");
            acked.insert((partition, offset), value);
        }
    }
    acked
}

async fn read(channel: &Channel, topic: &str) -> Log {
    let mut found = Log::new();
    for partition in 0..PARTITIONS {
        for record in raw::read_all(channel, topic, partition).await {
            let value = record.value.unwrap_or_default().to_vec();
            found.insert((partition, record.offset), value);
        }
    }
    found
}

async fn known_bounds(channel: &Channel, topic: &str) -> Vec<i64> {
    let mut ends = Vec::new();
    for partition in 0..PARTITIONS {
        let end = eventually("a watermark", BACK, || async {
            let bounds = raw::bounds(channel, topic, partition).await?;
            match bounds.high_watermark == bounds.log_end_offset {
                true => Ok(bounds.high_watermark),
                false => Err(format!("{bounds:?}")),
            }
        })
        .await;
        ends.push(end);
    }
    ends
}

/// Waits until the leaders have flushed all that they have.
async fn flushed(channel: &Channel, topic: &str) {
    for partition in 0..PARTITIONS {
        eventually("all is flushed", BACK, || async {
            let bounds = raw::bounds(channel, topic, partition).await?;
            match bounds.flushed_end_offset == bounds.log_end_offset {
                true => Ok(()),
                false => Err(format!("{bounds:?}")),
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_flushed_is_lost_and_what_may_be_is_named() {
    let mut stack = Stack::builder().storages(0).start();
    let mut nodes = Nodes::start(&stack);
    let channel = connect(&stack.gateway(0)).await;
    let topic = async |name, durability| {
        let config = [("durability", durability)];
        create_topic(&channel, name, PARTITIONS as i32, &config).await
    };
    let synced = topic("synced", "synced").await;
    let replicated = topic("replicated", "replicated").await;
    whole(&stack, &synced).await;
    whole(&stack, &replicated).await;
    // Written through all rounds; the checker has the last word.
    let load = Load::start(vec![stack.gateway(0)], "synced", PARTITIONS, Acks::All).await;
    load.advance(0, 30, BACK).await;
    // Of the nodes, which are none of the stack's, the digests are compared below.
    let guard = Guard::begin(&mut stack, [load.watched()]).await;
    let mut lost = 0;
    for (round, order) in ORDERS.into_iter().enumerate() {
        load.advance(load.acknowledged(), 30, BACK).await;
        burst(&channel, "replicated", 100 + round).await;
        flushed(&channel, "replicated").await;
        let kept = read(&channel, "replicated").await;
        let before: BTreeMap<u32, i32> = whole(&stack, &replicated)
            .await
            .iter()
            .map(|p| (p.partition, p.leader_epoch))
            .collect();
        let acked = burst(&channel, "replicated", round).await;
        tokio::task::block_in_place(|| {
            nodes.lose_power();
            nodes.mix_up_indexes(round);
            for node in order {
                nodes.processes[node].start(START);
            }
        });
        whole(&stack, &synced).await;
        let mut from = BTreeMap::new();
        for partition in whole(&stack, &replicated).await {
            let number = partition.partition;
            let recovered = partition
                .recovered
                .expect("a recovered election is on record");
            assert!(!recovered.unclean && recovered.leader_epoch > before[&number]);
            from.insert(number, recovered.from_offset);
        }
        known_bounds(&channel, "replicated").await;
        let found = read(&channel, "replicated").await;
        lost += missing(&acked, &found, &from).expect("only what is named is missing");
        // What has survived one power loss was flushed.
        missing(&kept, &found, &BTreeMap::new()).expect("earlier rounds are whole");
    }
    assert!(lost > 0, "the power never went: nothing was lost anywhere");
    println!(
        "{lost} of {} named as missing",
        ORDERS.len() * BURST * PARTITIONS as usize
    );
    load.advance(load.acknowledged(), 30, BACK).await;
    drop(guard.end(&mut stack).await);
    load.finish(&stack.gateway(0)).await;
    let ends = [
        (&synced, known_bounds(&channel, "synced").await),
        (&replicated, known_bounds(&channel, "replicated").await),
    ];
    tokio::task::block_in_place(|| {
        for process in &mut nodes.processes {
            process.stop(Duration::from_secs(10));
        }
    });
    for (id, ends) in ends {
        let id = uuid::Uuid::from_slice(id).expect("16 bytes");
        // A log without records needs no folder.
        for (partition, end) in ends.into_iter().enumerate().filter(|(_, end)| *end > 0) {
            let folders = nodes
                .data
                .iter()
                .map(|data| data.join(format!("{id}-{partition}")));
            let digests: Vec<_> = folders.map(|folder| digest(&folder, end)).collect();
            assert!(
                digests.iter().all(|d| *d == digests[0]),
                "{partition}: {digests:?}"
            );
        }
    }
}
