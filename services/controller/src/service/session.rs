//! One node's session stream, from its first frame to its end.

use crate::{
    convert,
    core::{Event, StreamId},
    handle::{Message, gone, peer},
};
use std::time::Duration;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::controller::v1::{
    NodeSessionRequest, NodeSessionResponse, node_session_request::Frame,
};
use tokio::sync::mpsc::Sender;
use tonic::{Status, Streaming};

/// The first frame comes within this.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the node's frames until either side ends the stream.
pub async fn serve(
    mailbox: Sender<Message>,
    stream: StreamId,
    mut inbound: Streaming<NodeSessionRequest>,
    frames: Sender<Result<NodeSessionResponse, Status>>,
) {
    let registration = match register(&mut inbound).await {
        Ok(registration) => registration,
        Err(refusal) => {
            let _ = frames.send(Err(refusal.to_status())).await;
            return;
        }
    };
    let (peer, over) = peer(frames.clone());
    let message = Message::Register {
        stream,
        registration,
        peer,
    };
    if mailbox.send(message).await.is_err() {
        let _ = frames.send(Err(gone().to_status())).await;
        return;
    }
    // From here on the loop's clone keeps the answers open.
    let violations = frames.downgrade();
    drop(frames);
    let ended = tokio::select! {
        biased;
        () = over.cancelled() => return,
        ended = read(&mailbox, stream, &mut inbound) => ended,
    };
    if let (Err(refusal), Some(frames)) = (ended, violations.upgrade()) {
        let _ = frames.try_send(Err(refusal.to_status()));
    }
    // If the loop is gone there is nobody to tell.
    let _ = mailbox
        .send(Message::Node(Event::StreamBroken { stream }))
        .await;
}

async fn register(
    inbound: &mut Streaming<NodeSessionRequest>,
) -> Result<crate::core::Registration, Refusal> {
    let first = tokio::time::timeout(REGISTER_TIMEOUT, inbound.message()).await;
    let first = first.map_err(|_| violation("the first frame did not come in time"))?;
    match first
        .map_err(|status| Refusal::from_status(&status))?
        .and_then(|first| first.frame)
    {
        Some(Frame::Register(register)) => convert::registration(register),
        Some(
            Frame::Heartbeat(_)
            | Frame::Leaving(_)
            | Frame::ReplicaEnds(_)
            | Frame::ReplicaHealth(_),
        )
        | None => Err(violation("the first frame must register the node")),
    }
}

fn violation(message: &str) -> Refusal {
    Refusal::new(ErrorCode::ProtocolViolation, message)
}

/// Passes frames on; returns when the node has ended the stream, or why it must
/// end.
async fn read(
    mailbox: &Sender<Message>,
    stream: StreamId,
    inbound: &mut Streaming<NodeSessionRequest>,
) -> Result<(), Refusal> {
    while let Ok(Some(request)) = inbound.message().await {
        let message = match request.frame {
            Some(Frame::Heartbeat(heartbeat)) => Message::Heartbeat {
                stream,
                folders: convert::folder_statuses(heartbeat.folders),
                beat: heartbeat.beat,
            },
            Some(Frame::Leaving(_)) => Message::Node(Event::Leaving { stream }),
            Some(Frame::ReplicaEnds(ends)) => {
                let ends = convert::replica_ends(ends);
                Message::Node(Event::ReplicaEnds { stream, ends })
            }
            Some(Frame::ReplicaHealth(health)) => {
                let health = convert::health(health);
                Message::Node(Event::Health { stream, health })
            }
            Some(Frame::Register(_)) => return Err(violation("a stream registers one node, once")),
            // A frame of a later version.
            None => continue,
        };
        mailbox.send(message).await.map_err(|_| gone())?;
    }
    Ok(())
}
