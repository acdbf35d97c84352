//! A controller that does what a test says: it gives out ids and incarnations,
//! raises epochs when a node starts again, and sends its whole view at each change.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex},
};
use talweg_kit::net::{ServerHandle, ServerOptions, bind, serve};
use talweg_proto::{
    controller::v1::{
        AllocateProducerIdsRequest, AllocateProducerIdsResponse, AlterInSyncRequest,
        AlterInSyncResponse, ClusterSnapshot, ClusterView, ConfirmReplicasDeletedRequest,
        ConfirmReplicasDeletedResponse, EnsureDerivedTopicRequest, EnsureDerivedTopicResponse,
        HeartbeatAck, NodeRegistered, NodeSessionRequest, NodeSessionResponse, PartitionState,
        RegisterNode, ReplicaHealth, SessionFenced, Tombstone, WatchClusterRequest,
        WatchClusterResponse,
        controller_service_server::{ControllerService, ControllerServiceServer},
        node_session_request, node_session_response,
        watch_cluster_response::Update,
    },
    v1::{NodeMetadata, Plane, Topic},
};
use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming, service::Routes};
use uuid::Uuid;

/// The test's side.
pub struct FakeController {
    shared: Arc<Shared>,
    server: Option<ServerHandle>,
    addr: String,
}

#[derive(Default)]
struct State {
    cluster_id: Uuid,
    revision: i64,
    topics: BTreeMap<Uuid, Topic>,
    partitions: BTreeMap<(Uuid, u32), PartitionState>,
    nodes: Vec<NodeMetadata>,
    tombstones: BTreeMap<Uuid, Vec<u32>>,
    /// Process of node 1, and how often one has registered.
    process: Vec<u8>,
    incarnation: u64,
    registered: Vec<RegisterNode>,
    confirmed: Vec<Uuid>,
    left: usize,
    session_timeout_ms: u32,
    clock_offset_ms: i64,
    health: Option<ReplicaHealth>,
}

struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<i64>,
    fenced: watch::Sender<bool>,
}

impl Shared {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().expect("state");
        let result = change(&mut state);
        state.revision += 1;
        self.changed.send_replace(state.revision);
        result
    }
}

