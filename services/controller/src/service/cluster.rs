//! The cluster as the controller knows it. What clients follow is served by
//! gateways and storage nodes; moving things around comes with the replicated
//! cluster.

use crate::{convert, handle::Handle};
use futures::stream::BoxStream;
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{self, cluster_service_server::ClusterService};
use tonic::{Request, Response, Status};

pub struct ClusterApi {
    pub handle: Handle,
    /// URL at which others reach this controller.
    pub address: String,
}

fn elsewhere<T>() -> Result<Response<T>, Status> {
    Err(Refusal::not_built("clients ask a gateway or a storage node for metadata").into())
}

fn later<T>(what: &str) -> Result<Response<T>, Status> {
    let sentence =
        format!("{what} comes with the replicated cluster, which this version does not have");
    Err(Refusal::not_built(sentence).into())
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

    async fn drain_node(
        &self,
        _: Request<v1::DrainNodeRequest>,
    ) -> Result<Response<v1::DrainNodeResponse>, Status> {
        later("draining a node")
    }

    async fn undrain_node(
        &self,
        _: Request<v1::UndrainNodeRequest>,
    ) -> Result<Response<v1::UndrainNodeResponse>, Status> {
        later("draining a node")
    }

    async fn remove_node(
        &self,
        _: Request<v1::RemoveNodeRequest>,
    ) -> Result<Response<v1::RemoveNodeResponse>, Status> {
        later("removing a node")
    }

    async fn reassign_partition(
        &self,
        _: Request<v1::ReassignPartitionRequest>,
    ) -> Result<Response<v1::ReassignPartitionResponse>, Status> {
        later("moving replicas")
    }

    async fn list_reassignments(
        &self,
        _: Request<v1::ListReassignmentsRequest>,
    ) -> Result<Response<v1::ListReassignmentsResponse>, Status> {
        later("moving replicas")
    }

    async fn cancel_reassignment(
        &self,
        _: Request<v1::CancelReassignmentRequest>,
    ) -> Result<Response<v1::CancelReassignmentResponse>, Status> {
        later("moving replicas")
    }

    async fn elect_leader(
        &self,
        _: Request<v1::ElectLeaderRequest>,
    ) -> Result<Response<v1::ElectLeaderResponse>, Status> {
        later("electing a leader by hand")
    }

    type BalanceClusterStream = BoxStream<'static, Result<v1::BalanceClusterResponse, Status>>;

    async fn balance_cluster(
        &self,
        _: Request<v1::BalanceClusterRequest>,
    ) -> Result<Response<Self::BalanceClusterStream>, Status> {
        later("balancing")
    }
}
