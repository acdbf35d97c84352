//! One watcher: a snapshot, then changes; a fresh snapshot when it was too slow.

use crate::handle::{Handle, Subscription};
use std::time::Duration;
use talweg_proto::controller::v1::{
    WatchClusterResponse, WatchProgress, watch_cluster_response::Update,
};
use tokio::sync::mpsc::Sender;
use tonic::Status;

/// An idle watch says at least this often that it lives.
const PROGRESS: Duration = Duration::from_secs(5);

/// Runs until the watcher or the term ends.
pub async fn serve(
    handle: Handle,
    first: Subscription,
    updates: Sender<Result<WatchClusterResponse, Status>>,
) {
    let mut subscription = first;
    loop {
        if follow(subscription, &updates).await.is_err() {
            return;
        }
        subscription = match handle.watch().await {
            Ok(subscription) => subscription,
            Err(refusal) => {
                let _ = updates.send(Err(refusal.to_status())).await;
                return;
            }
        };
    }
}

/// The watcher has gone.
struct Gone;

/// Returns `Ok` when there is nothing more to come from this subscription.
async fn follow(
    (snapshot, mut changes): Subscription,
    updates: &Sender<Result<WatchClusterResponse, Status>>,
) -> Result<(), Gone> {
    let mut revision = 0;
    for part in snapshot {
        revision = revision_of(&part).unwrap_or(revision);
        updates.send(Ok(part)).await.map_err(|_| Gone)?;
    }
    loop {
        let update = tokio::select! {
            biased;
            () = updates.closed() => return Err(Gone),
            change = tokio::time::timeout(PROGRESS, changes.recv()) => match change {
                Ok(Some(change)) => change,
                Ok(None) => return Ok(()),
                Err(_) => {
                    let update = Update::Progress(WatchProgress { revision });
                    WatchClusterResponse { update: Some(update) }
                }
            },
        };
        revision = revision_of(&update).unwrap_or(revision);
        updates.send(Ok(update)).await.map_err(|_| Gone)?;
    }
}

fn revision_of(update: &WatchClusterResponse) -> Option<i64> {
    match update.update.as_ref()? {
        Update::Snapshot(snapshot) => Some(snapshot.view.as_ref()?.revision),
        Update::Delta(delta) => Some(delta.view.as_ref()?.revision),
        Update::Progress(progress) => Some(progress.revision),
    }
}
