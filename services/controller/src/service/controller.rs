//! Between the planes and the controller. Every call may be answered
//! NOT_CONTROLLER with the active one's address, or UNAVAILABLE.

use super::{at_revision, session, watch};
use crate::{
    convert,
    core::{Reply, Request as CoreRequest},
    handle::Handle,
};
use talweg_kit::errors::Refusal;
use talweg_proto::controller::v1::{
    AllocateProducerIdsRequest, AllocateProducerIdsResponse, AlterInSyncRequest,
    AlterInSyncResponse, ConfirmReplicasDeletedRequest, ConfirmReplicasDeletedResponse,
    EnsureDerivedTopicRequest, EnsureDerivedTopicResponse, NodeSessionRequest, NodeSessionResponse,
    WatchClusterRequest, WatchClusterResponse, controller_service_server::ControllerService,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Frames that wait for a node's connection.
const SESSION_QUEUE: usize = 16;
/// Updates that wait for a watcher's connection, beside those in the hub.
const WATCH_QUEUE: usize = 4;

pub struct ControllerApi {
    pub handle: Handle,
}

#[tonic::async_trait]
impl ControllerService for ControllerApi {
    type NodeSessionStream = ReceiverStream<Result<NodeSessionResponse, Status>>;

    /// The stream ends with CLUSTER_ID_MISMATCH or STALE_INCARNATION (final: the
    /// process stops), NODE_ID_CONFLICT, INVALID_ARGUMENT, PROTOCOL_VIOLATION, or
    /// with UNAVAILABLE when the session is over and the node shall register
    /// again, here or at the next controller.
    async fn node_session(
        &self,
        request: Request<Streaming<NodeSessionRequest>>,
    ) -> Result<Response<Self::NodeSessionStream>, Status> {
        let mailbox = self.handle.mailbox()?;
        let (frames, answers) = mpsc::channel(SESSION_QUEUE);
        let stream = self.handle.next_stream();
        tokio::spawn(session::serve(
            mailbox,
            stream,
            request.into_inner(),
            frames,
        ));
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    type WatchClusterStream = ReceiverStream<Result<WatchClusterResponse, Status>>;

    /// Ends with UNAVAILABLE or NOT_CONTROLLER when this controller is not the
    /// active one any more. A watcher that is too slow gets a new snapshot.
    async fn watch_cluster(
        &self,
        _: Request<WatchClusterRequest>,
    ) -> Result<Response<Self::WatchClusterStream>, Status> {
        let subscription = self.handle.watch().await?;
        let (updates, answers) = mpsc::channel(WATCH_QUEUE);
        tokio::spawn(watch::serve(self.handle.clone(), subscription, updates));
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    /// Also: INVALID_ARGUMENT, LIMIT_EXCEEDED. After TIMED_OUT a block may be
    /// lost, which harms nobody.
    async fn allocate_producer_ids(
        &self,
        request: Request<AllocateProducerIdsRequest>,
    ) -> Result<Response<AllocateProducerIdsResponse>, Status> {
        let count = request.into_inner().count;
        let answer = self.handle.request(CoreRequest::Allocate { count }).await?;
        match answer.reply {
            Reply::Allocated { first } => {
                let block = AllocateProducerIdsResponse { first, count };
                Ok(at_revision(block, answer.revision))
            }
            _ => Err(Refusal::internal("the controller answered another question").into()),
        }
    }

    /// Also: UNKNOWN_NODE, STALE_INCARNATION, UNAVAILABLE before the node has
    /// registered here, THROTTLED, INVALID_ARGUMENT. A repeat is success.
    async fn alter_in_sync(
        &self,
        request: Request<AlterInSyncRequest>,
    ) -> Result<Response<AlterInSyncResponse>, Status> {
        let asked = convert::alter_in_sync(request.into_inner())?;
        let partitions: Vec<_> = asked.proposals.iter().map(|p| p.partition).collect();
        let answer = self.handle.request(asked.into()).await?;
        match answer.reply {
            Reply::InSync(results) => Ok(at_revision(
                convert::in_sync_results(&partitions, results),
                answer.revision,
            )),
            _ => Err(Refusal::internal("the controller answered another question").into()),
        }
    }

    /// Also: UNKNOWN_NODE, STALE_INCARNATION. A repeat is success.
    async fn confirm_replicas_deleted(
        &self,
        request: Request<ConfirmReplicasDeletedRequest>,
    ) -> Result<Response<ConfirmReplicasDeletedResponse>, Status> {
        let answer = self
            .handle
            .request(convert::confirm(&request.into_inner())?)
            .await?;
        Ok(at_revision(
            ConfirmReplicasDeletedResponse {},
            answer.revision,
        ))
    }

    /// Also: UNKNOWN_TOPIC for the source; INVALID_NAME of topic or group; INTERNAL_TOPIC
    /// as the source; NAME_CONFLICT; NOT_ENOUGH_NODES and TOPIC_NOT_READY (try again).
    async fn ensure_derived_topic(
        &self,
        request: Request<EnsureDerivedTopicRequest>,
    ) -> Result<Response<EnsureDerivedTopicResponse>, Status> {
        let request = convert::derive(request.into_inner())?;
        let answer = self.handle.request(request).await?;
        let Reply::Created(created) = answer.reply else {
            return Err(Refusal::internal("the controller answered another question").into());
        };
        let topic = Some(convert::topic(created.id, &created.topic));
        Ok(at_revision(
            EnsureDerivedTopicResponse { topic },
            answer.revision,
        ))
    }
}
