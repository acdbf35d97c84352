//! A controller that does what a test says, and the leader of every partition.

use super::{PATIENCE, eventually};
use std::{
    collections::BTreeMap,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
};
use talweg_coordinator::{CoordinatorConfig, Handle, log::MemoryLog, start_on};
use talweg_kit::net::{ServerHandle, ServerOptions, bind, serve};
use talweg_proto::{
    controller::v1::{
        AllocateProducerIdsRequest, AllocateProducerIdsResponse, AlterInSyncRequest,
        AlterInSyncResponse, ClusterSnapshot, ClusterView, ConfirmReplicasDeletedRequest,
        ConfirmReplicasDeletedResponse, EnsureDerivedTopicRequest, EnsureDerivedTopicResponse,
        HeartbeatAck, NodeRegistered, NodeSessionRequest, NodeSessionResponse, PartitionState,
        ShardState, Tombstone, WatchClusterRequest, WatchClusterResponse,
        controller_service_server::{ControllerService, ControllerServiceServer},
        node_session_request, node_session_response,
        watch_cluster_response::Update,
    },
    coordinator::v1::coordinator_service_client::CoordinatorServiceClient,
    storage::v1::{
        AppendInternalRequest, AppendInternalResponse, Backlog, MeasureBacklogRequest,
        MeasureBacklogResponse,
        internal_log_service_server::{InternalLogService, InternalLogServiceServer},
    },
    v1::{
        DeleteRecordsRequest, DeleteRecordsResponse, ListOffsetsRequest, ListOffsetsResponse,
        NodeMetadata, OffsetAnswer, PartitionBounds, Plane, Topic,
        offset_service_server::{OffsetService, OffsetServiceServer},
        *,
    },
};
use talweg_types::{PartitionIndex, TopicId, TopicPartition};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming, service::Routes, transport::Channel};

pub const SHARDS: u32 = 3;
/// Bounds of every partition that is asked for.
pub const LOG_START: i64 = 10;
pub const LAST_STABLE: i64 = 900;
pub const HIGH_WATERMARK: i64 = 1_000;

#[derive(Default)]
struct State {
    revision: i64,
    topics: BTreeMap<String, Topic>,
    partitions: Vec<PartitionState>,
    tombstones: Vec<Tombstone>,
    nodes: BTreeMap<u32, NodeMetadata>,
    shards: BTreeMap<u32, ShardState>,
    /// By process: id and incarnation.
    processes: BTreeMap<Vec<u8>, (u32, u64)>,
    left: usize,
    beats: usize,
    asked_offsets: usize,
}

pub struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<i64>,
    /// Watchers hear nothing.
    held_back: watch::Sender<bool>,
}

impl Shared {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().expect("state");
        let result = change(&mut state);
        state.revision += 1;
        self.changed.send_replace(state.revision);
        result
    }

    fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.lock().expect("state"))
    }
}

/// The cluster around a coordinator.
pub struct World {
    pub shared: Arc<Shared>,
    pub log: MemoryLog,
    url: String,
    _server: ServerHandle,
}

pub fn id_of(name: &str) -> TopicId {
    let mut id = [0; 16];
    for (place, byte) in id.iter_mut().zip(name.bytes().cycle()) {
        *place = byte;
    }
    TopicId::from_slice(&id).expect("16 bytes")
}

pub fn bytes_of(id: TopicId) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(id.as_bytes())
}

/// Partition `n` of topic `t`.
pub fn at(n: u32) -> TopicPartition {
    TopicPartition {
        topic_id: id_of("t"),
        partition: PartitionIndex(n),
    }
}

