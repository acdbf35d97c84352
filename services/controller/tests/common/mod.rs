//! A controller on a free port, and a node that is nothing but its session.

#![allow(dead_code)]

use prost::bytes::Bytes;
use std::{
    collections::BTreeMap,
    net::TcpListener,
    sync::{Arc, OnceLock},
    time::Duration,
};
use talweg_controller::{ControllerConfig, ControllerHandle, start};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_metastore::Metastore;
use talweg_proto::{
    controller::v1::{
        ClusterDelta, ClusterView, FolderBoot, NodeHeartbeat, NodeLeaving, NodeRegistered,
        NodeSessionRequest, NodeSessionResponse, PartitionState, RegisterNode, RegisteredFolder,
        ShardState, WatchClusterRequest, WatchClusterResponse,
        controller_service_client::ControllerServiceClient, node_session_request::Frame as Ask,
        node_session_response::Frame as Answer, watch_cluster_response::Update,
    },
    v1::{self, topic_service_client::TopicServiceClient},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};
use uuid::Uuid;

pub const DEADLINE: Duration = Duration::from_secs(20);
pub const SESSION_MS: u32 = 1_000;

pub fn config() -> ControllerConfig {
    ControllerConfig {
        grpc: "127.0.0.1:0".into(),
        http: "127.0.0.1:0".into(),
        session_timeout_ms: SESSION_MS,
        election_ttl_ms: 1_000,
        ..ControllerConfig::default()
    }
}

pub async fn within<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, wait)
        .await
        .unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

pub struct Controller {
    pub handle: ControllerHandle,
    pub channel: Channel,
}

impl Controller {
    pub async fn start(store: Arc<dyn Metastore>) -> Self {
        Self::with(config(), store).await
    }

    pub async fn with(config: ControllerConfig, store: Arc<dyn Metastore>) -> Self {
        let handle = start(config, store).await.expect("start");
        within("ready", handle.wait_ready()).await;
        let url = format!("http://{}", handle.grpc_addr());
        let channel = Channel::from_shared(url).expect("url").connect_lazy();
        Self { handle, channel }
    }

    pub fn topics(&self) -> TopicServiceClient<Channel> {
        TopicServiceClient::new(self.channel.clone())
    }

    pub fn client(&self) -> ControllerServiceClient<Channel> {
        ControllerServiceClient::new(self.channel.clone())
    }

    pub async fn create(&self, request: v1::CreateTopicRequest) -> Result<v1::Topic, Refusal> {
        let created = self.topics().create_topic(request).await;
        let created = created.map_err(|status| Refusal::from_status(&status))?;
        Ok(created.into_inner().topic.expect("the topic"))
    }

    pub async fn topic(&self, name: &str, partitions: i32) -> v1::Topic {
        self.create(create(name, partitions))
            .await
            .expect("created")
    }

    pub async fn watch(&self) -> Watch {
        let request = WatchClusterRequest { node_id: 0 };
        let stream = self
            .client()
            .watch_cluster(request)
            .await
            .expect("watch")
            .into_inner();
        let mut watch = Watch {
            stream,
            seen: Seen::default(),
            snapshots: 0,
        };
        watch
            .until("the snapshot", |watch| watch.snapshots == 1)
            .await;
        watch
    }

    pub async fn stop(self) {
        self.handle.stop(Duration::from_millis(200)).await;
    }
}

pub fn create(name: &str, partitions: i32) -> v1::CreateTopicRequest {
    v1::CreateTopicRequest {
        name: name.into(),
        partitions: Some(partitions),
        ..v1::CreateTopicRequest::default()
    }
}

pub fn bytes(id: Uuid) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

/// An address that is never refused: nodes at it die of silence only.
pub fn listening() -> String {
    static LISTENER: OnceLock<TcpListener> = OnceLock::new();
    let listener = LISTENER.get_or_init(|| TcpListener::bind("127.0.0.1:0").expect("bind"));
    format!("http://{}", listener.local_addr().expect("address"))
}

pub fn register(process: Uuid, folder: Uuid) -> RegisterNode {
    RegisterNode {
        plane: v1::Plane::Storage.into(),
        grpc_address: listening(),
        folders: vec![RegisteredFolder {
            folder_id: bytes(folder),
            boot: FolderBoot::SameBoot.into(),
        }],
        process_id: bytes(process),
        version: "test".into(),
        ..RegisterNode::default()
    }
}

/// A session stream, beating by itself.
pub struct Session {
    pub frames: mpsc::Sender<NodeSessionRequest>,
    pub answers: Streaming<NodeSessionResponse>,
    pub registered: NodeRegistered,
    beating: tokio::task::JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.beating.abort();
    }
}

pub async fn send(frames: &mpsc::Sender<NodeSessionRequest>, frame: Ask) {
    // The stream may have been ended by the controller.
    let _ = frames.send(NodeSessionRequest { frame: Some(frame) }).await;
}

/// The first answer to `first`, and both ends of the stream.
pub async fn open(
    controller: &Controller,
    first: Ask,
) -> (
    mpsc::Sender<NodeSessionRequest>,
    Streaming<NodeSessionResponse>,
) {
    let (frames, queue) = mpsc::channel(8);
    send(&frames, first).await;
    let mut client = controller.client();
    let opened = client.node_session(ReceiverStream::new(queue));
    (
        frames,
        within("the stream", opened)
            .await
            .expect("stream")
            .into_inner(),
    )
}

