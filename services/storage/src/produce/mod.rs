//! The Produce stream of a storage node: batch form, for partitions that it leads.

mod accept;
mod hand_on;
mod open;
mod pending;
mod refusals;
mod stream;

pub use accept::is_slow;
pub use refusals::refusal;

use crate::{node::Node, resolve};
use async_trait::async_trait;
use std::sync::Arc;
use stream::ProduceStream;
use talweg_kit::data_stream::{FrameReceiver, FrameSender, PeerInfo, StreamHandler};
use talweg_proto::v1::{ProduceRequest, ProduceResponse};
use tonic::Status;

/// Serves Produce streams.
pub struct ProduceHandler {
    pub node: Arc<Node>,
}

#[async_trait]
impl StreamHandler<ProduceRequest, ProduceResponse> for ProduceHandler {
    /// Refuses with UNAVAILABLE while the process stops or has too many streams;
    /// ends with the refusal of the open frame, with PROTOCOL_VIOLATION for a
    /// frame that must not come, else with OK.
    async fn serve(
        &self,
        peer: PeerInfo,
        requests: FrameReceiver<ProduceRequest>,
        responses: FrameSender<ProduceResponse>,
    ) -> Result<(), Status> {
        if self.node.draining().is_some() {
            return Err(resolve::draining().into());
        }
        let _permit = crate::stream::admit(&self.node)?;
        let _counted = crate::stream::Counted::new(&self.node.metrics.produce_streams);
        let stream =
            ProduceStream::open(Arc::clone(&self.node), &peer, requests, responses).await?;
        match stream {
            Some(stream) => Ok(stream.run().await?),
            None => Ok(()),
        }
    }
}
