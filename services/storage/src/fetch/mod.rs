//! The Fetch stream of a storage node: batch form, for partitions that it leads.

mod cursor;
mod open;
mod pump;
mod stream;

pub use cursor::{offset_for_time, on_reader, out_of_range, read_refusal};

use crate::{node::Node, resolve};
use async_trait::async_trait;
use std::sync::Arc;
use stream::FetchStream;
use talweg_kit::data_stream::{FrameReceiver, FrameSender, PeerInfo, StreamHandler};
use talweg_proto::v1::{FetchRequest, FetchResponse};
use tonic::Status;

/// Serves Fetch streams.
pub struct FetchHandler {
    pub node: Arc<Node>,
}

#[async_trait]
impl StreamHandler<FetchRequest, FetchResponse> for FetchHandler {
    /// Refuses with UNAVAILABLE while the process stops or has too many streams;
    /// ends with the refusal of the open frame, of a credit that cannot be, with
    /// PROTOCOL_VIOLATION for a frame that must not come, else with OK.
    async fn serve(
        &self,
        _peer: PeerInfo,
        requests: FrameReceiver<FetchRequest>,
        responses: FrameSender<FetchResponse>,
    ) -> Result<(), Status> {
        if self.node.draining().is_some() {
            return Err(resolve::draining().into());
        }
        let _permit = crate::stream::admit(&self.node)?;
        let _counted = crate::stream::Counted::new(&self.node.metrics.fetch_streams);
        match FetchStream::open(Arc::clone(&self.node), requests, responses).await? {
            Some(stream) => stream.run().await,
            None => Ok(()),
        }
    }
}
