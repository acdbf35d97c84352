//! A member at gateways that drain, over real sockets.

use super::*;
use crate::ClientConfig;
use talweg_proto::v1::subscribe_service_server::{SubscribeService, SubscribeServiceServer};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// Drains when it gets a commit, and answers that once the member has closed its
/// side.
struct Gateway;

fn answer(frame: Frame) -> Result<v1::SubscribeResponse, Status> {
    Ok(v1::SubscribeResponse { frame: Some(frame) })
}

#[tonic::async_trait]
impl SubscribeService for Gateway {
    type SubscribeStream = ReceiverStream<Result<v1::SubscribeResponse, Status>>;

    async fn subscribe(
        &self,
        requests: Request<Streaming<v1::SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let (answers, stream) = mpsc::channel(16);
        let mut requests = requests.into_inner();
        tokio::spawn(async move {
            let (mut commits, mut left) = (Vec::new(), false);
            while let Ok(Some(request)) = requests.message().await {
                let said = match request.frame {
                    Some(subscribe_request::Frame::Open(_)) => {
                        Frame::Opened(v1::SubscribeOpened::default())
                    }
                    Some(subscribe_request::Frame::Commit(commit)) => {
                        commits.push(commit.commit_id);
                        Frame::Drain(v1::Drain {
                            deadline_ms: 20_000,
                            ..Default::default()
                        })
                    }
                    Some(subscribe_request::Frame::Leave(_)) => {
                        left = true;
                        break;
                    }
                    _ => continue,
                };
                if answers.send(answer(said)).await.is_err() {
                    return;
                }
            }
            let committed = commits.into_iter().map(|commit_id| {
                Frame::Committed(v1::SubscribeCommitted {
                    commit_id,
                    ..Default::default()
                })
            });
            let reason = if left { "left" } else { "closed" }.to_owned();
            let closing = Frame::Closing(v1::Closing { reason });
            for frame in committed.chain([closing]) {
                drop(answers.send(answer(frame)).await);
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

async fn gateway() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("an address");
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(SubscribeServiceServer::new(Gateway))
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    format!("http://{addr}")
}

async fn heard(member: &mut Subscriber) -> SubscribeEvent {
    let event = tokio::time::timeout(Duration::from_secs(10), member.next()).await;
    event.expect("in time").expect("no error")
}

/// Story: the gateway drains while a commit is on its way. The member hears of the
/// commit before it goes on elsewhere, so that nothing it stored comes again. It
/// leaves meanwhile, and that is said where it goes on.
#[tokio::test]
async fn what_was_said_before_a_drain_is_answered_before_the_move() {
    let servers = vec![gateway().await, gateway().await];
    let client = Client::connect(servers, ClientConfig::default()).expect("two servers");
    let open = v1::SubscribeOpen::default();
    let mut member = Subscriber::open(&client, open).await.expect("opens");
    let id = member.commit(Vec::new()).await;
    let event = heard(&mut member).await;
    assert!(
        matches!(&event, SubscribeEvent::Frame(Frame::Committed(it)) if it.commit_id == id),
        "{event:?}"
    );
    member.leave().await;
    let event = heard(&mut member).await;
    assert!(matches!(event, SubscribeEvent::Resumed(_)), "{event:?}");
    assert_eq!(heard(&mut member).await, SubscribeEvent::Closed);
}
