//! Serving a data stream under tonic's router.

use super::{
    FetchMethod, FrameReceiver, FrameSender, ProduceMethod, QUEUE_FRAMES, StreamMethod,
    SubscribeMethod,
    body::{FrameBody, Side},
    sender::Ending,
    wire,
};
use crate::{
    errors::{ErrorCode, Refusal},
    net::Connection,
};
use async_trait::async_trait;
use http::{Method, Request, Response, StatusCode, header};
use std::{
    convert::Infallible,
    future::{Ready, ready},
    marker::PhantomData,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use talweg_proto::v1;
use tokio::sync::{mpsc, oneshot};
use tonic::{
    Status, body::Body, metadata::MetadataMap, server::NamedService,
    transport::server::TcpConnectInfo,
};
use tower_service::Service;
use tracing::Instrument;

/// Who opened a stream.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    /// The client's address; none if the transport has none.
    pub addr: Option<SocketAddr>,
    /// Request metadata.
    pub metadata: MetadataMap,
    /// The connection, shared with its other streams; none outside [`crate::net`].
    pub connection: Option<Arc<Connection>>,
    /// Time that the client gives the whole stream; none is unlimited. The
    /// codec ends the stream then; the handler need not look.
    pub timeout: Option<Duration>,
}

/// Serves streams of one method.
#[async_trait]
pub trait StreamHandler<Req, Resp>: Send + Sync + 'static {
    /// Serves one stream. `Ok` ends it with OK once all clones of `responses`
    /// are dropped, `Err` with that status after what is queued.
    ///
    /// The future is dropped when the client has gone or its deadline has
    /// passed: keep nothing in it that must be finished.
    async fn serve(
        &self,
        peer: PeerInfo,
        requests: FrameReceiver<Req>,
        responses: FrameSender<Resp>,
    ) -> Result<(), Status>;
}

/// The Produce service for tonic's `Routes::add_service`.
pub fn produce_service<H>(handler: impl Into<Arc<H>>) -> DataService<ProduceMethod, H>
where
    H: StreamHandler<v1::ProduceRequest, v1::ProduceResponse>,
{
    DataService::new(handler)
}

/// The Fetch service for tonic's `Routes::add_service`.
pub fn fetch_service<H>(handler: impl Into<Arc<H>>) -> DataService<FetchMethod, H>
where
    H: StreamHandler<v1::FetchRequest, v1::FetchResponse>,
{
    DataService::new(handler)
}

/// The Subscribe service for tonic's `Routes::add_service`.
pub fn subscribe_service<H>(handler: impl Into<Arc<H>>) -> DataService<SubscribeMethod, H>
where
    H: StreamHandler<v1::SubscribeRequest, v1::SubscribeResponse>,
{
    DataService::new(handler)
}

/// A service with the one method `M`.
#[derive(Debug)]
pub struct DataService<M, H> {
    handler: Arc<H>,
    method: PhantomData<fn() -> M>,
}

impl<M: StreamMethod, H> DataService<M, H> {
    /// Serves `M` with `handler`.
    pub fn new(handler: impl Into<Arc<H>>) -> Self {
        Self {
            handler: handler.into(),
            method: PhantomData,
        }
    }
}

impl<M, H> Clone for DataService<M, H> {
    fn clone(&self) -> Self {
        Self {
            handler: self.handler.clone(),
            method: PhantomData,
        }
    }
}

impl<M: StreamMethod, H> NamedService for DataService<M, H> {
    const NAME: &'static str = M::SERVICE;
}

impl<M, H> Service<Request<Body>> for DataService<M, H>
where
    M: StreamMethod,
    H: StreamHandler<M::Request, M::Response>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    /// Ready: the head of the response never waits for the handler.
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        ready(Ok(self.open(request)))
    }
}

impl<M, H> DataService<M, H>
where
    M: StreamMethod,
    H: StreamHandler<M::Request, M::Response>,
{
    fn open(&self, request: Request<Body>) -> Response<Body> {
        if request.uri().path() != M::PATH {
            return Refusal::not_built(format!("no method {}", request.uri().path()))
                .to_status()
                .into_http();
        }
        if request.method() != Method::POST || !wire::is_grpc(request.headers()) {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return response;
        }
        if let Err(status) = wire::check_request(request.headers()) {
            return status.into_http();
        }
        let (head, body) = request.into_parts();
        let peer = PeerInfo {
            addr: head
                .extensions
                .get::<TcpConnectInfo>()
                .and_then(TcpConnectInfo::remote_addr),
            connection: head.extensions.get::<Arc<Connection>>().cloned(),
            timeout: wire::parse_grpc_timeout(&head.headers),
            metadata: MetadataMap::from_headers(head.headers),
        };
        let requests = FrameReceiver::of_request(body);
        let (queue, frames) = mpsc::channel(QUEUE_FRAMES);
        let ending = Arc::new(Ending::default());
        let (finished, outcome) = oneshot::channel();
        let responses = FrameSender::new(queue, ending.clone());
        let handler = self.handler.clone();
        tokio::spawn(run(handler, peer, requests, responses, finished).in_current_span());

        let body = FrameBody::new(frames, ending, Side::Response(outcome));
        let mut response = Response::new(Body::new(body));
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, wire::GRPC_CONTENT_TYPE);
        response
    }
}

/// Runs the handler until it returns, its client has gone, or its time is up.
/// A panic drops `finished`, which the body answers with INTERNAL.
async fn run<Req, Resp, H: StreamHandler<Req, Resp>>(
    handler: Arc<H>,
    peer: PeerInfo,
    requests: FrameReceiver<Req>,
    responses: FrameSender<Resp>,
    mut finished: oneshot::Sender<Result<(), Status>>,
) {
    let timeout = peer.timeout;
    let deadline = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    let result = tokio::select! {
        biased;
        result = handler.serve(peer, requests, responses) => result,
        () = finished.closed() => return,
        () = deadline => Err(Refusal::new(
            ErrorCode::TimedOut,
            "the deadline that the client set for this stream has passed",
        )
        .into()),
    };
    // The body may have gone in this moment: then nobody is there to tell.
    drop(finished.send(result));
}
