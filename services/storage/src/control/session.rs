//! The node's session: one stream to a controller for as long as the process
//! lives, begun again when it breaks.
//!
//! The first registration gives the node its id and this start its incarnation;
//! the log folders are marked with it before anything may be led. A fenced
//! session, or a cluster that is not ours, stops the process.

use super::{
    controllers::{BackOff, Controllers},
    health::health,
    identity::Identity,
};
use crate::{clock, folders::Folders, node::Node};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::{path::PathBuf, sync::Arc, time::Duration};
use talweg_kit::{
    errors::{ErrorCode, Refusal},
    net::ChannelOptions,
};
use talweg_proto::{
    controller::v1::{
        AskReplicaEnds, HeartbeatAck, NodeHeartbeat, NodeLeaving, NodeRegistered,
        NodeSessionRequest, NodeSessionResponse, RegisterNode, ReplicaEnd, ReplicaEnds,
        ReplicaHealth, controller_service_client::ControllerServiceClient, node_session_request,
        node_session_response,
    },
    v1::{FolderDescription, Plane},
};
use talweg_types::{Incarnation, PartitionIndex, TimestampMs, TopicId, TopicPartition, limits};
use thiserror::Error;
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use uuid::Uuid;

/// Frames that wait for the connection: a heartbeat and a goodbye.
const QUEUED_FRAMES: usize = 4;
/// For the goodbye to arrive.
const GOODBYE_TIME: Duration = Duration::from_millis(150);
/// Folders that could not be marked are tried again after this.
const MARK_AGAIN: Duration = Duration::from_secs(1);
/// The controller takes this long at most to answer a registration.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the process must stop.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Stopped {
    /// A newer process has this node's id.
    #[error("fenced: {0}")]
    Fenced(String),
    /// The controller will never take this node.
    #[error("refused by the controller: {0}")]
    Refused(String),
    /// The log folders cannot be marked, or the identity cannot be kept.
    #[error("log folder: {0}")]
    Disk(String),
}

/// What a node says of itself when it registers.
#[derive(Clone, Debug)]
pub struct Registration {
    pub grpc_address: String,
    pub http_address: String,
    pub rack: String,
}

/// The session of one process.
pub struct Session {
    pub node: Arc<Node>,
    pub folders: Arc<Folders>,
    pub controllers: Arc<Controllers>,
    pub registration: Registration,
    /// Refreshed by whoever may wait for disks.
    pub space: Arc<ArcSwap<Vec<FolderDescription>>>,
    /// Says goodbye, then ends.
    pub leave: Arc<Notify>,
    identity: Mutex<Option<Identity>>,
    identity_folder: PathBuf,
    process_id: Uuid,
}

/// How one stream of the session ended.
enum Ended {
    Stop(Stopped),
    Left,
    Broken(Status),
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        Self::Broken(status)
    }
}

impl Session {
    pub fn new(
        node: Arc<Node>,
        folders: Arc<Folders>,
        controllers: Arc<Controllers>,
        registration: Registration,
        identity: Option<Identity>,
    ) -> Self {
        Self {
            identity_folder: folders.list[0].root().to_path_buf(),
            node,
            folders,
            controllers,
            registration,
            space: Arc::default(),
            leave: Arc::default(),
            identity: Mutex::new(identity),
            process_id: Uuid::new_v4(),
        }
    }

    /// Keeps the session until the process leaves (`Ok`) or must stop.
    pub async fn run(self: Arc<Self>) -> Result<(), Stopped> {
        let mut back_off = BackOff::default();
        loop {
            let begun = Instant::now();
            match self.once().await {
                Ended::Left => return Ok(()),
                Ended::Stop(stopped) => return Err(stopped),
                Ended::Broken(status) => {
                    tracing::info!(%status, "the session with the controller broke; trying again");
                    self.controllers.failed(&status);
                }
            }
            if begun.elapsed() > Duration::from_secs(5) {
                back_off.reset();
            }
            tokio::select! {
                biased;
                () = self.leave.notified() => return Ok(()),
                () = back_off.wait() => {}
            }
        }
    }

    async fn once(&self) -> Ended {
        match self.stream().await {
            Ok(ended) | Err(ended) => ended,
        }
    }

