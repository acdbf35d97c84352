//! Where things are.

use crate::client::{Again, Client};
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{self, cluster_service_client::ClusterServiceClient};

impl Client {
    /// Nodes of all planes and the controller.
    pub async fn cluster(&self) -> Result<v1::DescribeClusterResponse, Refusal> {
        self.call(
            Again::Safe,
            v1::DescribeClusterRequest {},
            |channel, request| async move {
                ClusterServiceClient::new(channel)
                    .describe_cluster(request)
                    .await
            },
        )
        .await
    }

    /// Topics (those named; none: all), leaders and nodes, as the server knows
    /// them. Names that it does not know are left out.
    pub async fn metadata(&self, topics: Vec<String>) -> Result<v1::Metadata, Refusal> {
        let request = v1::GetMetadataRequest { topics };
        self.call(Again::Safe, request, |channel, request| async move {
            ClusterServiceClient::new(channel)
                .get_metadata(request)
                .await
        })
        .await
        .map(|response| response.metadata.unwrap_or_default())
    }
}
