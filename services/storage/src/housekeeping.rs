//! Once a second: looks at the clock, the figures and the disks, and says
//! whether the node is ready. A disk that hangs holds up the look at the disks,
//! and nothing else: the figures go on to show what waits for it.

use crate::{clock, folders::Folders, node::Node};
use arc_swap::ArcSwap;
use std::{sync::Arc, time::Duration};
use talweg_kit::health::Readiness;
use talweg_proto::v1::FolderDescription;
use tokio::task::{JoinError, JoinHandle};

const INTERVAL: Duration = Duration::from_secs(1);

/// What the node looks after.
pub struct Housekeeping {
    pub node: Arc<Node>,
    pub folders: Arc<Folders>,
    pub readiness: Readiness,
    /// For the session's heartbeats.
    pub space: Arc<ArcSwap<Vec<FolderDescription>>>,
}

impl Housekeeping {
    /// Runs until it is aborted.
    pub async fn run(self) {
        let mut tick = tokio::time::interval(INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut view = self.node.view.subscribe();
        let mut disks: Option<JoinHandle<Vec<FolderDescription>>> = None;
        let unclean = self.folders.unclean();
        self.node
            .metrics
            .unclean_folders
            .set(number(unclean as u64));
        loop {
            self.say_whether_ready();
            tokio::select! {
                biased;
                more = view.changed() => if more.is_err() { return },
                looked = ended(&mut disks) => {
                    disks = None;
                    if let Ok(described) = looked {
                        self.space.store(Arc::new(described));
                    }
                }
                _ = tick.tick() => {
                    self.figures();
                    disks.get_or_insert_with(|| self.look());
                }
            }
        }
    }

    fn say_whether_ready(&self) {
        let node = &self.node;
        if node.draining().is_some() {
            self.readiness.not_ready("stopping");
        } else if node.incarnation().is_none() {
            self.readiness
                .not_ready("not registered with a controller yet");
        } else if !node.is_ready() {
            self.readiness
                .not_ready("the view of the cluster is not known yet");
        } else {
            self.readiness.ready();
        }
    }

    /// What is in memory.
    fn figures(&self) {
        let node = &self.node;
        node.clock.sample(clock::wall_now(), clock::monotonic_now());
        let metrics = &node.metrics;
        metrics.clock(&node.clock);
        let open = self.folders.list.iter().map(|folder| folder.open_files());
        metrics.open_files.set(number(open.sum::<usize>() as u64));
        let queued = node.loops.iter().map(|owner| owner.queued_bytes());
        metrics
            .mailbox_bytes
            .set(number(queued.sum::<usize>() as u64));
        metrics
            .oldest_unflushed_ms
            .set(number(metrics.unflushed_age_ms()));
        let failed = self.folders.list.iter().filter(|f| f.failed().is_some());
        metrics.failed_folders.set(number(failed.count() as u64));
        node.arrivals
            .sample(clock::monotonic_now(), || node.partitions.all());
        let (all, leaders, failed) = node.partitions.counts();
        metrics.partitions.set(number(all));
        metrics.leaders.set(number(leaders));
        metrics.failed_partitions.set(number(failed));
    }

    /// What the disks must be asked for.
    fn look(&self) -> JoinHandle<Vec<FolderDescription>> {
        let (folders, node) = (Arc::clone(&self.folders), Arc::clone(&self.node));
        tokio::task::spawn_blocking(move || {
            let metrics = &node.metrics;
            metrics
                .index_bytes
                .set(number(folders.index.memory_bytes()));
            folders.describe(metrics)
        })
    }
}

/// Resolves when there is a look and it has ended.
async fn ended<T>(look: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    match look {
        Some(look) => look.await,
        None => std::future::pending().await,
    }
}

fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
