//! Follows the controller: the watch that fills the view, and the session that
//! makes this gateway known. Both come back by themselves; what was known stays
//! in use while no controller is there.

use crate::{node::Node, streams::begun};
use rand::RngCore;
use std::{sync::Arc, time::Duration};
use talweg_client::{
    backoff::Backoff,
    pool::{ChannelPool, Traffic},
    view::ClusterFollower,
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    controller::v1::{
        NodeHeartbeat, NodeLeaving, NodeSessionRequest, RegisterNode, WatchClusterRequest,
        controller_service_client::ControllerServiceClient, node_session_request,
        node_session_response,
    },
    v1::{Plane, error_detail::Details},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// The watch says something at least this often, or is given up.
const WATCH_SILENCE: Duration = Duration::from_secs(30);
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Keeps the view at the controller's; never ends.
pub async fn watch(node: Arc<Node>) {
    let mut backoff = Backoff::new(RETRY.0, RETRY.1);
    loop {
        let server = node.controller.server();
        let mut heard = false;
        let ended = watch_once(&node, &server, &mut heard).await;
        if heard {
            backoff.reset();
        }
        go_on(&node, &server, ended.err(), &mut backoff, "metadata watch").await;
    }
}

/// Waits, and turns to the controller that a refusal names or to the next one.
async fn go_on(
    node: &Node,
    server: &str,
    refusal: Option<Refusal>,
    backoff: &mut Backoff,
    what: &str,
) {
    let hint = refusal.as_ref().and_then(|refusal| match &refusal.details {
        Some(Details::Leader(hint)) => hint.addresses.first(),
        _ => None,
    });
    match hint {
        Some(hint) => node.controller.prefer(hint),
        None => drop(node.controller.avoid(server)),
    }
    tracing::debug!(?refusal, %server, "{what} ended");
    tokio::time::sleep(backoff.pause(refusal.map_or(0, |it| it.retry_after_ms))).await;
}

async fn watch_once(node: &Node, server: &str, heard: &mut bool) -> Result<(), Refusal> {
    let lease = node.pool.lease(server, Traffic::Control)?;
    let request = WatchClusterRequest { node_id: node.id() };
    let mut updates = ControllerServiceClient::new(lease.channel().clone())
        .max_decoding_message_size(64 << 20)
        .watch_cluster(request)
        .await
        .map_err(|status| Refusal::from_status(&status))?
        .into_inner();
    let mut follower = ClusterFollower::not_before(node.view.get().revision);
    loop {
        let next = tokio::time::timeout(WATCH_SILENCE, updates.message()).await;
        let next = next.map_err(|_| Refusal::unavailable("the watch is silent"))?;
        let Some(update) = next.map_err(|status| Refusal::from_status(&status))? else {
            return Ok(());
        };
        let view = follower.apply(update)?;
        *heard = true;
        node.metrics.metadata.heard();
        if let Some(view) = view {
            node.metrics.view_revision.set(view.revision);
            node.view.set(view);
        }
    }
}

/// How others reach this gateway.
#[derive(Clone, Debug)]
pub struct Addresses {
    pub grpc: String,
    pub http: String,
}

/// Keeps this gateway registered until the process stops, then says good-bye.
pub async fn session(node: Arc<Node>, addresses: Addresses) {
    let mut process_id = [0; 16];
    rand::rng().fill_bytes(&mut process_id);
    // It runs on a runtime of its own, and so must its connections.
    let pool = ChannelPool::new(Duration::from_secs(2));
    let mut backoff = Backoff::new(RETRY.0, RETRY.1);
    loop {
        let server = node.controller.server();
        let mut heard = false;
        let ended = session_once(&node, &pool, &server, &addresses, process_id, &mut heard).await;
        node.metrics.controller_connected.set(0);
        match ended {
            Ok(()) => return,
            Err(refusal) => {
                if heard {
                    backoff.reset();
                }
                if refusal.code == ErrorCode::StaleIncarnation {
                    tracing::error!(%refusal, "another process has this gateway's id");
                }
                go_on(&node, &server, Some(refusal), &mut backoff, "session").await;
            }
        }
    }
}

/// Ends with `Ok` only when the process stops.
async fn session_once(
    node: &Node,
    pool: &ChannelPool,
    server: &str,
    addresses: &Addresses,
    process_id: [u8; 16],
    heard: &mut bool,
) -> Result<(), Refusal> {
    use node_session_request::Frame as Ask;
    use node_session_response::Frame as Answer;
    let lease = pool.lease(server, Traffic::Control)?;
    let (frames, sent) = mpsc::channel(4);
    let send = async |frame| {
        let request = NodeSessionRequest { frame: Some(frame) };
        frames
            .send(request)
            .await
            .map_err(|_| Refusal::unavailable("the session has ended"))
    };
    send(Ask::Register(RegisterNode {
        plane: Plane::Gateway.into(),
        node_id: node.id(),
        cluster_id: node.view.get().cluster_id.clone(),
        grpc_address: addresses.grpc.clone(),
        http_address: addresses.http.clone(),
        rack: node.config.rack.clone(),
        folders: Vec::new(),
        process_id: bytes::Bytes::copy_from_slice(&process_id),
        version: env!("CARGO_PKG_VERSION").into(),
    }))
    .await?;
    let mut answers = ControllerServiceClient::new(lease.channel().clone())
        .node_session(ReceiverStream::new(sent))
        .await
        .map_err(|status| Refusal::from_status(&status))?
        .into_inner();
    let mut drain = node.watch_drain();
    let mut interval = Duration::from_secs(1);
    let mut silence = Duration::from_secs(10);
    let mut next_beat = tokio::time::Instant::now() + interval;
    let mut heard_at = tokio::time::Instant::now();
    loop {
        tokio::select! {
            biased;
            _ = begun(&mut drain) => {
                send(Ask::Leaving(NodeLeaving {})).await?;
                // It has arrived when the controller ends the stream.
                let ended = async { while let Ok(Some(_)) = answers.message().await {} };
                let _ = tokio::time::timeout(Duration::from_millis(300), ended).await;
                return Ok(());
            }
            // From the last word on: our own heartbeats say nothing about the controller.
            answer = tokio::time::timeout_at(heard_at + silence, answers.message()) => {
                let answer = answer.map_err(|_| Refusal::unavailable("the session is silent"))?;
                heard_at = tokio::time::Instant::now();
                let answer = answer.map_err(|status| Refusal::from_status(&status))?;
                match answer.ok_or_else(|| Refusal::unavailable("the controller ended the session"))?.frame {
                    Some(Answer::Registered(registered)) => {
                        *heard = true;
                        node.set_id(registered.node_id);
                        node.metrics.controller_connected.set(1);
                        let timeout = Duration::from_millis(registered.session_timeout_ms.max(300).into());
                        (interval, silence) = (timeout / 3, timeout * 2);
                        next_beat = tokio::time::Instant::now() + interval;
                        tracing::info!(node_id = registered.node_id, "registered");
                    }
                    Some(Answer::Fenced(fenced)) => {
                        return Err(Refusal::new(ErrorCode::StaleIncarnation, fenced.reason));
                    }
                    Some(Answer::HeartbeatAck(_) | Answer::AskReplicaEnds(_)) | None => {}
                }
            }
            () = tokio::time::sleep_until(next_beat) => {
                next_beat += interval;
                let beat = NodeHeartbeat { time_ms: talweg_client::clock::Clock::wall_ms(), folders: Vec::new() };
                send(Ask::Heartbeat(beat)).await?;
            }
        }
    }
}
