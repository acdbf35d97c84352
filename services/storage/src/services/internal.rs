//! `InternalLogService`: what coordinators append to internal topics and ask of logs.

use super::backlog;
use crate::{
    clock,
    node::Node,
    partition::{Command, Completions, InternalAppend, InternalBatch, Outcome, PartitionHandle},
    produce, resolve,
    view::TopicView,
};
use bytes::Bytes;
use std::{sync::Arc, time::Duration};
use talweg_batch::{CheckedBatch, ValidationLimits, check_client_batch};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    storage::v1::{
        AppendInternalRequest, AppendInternalResponse, MeasureBacklogRequest,
        MeasureBacklogResponse, append_internal_request::What,
        internal_log_service_server::InternalLogService,
    },
    v1::Durability,
};
use talweg_types::{ShardEpoch, is_internal, limits};
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Response, Status};

pub struct InternalLog {
    pub node: Arc<Node>,
}

#[tonic::async_trait]
impl InternalLogService for InternalLog {
    /// INVALID_ARGUMENT; INTERNAL_TOPIC for a topic that is none of ours; what the check
    /// of a batch refuses; UNKNOWN_TOPIC, NOT_LEADER with the leader, NOT_ENOUGH_REPLICAS,
    /// NO_QUORUM_CONTACT, DISK_FULL, UNAVAILABLE (not done); SHARD_FENCED (final);
    /// UNKNOWN_PRODUCER, OUT_OF_ORDER_SEQUENCE; LEADERSHIP_LOST,
    /// NOT_ENOUGH_REPLICAS_AFTER_APPEND, TIMED_OUT (unknown: the same bytes again).
    async fn append_internal(
        &self,
        request: Request<AppendInternalRequest>,
    ) -> Result<Response<AppendInternalResponse>, Status> {
        Ok(Response::new(self.append(request.into_inner()).await?))
    }

    /// LIMIT_EXCEEDED for too many queries; else each answer has its own code.
    async fn measure_backlog(
        &self,
        request: Request<MeasureBacklogRequest>,
    ) -> Result<Response<MeasureBacklogResponse>, Status> {
        let queries = request.into_inner().queries;
        let backlogs = backlog::measure(&self.node, queries).await?;
        Ok(Response::new(MeasureBacklogResponse { backlogs }))
    }
}

impl InternalLog {
    async fn append(
        &self,
        request: AppendInternalRequest,
    ) -> Result<AppendInternalResponse, Refusal> {
        let node = &self.node;
        let deadline = Instant::now() + Duration::from_millis(limits::DELIVERY_TIMEOUT_MS_DEFAULT);
        if node.draining().is_some() {
            return Err(resolve::draining());
        }
        let epoch = ShardEpoch(request.shard_epoch);
        if epoch <= ShardEpoch::NONE {
            let reason = format!("is given out from 1 on, not {epoch}");
            return Err(Refusal::invalid("shard_epoch", reason));
        }
        resolve::wait_for_news(node, "", &request.topic_id, request.partition).await;
        let topic = resolve::topic(node, "", &request.topic_id)?;
        if !is_internal(&topic.topic.name) {
            let message = format!(
                "{:?} is no internal topic; clients produce to it",
                topic.topic.name
            );
            return Err(Refusal::new(ErrorCode::InternalTopic, message));
        }
        let (handle, _) = resolve::led_partition(node, &topic, request.partition)?;
        let what = checked(request.what, &topic).await?;
        self.hand_on(&handle, epoch, what, deadline).await
    }

    async fn hand_on(
        &self,
        handle: &PartitionHandle,
        epoch: ShardEpoch,
        what: InternalBatch,
        deadline: Instant,
    ) -> Result<AppendInternalResponse, Refusal> {
        let (bytes, last_delta, base_sequence) = match &what {
            InternalBatch::Fence => (0, 0, -1),
            InternalBatch::Batch(batch) => (
                batch.bytes.len(),
                batch.header.last_offset_delta,
                batch.header.base_sequence.0,
            ),
        };
        let owner = self.node.loop_of(handle);
        let reservation = match timeout_at(deadline, owner.reserve(bytes)).await {
            Ok(room) => room.map_err(|_| resolve::draining())?,
            Err(_) => {
                let message = "there was no room within the delivery time-out";
                return Err(Refusal::new(ErrorCode::DeliveryTimeoutNotSent, message));
            }
        };
        let stream = Arc::new(Completions::default());
        let append = InternalAppend {
            tp: handle.tp,
            epoch,
            what,
            stream: Arc::clone(&stream),
            reservation,
        };
        owner
            .send(Command::AppendInternal(append))
            .map_err(|_| resolve::draining())?;
        let mut answers = Vec::with_capacity(1);
        if timeout_at(deadline, stream.ready()).await.is_ok() {
            stream.take(&mut answers);
        }
        match answers.pop().map(|answer| answer.outcome) {
            Some(Outcome::Done {
                base_offset,
                duplicate,
                reached,
                ..
            }) => Ok(AppendInternalResponse {
                base_offset: base_offset.0,
                last_offset: match base_offset.0 {
                    // A repeat whose place is not remembered any more.
                    -1 => -1,
                    base => base.saturating_add(i64::from(last_delta)),
                },
                duplicate,
                durability: Some(Durability {
                    replicas_holding: reached.holding,
                    replicas_flushed: reached.flushed,
                    leader_epoch: reached.epoch.0,
                }),
            }),
            Some(Outcome::Refused(why)) => Err(produce::refusal(
                &self.node,
                &handle.tp,
                base_sequence,
                &why,
            )),
            None => Err(Refusal::new(
                ErrorCode::TimedOut,
                "the append was not acknowledged within the delivery time-out; it may be done",
            )),
        }
    }
}

/// A batch is checked as a client's is, and must be one that can be sent again.
async fn checked(what: Option<What>, topic: &TopicView) -> Result<InternalBatch, Refusal> {
    let bytes = match what {
        Some(What::Fence(true)) => return Ok(InternalBatch::Fence),
        Some(What::Fence(false)) => {
            return Err(Refusal::invalid("fence", "must be true where it is given"));
        }
        Some(What::Batch(bytes)) => bytes,
        None => return Err(Refusal::invalid("what", "one of its fields must be set")),
    };
    let limits = ValidationLimits::for_topic(&topic.config, clock::wall_now());
    let check = move |bytes: Bytes| check_client_batch(bytes, &limits).map_err(Refusal::from);
    let batch: CheckedBatch = match produce::is_slow(std::slice::from_ref(&bytes)) {
        false => check(bytes)?,
        true => tokio::task::spawn_blocking(move || check(bytes))
            .await
            .map_err(|_| Refusal::internal("the check of a batch broke off"))??,
    };
    if !batch.header.has_producer() {
        let reason = "has no producer id, so that a repeat would not be recognised";
        return Err(Refusal::invalid("batch", reason));
    }
    Ok(InternalBatch::Batch(Box::new(batch)))
}
