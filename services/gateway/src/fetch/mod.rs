//! Fetch streams, both forms.
//!
//! One stream to each leader that serves some of the client's partitions, in
//! batch form; credit goes through: what may be on its way here is what the
//! client has left, or one largest batch a leader. [`outgoing`] cuts what has
//! come into the client's frames (pure), [`thin`] unpacks batches, [`reading`] is
//! what Subscribe streams have in common with these.

mod open;
pub mod outgoing;
pub mod readers;
pub mod reading;
mod stream;
mod thin;
mod updates;

use crate::{metrics::Counted, node::Node};
use std::sync::Arc;
use stream::FetchStream;
use talweg_kit::data_stream::{FrameReceiver, FrameSender, PeerInfo, StreamHandler};
use talweg_proto::v1::{FetchRequest, FetchResponse};
use tonic::Status;

/// Serves `FetchService`.
pub struct FetchHandler(pub Arc<Node>);

#[tonic::async_trait]
impl StreamHandler<FetchRequest, FetchResponse> for FetchHandler {
    /// THROTTLED with too many streams, UNAVAILABLE while stopping,
    /// INVALID_ARGUMENT, INVALID_CREDIT, CREDIT_TOO_SMALL, LIMIT_EXCEEDED,
    /// INVALID_RESUME_TOKEN and PROTOCOL_VIOLATION for the open frame;
    /// INVALID_CREDIT and PROTOCOL_VIOLATION later.
    async fn serve(
        &self,
        _: PeerInfo,
        requests: FrameReceiver<FetchRequest>,
        responses: FrameSender<FetchResponse>,
    ) -> Result<(), Status> {
        let _permit = self.0.admit()?;
        self.0.first_view().await;
        let _counted = Counted::new(&self.0.metrics.fetch_streams);
        match FetchStream::open(Arc::clone(&self.0), requests, responses).await? {
            Some(stream) => stream.run().await,
            None => Ok(()),
        }
    }
}
