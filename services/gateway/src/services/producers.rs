//! Identity for producers that number their own batches.

use crate::node::Node;
use std::{sync::Arc, time::Duration};
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{self, producer_service_server::ProducerService};
use talweg_types::limits;
use tonic::{Request, Response, Status};

/// How long a producer may wait for a block from the controller.
const ID_WAIT: Duration = Duration::from_secs(5);

/// Serves `ProducerService`.
pub struct Producers(pub Arc<Node>);

impl Producers {
    async fn init(
        &self,
        request: v1::InitProducerRequest,
    ) -> Result<v1::InitProducerResponse, Refusal> {
        if !request.transactional_id.is_empty() {
            return Err(Refusal::not_built(
                "Transactions are not built in this version.",
            ));
        }
        match (request.producer_id, request.producer_epoch) {
            (None, None) => {}
            (None, Some(_)) => {
                return Err(Refusal::invalid(
                    "producer_epoch",
                    "is given without producer_id",
                ));
            }
            (Some(id), _) if !(0..limits::DERIVED_PRODUCER_ID_BASE).contains(&id) => {
                return Err(Refusal::invalid(
                    "producer_id",
                    format!("{id} is not an id that was given out"),
                ));
            }
            (Some(_), None) => {
                return Err(Refusal::invalid(
                    "producer_epoch",
                    "is needed with producer_id",
                ));
            }
            (Some(_), Some(epoch)) if !(0..=i32::from(i16::MAX)).contains(&epoch) => {
                return Err(Refusal::invalid(
                    "producer_epoch",
                    format!("{epoch} is outside [0, 32767]"),
                ));
            }
            (Some(producer_id), Some(epoch)) if epoch < i32::from(i16::MAX) => {
                return Ok(v1::InitProducerResponse {
                    producer_id,
                    producer_epoch: epoch + 1,
                });
            }
            // The last epoch is used up: a new id.
            (Some(_), Some(_)) => {}
        }
        let id = self.0.ids.next(ID_WAIT).await?;
        Ok(v1::InitProducerResponse {
            producer_id: id.0,
            producer_epoch: 0,
        })
    }
}

#[tonic::async_trait]
impl ProducerService for Producers {
    /// INVALID_ARGUMENT; NOT_BUILT with a transactional id; UNAVAILABLE without
    /// ids and controller.
    async fn init_producer(
        &self,
        request: Request<v1::InitProducerRequest>,
    ) -> Result<Response<v1::InitProducerResponse>, Status> {
        Ok(Response::new(self.init(request.into_inner()).await?))
    }
}
