//! Questions about a group by operators and clients without a member.

use crate::node::Node;
use std::time::Duration;
use talweg_client::pool::Traffic;
use talweg_kit::errors::Refusal;
use talweg_proto::coordinator::v1::{
    AskRequest, ask_request::Question, ask_response::Answer,
    coordinator_service_client::CoordinatorServiceClient,
};
use tonic::Request;

/// Asks the group's coordinator; refusals that pass are repeated until `patience`
/// is over.
pub async fn ask(
    node: &Node,
    group: &str,
    question: Question,
    patience: Duration,
) -> Result<Answer, Refusal> {
    super::check_group(group)?;
    node.coordinators
        .retried(group, patience, |at| {
            let request = AskRequest {
                question: Some(question.clone()),
            };
            async move {
                let lease = node.pool.lease(&at.address, Traffic::Control)?;
                let mut request = Request::new(request);
                request.set_timeout(patience);
                let answer = CoordinatorServiceClient::new(lease.channel().clone())
                    .max_decoding_message_size(64 << 20)
                    .ask(request)
                    .await
                    .map_err(|status| Refusal::from_status(&status))?;
                answer
                    .into_inner()
                    .answer
                    .ok_or_else(|| Refusal::internal("the coordinator answered nothing"))
            }
        })
        .await
}
