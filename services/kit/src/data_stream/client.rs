//! Opening a data stream over a channel.

use super::{
    FetchMethod, FrameReceiver, FrameSender, ProduceMethod, QUEUE_FRAMES, StreamMethod,
    SubscribeMethod,
    body::{FrameBody, Side},
    sender::Ending,
    wire,
};
use http::{Method, Request, Response, Uri, Version, header};
use std::sync::Arc;
use talweg_proto::v1;
use tokio::sync::{mpsc, oneshot};
use tonic::{Status, body::Body, metadata::MetadataMap, transport::Channel};
use tower::ServiceExt;
use tracing::Instrument;

/// Opens a Produce stream; does not wait for the server. Failing to connect is
/// the receiver's first error.
pub fn open_produce(
    channel: &Channel,
    metadata: MetadataMap,
) -> (
    FrameSender<v1::ProduceRequest>,
    FrameReceiver<v1::ProduceResponse>,
) {
    open::<ProduceMethod>(channel, metadata)
}

/// Opens a Fetch stream; as [`open_produce`].
pub fn open_fetch(
    channel: &Channel,
    metadata: MetadataMap,
) -> (
    FrameSender<v1::FetchRequest>,
    FrameReceiver<v1::FetchResponse>,
) {
    open::<FetchMethod>(channel, metadata)
}

/// Opens a Subscribe stream; as [`open_produce`].
pub fn open_subscribe(
    channel: &Channel,
    metadata: MetadataMap,
) -> (
    FrameSender<v1::SubscribeRequest>,
    FrameReceiver<v1::SubscribeResponse>,
) {
    open::<SubscribeMethod>(channel, metadata)
}

/// Opens a stream of any method. Must be called inside a tokio runtime.
pub fn open<M: StreamMethod>(
    channel: &Channel,
    metadata: MetadataMap,
) -> (FrameSender<M::Request>, FrameReceiver<M::Response>) {
    let (queue, frames) = mpsc::channel(QUEUE_FRAMES);
    let ending = Arc::new(Ending::default());
    let body = FrameBody::new(frames, ending.clone(), Side::Request);
    let (opened, opening) = oneshot::channel();
    let request = request::<M>(metadata, Body::new(body));
    tokio::spawn(call(channel.clone(), request, opened).in_current_span());
    (
        FrameSender::new(queue, ending.clone()),
        FrameReceiver::of_response(opening, ending),
    )
}

/// A task, because the request must go out whichever end the caller polls first.
async fn call(
    channel: Channel,
    request: Request<Body>,
    mut opened: oneshot::Sender<Result<Response<Body>, Status>>,
) {
    let response = tokio::select! {
        biased;
        response = channel.oneshot(request) => response,
        // Nobody waits any more: dropping the call cancels it.
        () = opened.closed() => return,
    };
    let response = response.map_err(|error| wire::broken(Status::from_error(Box::new(error))));
    // If the receiver went in this moment, dropping the response cancels as well.
    drop(opened.send(response));
}

fn request<M: StreamMethod>(metadata: MetadataMap, body: Body) -> Request<Body> {
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static(M::PATH);
    *request.version_mut() = Version::HTTP_2;
    let headers = request.headers_mut();
    *headers = metadata.into_headers();
    headers.insert(header::TE, http::HeaderValue::from_static("trailers"));
    headers.insert(header::CONTENT_TYPE, wire::GRPC_CONTENT_TYPE);
    request
}
