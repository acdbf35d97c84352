//! Follows the controller: the watch that fills the view, and the session that
//! makes this gateway known. Both come back by themselves; what was known stays
//! in use while no controller is there.

use crate::{node::Node, streams::begun};
use rand::RngCore;
use std::{sync::Arc, time::Duration};
use talweg_client::{
    backoff::Backoff,
    pool::{ChannelPool, Traffic},
    view::{PartitionView, View},
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    controller::v1::{
        ClusterView, NodeHeartbeat, NodeLeaving, NodeSessionRequest, PartitionState, RegisterNode,
        WatchClusterRequest, WatchClusterResponse,
        controller_service_client::ControllerServiceClient, node_session_request,
        node_session_response, watch_cluster_response::Update,
    },
    v1::{self, Plane, error_detail::Details},
};
use talweg_types::{LeaderEpoch, NodeId, TopicId};
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
    let mut follower = Follower::not_before(node.view.get().revision);
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

/// From messages of the watch to views.
#[derive(Default)]
struct Follower {
    view: View,
    /// What is known already: a view never goes back.
    at_least: i64,
    /// A snapshot that is not whole yet: partitions may come before their topics.
    building: Option<(View, Vec<PartitionState>)>,
    whole: bool,
}

impl Follower {
    /// Begins with a snapshot that is at least of this revision.
    fn not_before(revision: i64) -> Self {
        Self {
            at_least: revision,
            ..Self::default()
        }
    }

    /// The new view, if the message made one; an error if it does not follow.
    fn apply(&mut self, response: WatchClusterResponse) -> Result<Option<View>, Refusal> {
        match response.update {
            Some(Update::Snapshot(part)) => {
                if part.first {
                    self.building = Some(Default::default());
                }
                let Some((view, partitions)) = &mut self.building else {
                    return Err(Refusal::internal(
                        "a part of a snapshot without a first one",
                    ));
                };
                let mut part_view = part.view.unwrap_or_default();
                partitions.append(&mut part_view.partitions);
                merge(view, part_view);
                if !part.last {
                    return Ok(None);
                }
                let (mut view, partitions) = self.building.take().unwrap_or_default();
                partitions
                    .into_iter()
                    .for_each(|state| set_partition(&mut view, state));
                if view.revision < self.at_least {
                    // Of a controller that has been deposed, say; another one knows more.
                    return Err(Refusal::unavailable(format!(
                        "a snapshot of revision {}, revision {} is known already",
                        view.revision, self.at_least
                    )));
                }
                (self.view, self.whole) = (view, true);
            }
            Some(Update::Delta(delta)) => {
                if !self.whole || delta.previous_revision != self.view.revision {
                    return Err(Refusal::internal(
                        "a change that does not follow what is known",
                    ));
                }
                for id in delta
                    .removed_topic_ids
                    .iter()
                    .filter_map(|id| TopicId::from_slice(id))
                {
                    self.view.remove_topic(id);
                }
                delta
                    .removed_node_ids
                    .iter()
                    .for_each(|id| self.view.remove_node(*id));
                let mut changed = delta.view.unwrap_or_default();
                let partitions = std::mem::take(&mut changed.partitions);
                merge(&mut self.view, changed);
                partitions
                    .into_iter()
                    .for_each(|state| set_partition(&mut self.view, state));
            }
            Some(Update::Progress(_)) | None => return Ok(None),
        }
        Ok(Some(self.view.clone()))
    }
}

fn merge(view: &mut View, part: ClusterView) {
    if !part.cluster_id.is_empty() {
        view.cluster_id = part.cluster_id;
    }
    view.revision = view.revision.max(part.revision);
    part.topics
        .into_iter()
        .for_each(|topic| view.set_topic(topic));
    for history in part.histories {
        if let Some(id) = TopicId::from_slice(&history.topic_id) {
            view.set_history(id, history.earlier_counts);
        }
    }
    part.nodes.into_iter().for_each(|node| view.set_node(node));
}

