//! Consumer groups and their offsets, for operators and for programs that assign
//! partitions themselves.

use crate::client::{Again, Client};
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{
    self, group_service_client::GroupServiceClient, offset_service_client::OffsetServiceClient,
};
use tonic::Streaming;

/// Calls about groups, from [`Client::groups`].
#[derive(Clone, Copy)]
pub struct Groups<'a>(&'a Client);

impl Client {
    /// Calls about groups.
    pub fn groups(&self) -> Groups<'_> {
        Groups(self)
    }
}

macro_rules! group_call {
    ($(#[$doc:meta])* $service:ident, $method:ident, $request:ident, $response:ident, $again:expr) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// The coordinator's refusal, or UNAVAILABLE without one.
        pub async fn $method(&self, request: v1::$request) -> Result<v1::$response, Refusal> {
            let call = |channel, request| async move {
                $service::new(channel).$method(request).await
            };
            self.0.call($again, request, call).await
        }
    };
}

impl Groups<'_> {
    group_call!(
        /// All groups, in name order.
        GroupServiceClient, list_groups, ListGroupsRequest, ListGroupsResponse, Again::Safe
    );
    group_call!(
        /// One group with its members.
        GroupServiceClient, describe_group, DescribeGroupRequest, DescribeGroupResponse, Again::Safe
    );
    group_call!(
        /// Deletes an idle group and its offsets.
        GroupServiceClient, delete_group, DeleteGroupRequest, DeleteGroupResponse, Again::NotDoneOnly
    );
    group_call!(
        /// Stores offsets; the same again changes nothing.
        OffsetServiceClient, commit_offsets, CommitOffsetsRequest, CommitOffsetsResponse, Again::Safe
    );
    group_call!(
        /// Stored offsets.
        OffsetServiceClient, fetch_offsets, FetchOffsetsRequest, FetchOffsetsResponse, Again::Safe
    );
    group_call!(
        /// Moves stored offsets of an idle group, or shows what would change. A shift
        /// that was done would be done twice: not repeated unless it was not done.
        OffsetServiceClient, reset_offsets, ResetOffsetsRequest, ResetOffsetsResponse, Again::NotDoneOnly
    );
    group_call!(
        /// Forgets stored offsets of partitions without an owner.
        OffsetServiceClient, delete_offsets, DeleteOffsetsRequest, DeleteOffsetsResponse, Again::Safe
    );
    group_call!(
        /// How far a group is behind.
        OffsetServiceClient, get_lag, GetLagRequest, GetLagResponse, Again::Safe
    );

    /// The lag again and again, until the stream breaks.
    ///
    /// # Errors
    /// The coordinator's refusal, or UNAVAILABLE without one.
    pub async fn watch_lag(
        &self,
        request: v1::WatchLagRequest,
    ) -> Result<Streaming<v1::WatchLagResponse>, Refusal> {
        let call = |channel, request| async move {
            OffsetServiceClient::new(channel).watch_lag(request).await
        };
        self.0.call(Again::Safe, request, call).await
    }
}
