//! Plain gRPC on the wire: tonic's generated client and server, which know
//! nothing of this codec, with their own defaults.

use super::*;
use crate::{
    data_stream::{
        FrameReceiver, FrameSender, PeerInfo, StreamHandler, open_produce, produce_service,
    },
    errors::{ErrorCode, Refusal},
    net,
};
use async_trait::async_trait;
use futures::Stream;
use std::{pin::Pin, time::Duration};
use talweg_proto::v1::{
    produce_service_client::ProduceServiceClient,
    produce_service_server::{ProduceService, ProduceServiceServer},
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{
    Code, Request, Response, Status, Streaming,
    metadata::MetadataMap,
    transport::{Channel, Server},
};

const SOON: Duration = Duration::from_secs(20);
const SIZES: [usize; 6] = [0, 1, 5_000, 16_384, 300_000, 1_048_576];

/// Answers each batch; refuses number 99.
struct Echo;

#[async_trait]
impl StreamHandler<v1::ProduceRequest, v1::ProduceResponse> for Echo {
    async fn serve(
        &self,
        _: PeerInfo,
        mut requests: FrameReceiver<v1::ProduceRequest>,
        responses: FrameSender<v1::ProduceResponse>,
    ) -> Result<(), Status> {
        while let Some(request) = requests.next().await {
            let number = number_of(request?);
            if number == 99 {
                return Err(Refusal::new(ErrorCode::DiskFull, "full").into());
            }
            responses
                .send(answer(number))
                .await
                .map_err(|_| Status::cancelled("gone"))?;
        }
        Ok(())
    }
}

#[async_trait]
impl ProduceService for Echo {
    type ProduceStream = Pin<Box<dyn Stream<Item = Result<v1::ProduceResponse, Status>> + Send>>;

    async fn produce(
        &self,
        request: Request<Streaming<v1::ProduceRequest>>,
    ) -> Result<Response<Self::ProduceStream>, Status> {
        let mut requests = request.into_inner();
        let (responses, stream) = mpsc::channel(4);
        tokio::spawn(async move {
            while let Some(request) = requests.message().await.expect("frames") {
                let number = number_of(request);
                let refused = number == 99;
                let response = match refused {
                    true => Err(Refusal::new(ErrorCode::DiskFull, "full").into()),
                    false => Ok(answer(number)),
                };
                responses.send(response).await.expect("the client reads");
                if refused {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

/// tonic's client, our server. The client waits for response headers before it
/// returns from `produce`: they must not wait for its first message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tonics_client_talks_to_our_server() {
    let listener = net::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let served = Server::builder()
        .add_service(produce_service(Echo))
        .serve_with_incoming(TcpListenerStream::new(listener));
    let server = tokio::spawn(served);
    let channel = Channel::from_shared(url)
        .expect("a URL")
        .connect()
        .await
        .expect("connected");
    let mut client = ProduceServiceClient::new(channel);

    let (requests, stream) = mpsc::channel(4);
    let opened = timeout(SOON, client.produce(ReceiverStream::new(stream))).await;
    let mut responses = opened
        .expect("without a first message")
        .expect("open")
        .into_inner();
    for (number, size) in SIZES.into_iter().enumerate() {
        requests
            .send(numbered(number as u64, size))
            .await
            .expect("open");
        let response = responses
            .message()
            .await
            .expect("no error")
            .expect("a frame");
        assert_eq!(answered(response), number as u64);
    }
    requests.send(numbered(99, 10)).await.expect("open");
    let status = responses.message().await.expect_err("refused");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(Refusal::from_status(&status).code, ErrorCode::DiskFull);

    let frames = tokio_stream::iter((0..10).map(|number| numbered(number, 100)));
    let mut responses = client.produce(frames).await.expect("open").into_inner();
    for number in 0..10 {
        let response = responses
            .message()
            .await
            .expect("no error")
            .expect("a frame");
        assert_eq!(answered(response), number);
    }
    assert!(responses.message().await.expect("status OK").is_none());
    server.abort();
}

/// Our client, tonic's server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_client_talks_to_tonics_server() {
    let listener = net::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let served = Server::builder()
        .add_service(ProduceServiceServer::new(Echo))
        .serve_with_incoming(TcpListenerStream::new(listener));
    let server = tokio::spawn(served);
    let channel = net::channel(&url, &Default::default()).expect("a URL");

    let (sender, mut receiver) = open_produce(&channel, MetadataMap::new());
    for (number, size) in SIZES.into_iter().enumerate() {
        sender
            .send(numbered(number as u64, size))
            .await
            .expect("open");
        let response = timeout(SOON, receiver.next()).await.expect("soon");
        assert_eq!(
            answered(response.expect("a frame").expect("no error")),
            number as u64
        );
    }
    drop(sender);
    assert!(
        timeout(SOON, receiver.next())
            .await
            .expect("soon")
            .is_none()
    );

    let (sender, mut receiver) = open_produce(&channel, MetadataMap::new());
    sender.send(numbered(99, 10)).await.expect("open");
    let status = receiver
        .next()
        .await
        .expect("an error")
        .expect_err("an error");
    assert_eq!(Refusal::from_status(&status).code, ErrorCode::DiskFull);

    // A server that does not know the method.
    let (_sender, mut receiver) = crate::data_stream::open_fetch(&channel, MetadataMap::new());
    let status = receiver
        .next()
        .await
        .expect("an error")
        .expect_err("an error");
    assert_eq!(status.code(), Code::Unimplemented);
    server.abort();
}
