//! `ClusterService`: metadata from this node's view; the rest is the controller's.

use super::not_here;
use crate::{
    node::Node,
    view::{ClusterView, changes, snapshot},
};
use futures::Stream;
use std::{pin::Pin, sync::Arc};
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{
    BalanceClusterRequest, BalanceClusterResponse, CancelReassignmentRequest,
    CancelReassignmentResponse, DescribeClusterRequest, DescribeClusterResponse, DrainNodeRequest,
    DrainNodeResponse, ElectLeaderRequest, ElectLeaderResponse, GetMetadataRequest,
    GetMetadataResponse, ListReassignmentsRequest, ListReassignmentsResponse, Metadata,
    ReassignPartitionRequest, ReassignPartitionResponse, RemoveNodeRequest, RemoveNodeResponse,
    UndrainNodeRequest, UndrainNodeResponse, WatchMetadataRequest, WatchMetadataResponse,
    cluster_service_server::ClusterService, watch_metadata_response::Update,
};
use tokio::sync::mpsc;
use tokio_stream::{Empty, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

/// Changes that wait for a slow watcher; a slower one hears fewer, larger ones.
const QUEUED_UPDATES: usize = 4;

pub struct Cluster {
    pub node: Arc<Node>,
}

impl Cluster {
    fn view(&self) -> Result<Arc<ClusterView>, Refusal> {
        let view = self.node.view.get();
        if view.revision < 0 {
            return Err(Refusal::unavailable(
                "no controller has told this node about the cluster yet",
            )
            .retry_after(200));
        }
        Ok(view)
    }
}

#[tonic::async_trait]
impl ClusterService for Cluster {
    type WatchMetadataStream =
        Pin<Box<dyn Stream<Item = Result<WatchMetadataResponse, Status>> + Send>>;
    type BalanceClusterStream = Empty<Result<BalanceClusterResponse, Status>>;

    /// UNAVAILABLE before the first view.
    async fn get_metadata(
        &self,
        request: Request<GetMetadataRequest>,
    ) -> Result<Response<GetMetadataResponse>, Status> {
        let view = self.view()?;
        let mut whole = Metadata::default();
        for part in snapshot(&view, &request.into_inner().topics) {
            let metadata = part.metadata.unwrap_or_default();
            (whole.cluster_id, whole.revision) = (metadata.cluster_id, metadata.revision);
            whole.topics.extend(metadata.topics);
            whole.nodes.extend(metadata.nodes);
        }
        Ok(Response::new(GetMetadataResponse {
            metadata: Some(whole),
        }))
    }

    /// UNAVAILABLE before the first view. Ends when the process stops.
    async fn watch_metadata(
        &self,
        _: Request<WatchMetadataRequest>,
    ) -> Result<Response<Self::WatchMetadataStream>, Status> {
        let view = self.view()?;
        let (updates, stream) = mpsc::channel(QUEUED_UPDATES);
        tokio::spawn(follow(Arc::clone(&self.node), view, updates));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    /// NOT_BUILT here: the controller and gateways serve it.
    async fn describe_cluster(
        &self,
        _: Request<DescribeClusterRequest>,
    ) -> Result<Response<DescribeClusterResponse>, Status> {
        Err(not_here("DescribeCluster"))
    }

    /// NOT_BUILT.
    async fn drain_node(
        &self,
        _: Request<DrainNodeRequest>,
    ) -> Result<Response<DrainNodeResponse>, Status> {
        Err(not_here("DrainNode"))
    }

    /// NOT_BUILT.
    async fn undrain_node(
        &self,
        _: Request<UndrainNodeRequest>,
    ) -> Result<Response<UndrainNodeResponse>, Status> {
        Err(not_here("UndrainNode"))
    }

    /// NOT_BUILT.
    async fn remove_node(
        &self,
        _: Request<RemoveNodeRequest>,
    ) -> Result<Response<RemoveNodeResponse>, Status> {
        Err(not_here("RemoveNode"))
    }

    /// NOT_BUILT.
    async fn reassign_partition(
        &self,
        _: Request<ReassignPartitionRequest>,
    ) -> Result<Response<ReassignPartitionResponse>, Status> {
        Err(not_here("ReassignPartition"))
    }

    /// NOT_BUILT.
    async fn list_reassignments(
        &self,
        _: Request<ListReassignmentsRequest>,
    ) -> Result<Response<ListReassignmentsResponse>, Status> {
        Err(not_here("ListReassignments"))
    }

    /// NOT_BUILT.
    async fn cancel_reassignment(
        &self,
        _: Request<CancelReassignmentRequest>,
    ) -> Result<Response<CancelReassignmentResponse>, Status> {
        Err(not_here("CancelReassignment"))
    }

    /// NOT_BUILT.
    async fn elect_leader(
        &self,
        _: Request<ElectLeaderRequest>,
    ) -> Result<Response<ElectLeaderResponse>, Status> {
        Err(not_here("ElectLeader"))
    }

    /// NOT_BUILT.
    async fn balance_cluster(
        &self,
        _: Request<BalanceClusterRequest>,
    ) -> Result<Response<Self::BalanceClusterStream>, Status> {
        Err(not_here("BalanceCluster"))
    }
}

/// A snapshot, then changes; a slow watcher skips views and hears their sum.
async fn follow(
    node: Arc<Node>,
    mut told: Arc<ClusterView>,
    updates: mpsc::Sender<Result<WatchMetadataResponse, Status>>,
) {
    let (mut changed, mut drain) = (node.view.subscribe(), node.watch_drain());
    for part in snapshot(&told, &[]) {
        let update = WatchMetadataResponse {
            update: Some(Update::Snapshot(part)),
        };
        if updates.send(Ok(update)).await.is_err() {
            return;
        }
    }
    loop {
        let newest = node.view.get();
        if newest.revision != told.revision {
            let delta = changes(&told, &newest);
            told = newest;
            let update = WatchMetadataResponse {
                update: Some(Update::Delta(delta)),
            };
            if updates.send(Ok(update)).await.is_err() {
                return;
            }
        }
        tokio::select! {
            biased;
            () = updates.closed() => return,
            _ = drain.wait_for(Option::is_some) => return,
            more = changed.changed() => if more.is_err() { return },
        }
    }
}
