//! Our client against our server over a real socket: how streams open, end,
//! fail and push back.

use super::*;
use crate::{
    data_stream::{
        Closed, FrameReceiver, FrameSender, PeerInfo, ProduceMethod, StreamHandler, StreamMethod,
        open_produce, produce_service,
    },
    errors::{Effect, ErrorCode, Refusal},
    net::{self, ChannelOptions, ServerHandle, ServerOptions},
};
use async_trait::async_trait;
use futures::future::BoxFuture;
use std::time::Duration;
use tokio::{sync::mpsc, time::timeout};
use tonic::{Code, Status, body::Body, metadata::MetadataMap, service::Routes, transport::Channel};
use tower::ServiceExt;

/// Long enough for anything that is going to happen.
const SOON: Duration = Duration::from_secs(20);

type Requests = FrameReceiver<v1::ProduceRequest>;
type Responses = FrameSender<v1::ProduceResponse>;
type Served = BoxFuture<'static, Result<(), Status>>;

/// A handler made of a closure.
struct Serve<F>(F);

#[async_trait]
impl<F> StreamHandler<v1::ProduceRequest, v1::ProduceResponse> for Serve<F>
where
    F: Fn(PeerInfo, Requests, Responses) -> Served + Send + Sync + 'static,
{
    async fn serve(
        &self,
        peer: PeerInfo,
        requests: Requests,
        responses: Responses,
    ) -> Result<(), Status> {
        (self.0)(peer, requests, responses).await
    }
}

async fn start<F>(serve: F) -> (ServerHandle, Channel)
where
    F: Fn(PeerInfo, Requests, Responses) -> Served + Send + Sync + 'static,
{
    let listener = net::bind("127.0.0.1:0").await.expect("a port");
    let routes = Routes::new(produce_service(Serve(serve)));
    let server = net::serve(listener, routes, ServerOptions::default()).expect("serve");
    let url = format!("http://{}", server.addr());
    let channel = net::channel(&url, &ChannelOptions::default()).expect("a URL");
    (server, channel)
}

fn open(
    channel: &Channel,
) -> (
    FrameSender<v1::ProduceRequest>,
    FrameReceiver<v1::ProduceResponse>,
) {
    open_produce(channel, MetadataMap::new())
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(SOON, future)
        .await
        .expect("it should have happened by now")
}

/// Answers each batch with its number.
fn echo(_: PeerInfo, mut requests: Requests, responses: Responses) -> Served {
    Box::pin(async move {
        while let Some(request) = requests.next().await {
            let number = number_of(request?);
            responses
                .send(answer(number))
                .await
                .map_err(|_| Status::cancelled("gone"))?;
        }
        Ok(())
    })
}

async fn echo_works(channel: &Channel) {
    let (sender, mut receiver) = open(channel);
    sender.send(numbered(9, 10)).await.expect("open");
    assert_eq!(
        answered(
            soon(receiver.next())
                .await
                .expect("a frame")
                .expect("a frame")
        ),
        9
    );
}

/// Frames of all sizes arrive whole and in order; the half-close ends the
/// stream with OK on both sides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_arrive_in_order_and_the_half_close_ends_the_stream() {
    let (_server, channel) = start(echo).await;
    let (sender, mut receiver) = open(&channel);
    let sizes = [0, 1, 4_096, 4_097, 16_384, 1_000_000, 3_000_000];
    let sending = tokio::spawn(async move {
        for number in 0..70 {
            let frame = numbered(number, sizes[number as usize % sizes.len()]);
            sender.send(frame).await.expect("the server reads");
        }
    });
    for expected in 0..70 {
        let response = soon(receiver.next())
            .await
            .expect("a frame")
            .expect("no error");
        assert_eq!(answered(response), expected);
    }
    sending.await.expect("sent");
    assert!(soon(receiver.next()).await.is_none(), "the end is OK");
    assert!(soon(receiver.next()).await.is_none(), "and stays");
}

/// What was queued before an error still arrives, then the status with its detail.
#[tokio::test]
async fn an_error_comes_after_the_frames_before_it() {
    let refuse = |_, _, responses: Responses| -> Served {
        Box::pin(async move {
            for number in 0..20 {
                responses.send(answer(number)).await.expect("queued");
            }
            Err(Refusal::new(ErrorCode::FolderFailed, "no").into())
        })
    };
    let (_server, channel) = start(refuse).await;
    let (_sender, mut receiver) = open(&channel);
    for expected in 0..20 {
        let response = soon(receiver.next())
            .await
            .expect("a frame")
            .expect("no error yet");
        assert_eq!(answered(response), expected);
    }
    let status = soon(receiver.next())
        .await
        .expect("an error")
        .expect_err("an error");
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(Refusal::from_status(&status).code, ErrorCode::FolderFailed);
    assert!(soon(receiver.next()).await.is_none());
}