impl World {
    /// With topic `t` of four partitions, and the internal one.
    pub async fn start() -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: watch::Sender::new(0),
            held_back: watch::Sender::new(false),
        });
        let routes = Routes::new(ControllerServiceServer::new(Fake(Arc::clone(&shared))))
            .add_service(OffsetServiceServer::new(Fake(Arc::clone(&shared))))
            .add_service(InternalLogServiceServer::new(Fake(Arc::clone(&shared))));
        let listener = bind("127.0.0.1:0").await.expect("address");
        let server = serve(listener, routes, ServerOptions::default()).expect("server");
        let url = format!("http://{}", server.addr());
        let storage = NodeMetadata {
            node_id: 1,
            plane: Plane::Storage.into(),
            grpc_address: url.clone(),
            rack: "r1".into(),
            ..NodeMetadata::default()
        };
        shared.change(|state| state.nodes.insert(1, storage));
        let world = Self {
            shared,
            log: MemoryLog::default(),
            url,
            _server: server,
        };
        world.create_topic("__consumer_offsets", SHARDS);
        world.create_topic("t", 4);
        world
    }

    pub fn create_topic(&self, name: &str, partitions: u32) {
        let topic_id = bytes_of(id_of(name));
        self.shared.change(|state| {
            for partition in 0..partitions {
                state.partitions.push(PartitionState {
                    topic_id: topic_id.clone(),
                    partition,
                    leader: 1,
                    leader_epoch: 1,
                    replicas: vec![1],
                    in_sync: vec![1],
                    ..PartitionState::default()
                });
            }
            let topic = Topic {
                name: name.into(),
                topic_id,
                partitions,
                replication_factor: 1,
                ..Topic::default()
            };
            state.topics.insert(name.into(), topic);
        });
    }

    /// Deletes it: gone from the view, with a tombstone.
    pub fn delete_topic(&self, name: &str) {
        self.forget_topic(name);
        self.shared.change(|state| {
            let topic_id = bytes_of(id_of(name));
            state.tombstones.push(Tombstone {
                topic_id,
                pending_nodes: vec![1],
            });
        });
    }

    /// It was deleted, and so long ago that its tombstone is gone too.
    pub fn forget_topic(&self, name: &str) {
        self.shared.change(|state| {
            state.topics.remove(name);
            let topic_id = bytes_of(id_of(name));
            state.partitions.retain(|it| it.topic_id != topic_id);
        });
    }

    /// A coordinator on the world's log, registered.
    pub async fn coordinator(&self, folder: &Path) -> Handle {
        self.coordinator_on(folder, self.log.clone()).await
    }

    pub async fn coordinator_on(&self, folder: &Path, log: MemoryLog) -> Handle {
        let config = CoordinatorConfig {
            controllers: vec![self.url.clone()],
            grpc: "127.0.0.1:0".into(),
            http: "127.0.0.1:0".into(),
            data_dir: folder.into(),
            lag_interval_ms: 100,
            ..CoordinatorConfig::default()
        };
        // The folder may still be held by an earlier one that is about to end.
        let handle = eventually("the coordinator starts", || {
            let (config, log) = (config.clone(), log.clone());
            async move { start_on(config, Some(Arc::new(log))).await.ok() }
        })
        .await;
        tokio::time::timeout(PATIENCE, handle.wait_ready())
            .await
            .expect("ready");
        eventually("it is registered", || async {
            (handle.node_id() > 0).then_some(())
        })
        .await;
        handle
    }

    /// One with all shards, serving.
    pub async fn with_all_shards(&self, folder: &Path) -> Handle {
        let coordinator = self.coordinator(folder).await;
        self.give_all(&coordinator).await;
        coordinator
    }

    pub async fn give_all(&self, to: &Handle) {
        for shard in 0..SHARDS {
            self.give(shard, to.node_id());
        }
        eventually("all shards are served", || async {
            (to.shards().len() == SHARDS as usize).then_some(())
        })
        .await;
    }

    /// The shard is `coordinator`'s from now on, in a new epoch.
    pub fn give(&self, shard: u32, coordinator: u32) {
        self.shared.change(|state| {
            let known = state.processes.values().find(|(id, _)| *id == coordinator);
            let incarnation = known.map_or(0, |(_, incarnation)| *incarnation);
            let epoch = state.shards.get(&shard).map_or(0, |it| it.shard_epoch);
            let given = ShardState {
                topic_id: bytes_of(id_of("__consumer_offsets")),
                shard,
                coordinator,
                coordinator_incarnation: incarnation,
                shard_epoch: epoch + 1,
            };
            state.shards.insert(shard, given);
        });
    }

    /// Every shard's log loses its newest entries to an election.
    pub fn lose(&self, entries: usize) {
        for shard in 0..SHARDS {
            let at = TopicPartition {
                topic_id: id_of("__consumer_offsets"),
                partition: PartitionIndex(shard),
            };
            self.log.lose(at, entries);
        }
    }

    /// From now on watchers hear nothing, or all that they have missed.
    pub fn hold_back(&self, back: bool) {
        self.shared.held_back.send_replace(back);
    }

    /// Heartbeats that were answered.
    pub fn beats(&self) -> usize {
        self.shared.look(|state| state.beats)
    }

    pub fn left(&self) -> usize {
        self.shared.look(|state| state.left)
    }

    /// How often the leader was asked for offsets.
    pub fn asked_offsets(&self) -> usize {
        self.shared.look(|state| state.asked_offsets)
    }
}

