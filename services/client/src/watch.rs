//! Follows a server's metadata: a snapshot, then deltas that name their
//! predecessor; a gap, a broken stream or silence begins anew, elsewhere. What
//! was known stays in use meanwhile.

use crate::{
    backoff::Backoff,
    client::Client,
    pool::Traffic,
    view::{SharedView, View},
};
use std::time::Duration;
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{
    self, cluster_service_client::ClusterServiceClient, watch_metadata_response::Update,
};
use talweg_types::TopicId;
use tokio_util::task::AbortOnDropHandle;

/// A view that follows the cluster while this lives.
pub struct MetadataWatch {
    view: SharedView,
    _task: AbortOnDropHandle<()>,
}

impl Client {
    /// Follows topics, leaders and nodes. Returns when the first view is whole.
    pub async fn watch_metadata(&self) -> Result<MetadataWatch, Refusal> {
        let view = SharedView::default();
        let task = tokio::spawn(follow(self.clone(), view.clone()));
        let watch = MetadataWatch {
            view,
            _task: AbortOnDropHandle::new(task),
        };
        let limit = self.config().call_timeout;
        if watch
            .view
            .wait(limit, |view| {
                view.revision > 0 || !view.cluster_id.is_empty()
            })
            .await
        {
            return Ok(watch);
        }
        Err(Refusal::unavailable(format!(
            "no server gave its metadata within {} s",
            limit.as_secs()
        )))
    }
}

impl MetadataWatch {
    /// The view.
    pub fn view(&self) -> &SharedView {
        &self.view
    }
}

async fn follow(client: Client, shared: SharedView) {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
    loop {
        let server = client.server();
        let mut heard = false;
        let ended = follow_once(&client, &server, &shared, &mut heard).await;
        if heard {
            backoff.reset();
        }
        client.avoid(&server);
        let refusal = ended.err();
        tracing::debug!(?refusal, %server, "metadata watch ended");
        tokio::time::sleep(backoff.pause(refusal.map_or(0, |r| r.retry_after_ms))).await;
    }
}

async fn follow_once(
    client: &Client,
    server: &str,
    shared: &SharedView,
    heard: &mut bool,
) -> Result<(), Refusal> {
    let lease = client.pool().lease(server, Traffic::Control)?;
    let mut watch = ClusterServiceClient::new(lease.channel().clone())
        .watch_metadata(v1::WatchMetadataRequest {})
        .await
        .map_err(|status| Refusal::from_status(&status))?
        .into_inner();
    let mut building = View::default();
    loop {
        let next = watch
            .message()
            .await
            .map_err(|status| Refusal::from_status(&status))?;
        let Some(response) = next else { return Ok(()) };
        if !apply(&mut building, response, shared) {
            return Ok(());
        }
        *heard = true;
    }
}

/// False: the update does not follow what is known.
fn apply(view: &mut View, response: v1::WatchMetadataResponse, shared: &SharedView) -> bool {
    match response.update {
        Some(Update::Snapshot(snapshot)) => {
            if snapshot.first {
                *view = View::default();
            }
            view.apply(snapshot.metadata.unwrap_or_default());
            if snapshot.last {
                let known = shared.get();
                // A server that lags behind the one before: what is known is newer.
                if view.revision < known.revision && view.cluster_id == known.cluster_id {
                    return false;
                }
                shared.set(view.clone());
            }
        }
        Some(Update::Delta(delta)) => {
            if delta.previous_revision != view.revision {
                return false;
            }
            view.apply(delta.metadata.unwrap_or_default());
            for id in delta
                .removed_topic_ids
                .iter()
                .filter_map(|id| TopicId::from_slice(id))
            {
                view.remove_topic(id);
            }
            delta
                .removed_node_ids
                .iter()
                .for_each(|id| view.remove_node(*id));
            shared.set(view.clone());
        }
        None => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(revision: i64) -> v1::WatchMetadataResponse {
        let metadata = v1::Metadata {
            revision,
            ..Default::default()
        };
        let update = Update::Snapshot(v1::MetadataSnapshot {
            first: true,
            last: true,
            metadata: Some(metadata),
        });
        v1::WatchMetadataResponse {
            update: Some(update),
        }
    }

    /// Story: the watch goes on at a gateway that lags behind the one before.
    #[test]
    fn a_view_never_goes_back() {
        let shared = SharedView::default();
        assert!(apply(&mut View::default(), snapshot(5), &shared));
        assert!(!apply(&mut View::default(), snapshot(4), &shared));
        assert_eq!(shared.get().revision, 5);
        assert!(apply(&mut View::default(), snapshot(5), &shared));
    }
}