/// `fail` ends the stream although a clone of the sender lives on elsewhere.
#[tokio::test]
async fn fail_ends_the_stream_for_all_clones() {
    let (clones, mut kept) = mpsc::unbounded_channel();
    let serve = move |_, mut requests: Requests, responses: Responses| -> Served {
        clones.send(responses.clone()).expect("kept");
        Box::pin(async move {
            requests.next().await;
            responses.fail(Status::aborted("enough"));
            requests.next().await;
            Ok(())
        })
    };
    let (_server, channel) = start(serve).await;
    let (sender, mut receiver) = open(&channel);
    sender.send(numbered(0, 0)).await.expect("open");
    let status = soon(receiver.next())
        .await
        .expect("an error")
        .expect_err("an error");
    assert_eq!((status.code(), status.message()), (Code::Aborted, "enough"));
    let clone = soon(kept.recv()).await.expect("a clone");
    soon(clone.closed()).await;
    assert_eq!(clone.send(answer(1)).await, Err(Closed));
}

/// A defect in one stream ends that stream; the server goes on.
#[tokio::test]
async fn a_panic_in_a_handler_is_internal_and_stays_there() {
    let serve = |peer: PeerInfo, requests, responses| -> Served {
        if peer.metadata.contains_key("x-panic") {
            return Box::pin(async { panic!("on purpose") });
        }
        echo(peer, requests, responses)
    };
    let (_server, channel) = start(serve).await;
    let mut metadata = MetadataMap::new();
    metadata.insert("x-panic", "yes".parse().expect("text"));
    let (_sender, mut receiver) = open_produce(&channel, metadata);
    let status = soon(receiver.next())
        .await
        .expect("an error")
        .expect_err("an error");
    assert_eq!(status.code(), Code::Internal);
    echo_works(&channel).await;
}

/// Tells when it is dropped.
struct Told(mpsc::UnboundedSender<()>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.send(()).ok();
    }
}

/// A handler that waits for something else than its client does not outlive it.
#[tokio::test]
async fn the_handler_is_dropped_when_its_client_goes() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let serve = move |_, _requests: Requests, responses: Responses| -> Served {
        let guard = Told(tell.clone());
        Box::pin(async move {
            responses.send(answer(1)).await.expect("open");
            std::future::pending::<()>().await;
            drop(guard);
            Ok(())
        })
    };
    let (_server, channel) = start(serve).await;
    let (sender, mut receiver) = open(&channel);
    soon(receiver.next())
        .await
        .expect("it is served")
        .expect("a frame");
    drop(receiver);
    soon(told.recv()).await.expect("dropped");
    // The sender alone is of no use any more and says so.
    soon(sender.closed()).await;
}

/// The client's deadline is kept although the handler never looks at it.
#[tokio::test]
async fn the_deadline_of_the_client_ends_the_stream() {
    let never = |_, requests: Requests, responses: Responses| -> Served {
        Box::pin(async move {
            std::future::pending::<()>().await;
            drop((requests, responses));
            Ok(())
        })
    };
    let (_server, channel) = start(never).await;
    let mut metadata = MetadataMap::new();
    metadata.insert("grpc-timeout", "50m".parse().expect("text"));
    let (_sender, mut receiver) = open_produce(&channel, metadata);
    let status = soon(receiver.next())
        .await
        .expect("an error")
        .expect_err("an error");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(Refusal::from_status(&status).effect(), Effect::Unknown);
}

/// A server that does not read holds its client back after a bounded number of
/// bytes, reads all of it later, and other streams of the connection go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_does_not_ask_pushes_back() {
    let (go, gate) = tokio::sync::watch::channel(false);
    let serve = move |peer: PeerInfo, requests, responses| -> Served {
        let mut gate = gate.clone();
        Box::pin(async move {
            if peer.metadata.contains_key("x-wait") {
                gate.wait_for(|open| *open).await.expect("opened");
            }
            echo(peer, requests, responses).await
        })
    };
    let (_server, channel) = start(serve).await;
    let mut metadata = MetadataMap::new();
    metadata.insert("x-wait", "yes".parse().expect("text"));
    let (sender, mut receiver) = open_produce(&channel, metadata);
    let mut sent = 0;
    while let Ok(result) = timeout(
        Duration::from_millis(500),
        sender.send(numbered(sent, 1_000_000)),
    )
    .await
    {
        result.expect("open");
        sent += 1;
    }
    // Stream window, queue, and what hyper holds: nowhere near what was offered.
    assert!((30..70).contains(&sent), "{sent} MB were taken");
    soon(echo_works(&channel)).await;

    go.send(true).expect("the handler waits");
    drop(sender);
    for expected in 0..sent {
        let response = soon(receiver.next())
            .await
            .expect("a frame")
            .expect("no error");
        assert_eq!(answered(response), expected);
    }
    assert!(soon(receiver.next()).await.is_none());
}