pub fn client(of: &Handle) -> CoordinatorServiceClient<Channel> {
    let url = format!("http://{}", of.grpc_addr());
    let channel = talweg_kit::net::channel(&url, &Default::default()).expect("a URL");
    CoordinatorServiceClient::new(channel)
}

pub fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

struct Fake(Arc<Shared>);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl ControllerService for Fake {
    type NodeSessionStream = Answers<NodeSessionResponse>;
    type WatchClusterStream = Answers<WatchClusterResponse>;

    async fn node_session(
        &self,
        request: Request<Streaming<NodeSessionRequest>>,
    ) -> Result<Response<Self::NodeSessionStream>, Status> {
        let mut said = request.into_inner();
        let shared = Arc::clone(&self.0);
        let (answers, queue) = mpsc::channel(8);
        tokio::spawn(async move {
            use node_session_request::Frame as Ask;
            use node_session_response::Frame as Answer;
            let mut id = 0;
            while let Ok(Some(request)) = said.message().await {
                let answer = match request.frame {
                    Some(Ask::Register(register)) => {
                        let registered = shared.change(|state| {
                            let next = u64::try_from(state.processes.len()).expect("few") + 1;
                            let new = (1_000_000 + u32::try_from(next).expect("few"), next);
                            let process = register.process_id.to_vec();
                            let (node_id, incarnation) =
                                *state.processes.entry(process).or_insert(new);
                            let node = NodeMetadata {
                                node_id,
                                plane: register.plane,
                                grpc_address: register.grpc_address,
                                ..NodeMetadata::default()
                            };
                            state.nodes.insert(node_id, node);
                            id = node_id;
                            NodeRegistered {
                                node_id,
                                cluster_id: vec![7; 16].into(),
                                incarnation,
                                session_timeout_ms: 1_000,
                                revision: state.revision + 1,
                            }
                        });
                        Answer::Registered(registered)
                    }
                    Some(Ask::Leaving(_)) => {
                        shared.change(|state| {
                            state.left += 1;
                            state.nodes.remove(&id);
                        });
                        return;
                    }
                    Some(Ask::Heartbeat(heartbeat)) => {
                        let mut state = shared.state.lock().expect("state");
                        state.beats += 1;
                        Answer::HeartbeatAck(HeartbeatAck {
                            time_ms: talweg_kit::clock::wall_now().0,
                            beat: heartbeat.beat,
                            revision: state.revision,
                        })
                    }
                    _ => continue,
                };
                let answer = NodeSessionResponse {
                    frame: Some(answer),
                };
                if answers.send(Ok(answer)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(queue))))
    }

    async fn watch_cluster(
        &self,
        _: Request<WatchClusterRequest>,
    ) -> Result<Response<Self::WatchClusterStream>, Status> {
        let shared = Arc::clone(&self.0);
        let (answers, queue) = mpsc::channel(8);
        tokio::spawn(async move {
            let mut changes = shared.changed.subscribe();
            let mut held_back = shared.held_back.subscribe();
            loop {
                // The sender lives in `shared`.
                let _ = held_back.wait_for(|back| !back).await;
                changes.borrow_and_update();
                let view = shared.look(|state| ClusterView {
                    cluster_id: vec![7; 16].into(),
                    revision: state.revision,
                    topics: state.topics.values().cloned().collect(),
                    partitions: state.partitions.clone(),
                    nodes: state.nodes.values().cloned().collect(),
                    tombstones: state.tombstones.clone(),
                    histories: Vec::new(),
                    shards: state.shards.values().cloned().collect(),
                });
                let snapshot = ClusterSnapshot {
                    first: true,
                    last: true,
                    view: Some(view),
                };
                let update = WatchClusterResponse {
                    update: Some(Update::Snapshot(snapshot)),
                };
                if answers.send(Ok(update)).await.is_err() || changes.changed().await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(queue))))
    }

    async fn allocate_producer_ids(
        &self,
        _: Request<AllocateProducerIdsRequest>,
    ) -> Result<Response<AllocateProducerIdsResponse>, Status> {
        Err(Status::unimplemented("the log in memory gives them"))
    }

    async fn alter_in_sync(
        &self,
        _: Request<AlterInSyncRequest>,
    ) -> Result<Response<AlterInSyncResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn confirm_replicas_deleted(
        &self,
        _: Request<ConfirmReplicasDeletedRequest>,
    ) -> Result<Response<ConfirmReplicasDeletedResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn ensure_derived_topic(
        &self,
        _: Request<EnsureDerivedTopicRequest>,
    ) -> Result<Response<EnsureDerivedTopicResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }
}

