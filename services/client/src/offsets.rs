//! Offsets by time and place, and deletion of records.

use crate::client::{Again, Client};
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{self, offset_service_client::OffsetServiceClient};

/// Calls about offsets, from [`Client::offsets`].
#[derive(Clone, Copy)]
pub struct Offsets<'a>(&'a Client);

impl Client {
    /// Calls about offsets.
    pub fn offsets(&self) -> Offsets<'_> {
        Offsets(self)
    }
}

impl Offsets<'_> {
    /// One answer a query, in order; each with its own error.
    pub async fn list(
        &self,
        queries: Vec<v1::OffsetQuery>,
    ) -> Result<Vec<v1::OffsetAnswer>, Refusal> {
        let request = v1::ListOffsetsRequest { queries };
        self.0
            .call(Again::Safe, request, |channel, request| async move {
                OffsetServiceClient::new(channel)
                    .list_offsets(request)
                    .await
            })
            .await
            .map(|response| response.answers)
    }

    /// Moves log starts forward. One answer a target, in order.
    pub async fn delete_records(
        &self,
        targets: Vec<v1::DeleteRecordsTarget>,
    ) -> Result<Vec<v1::DeleteRecordsAnswer>, Refusal> {
        let request = v1::DeleteRecordsRequest { targets };
        // To a fixed offset a repeat changes nothing; "the watermark" moves.
        let fixed = request
            .targets
            .iter()
            .all(|target| target.before_offset >= 0);
        let again = if fixed {
            Again::Safe
        } else {
            Again::NotDoneOnly
        };
        self.0
            .call(again, request, |channel, request| async move {
                OffsetServiceClient::new(channel)
                    .delete_records(request)
                    .await
            })
            .await
            .map(|response| response.answers)
    }
}
