//! Ending a storage node: leaderships first, then streams, logs, the session.
//!
//! A leader appends no more and lets its in-sync followers get what it has,
//! acks=1 included, before it lets another take over.
//!
//! Bounded at every step. A step that takes too long is given up: the folders
//! then stay marked as running, and the next start recovers them.

use crate::{
    partition::{Command, PartitionHandle},
    start::Handle,
    stream::CLOSING_TIME,
    worker::Worker,
};
use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};
use talweg_types::{LeaderEpoch, TopicPartition};
use tokio::{sync::oneshot, time::timeout};

/// For followers to get what a leader has, at most; never more than half of what
/// streams are given to end.
const HAND_OVER_TIME: Duration = Duration::from_secs(1);
/// For flushing and closing all logs.
const CLOSE_TIME: Duration = Duration::from_millis(1_500);
/// For tasks that still hold files to end.
const RELEASE_TIME: Duration = Duration::from_secs(1);
/// For telling the controller, and for the HTTP server.
const LAST_TIME: Duration = Duration::from_millis(200);

impl Handle {
    /// Stops: tells every stream, gives them `drain` to end, closes the logs,
    /// leaves the cluster. True if all was flushed and marked clean. Takes at
    /// most `drain` and 2.5 s.
    pub async fn stop(mut self, drain: Duration) -> bool {
        self.readiness.not_ready("stopping");
        self.health
            .set_service_status("", tonic_health::ServingStatus::NotServing)
            .await;
        let begun = Instant::now();
        let led = self.led_replicated();
        if !led.is_empty() {
            let limit = HAND_OVER_TIME.min(drain / 2);
            if timeout(limit, self.hand_over(&led)).await.is_err() {
                tracing::warn!(
                    "not all followers have everything; records with acks=1 or 0 that only this node has may be lost"
                );
            }
            // Others take over at once; what comes here meanwhile is told who leads.
            self.session.leave.notify_one();
            self.resign_replicated();
        }
        // Ends the streams to followers too.
        let drain = drain.saturating_sub(begun.elapsed());
        self.node.begin_drain(drain);
        if let Some(server) = self.server.take() {
            let report = server.stop(drain + CLOSING_TIME + LAST_TIME).await;
            tracing::info!(
                open = report.open,
                forced = report.forced,
                "connections closed"
            );
        }
        self.rewriters.iter_mut().for_each(Worker::stop);
        let closed = timeout(CLOSE_TIME, self.close_logs())
            .await
            .unwrap_or(false);
        let clean = closed && self.mark_clean().await;
        if !clean {
            tracing::warn!("not everything could be closed; the next start recovers the logs");
        }
        self.session.leave.notify_one();
        // Best effort: a controller that does not hear it sees the stream break.
        let _ = timeout(LAST_TIME, self.ended.wait_for(Option::is_some)).await;
        if let Some(http) = self.http.take() {
            http.stop(LAST_TIME).await;
        }
        if !closed {
            // A thread that hangs on a disk must not hold the process.
            self.threads.clear();
            self.rewriters.iter_mut().for_each(Worker::abandon);
        }
        let index = self.folders.index.while_open();
        drop(self);
        if !released(&index).await {
            tracing::debug!("the index is still held by a task that has not ended");
        }
        clean
    }

    /// Ends at once, as if the process had been killed: nothing more is flushed
    /// or said. True once nothing holds its files any more.
    pub async fn kill(self) -> bool {
        let index = self.folders.index.while_open();
        drop(self);
        released(&index).await
    }

    /// Nothing is acknowledged in an epoch that another may end now: what waits is
    /// unknown and is asked for again, at the next leader.
    fn resign_replicated(&self) {
        let view = self.node.view.get();
        for handle in self.node.partitions.all() {
            let tp = handle.tp;
            let state = view.partition(&tp).map(|(_, state)| state);
            if let Some(state) = state.filter(|state| state.replicas.len() > 1) {
                let epoch = LeaderEpoch(state.leader_epoch);
                // A loop that has ended leads nothing.
                let _ = self
                    .node
                    .loop_of(&handle)
                    .send(Command::Resign { tp, epoch });
            }
        }
    }

    /// What it leads and others hold too.
    fn led_replicated(&self) -> Vec<Arc<PartitionHandle>> {
        let view = self.node.view.get();
        let replicated = |tp: &TopicPartition| {
            view.partition(tp)
                .is_some_and(|(_, state)| state.replicas.len() > 1)
        };
        let mut all = self.node.partitions.all();
        all.retain(|handle| handle.leads().is_some() && replicated(&handle.tp));
        all
    }

    /// Until every in-sync follower has all that this node has appended: the
    /// watermark is then the log end.
    async fn hand_over(&self, led: &[Arc<PartitionHandle>]) {
        for handle in led {
            let (held, holds) = oneshot::channel();
            let Some(epoch) = handle.leads() else {
                continue;
            };
            let tp = handle.tp;
            let command = Command::HandOver { tp, epoch, held };
            if self.node.loop_of(handle).send(command).is_ok() {
                // A loop that has ended appends nothing more either.
                let _ = holds.await;
            }
        }
        let behind = |handle: &Arc<PartitionHandle>| {
            let bounds = handle.reader.bounds();
            handle.leads().is_some() && bounds.high_watermark < bounds.log_end
        };
        while led.iter().any(behind) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn close_logs(&self) -> bool {
        let mut closing = Vec::new();
        for owner in &self.node.loops {
            let (done, answer) = oneshot::channel();
            if owner.send(Command::Close { done }).is_ok() {
                closing.push(answer);
            }
        }
        let mut clean = true;
        for answer in closing {
            clean &= answer.await.unwrap_or(false);
        }
        clean
    }

    async fn mark_clean(&self) -> bool {
        let folders = Arc::clone(&self.folders);
        let marked = tokio::task::spawn_blocking(move || {
            if let Err(error) = folders.index.flush() {
                tracing::warn!(%error, "the index was not written out; it is caught up at the next start");
            }
            folders.mark_clean()
        });
        match timeout(CLOSE_TIME, marked).await {
            Ok(Ok(Ok(()))) => true,
            Ok(Ok(Err(error))) => {
                tracing::warn!(%error, "the folders were not marked clean");
                false
            }
            Ok(Err(_)) | Err(_) => false,
        }
    }
}

/// Waits until the index store is closed, so that another start may open it.
async fn released(index: &Weak<()>) -> bool {
    let gone = async {
        while index.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(RELEASE_TIME, gone).await.is_ok()
}
