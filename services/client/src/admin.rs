//! Operators' calls: nodes, replicas and leaders. None is repeated unless it was
//! certainly not done.

use crate::{Again, Client};
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{self, cluster_service_client::ClusterServiceClient};
use tonic::Streaming;

/// Operators' calls of a [`Client`].
pub struct Admin<'a>(&'a Client);

impl Client {
    /// Operators' calls.
    pub fn admin(&self) -> Admin<'_> {
        Admin(self)
    }
}

macro_rules! operator_call {
    ($(#[$doc:meta])* $method:ident, $request:ident, $response:ident) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// The controller's refusal, or UNAVAILABLE without one.
        pub async fn $method(&self, request: v1::$request) -> Result<v1::$response, Refusal> {
            let call = |channel, request| async move {
                ClusterServiceClient::new(channel).$method(request).await
            };
            self.0.call(Again::NotDoneOnly, request, call).await
        }
    };
}

impl Admin<'_> {
    operator_call!(
        /// Moves leaders off a node; it gets no new replicas until it is undrained.
        drain_node, DrainNodeRequest, DrainNodeResponse
    );
    operator_call!(
        /// Takes a drain back.
        undrain_node, UndrainNodeRequest, UndrainNodeResponse
    );
    operator_call!(
        /// Forgets a node that holds no replica.
        remove_node, RemoveNodeRequest, RemoveNodeResponse
    );
    operator_call!(
        /// Begins to move a partition's replicas.
        reassign_partition, ReassignPartitionRequest, ReassignPartitionResponse
    );
    operator_call!(
        /// Moves under way.
        list_reassignments, ListReassignmentsRequest, ListReassignmentsResponse
    );
    operator_call!(
        /// Stops a move and takes back what it has added.
        cancel_reassignment, CancelReassignmentRequest, CancelReassignmentResponse
    );
    operator_call!(
        /// Elects a leader now.
        elect_leader, ElectLeaderRequest, ElectLeaderResponse
    );

    /// Plans, begins, joins or stops a balancing. One that is executed tells its
    /// progress until it is done; the stream breaks with the controller, and the
    /// same call joins the next one.
    ///
    /// # Errors
    /// The controller's refusal, or UNAVAILABLE without one.
    pub async fn balance_cluster(
        &self,
        request: v1::BalanceClusterRequest,
    ) -> Result<Streaming<v1::BalanceClusterResponse>, Refusal> {
        let call = |channel, request| async move {
            ClusterServiceClient::new(channel)
                .balance_cluster(request)
                .await
        };
        self.0.call(Again::Safe, request, call).await
    }
}
