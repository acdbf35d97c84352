//! The real log: appended to and read at the leader of the shard's partition.

use super::{Place, ShardLog, Sink};
use async_trait::async_trait;
use bytes::Bytes;
use std::{sync::Arc, time::Duration};
use talweg_batch::{BatchHeader, split_batches};
use talweg_client::{
    Client, StartAt,
    delivery::Route,
    fetch::{Data, FetchCoreConfig, FetchEvent, FetchUpstream, Interest},
    pool::{ChannelPool, Traffic},
    view::SharedView,
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    controller::v1::{
        AllocateProducerIdsRequest, controller_service_client::ControllerServiceClient,
    },
    storage::v1::{
        AppendInternalRequest, AppendInternalResponse, append_internal_request::What,
        internal_log_service_client::InternalLogServiceClient,
    },
    v1,
};
use talweg_types::{LeaderEpoch, Offset, ProducerId, ShardEpoch, TopicPartition, limits};
use tonic::Request;

/// For one append to be committed.
const APPEND_TIME: Duration = Duration::from_secs(10);
/// Bytes on their way while a shard is loaded.
const READ_BYTES: i64 = 8 << 20;
/// A replay that gets nothing for this long begins anew.
const READ_SILENCE: Duration = Duration::from_secs(15);

/// By way of the cluster's view.
pub struct LeaderLog {
    pub view: SharedView,
    pub pool: ChannelPool,
    pub controller: Client,
    /// For the storage nodes' logs.
    pub client_id: String,
}

impl LeaderLog {
    async fn call(
        &self,
        at: TopicPartition,
        epoch: ShardEpoch,
        what: What,
    ) -> Result<AppendInternalResponse, Refusal> {
        let target = match self.view.get().leader(at) {
            Route::To(target) => target,
            Route::Wait(refusal) | Route::Gone(refusal) => return Err(refusal),
        };
        let lease = self.pool.lease(&target.address, Traffic::Produce)?;
        let mut request = Request::new(AppendInternalRequest {
            topic_id: Bytes::copy_from_slice(at.topic_id.as_bytes()),
            partition: at.partition.0,
            shard_epoch: epoch.0,
            what: Some(what),
        });
        request.set_timeout(APPEND_TIME);
        let mut client = InternalLogServiceClient::new(lease.channel().clone());
        // The leader's own answer is better than ours: wait a bit longer.
        let grace = APPEND_TIME + Duration::from_millis(500);
        match tokio::time::timeout(grace, client.append_internal(request)).await {
            Ok(answer) => answer
                .map(tonic::Response::into_inner)
                .map_err(|status| Refusal::from_status(&status)),
            Err(_) => Err(Refusal::new(
                ErrorCode::TimedOut,
                format!("the leader of {at} did not answer"),
            )),
        }
    }
}

#[async_trait]
impl ShardLog for LeaderLog {
    async fn producer_id(&self) -> Result<ProducerId, Refusal> {
        let request = AllocateProducerIdsRequest { count: 1 };
        // An id that nobody uses harms nobody.
        let block = self
            .controller
            .call(
                talweg_client::Again::Safe,
                request,
                |channel, request| async move {
                    ControllerServiceClient::new(channel)
                        .allocate_producer_ids(request)
                        .await
                },
            )
            .await?;
        if block.first < 0 || block.count == 0 || block.first >= limits::DERIVED_PRODUCER_ID_BASE {
            return Err(Refusal::internal("the controller gave a bad id block"));
        }
        Ok(ProducerId(block.first))
    }

    async fn fence(&self, at: TopicPartition, epoch: ShardEpoch) -> Result<Place, Refusal> {
        let answer = self.call(at, epoch, What::Fence(true)).await?;
        Ok(place(&answer))
    }

    async fn append(
        &self,
        at: TopicPartition,
        epoch: ShardEpoch,
        batch: Bytes,
    ) -> Result<Place, Refusal> {
        let answer = self.call(at, epoch, What::Batch(batch)).await?;
        Ok(place(&answer))
    }

    async fn read(
        &self,
        at: TopicPartition,
        from: Offset,
        last_epoch: Option<LeaderEpoch>,
        until: Offset,
        sink: &mut Sink<'_>,
    ) -> Result<(), Refusal> {
        if from >= until {
            return Ok(());
        }
        let view = self.view.get();
        let topic = view
            .topic(at.topic_id)
            .ok_or_else(|| talweg_client::view::unknown(&at.topic_id))?;
        let core = FetchCoreConfig {
            client_id: self.client_id.clone(),
            form: v1::Form::Batches,
            isolation: v1::Isolation::ReadUncommitted,
            rack: String::new(),
            patience_ms: 10_000,
            leaders_may_lag: true,
        };
        let routes = Arc::new(self.view.clone());
        let mut upstream = FetchUpstream::new(routes, self.pool.clone(), core);
        // What compaction or deletion left begins at the log start, at or above `from`.
        let start = match from {
            Offset::ZERO => StartAt::Earliest,
            from => StartAt::Offset(from.0),
        };
        upstream.add(Interest {
            partition: at,
            topic: topic.topic.name.as_str().into(),
            start,
            leader_epoch: None,
            last_epoch: last_epoch.map(|epoch| epoch.0),
            largest_batch: topic.config.max_message_bytes,
        });
        loop {
            upstream.set_target(READ_BYTES);
            let events = tokio::time::timeout(READ_SILENCE, upstream.next()).await;
            let silent = |_| Refusal::unavailable(format!("reading {at} came to a halt"));
            for event in events.map_err(silent)? {
                if on_event(event, until, sink)? {
                    return Ok(());
                }
            }
        }
    }
}

fn place(answer: &AppendInternalResponse) -> Place {
    let durability = answer.durability.as_ref();
    Place {
        last: Offset(answer.last_offset),
        leader_epoch: durability.map_or(LeaderEpoch::NONE, |it| LeaderEpoch(it.leader_epoch)),
    }
}

/// True: `until` is reached.
fn on_event(event: FetchEvent, until: Offset, sink: &mut Sink<'_>) -> Result<bool, Refusal> {
    match event {
        FetchEvent::Started(at) | FetchEvent::Position(at) => Ok(at.next_offset >= until.0),
        FetchEvent::Stopped { refusal, .. } => Err(refusal),
        FetchEvent::Data(data) => {
            let reached = data.position.next_offset >= until.0;
            let Data::Batches { bytes, .. } = data.data else {
                return Err(Refusal::internal(
                    "records came where batches were asked for",
                ));
            };
            for batch in split_batches(bytes) {
                let batch = batch?;
                if BatchHeader::parse(&batch)?.base_offset < until {
                    sink(batch)?;
                }
            }
            Ok(reached)
        }
    }
}
