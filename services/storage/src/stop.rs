//! Ending a storage node: streams first, then logs, then the session.
//!
//! Bounded at every step. A step that takes too long is given up: the folders
//! then stay marked as running, and the next start recovers them.

use crate::{partition::Command, start::Handle, stream::CLOSING_TIME};
use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use talweg_types::LeaderEpoch;
use tokio::{sync::oneshot, time::timeout};

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
        self.node.begin_drain(drain);
        if self.leads_replicated() {
            // Others take over at once; what comes here meanwhile is told who leads.
            self.session.leave.notify_one();
            self.resign_replicated();
        }
        if let Some(server) = self.server.take() {
            let report = server.stop(drain + CLOSING_TIME + LAST_TIME).await;
            tracing::info!(
                open = report.open,
                forced = report.forced,
                "connections closed"
            );
        }
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

    /// Whether it leads something that others hold too.
    fn leads_replicated(&self) -> bool {
        let view = self.node.view.get();
        let replicated = |tp| {
            view.partition(tp)
                .is_some_and(|(_, state)| state.replicas.len() > 1)
        };
        let all = self.node.partitions.all();
        all.iter()
            .any(|handle| handle.leads().is_some() && replicated(&handle.tp))
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
