//! Subscribe streams: one member of a group each.
//!
//! What decides is [`core`] (pure: positions, acknowledgements, commits, moves of
//! partitions, time limits) over the reading that Fetch streams use as well;
//! [`session`] moves frames between them, the coordinator and the wire.
//! [`failed`] copies records to retry and dead-letter topics.

mod core;
mod cut;
pub mod derived;
mod failed;
mod open;
mod requests;
mod session;

pub use core::RECORDS_GONE;

use crate::{metrics::Counted, node::Node};
use session::Session;
use std::sync::Arc;
use talweg_kit::data_stream::{FrameReceiver, FrameSender, PeerInfo, StreamHandler};
use talweg_proto::v1::{SubscribeRequest, SubscribeResponse};
use tonic::Status;

/// Serves `SubscribeService`.
pub struct SubscribeHandler(pub Arc<Node>);

#[tonic::async_trait]
impl StreamHandler<SubscribeRequest, SubscribeResponse> for SubscribeHandler {
    /// THROTTLED with too many streams, UNAVAILABLE while stopping,
    /// INVALID_ARGUMENT, INVALID_NAME, LIMIT_EXCEEDED, INVALID_CREDIT,
    /// CREDIT_TOO_SMALL, NAME_CONFLICT, INVALID_RESUME_TOKEN, INSTANCE_IN_USE and
    /// PROTOCOL_VIOLATION for the open frame, and what the coordinator refuses;
    /// INVALID_CREDIT and PROTOCOL_VIOLATION later. A member that is out hears an
    /// `error` frame and `closing`; the status is OK then.
    async fn serve(
        &self,
        _: PeerInfo,
        requests: FrameReceiver<SubscribeRequest>,
        responses: FrameSender<SubscribeResponse>,
    ) -> Result<(), Status> {
        let _permit = self.0.admit()?;
        self.0.first_view().await;
        let _counted = Counted::new(&self.0.metrics.subscribe_streams);
        match Session::open(Arc::clone(&self.0), requests, responses).await? {
            Some(session) => session.run().await,
            None => Ok(()),
        }
    }
}