#[tonic::async_trait]
impl InternalLogService for Fake {
    async fn append_internal(
        &self,
        _: Request<AppendInternalRequest>,
    ) -> Result<Response<AppendInternalResponse>, Status> {
        Err(Status::unimplemented("the log is in memory"))
    }

    async fn measure_backlog(
        &self,
        request: Request<MeasureBacklogRequest>,
    ) -> Result<Response<MeasureBacklogResponse>, Status> {
        let queries = request.into_inner().queries.into_iter();
        let backlogs = queries.map(|query| Backlog {
            topic_id: query.topic_id,
            partition: query.partition,
            log_start_offset: LOG_START,
            end_offset: match query.committed {
                true => LAST_STABLE,
                false => HIGH_WATERMARK,
            },
            bytes: (HIGH_WATERMARK - query.offset) * 10,
            oldest_append_ms: Some(talweg_kit::clock::wall_now().0 - 5_000),
            loss_ms: Some(60_000),
            arrival_per_second: Some(1.0),
            ..Backlog::default()
        });
        Ok(Response::new(MeasureBacklogResponse {
            backlogs: backlogs.collect(),
        }))
    }
}

#[tonic::async_trait]
impl OffsetService for Fake {
    type WatchLagStream = Answers<WatchLagResponse>;

    async fn list_offsets(
        &self,
        request: Request<ListOffsetsRequest>,
    ) -> Result<Response<ListOffsetsResponse>, Status> {
        self.0.state.lock().expect("state").asked_offsets += 1;
        let queries = request.into_inner().queries.into_iter();
        let answers = queries.map(|query| OffsetAnswer {
            topic_id: query.topic_id,
            partition: query.partition,
            offset: query.at.map(|_| 500),
            bounds: Some(PartitionBounds {
                log_start_offset: LOG_START,
                high_watermark: HIGH_WATERMARK,
                ..PartitionBounds::default()
            }),
            ..OffsetAnswer::default()
        });
        Ok(Response::new(ListOffsetsResponse {
            answers: answers.collect(),
        }))
    }

    async fn delete_records(
        &self,
        _: Request<DeleteRecordsRequest>,
    ) -> Result<Response<DeleteRecordsResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn commit_offsets(
        &self,
        _: Request<CommitOffsetsRequest>,
    ) -> Result<Response<CommitOffsetsResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn fetch_offsets(
        &self,
        _: Request<FetchOffsetsRequest>,
    ) -> Result<Response<FetchOffsetsResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn reset_offsets(
        &self,
        _: Request<ResetOffsetsRequest>,
    ) -> Result<Response<ResetOffsetsResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn delete_offsets(
        &self,
        _: Request<DeleteOffsetsRequest>,
    ) -> Result<Response<DeleteOffsetsResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn get_lag(&self, _: Request<GetLagRequest>) -> Result<Response<GetLagResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn watch_lag(
        &self,
        _: Request<WatchLagRequest>,
    ) -> Result<Response<Self::WatchLagStream>, Status> {
        Err(Status::unimplemented("not needed"))
    }
}
