//! Servers that end, refuse and count as they say.

use super::*;
use crate::{
    data_stream::{
        FrameReceiver, FrameSender, PeerInfo, StreamHandler, fetch_service, open_fetch,
        open_produce, produce_service,
    },
    errors::{ErrorCode, Refusal},
    health::{Readiness, router},
    metrics::Metrics,
};
use async_trait::async_trait;
use futures::{StreamExt, stream::FuturesUnordered};
use std::{future::pending, sync::Arc, time::Instant};
use talweg_proto::v1::{
    self,
    producer_service_client::ProducerServiceClient,
    producer_service_server::{ProducerService, ProducerServiceServer},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
    time::timeout,
};
use tonic::{
    Code, Request, Response, Status, metadata::MetadataMap, service::Routes, transport::Channel,
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

const SOON: Duration = Duration::from_secs(20);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(SOON, future)
        .await
        .expect("it should have happened by now")
}

/// A stream that never ends by itself, and a unary call that waits for a permit.
#[derive(Clone)]
struct Stuck(Arc<Semaphore>);

#[async_trait]
impl StreamHandler<v1::ProduceRequest, v1::ProduceResponse> for Stuck {
    async fn serve(
        &self,
        _: PeerInfo,
        requests: FrameReceiver<v1::ProduceRequest>,
        responses: FrameSender<v1::ProduceResponse>,
    ) -> Result<(), Status> {
        responses.send(v1::ProduceResponse::default()).await.ok();
        pending::<()>().await;
        drop((requests, responses));
        Ok(())
    }
}

#[async_trait]
impl StreamHandler<v1::FetchRequest, v1::FetchResponse> for Stuck {
    async fn serve(
        &self,
        _: PeerInfo,
        mut requests: FrameReceiver<v1::FetchRequest>,
        _responses: FrameSender<v1::FetchResponse>,
    ) -> Result<(), Status> {
        while let Some(request) = requests.next().await {
            request?;
        }
        Ok(())
    }
}

#[async_trait]
impl ProducerService for Stuck {
    async fn init_producer(
        &self,
        _: Request<v1::InitProducerRequest>,
    ) -> Result<Response<v1::InitProducerResponse>, Status> {
        let _permit = self
            .0
            .acquire()
            .await
            .map_err(|e| Status::internal(e.to_string()))?;
        Ok(Response::new(v1::InitProducerResponse::default()))
    }
}

async fn start(options: ServerOptions, permits: usize) -> (ServerHandle, Channel, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(permits));
    let stuck = Stuck(gate.clone());
    let routes = Routes::new(produce_service(stuck.clone()))
        .add_service(fetch_service(stuck.clone()))
        .add_service(ProducerServiceServer::new(stuck));
    let listener = bind("127.0.0.1:0").await.expect("a port");
    let server = serve(listener, routes, options).expect("serve");
    let channel = connect(&server);
    (server, channel, gate)
}

fn connect(server: &ServerHandle) -> Channel {
    let url = format!("http://{}", server.addr());
    channel(&url, &ChannelOptions::default()).expect("a URL")
}

async fn init(channel: &Channel) -> Result<(), Status> {
    let mut client = ProducerServiceClient::new(channel.clone());
    let request = v1::InitProducerRequest::default();
    client.init_producer(request).await.map(drop)
}

/// Streams over three connections that never end: the stop is as long as the
/// drain, not for ever, and says what it had to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_is_bounded_although_streams_never_end() {
    let (server, first, _) = start(ServerOptions::default(), 1).await;
    let channels = [first, connect(&server), connect(&server)];
    let mut streams = Vec::new();
    for channel in channels.iter().cycle().take(30) {
        let mut stream = open_produce(channel, MetadataMap::new());
        soon(stream.1.next())
            .await
            .expect("served")
            .expect("served");
        streams.push(stream);
    }
    let addr = server.addr();
    let began = Instant::now();
    let report = soon(server.stop(Duration::from_millis(300))).await;
    assert_eq!(report, StopReport { open: 3, forced: 3 });
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert!(began.elapsed() < Duration::from_secs(5));
    for (_, receiver) in &mut streams {
        soon(receiver.next())
            .await
            .expect("an error")
            .expect_err("an error");
    }
    TcpStream::connect(addr)
        .await
        .expect_err("the port is free again");
}

