//! Where things are: from our view, and for operators from the controller.

use super::replicas;
use crate::{metadata, node::Node, streams::begun};
use futures::{StreamExt, stream::BoxStream};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use talweg_client::{Again, delivery::Routes, view::View};
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{
    self, cluster_service_client::ClusterServiceClient, cluster_service_server::ClusterService,
    watch_metadata_response::Update,
};
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};

/// Serves `ClusterService`.
pub struct Cluster(pub Arc<Node>);

/// How long a client's first question may wait for our first view.
const FIRST_VIEW: Duration = Duration::from_secs(5);

impl Cluster {
    async fn view(&self) -> Result<Arc<View>, Refusal> {
        if self
            .0
            .view
            .wait(FIRST_VIEW, |view| !view.cluster_id.is_empty())
            .await
        {
            return Ok(self.0.view.get());
        }
        Err(
            Refusal::unavailable("this gateway has not heard from a controller yet")
                .retry_after(500),
        )
    }
}

/// A client that follows the view.
struct Follower {
    node: Arc<Node>,
    changes: watch::Receiver<u64>,
    /// What the client knows.
    known: Arc<View>,
    /// Parts of the first snapshot that were not sent yet.
    parts: VecDeque<v1::MetadataSnapshot>,
}

impl Follower {
    async fn next(&mut self) -> Option<v1::WatchMetadataResponse> {
        if let Some(part) = self.parts.pop_front() {
            return Some(v1::WatchMetadataResponse {
                update: Some(Update::Snapshot(part)),
            });
        }
        let mut drain = self.node.watch_drain();
        loop {
            tokio::select! {
                biased;
                // The watch ends when the process does; clients ask elsewhere.
                _ = begun(&mut drain) => return None,
                changed = self.changes.changed() => changed.ok()?,
            }
            let newest = self.node.view.get();
            if newest.revision != self.known.revision {
                let delta = metadata::changes(&self.known, &newest);
                self.known = newest;
                return Some(v1::WatchMetadataResponse {
                    update: Some(Update::Delta(delta)),
                });
            }
        }
    }
}

/// Asks the controller the same. What may have been done is not asked again.
macro_rules! forward {
    ($self:ident, $request:ident, $method:ident) => {{
        let call = |channel, request| async move {
            ClusterServiceClient::new(channel).$method(request).await
        };
        let request = $request.into_inner();
        let called = $self.0.controller.call(Again::NotDoneOnly, request, call);
        Ok::<_, Status>(Response::new(called.await?))
    }};
}

#[tonic::async_trait]
impl ClusterService for Cluster {
    /// UNAVAILABLE before the first view.
    async fn get_metadata(
        &self,
        request: Request<v1::GetMetadataRequest>,
    ) -> Result<Response<v1::GetMetadataResponse>, Status> {
        let view = self.view().await?;
        let metadata = metadata::whole(&view, &request.into_inner().topics);
        Ok(Response::new(v1::GetMetadataResponse {
            metadata: Some(metadata),
        }))
    }

    type WatchMetadataStream = BoxStream<'static, Result<v1::WatchMetadataResponse, Status>>;

    /// UNAVAILABLE before the first view. Ends with OK when the process stops.
    async fn watch_metadata(
        &self,
        _: Request<v1::WatchMetadataRequest>,
    ) -> Result<Response<Self::WatchMetadataStream>, Status> {
        self.view().await?;
        let changes = self.0.view.changes();
        let known = self.0.view.get();
        let parts = metadata::snapshot(&known, &[]).into();
        let follower = Follower {
            node: Arc::clone(&self.0),
            changes,
            known,
            parts,
        };
        let updates = futures::stream::unfold(follower, |mut follower| async move {
            follower.next().await.map(|update| (Ok(update), follower))
        });
        Ok(Response::new(Box::pin(updates)))
    }

    /// UNAVAILABLE without a controller.
    async fn describe_cluster(
        &self,
        request: Request<v1::DescribeClusterRequest>,
    ) -> Result<Response<v1::DescribeClusterResponse>, Status> {
        let response = self
            .0
            .controller
            .call(
                Again::Safe,
                request.into_inner(),
                |channel, request| async move {
                    ClusterServiceClient::new(channel)
                        .describe_cluster(request)
                        .await
                },
            )
            .await?;
        Ok(Response::new(response))
    }

    async fn drain_node(
        &self,
        request: Request<v1::DrainNodeRequest>,
    ) -> Result<Response<v1::DrainNodeResponse>, Status> {
        forward!(self, request, drain_node)
    }

    async fn undrain_node(
        &self,
        request: Request<v1::UndrainNodeRequest>,
    ) -> Result<Response<v1::UndrainNodeResponse>, Status> {
        forward!(self, request, undrain_node)
    }

    async fn remove_node(
        &self,
        request: Request<v1::RemoveNodeRequest>,
    ) -> Result<Response<v1::RemoveNodeResponse>, Status> {
        forward!(self, request, remove_node)
    }

    async fn reassign_partition(
        &self,
        request: Request<v1::ReassignPartitionRequest>,
    ) -> Result<Response<v1::ReassignPartitionResponse>, Status> {
        forward!(self, request, reassign_partition)
    }

    async fn list_reassignments(
        &self,
        request: Request<v1::ListReassignmentsRequest>,
    ) -> Result<Response<v1::ListReassignmentsResponse>, Status> {
        let mut listed: Response<v1::ListReassignmentsResponse> =
            forward!(self, request, list_reassignments)?;
        replicas::measure(&self.0, &mut listed.get_mut().reassignments).await;
        Ok(listed)
    }

    async fn cancel_reassignment(
        &self,
        request: Request<v1::CancelReassignmentRequest>,
    ) -> Result<Response<v1::CancelReassignmentResponse>, Status> {
        forward!(self, request, cancel_reassignment)
    }

    async fn elect_leader(
        &self,
        request: Request<v1::ElectLeaderRequest>,
    ) -> Result<Response<v1::ElectLeaderResponse>, Status> {
        forward!(self, request, elect_leader)
    }

    type BalanceClusterStream = BoxStream<'static, Result<v1::BalanceClusterResponse, Status>>;

    /// Ends with UNAVAILABLE when the controller that it asked stops being the
    /// active one; the same call joins the next one.
    async fn balance_cluster(
        &self,
        request: Request<v1::BalanceClusterRequest>,
    ) -> Result<Response<Self::BalanceClusterStream>, Status> {
        let told: Response<Streaming<v1::BalanceClusterResponse>> =
            forward!(self, request, balance_cluster)?;
        let node = Arc::clone(&self.0);
        let measured = told.into_inner().then(move |told| {
            let node = Arc::clone(&node);
            async move {
                let mut told = told?;
                replicas::measure(&node, &mut told.moves).await;
                Ok(told)
            }
        });
        Ok(Response::new(Box::pin(measured)))
    }
}