impl FakeController {
    pub async fn start() -> Self {
        let state = State {
            cluster_id: Uuid::from_u128(77),
            session_timeout_ms: 1_000,
            ..State::default()
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: watch::Sender::new(0),
            fenced: watch::Sender::new(false),
        });
        let mut controller = Self {
            shared,
            server: None,
            addr: "127.0.0.1:0".into(),
        };
        controller.serve().await;
        controller
    }

    /// Serves (again) at the same address.
    pub async fn serve(&mut self) {
        let routes = Routes::new(ControllerServiceServer::new(Service(Arc::clone(
            &self.shared,
        ))));
        let listener = bind(&self.addr).await.expect("address");
        let server = serve(listener, routes, ServerOptions::default()).expect("server");
        self.addr = server.addr().to_string();
        self.server = Some(server);
    }

    /// Gone, as if killed.
    pub fn kill(&mut self) {
        self.server = None;
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// All partitions led by node 1.
    pub fn create_topic(&self, name: &str, partitions: u32, config: &[(&str, &str)]) -> Uuid {
        let id = Uuid::new_v4();
        self.shared.change(|state| {
            let config = config
                .iter()
                .map(|(key, value)| ((*key).into(), (*value).into()))
                .collect();
            let topic = Topic {
                name: name.into(),
                topic_id: id.as_bytes().to_vec().into(),
                partitions,
                replication_factor: 1,
                config,
                created_ms: 1,
                ..Topic::default()
            };
            state.topics.insert(id, topic);
            for partition in 0..partitions {
                let led = PartitionState {
                    topic_id: id.as_bytes().to_vec().into(),
                    partition,
                    leader: 1,
                    leader_incarnation: state.incarnation,
                    leader_epoch: 1,
                    partition_epoch: 1,
                    replicas: vec![1],
                    in_sync: vec![1],
                    ..Default::default()
                };
                state.partitions.insert((id, partition), led);
            }
        });
        id
    }

    pub fn delete_topic(&self, id: Uuid) {
        self.shared.change(|state| {
            state.topics.remove(&id);
            state.partitions.retain(|(topic, _), _| *topic != id);
            state.tombstones.insert(id, vec![1]);
        });
    }

    /// A topic vanishes from the view without a tombstone, as by a defect.
    pub fn forget_topic(&self, id: Uuid) {
        self.shared.change(|state| {
            state.topics.remove(&id);
            state.partitions.retain(|(topic, _), _| *topic != id);
        });
    }

    pub fn configure(&self, id: Uuid, key: &str, value: &str) {
        self.shared.change(|state| {
            let topic = state.topics.get_mut(&id).expect("topic");
            topic.config.insert(key.into(), value.into());
        });
    }

    /// Leadership goes to another node (0: nobody), or comes back to node 1.
    pub fn move_leader(&self, id: Uuid, partition: u32, node: u32) {
        self.shared.change(|state| {
            let incarnation = state.incarnation;
            let led = state
                .partitions
                .get_mut(&(id, partition))
                .expect("partition");
            led.leader = node;
            led.leader_incarnation = if node == 1 { incarnation } else { 9 };
            led.leader_epoch += 1;
        });
    }

    pub fn add_node(&self, node_id: u32, plane: Plane, grpc_address: &str) {
        self.shared.change(|state| {
            let node = NodeMetadata {
                node_id,
                plane: plane as i32,
                grpc_address: grpc_address.into(),
                ..Default::default()
            };
            state.nodes.push(node);
        });
    }

    pub fn fence(&self) {
        self.shared.fenced.send_replace(true);
    }

    pub fn set_clock_offset(&self, ms: i64) {
        self.shared.change(|state| state.clock_offset_ms = ms);
    }

    pub fn confirmed(&self) -> Vec<Uuid> {
        self.shared.state.lock().expect("state").confirmed.clone()
    }

    pub fn registered(&self) -> Vec<RegisterNode> {
        self.shared.state.lock().expect("state").registered.clone()
    }

    /// As the node last said it.
    pub fn health(&self) -> Option<ReplicaHealth> {
        self.shared.state.lock().expect("state").health.clone()
    }

    pub fn left(&self) -> usize {
        self.shared.state.lock().expect("state").left
    }
}

struct Service(Arc<Shared>);

#[tonic::async_trait]
impl ControllerService for Service {
    type NodeSessionStream =
        Pin<Box<dyn Stream<Item = Result<NodeSessionResponse, Status>> + Send>>;
    type WatchClusterStream =
        Pin<Box<dyn Stream<Item = Result<WatchClusterResponse, Status>> + Send>>;