/// Streams whose handlers follow the drain end in peace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_finish_in_time_are_not_forced() {
    let (server, channel, _) = start(ServerOptions::default(), 1).await;
    let (sender, mut receiver) = open_fetch(&channel, MetadataMap::new());
    sender
        .send(v1::FetchRequest::default())
        .await
        .expect("open");
    init(&channel).await.expect("served");
    let stopping = tokio::spawn(server.stop(SOON));
    drop(sender);
    assert!(soon(receiver.next()).await.is_none(), "status OK");
    let report = soon(stopping).await.expect("stopped");
    assert_eq!(report, StopReport { open: 1, forced: 0 });
}

#[tokio::test]
async fn a_dropped_handle_ends_the_server() {
    let (server, channel, _) = start(ServerOptions::default(), 1).await;
    let (_sender, mut receiver) = open_produce(&channel, MetadataMap::new());
    soon(receiver.next())
        .await
        .expect("served")
        .expect("served");
    drop(server);
    soon(receiver.next())
        .await
        .expect("an error")
        .expect_err("an error");
}

/// One too many is closed; when one goes there is room again.
#[tokio::test]
async fn connections_are_bounded() {
    let options = ServerOptions {
        connections_max: 2,
        ..Default::default()
    };
    let (server, _, _) = start(options, 1).await;
    let channels = [connect(&server), connect(&server)];
    for channel in &channels {
        init(channel).await.expect("served");
    }
    assert_eq!(server.connections(), 2);
    let mut third = TcpStream::connect(server.addr())
        .await
        .expect("accepted by the kernel");
    assert_eq!(soon(third.read(&mut [0; 1])).await.expect("closed"), 0);
    drop(channels);
    let again = async {
        while init(&connect(&server)).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    soon(again).await;
}

/// A client that connects and speaks no HTTP/2 costs its own connection only.
#[tokio::test]
async fn nonsense_on_a_connection_ends_that_connection() {
    let (server, channel, _) = start(ServerOptions::default(), 1).await;
    let mut stranger = TcpStream::connect(server.addr()).await.expect("connected");
    stranger
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .expect("sent");
    let mut answer = Vec::new();
    // Closed or reset; either way it ends.
    soon(stranger.read_to_end(&mut answer)).await.ok();
    init(&channel).await.expect("served");
}

/// Calls above the bound are refused at once, with advice, and not done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_above_the_bound_are_throttled() {
    let metrics = Metrics::new("test");
    let options = ServerOptions {
        calls: CallOptions {
            in_flight_max: 2,
            metrics: Some(metrics.clone()),
            ..Default::default()
        },
        ..Default::default()
    };
    let (_server, channel, gate) = start(options, 0).await;
    let call = |_| {
        let channel = channel.clone();
        tokio::spawn(async move { init(&channel).await })
    };
    let mut calls: FuturesUnordered<_> = (0..5).map(call).collect();
    for _ in 0..3 {
        let result = soon(calls.next()).await.expect("a call").expect("ran");
        let refusal = Refusal::from_status(&result.expect_err("refused"));
        assert_eq!(refusal.code, ErrorCode::Throttled);
        assert!(refusal.retry_after_ms > 0);
    }
    gate.add_permits(1);
    for _ in 0..2 {
        let result = soon(calls.next()).await.expect("a call").expect("ran");
        result.expect("the first two were let in");
    }
    init(&channel).await.expect("there is room again");

    let path = "/talweg.v1.ProducerService/InitProducer";
    let labels = |code: &str| format!("{{code=\"{code}\",method=\"{path}\",plane=\"test\"}}");
    eventually_counted(&metrics, "grpc_calls_total", &labels("Ok"), 3).await;
    eventually_counted(
        &metrics,
        "grpc_calls_total",
        &labels("ResourceExhausted"),
        3,
    )
    .await;
    eventually_counted(&metrics, "grpc_throttled_total", "{plane=\"test\"}", 3).await;
}