    async fn stream(&self) -> Result<Ended, Ended> {
        let options = ChannelOptions {
            connect_timeout: Duration::from_secs(1),
            ..ChannelOptions::default()
        };
        let channel = self.controllers.channel(&options).map_err(Status::from)?;
        let mut client = ControllerServiceClient::new(channel);
        let (frames, queue) = mpsc::channel(QUEUED_FRAMES);
        let register = node_session_request::Frame::Register(self.register());
        send(&frames, register).await?;
        let opened = tokio::time::timeout(
            REGISTER_TIMEOUT,
            client.node_session(ReceiverStream::new(queue)),
        )
        .await;
        let opened =
            opened.map_err(|_| Status::deadline_exceeded("the controller did not answer"))?;
        let mut answers = opened.map_err(refused)?.into_inner();
        let first = tokio::time::timeout(REGISTER_TIMEOUT, answers.message()).await;
        let first =
            first.map_err(|_| Status::deadline_exceeded("the controller did not answer"))?;
        let registered = match first.map_err(refused)?.and_then(|answer| answer.frame) {
            Some(node_session_response::Frame::Registered(registered)) => registered,
            Some(node_session_response::Frame::Fenced(fenced)) => {
                return Err(Ended::Stop(Stopped::Fenced(fenced.reason)));
            }
            _ => {
                return Err(
                    Status::internal("the controller did not answer the registration").into(),
                );
            }
        };
        let timeout = Duration::from_millis(u64::from(registered.session_timeout_ms.max(100)));
        self.on_registered(&registered)?;
        let connected = &self.node.metrics.controller_connected;
        connected.set(1);
        let ended = self.keep(timeout, frames, &mut answers).await;
        connected.set(0);
        ended
    }

    fn register(&self) -> RegisterNode {
        let identity = *self.identity.lock();
        let Registration {
            grpc_address,
            http_address,
            rack,
        } = self.registration.clone();
        RegisterNode {
            plane: Plane::Storage as i32,
            node_id: identity.map_or(0, |identity| identity.node_id),
            cluster_id: identity
                .map(|identity| identity.cluster_id.as_bytes().to_vec().into())
                .unwrap_or_default(),
            grpc_address,
            http_address,
            rack,
            folders: self.folders.registered(),
            process_id: self.process_id.as_bytes().to_vec().into(),
            version: env!("CARGO_PKG_VERSION").into(),
        }
    }

    /// Keeps who we are and marks the folders, on a worker: the session goes on
    /// meanwhile, leadership waits for it.
    fn on_registered(&self, registered: &NodeRegistered) -> Result<(), Ended> {
        let now = clock::monotonic_now();
        self.node.contacts.write().controller_heard(now);
        let cluster_id = Uuid::from_slice(&registered.cluster_id).map_err(|_| {
            Status::internal("the controller sent a cluster id that has not 16 bytes")
        })?;
        let identity = Identity::new(registered.node_id, cluster_id);
        let incarnation = Incarnation(registered.incarnation);
        let known = self.identity.lock().replace(identity);
        if let Some(known) = known.filter(|known| *known != identity) {
            *self.identity.lock() = Some(known);
            let message = format!(
                "this is node {} of cluster {}, the controller took it for node {} of {}",
                known.node_id, known.cluster_id, identity.node_id, identity.cluster_id
            );
            return Err(Ended::Stop(Stopped::Refused(message)));
        }
        self.node.set_id(registered.node_id);
        if self.node.incarnation() == Some(incarnation) {
            return Ok(());
        }
        tracing::info!(
            node_id = registered.node_id,
            incarnation = incarnation.0,
            "registered"
        );
        let marking = Marking {
            node: Arc::clone(&self.node),
            folders: Arc::clone(&self.folders),
            identity: known
                .is_none()
                .then(|| (identity, self.identity_folder.clone())),
            incarnation,
        };
        tokio::spawn(marking.run());
        Ok(())
    }

    /// Beats until something ends it.
    async fn keep(
        &self,
        timeout: Duration,
        frames: mpsc::Sender<NodeSessionRequest>,
        answers: &mut Streaming<NodeSessionResponse>,
    ) -> Result<Ended, Ended> {
        let mut beat = tokio::time::interval(timeout / 3);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        let mut said = None;
        loop {
            tokio::select! {
                biased;
                () = self.leave.notified() => {
                    send(&frames, node_session_request::Frame::Leaving(NodeLeaving {})).await?;
                    drop(frames);
                    // It has arrived when the controller ends the stream.
                    let ended = async { while let Ok(Some(_)) = answers.message().await {} };
                    let _ = tokio::time::timeout(GOODBYE_TIME, ended).await;
                    return Ok(Ended::Left);
                }
                answer = answers.message() => match answer.map_err(refused)?.and_then(|answer| answer.frame) {
                    Some(node_session_response::Frame::HeartbeatAck(ack)) => {
                        heard = Instant::now();
                        let now = clock::monotonic_now();
                        self.node.contacts.write().controller_heard(now);
                        self.on_ack(&ack);
                    }
                    Some(node_session_response::Frame::Fenced(fenced)) => {
                        return Err(Ended::Stop(Stopped::Fenced(fenced.reason)));
                    }
                    Some(node_session_response::Frame::Registered(_)) => {}
                    Some(node_session_response::Frame::AskReplicaEnds(asked)) => {
                        let ends = self.replica_ends(&asked);
                        send(&frames, node_session_request::Frame::ReplicaEnds(ends)).await?;
                    }
                    None => return Err(Status::unavailable("the controller ended the session").into()),
                },
                () = self.node.outbox.failed() => self.say_health(&frames, &mut said).await?,
                _ = beat.tick() => {
                    if heard.elapsed() > timeout {
                        return Err(Status::unavailable("the controller does not answer").into());
                    }
                    let folders = self.space.load().as_ref().clone();
                    let heartbeat = NodeHeartbeat { time_ms: clock::wall_now().0, folders, beat: 0 };
                    send(&frames, node_session_request::Frame::Heartbeat(heartbeat)).await?;
                    self.say_health(&frames, &mut said).await?;
                }
            }
        }
    }