    async fn node_session(
        &self,
        request: Request<Streaming<NodeSessionRequest>>,
    ) -> Result<Response<Self::NodeSessionStream>, Status> {
        let mut frames = request.into_inner();
        let shared = Arc::clone(&self.0);
        let (answers, stream) = mpsc::channel(8);
        tokio::spawn(async move {
            let mut fenced = shared.fenced.subscribe();
            loop {
                tokio::select! {
                    frame = frames.message() => {
                        let Ok(Some(NodeSessionRequest { frame: Some(frame) })) = frame else { return };
                        let Some(answer) = answer(&shared, frame) else { continue };
                        if answers.send(Ok(NodeSessionResponse { frame: Some(answer) })).await.is_err() {
                            return;
                        }
                    }
                    () = async { drop(fenced.wait_for(|fenced| *fenced).await) } => {
                        let fenced = SessionFenced { reason: "the test says so".into() };
                        let frame = node_session_response::Frame::Fenced(fenced);
                        let _ = answers.send(Ok(NodeSessionResponse { frame: Some(frame) })).await;
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn watch_cluster(
        &self,
        _: Request<WatchClusterRequest>,
    ) -> Result<Response<Self::WatchClusterStream>, Status> {
        let shared = Arc::clone(&self.0);
        let (updates, stream) = mpsc::channel(8);
        tokio::spawn(async move {
            let mut changed = shared.changed.subscribe();
            loop {
                changed.borrow_and_update();
                let view = view(&shared.state.lock().expect("state"));
                let snapshot = ClusterSnapshot {
                    first: true,
                    last: true,
                    view: Some(view),
                };
                let update = WatchClusterResponse {
                    update: Some(Update::Snapshot(snapshot)),
                };
                if updates.send(Ok(update)).await.is_err() || changed.changed().await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn allocate_producer_ids(
        &self,
        _: Request<AllocateProducerIdsRequest>,
    ) -> Result<Response<AllocateProducerIdsResponse>, Status> {
        Err(Status::unimplemented("storage nodes need none"))
    }

    async fn alter_in_sync(
        &self,
        _: Request<AlterInSyncRequest>,
    ) -> Result<Response<AlterInSyncResponse>, Status> {
        Err(Status::unimplemented("a set of one never changes"))
    }

    async fn confirm_replicas_deleted(
        &self,
        request: Request<ConfirmReplicasDeletedRequest>,
    ) -> Result<Response<ConfirmReplicasDeletedResponse>, Status> {
        let request = request.into_inner();
        self.0.change(|state| {
            for id in request.topic_ids {
                let id = Uuid::from_slice(&id).expect("16 bytes");
                state.tombstones.remove(&id);
                state.confirmed.push(id);
            }
        });
        Ok(Response::new(ConfirmReplicasDeletedResponse {}))
    }

    async fn ensure_derived_topic(
        &self,
        _: Request<EnsureDerivedTopicRequest>,
    ) -> Result<Response<EnsureDerivedTopicResponse>, Status> {
        Err(Status::unimplemented("not asked by storage nodes"))
    }
}

fn answer(
    shared: &Shared,
    frame: node_session_request::Frame,
) -> Option<node_session_response::Frame> {
    match frame {
        node_session_request::Frame::Register(register) => {
            Some(node_session_response::Frame::Registered(
                shared.change(|state| on_register(state, register)),
            ))
        }
        node_session_request::Frame::Heartbeat(_) => {
            let offset = shared.state.lock().expect("state").clock_offset_ms;
            let since = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .expect("after 1970");
            let time_ms = i64::try_from(since.as_millis()).expect("in range") + offset;
            Some(node_session_response::Frame::HeartbeatAck(HeartbeatAck {
                time_ms,
                ..Default::default()
            }))
        }
        node_session_request::Frame::Leaving(_) => {
            shared.change(|state| state.left += 1);
            None
        }
        node_session_request::Frame::ReplicaEnds(_) => None,
        node_session_request::Frame::ReplicaHealth(health) => {
            shared.change(|state| state.health = Some(health));
            None
        }
    }
}

fn on_register(state: &mut State, register: RegisterNode) -> NodeRegistered {
    if state.process != register.process_id {
        state.process = register.process_id.to_vec();
        state.incarnation += 1;
        let incarnation = state.incarnation;
        for led in state.partitions.values_mut().filter(|led| led.leader == 1) {
            led.leader_epoch += 1;
            led.leader_incarnation = incarnation;
        }
    }
    state
        .nodes
        .retain(|node| (node.node_id, node.plane) != (1, Plane::Storage as i32));
    state.nodes.push(NodeMetadata {
        node_id: 1,
        plane: Plane::Storage as i32,
        grpc_address: register.grpc_address.clone(),
        ..Default::default()
    });
    state.registered.push(register);
    NodeRegistered {
        node_id: 1,
        cluster_id: state.cluster_id.as_bytes().to_vec().into(),
        incarnation: state.incarnation,
        session_timeout_ms: state.session_timeout_ms,
        revision: 0,
    }
}

fn view(state: &State) -> ClusterView {
    ClusterView {
        cluster_id: state.cluster_id.as_bytes().to_vec().into(),
        revision: state.revision,
        topics: state.topics.values().cloned().collect(),
        partitions: state.partitions.values().cloned().collect(),
        nodes: state.nodes.clone(),
        tombstones: state
            .tombstones
            .iter()
            .map(|(id, nodes)| Tombstone {
                topic_id: id.as_bytes().to_vec().into(),
                pending_nodes: nodes.clone(),
            })
            .collect(),
        histories: Vec::new(),
        shards: Vec::new(),
    }
}