/// A call is counted when its server is done with it, a moment after its client is.
async fn eventually_counted(metrics: &Metrics, name: &str, labels: &str, expected: u64) {
    let counted = async {
        let line = format!("talweg_{name}{labels} {expected}");
        while !metrics.text().lines().any(|it| it == line) {
            tokio::task::yield_now().await;
        }
    };
    if timeout(SOON, counted).await.is_err() {
        panic!("{name}{labels} is not {expected}:\n{}", metrics.text());
    }
}

/// A call without a deadline of its own gets ours; one with its own keeps it.
#[tokio::test]
async fn calls_have_deadlines() {
    let options = ServerOptions {
        calls: CallOptions {
            timeout: Duration::from_millis(50),
            ..Default::default()
        },
        ..Default::default()
    };
    let (server, _, _gate) = start(options, 0).await;
    let url = format!("http://{}", server.addr());
    let without = ChannelOptions {
        timeout: None,
        ..Default::default()
    };
    let channel = channel(&url, &without).expect("a URL");
    let status = soon(init(&channel)).await.expect_err("timed out");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(Refusal::from_status(&status).code, ErrorCode::TimedOut);

    let mut client = ProducerServiceClient::new(channel);
    let mut request = Request::new(v1::InitProducerRequest::default());
    request
        .metadata_mut()
        .insert("grpc-timeout", "1S".parse().expect("text"));
    let began = Instant::now();
    soon(client.init_producer(request))
        .await
        .expect_err("timed out");
    assert!(began.elapsed() >= Duration::from_millis(900));
}

/// Label values are never made up by strangers.
#[tokio::test]
async fn unknown_methods_are_counted_under_one_name() {
    let metrics = Metrics::new("test");
    let mut options = ServerOptions::default();
    options.calls.metrics = Some(metrics.clone());
    let (_server, channel, _) = start(options, 1).await;
    let mut client = tonic::client::Grpc::new(channel);
    for number in 0..3 {
        client.ready().await.expect("connected");
        let path = format!("/made.up.Service/Method{number}");
        let codec = tonic_prost::ProstCodec::<v1::Heartbeat, v1::Heartbeat>::default();
        let request = Request::new(v1::Heartbeat::default());
        let path = ::http::uri::PathAndQuery::try_from(path).expect("a path");
        let status = client
            .unary(request, path, codec)
            .await
            .expect_err("unknown");
        assert_eq!(status.code(), Code::Unimplemented);
    }
    let labels = "{code=\"Unimplemented\",method=\"other\",plane=\"test\"}";
    eventually_counted(&metrics, "grpc_calls_total", labels, 3).await;
    assert!(!metrics.text().contains("made.up"));
}

