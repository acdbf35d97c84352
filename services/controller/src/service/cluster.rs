//! The cluster as the controller knows it, and what operators do with it. What
//! clients follow is served by gateways and storage nodes.

use crate::{
    convert,
    core::{Reply, Request as CoreRequest},
    handle::Handle,
};
use futures::stream::BoxStream;
use std::time::Duration;
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{self, cluster_service_server::ClusterService};
use talweg_types::NodeId;
use tonic::{Request, Response, Status};

pub struct ClusterApi {
    pub handle: Handle,
    /// URL at which others reach this controller.
    pub address: String,
}

fn elsewhere<T>() -> Result<Response<T>, Status> {
    Err(Refusal::not_built("clients ask a gateway or a storage node for metadata").into())
}

fn mismatch() -> Status {
    Refusal::internal("the controller answered another question").to_status()
}

impl ClusterApi {
    async fn ask(&self, request: CoreRequest) -> Result<Reply, Refusal> {
        Ok(self.handle.request(request).await?.reply)
    }

    /// Partitions that the node still leads.
    async fn drain(&self, node: u32, draining: bool) -> Result<u32, Status> {
        let node = NodeId(node);
        match self.ask(CoreRequest::Drain { node, draining }).await? {
            Reply::Drained { leaders_left } => Ok(u32::try_from(leaders_left).unwrap_or(u32::MAX)),
            _ => Err(mismatch()),
        }
    }
}

#[tonic::async_trait]
impl ClusterService for ClusterApi {
    /// NOT_CONTROLLER with the active one's address on a standby.
    async fn describe_cluster(
        &self,
        _: Request<v1::DescribeClusterRequest>,
    ) -> Result<Response<v1::DescribeClusterResponse>, Status> {
        let address = self.address.clone();
        let described = self
            .handle
            .read(move |core| convert::describe_cluster(core, &address));
        Ok(Response::new(described.await?))
    }

    async fn get_metadata(
        &self,
        _: Request<v1::GetMetadataRequest>,
    ) -> Result<Response<v1::GetMetadataResponse>, Status> {
        elsewhere()
    }

    type WatchMetadataStream = BoxStream<'static, Result<v1::WatchMetadataResponse, Status>>;

    async fn watch_metadata(
        &self,
        _: Request<v1::WatchMetadataRequest>,
    ) -> Result<Response<Self::WatchMetadataStream>, Status> {
        elsewhere()
    }

    /// Also: UNKNOWN_NODE. A repeat moves what can move by now.
    async fn drain_node(
        &self,
        request: Request<v1::DrainNodeRequest>,
    ) -> Result<Response<v1::DrainNodeResponse>, Status> {
        let leaders_left = self.drain(request.into_inner().node_id, true).await?;
        Ok(Response::new(v1::DrainNodeResponse { leaders_left }))
    }

    /// Also: UNKNOWN_NODE.
    async fn undrain_node(
        &self,
        request: Request<v1::UndrainNodeRequest>,
    ) -> Result<Response<v1::UndrainNodeResponse>, Status> {
        self.drain(request.into_inner().node_id, false).await?;
        Ok(Response::new(v1::UndrainNodeResponse {}))
    }

    /// Also: UNKNOWN_NODE; INVALID_ARGUMENT while it is alive or holds replicas.
    async fn remove_node(
        &self,
        request: Request<v1::RemoveNodeRequest>,
    ) -> Result<Response<v1::RemoveNodeResponse>, Status> {
        let node = NodeId(request.into_inner().node_id);
        match self.ask(CoreRequest::RemoveNode { node }).await? {
            Reply::Removed => Ok(Response::new(v1::RemoveNodeResponse {})),
            _ => Err(mismatch()),
        }
    }

