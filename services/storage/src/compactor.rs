//! The thread that compacts logs: one round at a time on a node, of the log that
//! needs it most.
//!
//! It looks at every log whose topic is compacted, a while after the last look,
//! asks the loop that owns the one with the highest share of bytes not yet
//! compacted for a round, runs it and gives it back. A round that fails harms
//! nothing but its partition, which is tried again later.

use crate::{
    clock,
    node::Node,
    partition::{Command, PartitionHandle},
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use talweg_log::{Compaction, CompactionError, CompactionReport};
use talweg_replication::MonotonicMs;
use talweg_types::{Ratio, TopicPartition};

/// Between two looks at the logs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a failure, or when the owner has found nothing to do, a log waits this long.
const AGAIN_MS: u64 = 15_000;

/// The running thread.
pub struct Compactor {
    stopping: Arc<AtomicBool>,
    /// Dropped to wake the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Compactor {
    pub fn spawn(node: Arc<Node>) -> io::Result<Self> {
        let stopping = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = bounded(0);
        let mut work = Work {
            node,
            stopping: Arc::clone(&stopping),
            stopped,
            not_before: BTreeMap::new(),
        };
        let thread = thread::Builder::new()
            .name("compaction".into())
            .spawn(move || work.run())?;
        Ok(Self {
            stopping,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// No round goes on; the one that is out comes back soon.
    pub fn stop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        self.stop = None;
    }

    /// For a disk that hangs: the thread is not waited for.
    pub fn abandon(&mut self) {
        self.stop();
        self.thread = None;
    }
}

impl Drop for Compactor {
    fn drop(&mut self) {
        self.stop();
        // It touches files until it has ended.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Work {
    node: Arc<Node>,
    stopping: Arc<AtomicBool>,
    stopped: Receiver<()>,
    /// Logs that wait.
    not_before: BTreeMap<TopicPartition, MonotonicMs>,
}

impl Work {
    fn run(&mut self) {
        while !self.stopping.load(Ordering::Acquire) {
            let now = clock::monotonic_now();
            self.not_before.retain(|_, until| *until > now);
            match self.neediest() {
                Some(handle) => self.compact(&handle),
                None => match self.stopped.recv_timeout(LOOK_EVERY) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => return,
                },
            }
        }
    }

    /// The log with the highest share of dirty bytes of those that are due.
    fn neediest(&self) -> Option<Arc<PartitionHandle>> {
        let now = clock::wall_now();
        let trusted = self.node.clock.is_trusted();
        let mut highest = Ratio::of(0, 1);
        let mut best = None;
        for handle in self.node.partitions.all() {
            if self.stopping.load(Ordering::Acquire) {
                return None;
            }
            if handle.failure().is_some() {
                continue;
            }
            let Some(need) = handle.reader.compaction_need(now, trusted) else {
                continue;
            };
            highest = highest.max(need.dirty_ratio);
            let waits = self.not_before.contains_key(&handle.tp);
            if need.is_due && !waits && best.as_ref().is_none_or(|(most, _)| need > *most) {
                best = Some((need, handle));
            }
        }
        self.node.metrics.dirtiest(highest);
        best.map(|(_, handle)| handle)
    }

    fn compact(&mut self, handle: &PartitionHandle) {
        let tp = handle.tp;
        let (give, taken) = bounded(1);
        let owner = self.node.loop_of(handle);
        let asked = owner.send(Command::Compact { tp, give });
        let round = asked.ok().and_then(|()| taken.recv().ok().flatten());
        let Some(mut round) = round else {
            self.wait(tp);
            return;
        };
        let begun = Instant::now();
        let stopping = Arc::clone(&self.stopping);
        let result = round.run(&|| stopping.load(Ordering::Acquire));
        self.show(tp, begun.elapsed(), &result);
        if result.is_err() {
            self.wait(tp);
        }
        let (done, installed) = bounded(1);
        let back = Command::Compacted {
            tp,
            round: Box::new(round),
            done,
        };
        // Until readers see it, another look would find what is done already. A
        // loop that has ended drops both.
        if self.node.loop_of(handle).send(back).is_ok() {
            let _ = installed.recv();
        }
    }

    fn wait(&mut self, tp: TopicPartition) {
        let until = clock::monotonic_now().plus(AGAIN_MS);
        self.not_before.insert(tp, until);
    }

    fn show(
        &self,
        tp: TopicPartition,
        took: Duration,
        result: &Result<CompactionReport, CompactionError>,
    ) {
        let metrics = &self.node.metrics;
        match result {
            Ok(report) => {
                metrics.compacted(report, took);
                tracing::info!(partition = %tp, ?report, ?took, "compacted");
            }
            Err(CompactionError::Cancelled) => {
                tracing::debug!(partition = %tp, "compaction cancelled");
            }
            Err(error) => {
                metrics.compaction_failures.inc();
                tracing::warn!(partition = %tp, %error, "not compacted; tried again later");
            }
        }
    }
}

/// What a loop gives the compactor.
pub type GivenRound = Sender<Option<Compaction>>;