    /// Which replicas fail or have no room, if the stream has not said it so.
    async fn say_health(
        &self,
        frames: &mpsc::Sender<NodeSessionRequest>,
        said: &mut Option<ReplicaHealth>,
    ) -> Result<(), Ended> {
        let now = health(&self.node, &self.folders);
        if said.as_ref() != Some(&now) {
            *said = Some(now.clone());
            send(frames, node_session_request::Frame::ReplicaHealth(now)).await?;
        }
        Ok(())
    }

    /// The ends of logs that are recovered; others are left out, and asked for again.
    fn replica_ends(&self, asked: &AskReplicaEnds) -> ReplicaEnds {
        let end = |asked: &ReplicaEnd| {
            let tp = TopicPartition {
                topic_id: TopicId::from_slice(&asked.topic_id)?,
                partition: PartitionIndex(asked.partition),
            };
            let handle = self.node.partitions.get(&tp)?;
            handle.failure().is_none().then(|| ReplicaEnd {
                last_epoch: handle.reader.last_epoch().0,
                log_end_offset: handle.reader.bounds().log_end.0,
                ..asked.clone()
            })
        };
        ReplicaEnds {
            replicas: asked.replicas.iter().filter_map(end).collect(),
        }
    }

    fn on_ack(&self, ack: &HeartbeatAck) {
        if ack.time_ms > 0 {
            self.node
                .clock
                .compare(clock::wall_now(), TimestampMs(ack.time_ms));
        }
    }
}

/// Marks the folders for this process, on a worker, until they are marked: a
/// disk that is full for a moment keeps the node from leading for that moment only.
struct Marking {
    node: Arc<Node>,
    folders: Arc<Folders>,
    /// To be written, and where.
    identity: Option<(Identity, PathBuf)>,
    incarnation: Incarnation,
}

impl Marking {
    async fn run(self) {
        let Self {
            node,
            folders,
            identity,
            incarnation,
        } = self;
        loop {
            let (folders, identity) = (Arc::clone(&folders), identity.clone());
            let mark = move || {
                if let Some((identity, folder)) = identity {
                    identity.write(&folder).map_err(|error| error.to_string())?;
                }
                let marked = folders.mark_running(incarnation);
                marked.map_err(|error| error.to_string())
            };
            match tokio::task::spawn_blocking(mark).await {
                Ok(Ok(())) => {
                    node.set_incarnation(incarnation);
                    return node.view.ring();
                }
                Ok(Err(error)) => {
                    tracing::error!(%error, "the log folders cannot be marked; until they are this node leads nothing")
                }
                Err(_) => return,
            }
            tokio::time::sleep(MARK_AGAIN).await;
        }
    }
}

async fn send(
    frames: &mpsc::Sender<NodeSessionRequest>,
    frame: node_session_request::Frame,
) -> Result<(), Ended> {
    let sent = frames.send(NodeSessionRequest { frame: Some(frame) }).await;
    sent.map_err(|_| Status::unavailable("the session's stream has ended").into())
}

/// Which refusals are for ever.
fn refused(status: Status) -> Ended {
    let refusal = Refusal::from_status(&status);
    match refusal.code {
        ErrorCode::StaleIncarnation => Ended::Stop(Stopped::Fenced(refusal.message)),
        ErrorCode::ClusterIdMismatch => Ended::Stop(Stopped::Refused(refusal.message)),
        _ => Ended::Broken(status),
    }
}

const _: () = assert!(limits::NODE_SESSION_MS_DEFAULT > 100);
