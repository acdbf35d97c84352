//! Requests over real sockets to coordinators that break, move and speak unasked.

use super::*;
use parking_lot::Mutex;
use std::net::SocketAddr;
use talweg_client::view::{ShardView, View};
use talweg_proto::{
    coordinator::v1::{
        AskRequest, AskResponse, Caller, CheckShardsRequest, CheckShardsResponse, ConverseRequest,
        ConverseResponse, Done, ListShardsRequest, ListShardsResponse, MemberView, ShardsMoved,
        coordinator_service_server::{CoordinatorService, CoordinatorServiceServer},
    },
    v1::{NodeMetadata, Plane, Topic},
};
use talweg_types::{CONSUMER_OFFSETS, Incarnation, NodeId, ShardEpoch};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// What a coordinator does with a request; `None` ends the stream.
type Script = Box<dyn Fn(usize, &ConverseRequest) -> Option<Vec<ConverseResponse>> + Send + Sync>;

struct Fake {
    script: Script,
    seen: Mutex<Vec<ConverseRequest>>,
}

#[derive(Clone)]
struct Service(Arc<Fake>);

#[tonic::async_trait]
impl CoordinatorService for Service {
    type ConverseStream = ReceiverStream<Result<ConverseResponse, Status>>;

    async fn converse(
        &self,
        requests: Request<Streaming<ConverseRequest>>,
    ) -> Result<Response<Self::ConverseStream>, Status> {
        let (answers, stream) = mpsc::channel(16);
        let fake = Arc::clone(&self.0);
        let mut requests = requests.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                let count = {
                    let mut seen = fake.seen.lock();
                    seen.push(request.clone());
                    seen.len()
                };
                let Some(said) = (fake.script)(count, &request) else {
                    return;
                };
                for answer in said {
                    if answers.send(Ok(answer)).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn list_shards(
        &self,
        _: Request<ListShardsRequest>,
    ) -> Result<Response<ListShardsResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn ask(&self, _: Request<AskRequest>) -> Result<Response<AskResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn check_shards(
        &self,
        _: Request<CheckShardsRequest>,
    ) -> Result<Response<CheckShardsResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

async fn coordinator(script: Script) -> (Arc<Fake>, SocketAddr) {
    let fake = Arc::new(Fake {
        script,
        seen: Mutex::default(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("an address");
    let service = CoordinatorServiceServer::new(Service(Arc::clone(&fake)));
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    (fake, addr)
}

const INTERNAL: [u8; 16] = [7; 16];

/// All shards at node `holder` of these coordinators, numbered from 1.
fn view(coordinators: &[SocketAddr], holder: u32) -> View {
    let mut view = View::default();
    view.cluster_id = vec![1; 16].into();
    view.revision = i64::from(holder);
    view.set_topic(Topic {
        name: CONSUMER_OFFSETS.into(),
        topic_id: INTERNAL.to_vec().into(),
        partitions: 1,
        ..Default::default()
    });
    for (at, addr) in coordinators.iter().enumerate() {
        view.set_node(NodeMetadata {
            node_id: at as u32 + 1,
            plane: Plane::Coordinator.into(),
            grpc_address: format!("http://{addr}"),
            ..Default::default()
        });
    }
    let shard = ShardView {
        coordinator: NodeId(holder),
        incarnation: Incarnation(1),
        epoch: ShardEpoch(1),
    };
    view.set_shard(TopicId::from_slice(&INTERNAL).expect("16 bytes"), 0, shard);
    view
}

fn coordinators(at: &[SocketAddr], holder: u32) -> (Coordinators, SharedView) {
    let shared = SharedView::default();
    shared.set(view(at, holder));
    let pool = ChannelPool::new(Duration::from_secs(1));
    (Coordinators::new(shared.clone(), pool), shared)
}

fn says(request_id: u64, what: What) -> ConverseResponse {
    ConverseResponse {
        request_id,
        group: "g".into(),
        what: Some(what),
    }
}

fn refuses(request: &ConverseRequest, code: ErrorCode) -> Vec<ConverseResponse> {
    let refusal = Refusal::new(code, "for the test");
    vec![says(request.request_id, What::Error(refusal.detail()))]
}

fn heartbeat() -> Event {
    Event::Heartbeat(Caller::default())
}

const PATIENCE: Duration = Duration::from_secs(10);

fn opens(request: &ConverseRequest) -> bool {
    matches!(request.event, Some(Event::Open(_)))
}

/// Story: a coordinator dies under a request; the shard goes to another one, and
/// the request is answered there. Members are told to say that they live.
#[tokio::test]
async fn a_request_outlives_the_coordinator_that_got_it() {
    let dies = |_: usize, request: &ConverseRequest| opens(request).then(Vec::new);
    let lives = |_: usize, request: &ConverseRequest| {
        Some(match opens(request) {
            true => Vec::new(),
            false => vec![says(request.request_id, What::Done(Done {}))],
        })
    };
    let (first, one) = coordinator(Box::new(dies)).await;
    let (second, two) = coordinator(Box::new(lives)).await;
    let (coordinators, shared) = coordinators(&[one, two], 1);
    let member = MemberId::from_slice(&[3; 16]).expect("16 bytes");
    let registered = coordinators.register("g", member);
    let asking = coordinators.request("g", heartbeat(), PATIENCE);
    let moving = async {
        // It has the request and has broken the stream.
        let post = registered.mailbox().take().await;
        assert!(post.nudged, "{post:?}");
        shared.set(view(&[one, two], 2));
    };
    let (answer, ()) = tokio::join!(asking, moving);
    assert_eq!(answer, Ok(What::Done(Done {})));
    assert!(first.seen.lock().len() >= 2, "it got the request first");
    assert!(second.seen.lock().iter().any(|it| !opens(it)));
}

/// Story: a coordinator is loading, then the shard is not its own, then it is:
/// the caller notices nothing. What is refused for good is refused at once.
#[tokio::test]
async fn passing_refusals_are_repeated_and_others_are_not() {
    let script = |count: usize, request: &ConverseRequest| {
        Some(match count {
            1 => Vec::new(),
            2 => refuses(request, ErrorCode::Loading),
            3 => refuses(request, ErrorCode::NotCoordinator),
            4 => vec![says(request.request_id, What::Done(Done {}))],
            _ => refuses(request, ErrorCode::InstanceInUse),
        })
    };
    let (fake, addr) = coordinator(Box::new(script)).await;
    let (coordinators, _shared) = coordinators(&[addr], 1);
    let answer = coordinators.request("g", heartbeat(), PATIENCE).await;
    assert_eq!(answer, Ok(What::Done(Done {})));
    let refusal = coordinators.request("g", heartbeat(), PATIENCE).await;
    let refusal = refusal.expect_err("refused");
    assert_eq!(refusal.code, ErrorCode::InstanceInUse);
    assert_eq!(fake.seen.lock().len(), 5, "once each");
}

/// Nobody holds the shard: the caller is told so when its patience is over.
#[tokio::test]
async fn patience_ends() {
    let (coordinators, _shared) = coordinators(&[], 0);
    let patience = Duration::from_millis(200);
    let refusal = coordinators.request("g", heartbeat(), patience).await;
    let refusal = refusal.expect_err("nobody");
    assert_eq!(refusal.code, ErrorCode::NotCoordinator);
}

/// Story: views come late and twice; the member sees the newest, and a later
/// stream of the same member on this gateway takes over its place.
#[tokio::test]
async fn what_is_said_unasked_reaches_its_member() {
    let script = |_: usize, request: &ConverseRequest| {
        let view = |sequence| {
            let view = MemberView {
                member_id: vec![3; 16].into(),
                sequence,
                ..Default::default()
            };
            says(0, What::View(view))
        };
        let moved = says(0, What::ShardsMoved(ShardsMoved { shards: vec![0] }));
        let done = says(request.request_id, What::Done(Done {}));
        Some(match opens(request) {
            true => Vec::new(),
            false => vec![view(2), view(1), moved, done],
        })
    };
    let (_fake, addr) = coordinator(Box::new(script)).await;
    let (coordinators, _shared) = coordinators(&[addr], 1);
    let member = MemberId::from_slice(&[3; 16]).expect("16 bytes");
    let registered = coordinators.register("g", member);
    let other = coordinators.register("g", MemberId::from_slice(&[4; 16]).expect("16 bytes"));
    coordinators
        .request("g", heartbeat(), PATIENCE)
        .await
        .expect("done");
    let post = registered.mailbox().take().await;
    assert_eq!(post.view.expect("a view").sequence, 2);
    assert!(post.nudged);
    let post = other.mailbox().take().await;
    assert!(post.view.is_none() && post.nudged, "not the other's view");
    let again = coordinators.register("g", member);
    let post = registered.mailbox().take().await;
    assert!(post.removed.is_some(), "the earlier stream is out");
    drop(registered);
    coordinators
        .request("g", heartbeat(), PATIENCE)
        .await
        .expect("done");
    assert!(
        again.mailbox().take().await.view.is_some(),
        "its place stays"
    );
}
