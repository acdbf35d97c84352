//! Once a second: looks at the disks, the clock and the figures, and says
//! whether the node is ready.

use crate::{clock, folders::Folders, node::Node};
use arc_swap::ArcSwap;
use std::{sync::Arc, time::Duration};
use talweg_kit::health::Readiness;
use talweg_log::kv::RocksKv;
use talweg_proto::v1::FolderDescription;

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
        loop {
            self.say_whether_ready();
            tokio::select! {
                biased;
                more = view.changed() => if more.is_err() { return },
                _ = tick.tick() => self.look().await,
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

    /// A disk that hangs holds this up, and nothing else.
    async fn look(&self) {
        self.node
            .clock
            .sample(clock::wall_now(), clock::monotonic_now());
        let folders = Arc::clone(&self.folders);
        let looked =
            tokio::task::spawn_blocking(move || (folders.describe(), index_bytes(&folders.index)));
        let Ok((described, index_bytes)) = looked.await else {
            return;
        };
        let metrics = &self.node.metrics;
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let free = described
            .iter()
            .map(|folder| folder.free_bytes)
            .min()
            .unwrap_or(0);
        metrics.folder_free_bytes.set(number(free));
        metrics.failed_folders.set(number(
            described.iter().filter(|f| !f.failure.is_empty()).count() as u64,
        ));
        metrics.index_bytes.set(number(index_bytes));
        let open: usize = self
            .folders
            .list
            .iter()
            .map(|folder| folder.open_files())
            .sum();
        metrics.open_files.set(number(open as u64));
        let queued: usize = self
            .node
            .loops
            .iter()
            .map(|owner| owner.queued_bytes())
            .sum();
        metrics.mailbox_bytes.set(number(queued as u64));
        metrics
            .oldest_unflushed_ms
            .set(number(metrics.unflushed_age_ms()));
        let (all, leaders, failed) = self.node.partitions.counts();
        metrics.partitions.set(number(all));
        metrics.leaders.set(number(leaders));
        metrics.failed_partitions.set(number(failed));
        self.space.store(Arc::new(described));
    }
}

fn index_bytes(index: &RocksKv) -> u64 {
    index.memory_bytes()
}