/// gRPC health follows the readiness, and reflection shows what was named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_and_reflection_are_served() {
    let readiness = Readiness::default();
    let services = ["talweg.v1.ProduceService", "talweg.v1.FetchService"];
    let routes = Routes::new(produce_service(Stuck(Arc::new(Semaphore::new(1)))));
    let routes = add_builtin(routes, &readiness, &services).expect("descriptors");
    let listener = bind("127.0.0.1:0").await.expect("a port");
    let server = serve(listener, routes, ServerOptions::default()).expect("serve");
    let channel = connect(&server);

    let mut health = HealthClient::new(channel.clone());
    let request = HealthCheckRequest {
        service: services[0].into(),
    };
    let mut watch = health.watch(request).await.expect("known").into_inner();
    let mut next = async || {
        watch
            .message()
            .await
            .expect("a stream")
            .expect("a change")
            .status()
    };
    use tonic_health::pb::health_check_response::ServingStatus;
    while soon(next()).await != ServingStatus::NotServing {}
    readiness.ready();
    while soon(next()).await != ServingStatus::Serving {}

    let mut client = ServerReflectionClient::new(channel);
    let ask = |message| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message),
    };
    let asked = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol(
            "talweg.v1.ProduceRequest".into(),
        )),
        ask(MessageRequest::FileContainingSymbol(
            "talweg.controller.v1.ControllerService".into(),
        )),
    ];
    let mut answers = client
        .server_reflection_info(tokio_stream::iter(asked))
        .await
        .expect("served")
        .into_inner();
    let mut next = async || answers.message().await.map(|it| it?.message_response);
    let Ok(Some(MessageResponse::ListServicesResponse(list))) = soon(next()).await else {
        panic!("no list");
    };
    let mut names: Vec<_> = list.service.into_iter().map(|it| it.name).collect();
    names.sort();
    let expected = [
        "grpc.health.v1.Health",
        "talweg.v1.FetchService",
        "talweg.v1.ProduceService",
    ];
    assert_eq!(names, expected);
    let file = soon(next()).await.expect("known");
    assert!(
        matches!(file, Some(MessageResponse::FileDescriptorResponse(_))),
        "{file:?}"
    );
    assert!(soon(next()).await.is_err(), "what is internal is not shown");
}

async fn get(server: &HttpServer, path: &str) -> String {
    let mut stream = TcpStream::connect(server.addr()).await.expect("connected");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("text");
    answer
}

#[tokio::test]
async fn health_over_http() {
    let readiness = Readiness::default();
    let listener = bind("127.0.0.1:0").await.expect("a port");
    let routes = router(readiness.clone(), Metrics::new("test"));
    let server = serve_http(listener, routes).expect("serve");
    assert!(get(&server, "/healthz").await.starts_with("HTTP/1.1 200"));
    let not_yet = get(&server, "/readyz").await;
    assert!(
        not_yet.starts_with("HTTP/1.1 503") && not_yet.ends_with("starting\n"),
        "{not_yet}"
    );
    readiness.ready();
    assert!(get(&server, "/readyz").await.starts_with("HTTP/1.1 200"));
    let metrics = get(&server, "/metrics").await;
    for name in [
        "resident_bytes",
        "private_bytes",
        "cpu_seconds",
        "open_fds",
        "threads",
        "tasks",
    ] {
        let prefix = format!("talweg_process_{name}{{plane=\"test\"}} ");
        let value = metrics
            .lines()
            .find_map(|line| line.strip_prefix(&prefix))
            .expect(name);
        assert!(
            value.parse::<f64>().expect("a number") > 0.0,
            "{name} = {value}"
        );
    }
    // A client that holds its connection open and idle does not hold up the stop.
    let _idle = TcpStream::connect(server.addr()).await.expect("connected");
    assert!(soon(server.stop(Duration::from_secs(5))).await);
}

/// A request that hangs is dropped at the end of the drain.
#[tokio::test]
async fn stopping_http_is_bounded() {
    let listener = bind("127.0.0.1:0").await.expect("a port");
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let hang = async move || {
        tell.send(()).expect("the test listens");
        pending::<()>().await;
    };
    let hang = axum::Router::new().route("/", axum::routing::get(hang));
    let server = serve_http(listener, hang).expect("serve");
    let mut stream = TcpStream::connect(server.addr()).await.expect("connected");
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .expect("sent");
    soon(told.recv()).await.expect("the request hangs");
    assert!(
        !soon(server.stop(Duration::from_millis(200))).await,
        "it had to be forced"
    );
    assert_eq!(soon(stream.read(&mut [0; 1])).await.unwrap_or(0), 0);
}

#[test]
fn urls_that_cannot_be_dialled_are_refused() {
    for url in ["", "localhost:7070", "https://a:1", "ftp://a", "http://"] {
        let error = channel(url, &ChannelOptions::default()).expect_err(url);
        assert!(error.to_string().contains(&format!("{url:?}")), "{error}");
    }
}
