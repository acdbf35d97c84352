//! Keeps the view behind the log: lazily, batched, one write at a time, never on
//! the way of a commit.

use super::{Checked, ShardHandle};
use crate::{
    kept::{KeptView, Mark},
    metrics::CoordinatorMetrics,
    node::Node,
};
use bytes::Bytes;
use std::collections::BTreeMap;
use talweg_coordinator_runtime::{Encoded, Shard, groups::encode_record};
use talweg_group::Group;
use talweg_kit::{clock::wall_now, errors::Refusal};
use talweg_types::{LeaderEpoch, Offset, ShardEpoch, TopicPartition};
use tokio::{sync::oneshot, task::JoinHandle};

/// Records that wait; more are written at once.
const WAITING_MAX: usize = 20_000;

pub struct Keeping {
    view: KeptView,
    at: TopicPartition,
    epoch: ShardEpoch,
    /// Of the batch below `applied`.
    leader_epoch: LeaderEpoch,
    /// The newest of each key since the last write.
    pending: BTreeMap<Bytes, Encoded>,
    applied: Offset,
    /// The first write takes the place of all that is there.
    whole: bool,
    /// False: the view misses something and is left alone.
    writing: Option<JoinHandle<bool>>,
    metrics: CoordinatorMetrics,
}

impl Keeping {
    /// Begins with all that the shard has.
    pub fn new(
        node: &Node,
        handle: &ShardHandle,
        shard: &Shard<Group>,
        leader_epoch: LeaderEpoch,
    ) -> Self {
        let mut pending = BTreeMap::new();
        for (name, group) in shard.machines() {
            for record in group.state().snapshot() {
                let encoded = encode_record(name, &record);
                pending.insert(encoded.key.clone(), encoded);
            }
        }
        Self {
            view: node.kept.clone(),
            at: handle.at,
            epoch: handle.epoch,
            leader_epoch,
            pending,
            applied: shard.applied(),
            whole: true,
            writing: None,
            metrics: node.metrics.clone(),
        }
    }

    /// What is added next was committed by a leader in this epoch.
    pub fn rests_on(&mut self, leader_epoch: LeaderEpoch) {
        self.leader_epoch = leader_epoch;
    }

    /// These are committed, up to `applied`.
    pub fn add(&mut self, records: Vec<Encoded>, applied: Offset) {
        self.applied = applied;
        for record in records {
            self.pending.insert(record.key.clone(), record);
        }
        if self.pending.len() > WAITING_MAX {
            self.write();
        }
    }

    /// Begins to write what waits, unless a write goes on.
    pub fn write(&mut self) {
        let busy = self.writing.as_ref().is_some_and(|it| !it.is_finished());
        if busy || (self.pending.is_empty() && !self.whole) {
            return;
        }
        let before = self.writing.take();
        let write = self.take_write();
        self.writing = Some(tokio::spawn(write.run(before)));
    }

    fn take_write(&mut self) -> Write {
        Write {
            view: self.view.clone(),
            shard: self.at.partition.0,
            whole: std::mem::take(&mut self.whole),
            mark: Mark {
                topic_id: self.at.topic_id,
                applied: self.applied,
                leader_epoch: self.leader_epoch,
                epoch: self.epoch,
                written_at: wall_now(),
            },
            records: std::mem::take(&mut self.pending).into_values().collect(),
            metrics: self.metrics.clone(),
        }
    }

    /// Writes all that is applied, then says what a load of the view would give.
    pub fn check(
        &mut self,
        live_hash: u64,
        groups: u64,
        applied: Offset,
        reply: oneshot::Sender<Result<Checked, Refusal>>,
    ) {
        let before = self.writing.take();
        let write = self.take_write();
        let (view, shard, epoch) = (self.view.clone(), self.at.partition.0, self.epoch);
        self.writing = Some(tokio::spawn(async move {
            let whole = write.run(before).await;
            let loaded = tokio::task::spawn_blocking(move || view.load(shard)).await;
            let view_hash = match loaded {
                Ok(Ok(Some((_, loading)))) => loading.state_hash(),
                _ => 0,
            };
            let checked = Checked {
                epoch,
                applied,
                groups,
                live_hash,
                view_hash,
            };
            // Whoever asked may have gone.
            let _ = reply.send(Ok(checked));
            whole
        }));
    }

    /// The last write.
    pub async fn end(mut self) {
        let before = self.writing.take();
        self.take_write().run(before).await;
    }
}

struct Write {
    view: KeptView,
    shard: u32,
    whole: bool,
    mark: Mark,
    records: Vec<Encoded>,
    metrics: CoordinatorMetrics,
}

impl Write {
    /// False: the view misses something, now or since an earlier write.
    async fn run(self, before: Option<JoinHandle<bool>>) -> bool {
        if let Some(before) = before
            && !matches!(before.await, Ok(true))
        {
            return false;
        }
        let Self {
            view,
            shard,
            whole,
            mark,
            records,
            metrics,
        } = self;
        let memory = metrics.kept_view_memory.clone();
        let written = tokio::task::spawn_blocking(move || {
            let written = view.write(shard, mark, records, whole);
            if written.is_err() {
                // Better none than one with a gap. If that fails too, the next load
                // finds an older mark with what belongs to it: writes are atomic.
                let _ = view.drop_shard(shard);
            }
            memory.set(i64::try_from(view.memory_bytes()).unwrap_or(i64::MAX));
            written
        });
        match written.await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                metrics.kept_view_failures.inc();
                tracing::warn!(shard, %error, "the kept view could not be written; it is left alone until the shard is taken again");
                false
            }
            Err(_) => false,
        }
    }
}
