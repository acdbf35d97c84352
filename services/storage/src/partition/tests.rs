//! A loop on a file system in memory whose flushes a test can hold or fail.

use super::{watchers::Watcher, *};
use crate::{clock::ClockWatch, flusher::Flushers, metrics::Metrics, replicate::Outbox};
use std::{
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use talweg_batch::{BatchBuilder, CheckedBatch, ValidationLimits, check_client_batch};
use talweg_log::{AppendError, LogConfig, LogFolder, PartitionLog, fs::PowerLossFs, kv::MemKv};
use talweg_replication::LeaderSettings;
use talweg_types::{
    Acks, Compression, Durability, Incarnation, LeaderEpoch, NodeId, Offset, PartitionEpoch,
    PartitionIndex, ProducerEpoch, ProducerId, Sequence, TimestampMs, TopicConfig, TopicId,
    TopicPartition,
};
use tokio::sync::oneshot;
use uuid::Uuid;

/// Holds flushes of segment files until it is opened, and counts them.
#[derive(Default)]
struct Gate {
    closed: Mutex<bool>,
    moved: Condvar,
    flushes: AtomicUsize,
}

impl Gate {
    fn pass(&self) {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        let closed = self.closed.lock().expect("gate");
        drop(
            self.moved
                .wait_while(closed, |closed| *closed)
                .expect("gate"),
        );
    }

    /// Waits until a flush has come to the gate, so that what is appended from
    /// here on is not part of it.
    async fn reached(&self) {
        let come = async {
            while self.flushes.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
        };
        let patience = std::time::Duration::from_secs(20);
        tokio::time::timeout(patience, come)
            .await
            .expect("a flush comes to the gate");
    }

    fn set(&self, closed: bool) {
        *self.closed.lock().expect("gate") = closed;
        self.moved.notify_all();
    }
}

struct Bench {
    fs: PowerLossFs,
    gate: Arc<Gate>,
    folder: Arc<LogFolder>,
    owner: LoopHandle,
    stream: Arc<Completions>,
    sequence: u64,
}

fn leadership(epoch: i32) -> Leadership {
    Leadership {
        epoch: LeaderEpoch(epoch),
        incarnation: Incarnation(1),
        partition_epoch: PartitionEpoch(0),
        in_sync: [NodeId(1)].into(),
        replicas: [NodeId(1)].into(),
    }
}

fn tp(partition: u32) -> TopicPartition {
    TopicPartition {
        topic_id: TopicId(Uuid::from_u128(3)),
        partition: PartitionIndex(partition),
    }
}

fn batch(producer: Option<i32>) -> CheckedBatch {
    let mut builder = BatchBuilder::new(Compression::None);
    if let Some(sequence) = producer {
        builder.set_producer(ProducerId(9), ProducerEpoch(0), Sequence(sequence));
    }
    builder
        .push(TimestampMs(1), Some(b"k"), Some(b"v"), [])
        .expect("record");
    let limits = ValidationLimits::for_topic(&TopicConfig::default(), TimestampMs(1));
    check_client_batch(builder.build().expect("batch"), &limits).expect("valid")
}

impl Bench {
    fn new() -> Self {
        let fs = PowerLossFs::in_memory(1);
        let gate = Arc::new(Gate::default());
        let hook = Arc::clone(&gate);
        fs.set_hook(Some(Arc::new(move |operation| {
            let is_log = operation.path.extension().is_some_and(|kind| kind == "log");
            if is_log && operation.kind == talweg_log::fs::power_loss::OpKind::Flush {
                hook.pass();
            }
            Ok(())
        })));
        let (folder, _) = LogFolder::open(
            Arc::new(fs.process()),
            PathBuf::from("/data"),
            Arc::new(MemKv::default()),
        )
        .expect("folder");
        folder.mark_running(Incarnation(1)).expect("running");
        let (flushers, _) = Flushers::spawn(2, 1).expect("threads");
        let registry = talweg_kit::metrics::Metrics::new("test");
        let settings = LoopSettings {
            folders: vec![Arc::clone(&folder)],
            flushers,
            clock: Arc::new(ClockWatch::default()),
            metrics: Arc::new(Metrics::new(&registry, 1)),
            mailbox_bytes: 1 << 20,
            background_flush_bytes: 1 << 20,
        };
        let (owner, _thread) = spawn_loop(0, settings).expect("loop");
        Self {
            fs,
            gate,
            folder,
            owner,
            stream: Arc::default(),
            sequence: 0,
        }
    }

    fn open(&self, partition: u32, durability: Durability) -> Arc<PartitionHandle> {
        let config = LogConfig::for_topic(&TopicConfig::default(), durability);
        let log = PartitionLog::create(&self.folder, tp(partition), config);
        let handle = Arc::new(PartitionHandle::new(tp(partition), log.reader(), 0));
        let settings = LeaderSettings {
            durability,
            replication_factor: 1,
            min_insync_replicas: 1,
        };
        let opened = Opened {
            log,
            handle: Arc::clone(&handle),
            node: NodeId(1),
            folder: 0,
            settings,
            outbox: Outbox::new().0,
            contacts: Arc::default(),
            wall_clock: crate::clock::wall_now,
        };
        self.send(Command::Open(Box::new(opened)));
        let leadership = leadership(1);
        self.send(Command::Lead {
            tp: tp(partition),
            leadership,
        });
        handle
    }

    fn send(&self, command: Command) {
        assert!(self.owner.send(command).is_ok(), "the loop runs");
    }

    fn append(&mut self, partition: u32, acks: Acks, batch: CheckedBatch) {
        self.sequence += 1;
        self.send(Command::Append(AppendRequest {
            tp: tp(partition),
            expected_epoch: None,
            acks,
            batches: vec![(self.sequence, batch)],
            stream: Arc::clone(&self.stream),
            slot: partition,
            reservation: Reservation::none(),
        }));
    }

    /// The next answers, at least `count`.
    async fn answers(&self, count: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        while all.len() < count {
            let ready = tokio::time::timeout(Duration::from_secs(10), self.stream.ready()).await;
            ready.unwrap_or_else(|_| panic!("{} of {count} answers came", all.len()));
            let mut taken = Vec::new();
            self.stream.take(&mut taken);
            all.extend(taken);
        }
        all
    }

    /// Everything sent before was handled when this returns.
    async fn settled(&self) {
        let (done, answer) = oneshot::channel();
        let (tp, before) = (tp(999), None);
        self.send(Command::DeleteRecords { tp, before, done });
        answer
            .await
            .expect("the loop runs")
            .expect_err("there is no such partition");
    }

    fn unanswered(&self) -> bool {
        let mut taken = Vec::new();
        self.stream.take(&mut taken);
        taken.is_empty()
    }

    async fn close(&self) -> bool {
        let (done, answer) = oneshot::channel();
        self.send(Command::Close { done });
        answer.await.expect("closed")
    }
}

fn base_offset(completion: &Completion) -> i64 {
    match &completion.outcome {
        Outcome::Done { base_offset, .. } => base_offset.0,
        refused => panic!("{refused:?}"),
    }
}

fn why(completion: &Completion) -> &AppendRefusal {
    match &completion.outcome {
        Outcome::Refused(why) => why,
        done => panic!("{done:?}"),
    }
}

/// Story: on a `synced` partition nothing is acknowledged, and nothing shown to
/// readers, before the flush has returned; what came meanwhile shares the next flush.
#[tokio::test]
async fn synced_waits_for_the_flush_and_shares_it() {
    let mut bench = Bench::new();
    let handle = bench.open(0, Durability::Synced);
    bench.gate.set(true);
    bench.append(0, Acks::All, batch(None));
    bench.gate.reached().await;
    for _ in 0..3 {
        bench.append(0, Acks::All, batch(None));
        bench.settled().await;
    }
    assert!(bench.unanswered());
    assert_eq!(handle.reader.bounds().log_end, Offset(4));
    assert_eq!(handle.reader.bounds().high_watermark, Offset(0));
    bench.append(0, Acks::Zero, batch(None));
    let silent = bench.answers(1).await;
    assert_eq!(
        base_offset(&silent[0]),
        4,
        "acks 0 waits for the write alone"
    );
    bench.gate.set(false);
    let answers = bench.answers(4).await;
    assert_eq!(
        answers.iter().map(base_offset).collect::<Vec<_>>(),
        [0, 1, 2, 3]
    );
    assert_eq!(
        bench.gate.flushes.load(Ordering::SeqCst),
        2,
        "one flush, and one for all that waited"
    );
    assert!(bench.close().await);
}

#[tokio::test]
async fn replicated_is_answered_while_the_disk_stalls() {
    let mut bench = Bench::new();
    let handle = bench.open(0, Durability::Replicated);
    bench.gate.set(true);
    bench.append(0, Acks::All, batch(None));
    let answers = bench.answers(1).await;
    let Outcome::Done { reached, .. } = &answers[0].outcome else {
        panic!("{answers:?}")
    };
    assert_eq!(
        (reached.holding, reached.flushed, reached.epoch),
        (1, 0, LeaderEpoch(1))
    );
    assert_eq!(handle.reader.bounds().high_watermark, Offset(1));
    bench.gate.set(false);
    assert!(bench.close().await);
}

/// Story: a flush fails. What waited is unknown, what comes is refused, readers
/// are told; nothing is tried again.
#[tokio::test]
async fn a_failed_flush_fails_the_folder_and_its_partitions() {
    let mut bench = Bench::new();
    let (first, second) = (
        bench.open(0, Durability::Synced),
        bench.open(1, Durability::Synced),
    );
    bench.append(0, Acks::All, batch(None));
    bench.append(1, Acks::All, batch(None));
    bench.answers(2).await;
    bench.gate.set(true);
    bench.append(0, Acks::All, batch(None));
    bench.settled().await;
    bench.fs.fail_flush_after(0);
    bench.gate.set(false);
    let answers = bench.answers(1).await;
    assert_eq!(why(&answers[0]), &AppendRefusal::LeadershipLost);
    bench.settled().await;
    for partition in [0, 1] {
        bench.append(partition, Acks::All, batch(None));
        let answers = bench.answers(1).await;
        assert!(
            matches!(
                why(&answers[0]),
                AppendRefusal::Log(AppendError::FolderFailed(_))
            ),
            "partition {partition}: {answers:?}"
        );
    }
    assert!(first.failure().is_some() && second.failure().is_some());
    assert!(first.leads().is_none());
    bench.close().await;
}

/// Story: leadership moves while producers wait; they are told "unknown", later
/// ones "not here", and readers wake.
#[tokio::test]
async fn losing_leadership_answers_everybody() {
    let mut bench = Bench::new();
    let handle = bench.open(0, Durability::Synced);
    bench.settled().await;
    let reader = Arc::new(StreamWaker::default());
    let _watcher: Arc<Watcher> = handle.watchers.register(&reader, 5);
    bench.gate.set(true);
    bench.append(0, Acks::All, batch(None));
    bench.settled().await;
    bench.send(Command::Resign {
        tp: tp(0),
        epoch: LeaderEpoch(2),
    });
    bench.append(0, Acks::All, batch(None));
    let answers = bench.answers(2).await;
    assert_eq!(why(&answers[0]), &AppendRefusal::LeadershipLost);
    assert_eq!(why(&answers[1]), &AppendRefusal::NotLeader);
    tokio::time::timeout(Duration::from_secs(5), reader.ready())
        .await
        .expect("woken");
    assert_eq!(handle.leads(), None);
    bench.gate.set(false);
    bench.send(Command::Lead {
        tp: tp(0),
        leadership: leadership(3),
    });
    bench.append(0, Acks::All, batch(None));
    assert_eq!(base_offset(&bench.answers(1).await[0]), 1);
    assert!(bench.close().await);
}

/// Story: a leader that is about to stop answers what it has taken and takes
/// nothing more in this epoch; a later one is another matter.
#[tokio::test]
async fn handing_over_appends_no_more_and_answers_what_was() {
    let mut bench = Bench::new();
    let handle = bench.open(0, Durability::Synced);
    bench.settled().await;
    bench.gate.set(true);
    bench.append(0, Acks::All, batch(None));
    let (held, holds) = tokio::sync::oneshot::channel();
    bench.send(Command::HandOver {
        tp: tp(0),
        epoch: leadership(1).epoch,
        held,
    });
    holds.await.expect("held");
    bench.append(0, Acks::One, batch(None));
    let answers = bench.answers(1).await;
    assert_eq!(why(&answers[0]), &AppendRefusal::NotLeader);
    assert!(handle.leads().is_some(), "followers still fetch here");
    bench.gate.set(false);
    assert_eq!(base_offset(&bench.answers(1).await[0]), 0);
    bench.send(Command::Lead {
        tp: tp(0),
        leadership: leadership(2),
    });
    bench.append(0, Acks::All, batch(None));
    assert_eq!(base_offset(&bench.answers(1).await[0]), 1);
    assert!(bench.close().await);
}

/// Story: an idempotent producer repeats, skips and is fenced; a batch that
/// follows a skipped one is refused as well.
#[tokio::test]
async fn sessions_are_checked_in_order() {
    let mut bench = Bench::new();
    bench.open(0, Durability::Replicated);
    for sequence in [0, 1, 0, 3, 4, 2] {
        bench.append(0, Acks::All, batch(Some(sequence)));
    }
    let answers = bench.answers(6).await;
    let by_sequence = |n: u64| {
        answers
            .iter()
            .find(|answer| answer.sequence == n)
            .expect("answered")
    };
    assert_eq!(base_offset(by_sequence(1)), 0);
    assert_eq!(base_offset(by_sequence(2)), 1);
    assert!(matches!(
        &by_sequence(3).outcome,
        Outcome::Done {
            base_offset: Offset(0),
            duplicate: true,
            ..
        }
    ));
    for skipped in [4, 5] {
        let expected = Sequence(2);
        assert_eq!(
            why(by_sequence(skipped)),
            &AppendRefusal::Log(AppendError::OutOfOrderSequence { expected })
        );
    }
    assert_eq!(base_offset(by_sequence(6)), 2);
    assert!(bench.close().await);
}

#[tokio::test]
async fn another_epoch_is_refused_and_a_full_disk_passes() {
    let mut bench = Bench::new();
    bench.open(0, Durability::Replicated);
    bench.sequence += 1;
    bench.send(Command::Append(AppendRequest {
        tp: tp(0),
        expected_epoch: Some(LeaderEpoch(2)),
        acks: Acks::All,
        batches: vec![(bench.sequence, batch(None))],
        stream: Arc::clone(&bench.stream),
        slot: 0,
        reservation: Reservation::none(),
    }));
    let answers = bench.answers(1).await;
    let (asked, current) = (LeaderEpoch(2), LeaderEpoch(1));
    assert_eq!(
        why(&answers[0]),
        &AppendRefusal::OtherEpoch { asked, current }
    );
    bench.fs.limit_free_bytes(Some(10));
    bench.append(0, Acks::All, batch(None));
    assert_eq!(
        why(&bench.answers(1).await[0]),
        &AppendRefusal::Log(AppendError::DiskFull)
    );
    bench.fs.limit_free_bytes(None);
    bench.folder.refresh_space();
    bench.append(0, Acks::All, batch(None));
    assert_eq!(base_offset(&bench.answers(1).await[0]), 0);
    assert!(bench.close().await);
}

/// Story: a topic is deleted while a flush of it is out; the log goes when the
/// flush is back, and its files are gone.
#[tokio::test]
async fn deletion_waits_for_the_flush_that_is_out() {
    let mut bench = Bench::new();
    let handle = bench.open(0, Durability::Synced);
    bench.gate.set(true);
    bench.append(0, Acks::All, batch(None));
    bench.settled().await;
    let (done, mut answer) = oneshot::channel();
    bench.send(Command::Delete { tp: tp(0), done });
    let answers = bench.answers(1).await;
    assert_eq!(why(&answers[0]), &AppendRefusal::LeadershipLost);
    assert!(answer.try_recv().is_err(), "the flush is still out");
    bench.gate.set(false);
    answer.await.expect("answered").expect("deleted");
    assert_eq!(bench.folder.partitions().expect("list"), []);
    assert!(handle.failure().is_some());
    assert!(bench.close().await);
}

/// Story: a clean stop refuses what comes, answers what waits and flushes all.
#[tokio::test]
async fn a_clean_stop_answers_what_was_accepted() {
    let mut bench = Bench::new();
    let handles: Vec<_> = (0..40)
        .map(|partition| bench.open(partition, Durability::Synced))
        .collect();
    for partition in 0..40 {
        bench.append(partition, Acks::All, batch(None));
    }
    assert!(bench.close().await);
    assert_eq!(bench.answers(40).await.len(), 40);
    for handle in &handles {
        assert_eq!(handle.reader.bounds().flushed_end, Offset(1));
    }
    bench.folder.mark_clean().expect("clean");
    assert!(
        bench.owner.reserve(10).await.is_err(),
        "nobody waits for room in a loop that has ended"
    );
}

#[tokio::test]
async fn the_mailbox_holds_back_by_bytes() {
    let bench = Bench::new();
    let all = bench
        .owner
        .reserve(5 << 20)
        .await
        .expect("larger than the budget: alone");
    assert!(bench.owner.try_reserve(1).is_none());
    assert_eq!(bench.owner.queued_bytes(), 1 << 20);
    let waiting = tokio::spawn({
        let owner = bench.owner.clone();
        async move { owner.reserve(100).await.is_ok() }
    });
    drop(all);
    assert!(waiting.await.expect("room"));
    bench.close().await;
}