impl Session {
    pub async fn begin(controller: &Controller, asking: RegisterNode) -> Result<Self, Refusal> {
        let (frames, mut answers) = open(controller, Ask::Register(asking)).await;
        let registered = match next(&mut answers).await? {
            Answer::Registered(registered) => registered,
            other => panic!("{other:?}"),
        };
        let beating = tokio::spawn({
            let frames = frames.clone();
            async move {
                loop {
                    tokio::time::sleep(Duration::from_millis(u64::from(SESSION_MS) / 4)).await;
                    send(&frames, Ask::Heartbeat(NodeHeartbeat::default())).await;
                }
            }
        });
        Ok(Self {
            frames,
            answers,
            registered,
            beating,
        })
    }

    /// A new process on a new folder.
    pub async fn fresh(controller: &Controller) -> Self {
        let asking = register(Uuid::new_v4(), Uuid::new_v4());
        Self::begin(controller, asking).await.expect("registered")
    }

    /// As the planes do it: the goodbye has arrived when the controller ends the
    /// stream; a stream that is dropped before may take it along.
    pub async fn leave(mut self) {
        send(&self.frames, Ask::Leaving(NodeLeaving {})).await;
        let ended = async { while let Ok(Some(_)) = self.answers.message().await {} };
        within("the end of the session", ended).await;
    }

    /// The next answer that is not an ack.
    pub async fn next(&mut self) -> Result<Answer, Refusal> {
        loop {
            match next(&mut self.answers).await? {
                Answer::HeartbeatAck(_) => {}
                other => return Ok(other),
            }
        }
    }
}

pub async fn next(answers: &mut Streaming<NodeSessionResponse>) -> Result<Answer, Refusal> {
    let ended = || Status::cancelled("the stream has ended");
    let answer = within("an answer", answers.message()).await;
    let answer = answer.and_then(|answer| answer.ok_or_else(ended));
    let answer = answer.map_err(|status| Refusal::from_status(&status))?;
    Ok(answer.frame.expect("a frame"))
}

pub fn code<T>(result: Result<T, Status>) -> Option<ErrorCode> {
    result
        .err()
        .map(|status| Refusal::from_status(&status).code)
}

/// What a watcher knows.
#[derive(Clone, Default, Debug, PartialEq)]
pub struct Seen {
    pub revision: i64,
    pub cluster_id: Bytes,
    pub topics: BTreeMap<Bytes, v1::Topic>,
    pub partitions: BTreeMap<(Bytes, u32), PartitionState>,
    pub nodes: BTreeMap<u32, v1::NodeMetadata>,
    pub tombstones: BTreeMap<Bytes, Vec<u32>>,
    pub shards: BTreeMap<(Bytes, u32), ShardState>,
}

impl Seen {
    fn merge(&mut self, view: ClusterView) {
        assert!(view.revision >= self.revision, "the revision went back");
        self.revision = view.revision;
        self.cluster_id = view.cluster_id;
        self.topics.extend(
            view.topics
                .into_iter()
                .map(|topic| (topic.topic_id.clone(), topic)),
        );
        let keyed = |p: PartitionState| ((p.topic_id.clone(), p.partition), p);
        self.partitions
            .extend(view.partitions.into_iter().map(keyed));
        self.nodes
            .extend(view.nodes.into_iter().map(|node| (node.node_id, node)));
        let keyed = |s: ShardState| ((s.topic_id.clone(), s.shard), s);
        self.shards.extend(view.shards.into_iter().map(keyed));
        for stone in view.tombstones {
            match stone.pending_nodes.is_empty() {
                true => drop(self.tombstones.remove(&stone.topic_id)),
                false => drop(self.tombstones.insert(stone.topic_id, stone.pending_nodes)),
            }
        }
    }

    fn apply(&mut self, delta: ClusterDelta) {
        assert_eq!(delta.previous_revision, self.revision, "a gap");
        for id in &delta.removed_topic_ids {
            self.topics.remove(id);
            self.partitions.retain(|(topic, _), _| topic != id);
        }
        for id in &delta.removed_node_ids {
            self.nodes.remove(id);
        }
        self.merge(delta.view.expect("a view"));
    }

    pub fn leaders(&self, topic: &Bytes) -> Vec<(u32, i32)> {
        let of = self.partitions.iter().filter(|((id, _), _)| id == topic);
        of.map(|(_, p)| (p.leader, p.leader_epoch)).collect()
    }
}

pub struct Watch {
    pub stream: Streaming<WatchClusterResponse>,
    pub seen: Seen,
    pub snapshots: usize,
}

impl Watch {
    /// Takes one message.
    pub async fn step(&mut self) {
        let message = within("an update", self.stream.message()).await;
        let update = message
            .expect("the watch lives")
            .expect("the watch goes on")
            .update;
        match update.expect("an update") {
            Update::Snapshot(part) => {
                if part.first {
                    let revision = self.seen.revision;
                    self.seen = Seen {
                        revision,
                        ..Seen::default()
                    };
                }
                self.seen.merge(part.view.expect("a view"));
                self.snapshots += usize::from(part.last);
            }
            Update::Delta(delta) => self.seen.apply(delta),
            Update::Progress(progress) => assert_eq!(progress.revision, self.seen.revision),
        }
    }

    pub async fn until(&mut self, what: &str, hope: impl Fn(&Self) -> bool) {
        within(what, async {
            while !hope(self) {
                self.step().await;
            }
        })
        .await;
    }
}