    /// Also: UNKNOWN_TOPIC, INVALID_ARGUMENT with the field, LIMIT_EXCEEDED.
    async fn reassign_partition(
        &self,
        request: Request<v1::ReassignPartitionRequest>,
    ) -> Result<Response<v1::ReassignPartitionResponse>, Status> {
        let asked = convert::reassign(request.into_inner())?;
        match self.ask(asked).await? {
            Reply::Moving(id) => Ok(Response::new(v1::ReassignPartitionResponse {
                reassignment_id: id.as_bytes().to_vec().into(),
            })),
            _ => Err(mismatch()),
        }
    }

    async fn list_reassignments(
        &self,
        _: Request<v1::ListReassignmentsRequest>,
    ) -> Result<Response<v1::ListReassignmentsResponse>, Status> {
        let reassignments = self.handle.read(convert::reassignments).await?;
        Ok(Response::new(v1::ListReassignmentsResponse {
            reassignments,
        }))
    }

    /// Also: INVALID_ARGUMENT if it is not under way, or cannot go back.
    async fn cancel_reassignment(
        &self,
        request: Request<v1::CancelReassignmentRequest>,
    ) -> Result<Response<v1::CancelReassignmentResponse>, Status> {
        match self.ask(convert::cancel(&request.into_inner())?).await? {
            Reply::MoveCancelled => Ok(Response::new(v1::CancelReassignmentResponse {})),
            _ => Err(mismatch()),
        }
    }

    /// Also: UNKNOWN_TOPIC, INVALID_ARGUMENT, NO_LEADER if nobody can be elected.
    async fn elect_leader(
        &self,
        request: Request<v1::ElectLeaderRequest>,
    ) -> Result<Response<v1::ElectLeaderResponse>, Status> {
        match self.ask(convert::elect(request.into_inner())).await? {
            Reply::Elected { leader, epoch } => Ok(Response::new(v1::ElectLeaderResponse {
                leader: leader.0,
                leader_epoch: epoch.0,
            })),
            _ => Err(mismatch()),
        }
    }

    type BalanceClusterStream = BoxStream<'static, Result<v1::BalanceClusterResponse, Status>>;

    /// Also: INVALID_ARGUMENT. A stream that executes ends when nothing is left to
    /// do, when somebody stops the balancing, and with NOT_CONTROLLER or UNAVAILABLE
    /// when this controller is not the active one any more; the next one goes on,
    /// and is joined by the same call.
    async fn balance_cluster(
        &self,
        request: Request<v1::BalanceClusterRequest>,
    ) -> Result<Response<Self::BalanceClusterStream>, Status> {
        let asked = request.into_inner();
        if asked.execute && asked.stop {
            return Err(Refusal::invalid("stop", "goes without execute").into());
        }
        if asked.execute {
            self.ask(convert::balance(&asked)).await?;
        } else if asked.stop {
            self.ask(convert::stop_balance()).await?;
        }
        let progress = Progress {
            handle: self.handle.clone(),
            told: convert::BalanceTold {
                execute: asked.execute,
                ..Default::default()
            },
            over: false,
            first: true,
        };
        let told = futures::stream::unfold(progress, Progress::next);
        Ok(Response::new(Box::pin(told)))
    }
}

/// How often the caller of a balancing is told.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// What the caller of a balancing is told next.
struct Progress {
    handle: Handle,
    told: convert::BalanceTold,
    over: bool,
    first: bool,
}

impl Progress {
    async fn next(mut self) -> Option<(Result<v1::BalanceClusterResponse, Status>, Self)> {
        if self.over {
            return None;
        }
        if !std::mem::replace(&mut self.first, false) {
            tokio::time::sleep(PROGRESS_EVERY).await;
        }
        let before = self.told;
        let read = self
            .handle
            .read(move |core| convert::balance_progress(core, before));
        let told = match read.await {
            Ok(told) => {
                self.over = told.done || told.stopped || !before.execute;
                self.told.total = told.moves_total;
                self.told.running = !self.over;
                Ok(told)
            }
            Err(refusal) => {
                self.over = true;
                Err(refusal.into())
            }
        };
        Some((told, self))
    }
}