/// What a server sends to a client that does not read is bounded as well, and
/// other streams of the same connection are not held up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unread_stream_does_not_stop_its_neighbours() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let serve = move |peer: PeerInfo, requests, responses: Responses| -> Served {
        let tell = tell.clone();
        Box::pin(async move {
            if !peer.metadata.contains_key("x-flood") {
                return echo(peer, requests, responses).await;
            }
            let mut large = answer(0);
            if let Some(v1::produce_response::Frame::BatchAck(ack)) = &mut large.frame {
                ack.base_offsets = vec![i64::MAX; 100_000];
            }
            while responses.send(large.clone()).await.is_ok() {
                tell.send(()).ok();
            }
            Ok(())
        })
    };
    let (_server, channel) = start(serve).await;
    let mut metadata = MetadataMap::new();
    metadata.insert("x-flood", "yes".parse().expect("text"));
    let (_sender, _unread) = open_produce(&channel, metadata);
    let mut count = 0;
    while let Ok(Some(())) = timeout(Duration::from_millis(500), told.recv()).await {
        count += 1;
    }
    assert!((20..70).contains(&count), "{count} MB were sent unread");
    soon(echo_works(&channel)).await;
}

/// Nobody listens: certain not to have happened.
#[tokio::test]
async fn failing_to_connect_is_unavailable_and_not_done() {
    let listener = net::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    let channel = net::channel(&url, &ChannelOptions::default()).expect("a URL");
    let (sender, mut receiver) = open(&channel);
    let status = soon(receiver.next())
        .await
        .expect("an error")
        .expect_err("an error");
    let refusal = Refusal::from_status(&status);
    assert_eq!(refusal.code, ErrorCode::Unavailable, "{status:?}");
    assert!(refusal.is_retriable());
    assert_eq!(refusal.effect(), Effect::NotDone);
    soon(sender.closed()).await;
}

/// The connection is cut while the stream lives: nobody knows what happened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_is_unavailable_and_unknown() {
    let (server, channel) = start(echo).await;
    let (sender, mut receiver) = open(&channel);
    sender.send(numbered(1, 0)).await.expect("open");
    soon(receiver.next())
        .await
        .expect("served")
        .expect("served");
    let report = soon(server.stop(Duration::ZERO)).await;
    assert_eq!((report.open, report.forced), (1, 1));
    let status = soon(receiver.next())
        .await
        .expect("an error")
        .expect_err("an error");
    let refusal = Refusal::from_status(&status);
    assert_eq!(refusal.code, ErrorCode::Unavailable, "{status:?}");
    assert_eq!(refusal.effect(), Effect::Unknown);
    soon(sender.closed()).await;
}

fn raw(path: &str) -> http::request::Builder {
    http::Request::builder().method("POST").uri(path)
}

/// What is not a stream of this method is refused before the handler sees it.
#[tokio::test]
async fn requests_that_are_not_for_us_are_refused_at_once() {
    let never = |_, _, _| -> Served { Box::pin(async { panic!("must not be called") }) };
    let (_server, channel) = start(never).await;
    let send = |request: http::request::Builder| {
        let request = request.body(Body::empty()).expect("a request");
        let channel = channel.clone();
        async move { soon(channel.oneshot(request)).await.expect("a response") }
    };
    let status = |response: &http::Response<Body>| {
        Status::from_header_map(response.headers()).map(|status| status.code())
    };
    let grpc = ("content-type", "application/grpc");

    let other = send(raw("/talweg.v1.ProduceService/Other").header(grpc.0, grpc.1)).await;
    assert_eq!(status(&other), Some(Code::Unimplemented));
    let json = send(raw(ProduceMethod::PATH).header("content-type", "application/json")).await;
    assert_eq!(json.status(), http::StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let gzip = raw(ProduceMethod::PATH)
        .header(grpc.0, grpc.1)
        .header("grpc-encoding", "gzip");
    let gzip = send(gzip).await;
    assert_eq!(status(&gzip), Some(Code::Unimplemented));
    assert_eq!(gzip.headers()["grpc-accept-encoding"], "identity");
}

/// The handler learns who is there and how many streams share the connection.
#[tokio::test]
async fn the_handler_knows_its_peer() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let serve = move |peer: PeerInfo, requests, responses| -> Served {
        let connection = peer.connection.clone().expect("served by net");
        let text = peer.metadata.get("x-name").map(|it| it.as_bytes().to_vec());
        tell.send((peer.addr, connection.streams(), text))
            .expect("the test listens");
        echo(peer, requests, responses)
    };
    let (server, channel) = start(serve).await;
    let mut metadata = MetadataMap::new();
    metadata.insert("x-name", "ann".parse().expect("text"));
    let first = open_produce(&channel, metadata);
    let (addr, streams, name) = soon(told.recv()).await.expect("served");
    assert_eq!(addr.expect("an address").ip(), server.addr().ip());
    assert_eq!((streams, name.as_deref()), (1, Some(&b"ann"[..])));
    let second = open(&channel);
    assert_eq!(soon(told.recv()).await.expect("served").1, 2);
    drop((first, second));
}