fn set_partition(view: &mut View, state: PartitionState) {
    let Some(id) = TopicId::from_slice(&state.topic_id) else {
        return;
    };
    let partition = PartitionView {
        leader: NodeId(state.leader),
        leader_epoch: LeaderEpoch(state.leader_epoch),
        replicas: state.replicas,
        in_sync: state.in_sync,
        eligible: state.eligible,
        last_in_sync: state.last_in_sync,
        recovered: state.recovered.map(|recovered| v1::RecoveredDescription {
            leader_epoch: recovered.leader_epoch,
            unclean: recovered.unclean,
            time_ms: recovered.time_ms,
            from_offset: recovered.from_offset,
        }),
    };
    view.set_partition(id, state.partition, partition);
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

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_proto::{
        controller::v1::{ClusterDelta, ClusterSnapshot},
        v1::Topic,
    };

    fn topic(name: &str, id: u8) -> Topic {
        Topic {
            name: name.into(),
            topic_id: vec![id; 16].into(),
            partitions: 2,
            ..Default::default()
        }
    }

    fn state(id: u8, partition: u32, leader: u32) -> PartitionState {
        PartitionState {
            topic_id: vec![id; 16].into(),
            partition,
            leader,
            ..Default::default()
        }
    }

    fn part(first: bool, last: bool, view: ClusterView) -> WatchClusterResponse {
        WatchClusterResponse {
            update: Some(Update::Snapshot(ClusterSnapshot {
                first,
                last,
                view: Some(view),
            })),
        }
    }

    /// Story: a controller that was deposed while it was paused wakes up and
    /// offers what it knew; the gateway has heard its successor and keeps that.
    #[test]
    fn a_view_never_goes_back() {
        let at = |revision| ClusterView {
            revision,
            ..Default::default()
        };
        let mut follower = Follower::not_before(5);
        let refusal = follower.apply(part(true, true, at(4))).expect_err("older");
        assert!(refusal.message.contains("revision 5 is known"), "{refusal}");
        let mut follower = Follower::not_before(5);
        let view = follower.apply(part(true, true, at(5))).expect("as new");
        assert_eq!(view.expect("whole").revision, 5);
    }

    #[test]
    fn a_snapshot_in_parts_is_whole_whatever_the_order_and_deltas_must_follow() {
        let mut follower = Follower::default();
        let partitions = ClusterView {
            revision: 5,
            partitions: vec![state(1, 1, 9)],
            ..Default::default()
        };
        assert!(
            follower
                .apply(part(true, false, partitions))
                .expect("first")
                .is_none()
        );
        let topics = ClusterView {
            revision: 5,
            topics: vec![topic("a", 1)],
            ..Default::default()
        };
        let view = follower
            .apply(part(false, true, topics))
            .expect("last")
            .expect("whole");
        let a = view.by_name("a").expect("topic a");
        assert_eq!(
            (a.partitions[0].leader, a.partitions[1].leader),
            (NodeId(0), NodeId(9))
        );

        let delta = |previous_revision, view| WatchClusterResponse {
            update: Some(Update::Delta(ClusterDelta {
                previous_revision,
                view: Some(view),
                removed_topic_ids: vec![vec![1; 16].into()],
                ..Default::default()
            })),
        };
        // Deleted and created again under its name, in one change.
        let anew = ClusterView {
            revision: 6,
            topics: vec![topic("a", 2)],
            ..Default::default()
        };
        let view = follower
            .apply(delta(5, anew))
            .expect("follows")
            .expect("a view");
        assert_eq!(view.by_name("a").expect("topic a").id.as_bytes(), &[2; 16]);
        let gap = ClusterView {
            revision: 9,
            ..Default::default()
        };
        assert!(
            follower.apply(delta(8, gap)).is_err(),
            "a gap asks for a snapshot"
        );
    }
}
