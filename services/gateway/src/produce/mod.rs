//! Produce streams, both forms.
//!
//! What decides is [`session`] (pure: numbering, packing, credit, answers) over
//! the delivery core of the client crate (pure: order, retries, outcomes);
//! [`stream`] moves frames between them and the wire.

mod answers;
mod check;
mod credit;
mod open;
mod pack;
mod partitioner;
mod parts;
mod restamp;
mod session;
mod stream;

#[cfg(test)]
mod tests;

pub use credit::Amount;
pub use open::{Opening, check_client_id};
pub use session::{Lanes, Now, Session, check_epoch};

use crate::{metrics::Counted, node::Node};
use std::sync::Arc;
use stream::ProduceStream;
use talweg_kit::data_stream::{FrameReceiver, FrameSender, PeerInfo, StreamHandler};
use talweg_proto::v1::{ProduceRequest, ProduceResponse};
use tonic::Status;

/// Serves `ProduceService`.
pub struct ProduceHandler(pub Arc<Node>);

#[tonic::async_trait]
impl StreamHandler<ProduceRequest, ProduceResponse> for ProduceHandler {
    /// THROTTLED with too many streams, UNAVAILABLE while stopping,
    /// INVALID_ARGUMENT, NOT_BUILT, INVALID_RESUME_TOKEN and PROTOCOL_VIOLATION
    /// for the open frame; PROTOCOL_VIOLATION later.
    async fn serve(
        &self,
        peer: PeerInfo,
        requests: FrameReceiver<ProduceRequest>,
        responses: FrameSender<ProduceResponse>,
    ) -> Result<(), Status> {
        let _permit = self.0.admit()?;
        self.0.first_view().await;
        let _counted = Counted::new(&self.0.metrics.produce_streams);
        match ProduceStream::open(Arc::clone(&self.0), &peer, requests, responses).await? {
            Some(stream) => stream.run().await,
            None => Ok(()),
        }
    }
}
