//! The session with the active controller.

use super::{Addresses, Member, RETRY, go_on};
use crate::{
    Refusal,
    backoff::Backoff,
    clock::Clock,
    pool::{ChannelPool, Traffic},
};
use std::{collections::VecDeque, pin::pin, sync::Arc, time::Duration};
use talweg_kit::errors::ErrorCode;
use talweg_proto::controller::v1::{
    NodeHeartbeat, NodeLeaving, NodeSessionRequest, NodeSessionResponse, RegisterNode,
    controller_service_client::ControllerServiceClient, node_session_request::Frame as Ask,
    node_session_response::Frame as Answer,
};
use talweg_types::TimestampMs;
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use uuid::Uuid;

/// For the good-bye to arrive.
const GOODBYE: Duration = Duration::from_millis(300);

/// Keeps the process registered until it stops, then says good-bye.
pub async fn session<M: Member>(member: Arc<M>, addresses: Addresses) {
    let process_id = Uuid::new_v4();
    // It may run on a runtime of its own, and so must its connections.
    let pool = ChannelPool::new(Duration::from_secs(2));
    let mut backoff = Backoff::new(RETRY.0, RETRY.1);
    loop {
        let server = member.controller().server();
        let mut heard = false;
        let ended = once(&*member, &pool, &server, &addresses, process_id, &mut heard).await;
        member.on_disconnected();
        let Err(refusal) = ended else { return };
        if heard {
            backoff.reset();
        }
        if refusal.code == ErrorCode::StaleIncarnation {
            tracing::error!(%refusal, "another process has this node's id");
        }
        go_on(
            member.controller(),
            &server,
            Some(refusal),
            &mut backoff,
            "session",
        )
        .await;
    }
}

/// Ends with `Ok` only when the process stops.
async fn once(
    member: &impl Member,
    pool: &ChannelPool,
    server: &str,
    addresses: &Addresses,
    process_id: Uuid,
    heard: &mut bool,
) -> Result<(), Refusal> {
    let lease = pool.lease(server, Traffic::Control)?;
    let (frames, sent) = mpsc::channel(4);
    let mut beats = Beats::default();
    let registering = Instant::now();
    send(&frames, register(member, addresses, process_id)).await?;
    let mut answers = ControllerServiceClient::new(lease.channel().clone())
        .node_session(ReceiverStream::new(sent))
        .await
        .map_err(|status| Refusal::from_status(&status))?
        .into_inner();
    let mut leaving = pin!(member.leaving());
    let mut interval = Duration::from_secs(1);
    let mut silence = Duration::from_secs(10);
    let mut next_beat = Instant::now() + interval;
    let mut heard_at = Instant::now();
    loop {
        tokio::select! {
            biased;
            () = &mut leaving => {
                send(&frames, Ask::Leaving(NodeLeaving {})).await?;
                // It has arrived when the controller ends the stream.
                let ended = async { while let Ok(Some(_)) = answers.message().await {} };
                let _ = tokio::time::timeout(GOODBYE, ended).await;
                return Ok(());
            }
            // From the last word on: our own heartbeats say nothing about the controller.
            answer = tokio::time::timeout_at(heard_at + silence, next(&mut answers)) => {
                let answer = answer.map_err(|_| Refusal::unavailable("the session is silent"))??;
                heard_at = Instant::now();
                match answer {
                    Some(Answer::Registered(registered)) => {
                        *heard = true;
                        member.on_registered(&registered);
                        member.on_heard(registering.elapsed(), registered.revision);
                        let timeout = Duration::from_millis(registered.session_timeout_ms.max(300).into());
                        (interval, silence) = (timeout / 3, timeout * 2);
                        next_beat = Instant::now() + interval;
                    }
                    Some(Answer::Fenced(fenced)) => {
                        return Err(Refusal::new(ErrorCode::StaleIncarnation, fenced.reason));
                    }
                    Some(Answer::HeartbeatAck(ack)) => {
                        if let Some(sent) = beats.answered(ack.beat) {
                            member.on_heard(sent.elapsed(), ack.revision);
                        }
                        if ack.time_ms > 0 {
                            member.on_controller_time(TimestampMs(ack.time_ms));
                        }
                    }
                    Some(Answer::AskReplicaEnds(_)) | None => {}
                }
            }
            () = tokio::time::sleep_until(next_beat) => {
                next_beat += interval;
                let beat = NodeHeartbeat {
                    time_ms: Clock::wall_ms(),
                    folders: Vec::new(),
                    beat: beats.next(),
                };
                send(&frames, Ask::Heartbeat(beat)).await?;
            }
        }
    }
}

/// Heartbeats that were not answered yet, and when they were sent.
#[derive(Default)]
struct Beats {
    last: u64,
    sent: VecDeque<(u64, Instant)>,
}

impl Beats {
    /// The session ends long before.
    const MAX: usize = 64;

    fn next(&mut self) -> u64 {
        self.last += 1;
        if self.sent.len() >= Self::MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((self.last, Instant::now()));
        self.last
    }

    /// When it was sent. A controller that names none answers them in order.
    fn answered(&mut self, beat: u64) -> Option<Instant> {
        while let Some((next, sent)) = self.sent.pop_front() {
            match beat {
                0 => return Some(sent),
                beat if next == beat => return Some(sent),
                // Its answer was dropped on the way.
                beat if next < beat => {}
                _ => {
                    self.sent.push_front((next, sent));
                    return None;
                }
            }
        }
        None
    }
}

fn register(member: &impl Member, addresses: &Addresses, process_id: Uuid) -> Ask {
    Ask::Register(RegisterNode {
        plane: member.plane().into(),
        node_id: member.node_id(),
        cluster_id: member.view().get().cluster_id.clone(),
        grpc_address: addresses.grpc.clone(),
        http_address: addresses.http.clone(),
        rack: member.rack().into(),
        folders: Vec::new(),
        process_id: process_id.as_bytes().to_vec().into(),
        version: env!("CARGO_PKG_VERSION").into(),
    })
}

async fn send(frames: &mpsc::Sender<NodeSessionRequest>, frame: Ask) -> Result<(), Refusal> {
    let request = NodeSessionRequest { frame: Some(frame) };
    let sent = frames.send(request).await;
    sent.map_err(|_| Refusal::unavailable("the session has ended"))
}

async fn next(answers: &mut Streaming<NodeSessionResponse>) -> Result<Option<Answer>, Refusal> {
    let answer = answers.message().await;
    let answer = answer.map_err(|status| Refusal::from_status(&status))?;
    let answer = answer.ok_or_else(|| Refusal::unavailable("the controller ended the session"))?;
    Ok(answer.frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_that_of_the_heartbeat_that_it_names() {
        let mut beats = Beats::default();
        let (first, second, third) = (beats.next(), beats.next(), beats.next());
        let sent: Vec<Instant> = beats.sent.iter().map(|(_, sent)| *sent).collect();
        assert_eq!(beats.answered(second), Some(sent[1]));
        assert_eq!(beats.answered(first), None, "late");
        assert_eq!(beats.answered(0), Some(sent[2]), "an older controller");
        assert_eq!(beats.answered(third), None);
        for _ in 0..1_000 {
            beats.next();
        }
        assert!(beats.sent.len() <= Beats::MAX);
    }
}
