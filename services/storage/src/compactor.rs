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
    rewrites::{self, Waiting},
    worker::{Stopping, Worker},
};
use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use talweg_log::{CompactionReport, RewriteError};
use talweg_types::{Ratio, TopicPartition};

/// Between two looks at the logs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a failure, or when the owner has found nothing to do, a log waits this long.
const AGAIN_MS: u64 = 15_000;

/// Starts the thread.
pub fn spawn(node: Arc<Node>) -> io::Result<Worker> {
    Worker::spawn("compaction", |stopping| {
        let mut work = Work {
            node,
            stopping,
            waiting: Waiting::default(),
        };
        work.run();
    })
}

struct Work {
    node: Arc<Node>,
    stopping: Stopping,
    waiting: Waiting,
}

impl Work {
    fn run(&mut self) {
        while !self.stopping.is_set() {
            self.waiting.pass();
            match self.neediest() {
                Some(handle) => self.compact(&handle),
                None if self.stopping.wait(LOOK_EVERY) => return,
                None => {}
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
            if self.stopping.is_set() {
                return None;
            }
            if handle.failure().is_some() {
                continue;
            }
            let Some(need) = handle.reader.compaction_need(now, trusted) else {
                continue;
            };
            highest = highest.max(need.dirty_ratio);
            let waits = self.waiting.holds(&handle.tp);
            if need.is_due && !waits && best.as_ref().is_none_or(|(most, _)| need > *most) {
                best = Some((need, handle));
            }
        }
        self.node.metrics.dirtiest(highest);
        best.map(|(_, handle)| handle)
    }

    fn compact(&mut self, handle: &PartitionHandle) {
        let tp = handle.tp;
        let round = rewrites::ask(&self.node, handle, |give| Command::Compact { tp, give });
        let Some(mut round) = round else {
            self.waiting.add(tp, AGAIN_MS);
            return;
        };
        let begun = Instant::now();
        let result = round.run(&|| self.stopping.is_set());
        self.show(tp, begun.elapsed(), &result);
        if result.is_err() {
            self.waiting.add(tp, AGAIN_MS);
        }
        rewrites::give_back(&self.node, handle, round);
    }

    fn show(
        &self,
        tp: TopicPartition,
        took: Duration,
        result: &Result<CompactionReport, RewriteError>,
    ) {
        let metrics = &self.node.metrics;
        match result {
            Ok(report) => {
                metrics.compacted(report, took);
                tracing::info!(partition = %tp, ?report, ?took, "compacted");
            }
            Err(RewriteError::Cancelled) => {
                tracing::debug!(partition = %tp, "compaction cancelled");
            }
            Err(error) => {
                metrics.compaction_failures.inc();
                tracing::warn!(partition = %tp, %error, "not compacted; tried again later");
            }
        }
    }
}
