//! One term of an active controller: the loop that owns the core, acts on its
//! effects, and tells watchers what has changed.
//!
//! The loop never waits for the store: a write runs beside it. Watchers are told
//! before callers are answered, so that who was answered finds what it asked
//! for in the view.

use crate::{
    convert,
    core::{CallId, Core, Effect, Event, Now, Recovered, Settings, StreamId},
    election::Leadership,
    handle::{Answer, Message, Peer, gone},
    hub::Hub,
    metrics::Metrics,
    probe,
    store::{self, StoreError, Written},
};
use futures::future::BoxFuture;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_metastore::Metastore;
use talweg_proto::controller::v1::{
    HeartbeatAck, NodeSessionResponse, SessionFenced, node_session_response::Frame,
};
use talweg_types::{NodeId, TimestampMs, TopicPartition};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

/// Changes are gathered while writes follow each other, up to this many.
const GATHERED_MAX: usize = 2_000;

/// A silent node is found so much of a session time-out late at most.
const TICKS_A_SESSION: u32 = 12;

/// Figures look at every partition: not more often than this.
const FIGURES: Duration = Duration::from_millis(500);

/// Why a term ended without an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Another may be elected now.
    Lost,
    /// It hears nobody: another may do better.
    Resigned,
    /// The process stops.
    Stopped,
}

pub struct Term {
    store: Arc<dyn Metastore>,
    leadership: Arc<Leadership>,
    core: Core,
    hub: Hub,
    started: Instant,
    session_timeout: Duration,
    peers: BTreeMap<StreamId, Peer>,
    /// Said goodbye; watchers are told next.
    left: BTreeSet<NodeId>,
    calls: BTreeMap<CallId, oneshot::Sender<Result<Answer, Refusal>>>,
    next_call: u64,
    /// As the node named the heartbeat that is being heard.
    beat: u64,
    writing: Option<BoxFuture<'static, Result<Written, StoreError>>>,
    write_began: Instant,
    /// The way back for what runs beside the loop.
    events: mpsc::WeakSender<Message>,
    resigned: bool,
    metrics: Arc<Metrics>,
    /// When the figures were shown, and whether they have changed since.
    figures: (Option<Instant>, bool),
}

impl Term {
    /// Reads everything and begins.
    ///
    /// # Errors
    /// The store does not answer or holds what cannot be read.
    pub async fn begin(
        store: Arc<dyn Metastore>,
        leadership: Arc<Leadership>,
        settings: Settings,
        events: mpsc::WeakSender<Message>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, StoreError> {
        let view = store::load(store.as_ref()).await?;
        let started = Instant::now();
        let session_timeout = settings.session_timeout;
        let now = Now {
            monotonic: Duration::ZERO,
            wall: wall_now(),
        };
        Ok(Self {
            core: Core::new(settings, view, now),
            store,
            leadership,
            hub: Hub::default(),
            started,
            session_timeout,
            peers: BTreeMap::new(),
            left: BTreeSet::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            beat: 0,
            writing: None,
            write_began: started,
            events,
            resigned: false,
            metrics,
            figures: (None, true),
        })
    }

    /// Serves the mailbox until the term ends.
    pub async fn run(
        mut self,
        mut mailbox: mpsc::Receiver<Message>,
        stop: &CancellationToken,
    ) -> Result<Ended, StoreError> {
        let mut tick = tokio::time::interval(self.session_timeout / TICKS_A_SESSION);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let lost = self.leadership.lost.clone();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(Ended::Stopped),
                () = lost.cancelled() => return Ok(Ended::Lost),
                written = ended(&mut self.writing) => match written {
                    Ok(written) => self.on_written(written),
                    Err(StoreError::NotElected) => return Ok(Ended::Lost),
                    Err(error) => return Err(error),
                },
                _ = tick.tick() => {
                    self.hear(&mut mailbox);
                    self.event(Event::Tick);
                    self.show_figures();
                }
                message = mailbox.recv() => match message {
                    Some(message) => self.on_message(message),
                    None => return Ok(Ended::Stopped),
                },
            }
            if self.resigned {
                return Ok(Ended::Resigned);
            }
        }
    }

    /// All that has come so far: a sign of life that waits to be read counts
    /// before time does. Writes that end at once would keep it waiting.
    fn hear(&mut self, mailbox: &mut mpsc::Receiver<Message>) {
        for _ in 0..mailbox.len() {
            let Ok(message) = mailbox.try_recv() else {
                return;
            };
            self.on_message(message);
        }
    }

    fn on_written(&mut self, written: Written) {
        self.writing = None;
        self.metrics
            .write_seconds
            .observe(self.write_began.elapsed().as_secs_f64());
        self.event(match written {
            Written::Committed(revision) => Event::Written { revision },
            Written::Reloaded(view) => Event::Reloaded { view },
        });
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Register {
                stream,
                registration,
                peer,
            } => {
                self.peers.insert(stream, peer);
                self.event(Event::Register {
                    stream,
                    registration,
                });
            }
            Message::Heartbeat {
                stream,
                folders,
                beat,
            } => {
                self.beat = beat;
                self.event(Event::Heartbeat { stream, folders });
            }
            Message::Node(event) => {
                if let Event::StreamBroken { stream } | Event::Leaving { stream } = &event {
                    self.peers.remove(stream);
                }
                if let Event::Leaving { stream } = &event {
                    self.left.extend(self.core.node_of(*stream));
                }
                self.event(event);
            }
            Message::Request { request, answer } => {
                let call = CallId(self.next_call);
                self.next_call += 1;
                self.calls.insert(call, answer);
                self.event(Event::Request { call, request });
            }
            Message::Read(look) => look(&self.core),
            Message::Watch { answer } => {
                self.tell_watchers();
                let subscription = (convert::snapshot(&self.core), self.hub.subscribe());
                drop(answer.send(subscription));
            }
        }
    }

    fn event(&mut self, event: Event) {
        let now = Now {
            monotonic: self.started.elapsed(),
            wall: wall_now(),
        };
        let effects = self.core.step(now, event);
        let answers = effects
            .iter()
            .any(|effect| matches!(effect, Effect::Reply { .. } | Effect::Registered { .. }));
        if answers || !self.core.is_writing() || self.gathered() > GATHERED_MAX {
            self.tell_watchers();
        }
        effects.into_iter().for_each(|effect| self.act(effect));
    }

    fn gathered(&self) -> usize {
        self.core.changed().partitions.len()
    }

    fn tell_watchers(&mut self) {
        let Some(changed) = self.core.take_changed() else {
            return;
        };
        for node in changed
            .nodes
            .iter()
            .filter(|node| self.core.session(**node).is_none())
        {
            if self.left.remove(node) {
                tracing::info!(node_id = node.0, "node has left");
            } else {
                tracing::warn!(node_id = node.0, "node is gone");
            }
        }
        match convert::delta(&self.core, &changed) {
            Some(delta) => self.hub.tell(&delta),
            None => self.hub.restart(),
        }
        self.figures.1 = true;
        self.show_figures();
    }

    fn show_figures(&mut self) {
        let (shown, changed) = self.figures;
        if changed && shown.is_none_or(|at| at.elapsed() >= FIGURES) {
            let watchers = self.hub.len();
            self.metrics.on_changed(&self.core, watchers);
            self.figures = (Some(Instant::now()), false);
        }
    }

    fn act(&mut self, effect: Effect) {
        match effect {
            Effect::Write { changes } => self.write(changes),
            Effect::Reply { call, outcome } => {
                let Some(caller) = self.calls.remove(&call) else {
                    return;
                };
                let revision = self.core.changed().revision;
                let answer = outcome.map(|reply| Answer { reply, revision });
                // A caller that went away does not mind.
                drop(caller.send(answer.map_err(convert::refusal)));
            }
            Effect::Registered {
                stream,
                node,
                cluster,
                incarnation,
            } => {
                let clean = self
                    .core
                    .view()
                    .nodes
                    .get(&node)
                    .is_none_or(|n| n.value.clean);
                tracing::info!(
                    node_id = node.0,
                    incarnation = incarnation.0,
                    "node registered"
                );
                if !clean {
                    tracing::warn!(
                        node_id = node.0,
                        "its machine went down uncleanly: partitions with durability=replicated may \
                         miss their newest records"
                    );
                }
                let timeout = u32::try_from(self.session_timeout.as_millis()).unwrap_or(u32::MAX);
                let revision = convert::wire_revision(&self.core);
                let frame = convert::registered(node, cluster, incarnation, timeout, revision);
                self.to_node(stream, Frame::Registered(frame));
            }
            Effect::HeartbeatAck { stream } => {
                let ack = HeartbeatAck {
                    time_ms: wall_now().0,
                    beat: self.beat,
                    revision: convert::wire_revision(&self.core),
                };
                self.to_node(stream, Frame::HeartbeatAck(ack));
            }
            Effect::Fence { stream, node } => {
                tracing::warn!(
                    node_id = node.0,
                    "a newer process has this node; the old one is told"
                );
                let reason = format!("a newer process has registered as node {node}");
                self.to_node(stream, Frame::Fenced(SessionFenced { reason }));
                self.peers.remove(&stream);
            }
            Effect::Refuse { stream, refusal } => {
                tracing::warn!(%refusal, "a node was refused");
                self.end_stream(stream, convert::refusal(refusal));
            }
            Effect::Probe {
                node,
                incarnation,
                address,
            } => probe::spawn(self.events.clone(), node, incarnation, address),
            Effect::AskEnds { stream, partitions } => {
                self.to_node(
                    stream,
                    Frame::AskReplicaEnds(convert::ask_ends(&partitions)),
                );
            }
            Effect::Recovered {
                partition,
                leader,
                recovered,
            } => self.on_recovered(partition, leader, recovered),
            Effect::Resign => {
                tracing::error!(
                    "most sessions went silent at once: this controller is cut off and resigns"
                );
                self.resigned = true;
            }
            Effect::Close { stream } => {
                let why = "this session is over: register again";
                self.end_stream(stream, Refusal::new(ErrorCode::Unavailable, why));
            }
        }
    }

    fn on_recovered(&self, partition: TopicPartition, leader: NodeId, recovered: Recovered) {
        self.metrics.on_recovered(recovered.unclean);
        tracing::error!(
            %partition,
            leader = leader.0,
            leader_epoch = recovered.epoch.0,
            unclean = recovered.unclean,
            from_offset = recovered.from.map(|from| from.0),
            "a leader was elected from replicas that had lost unflushed bytes: records of earlier \
             epochs that were acknowledged at from_offset and above may be missing"
        );
    }

    fn write(&mut self, changes: Vec<crate::core::Change>) {
        let guards = store::guards(self.core.view(), &changes);
        let (store, leadership) = (self.store.clone(), self.leadership.clone());
        self.write_began = Instant::now();
        self.writing = Some(Box::pin(async move {
            store::write(store.as_ref(), &leadership, &changes, guards).await
        }));
    }

    /// A node that does not read its answers learns nothing; its silence or
    /// ours ends the session.
    fn to_node(&self, stream: StreamId, frame: Frame) {
        if let Some(peer) = self.peers.get(&stream) {
            let _ = peer
                .frames
                .try_send(Ok(NodeSessionResponse { frame: Some(frame) }));
        }
    }

    fn end_stream(&mut self, stream: StreamId, refusal: Refusal) {
        if let Some(peer) = self.peers.remove(&stream) {
            let _ = peer.frames.try_send(Err(refusal.to_status()));
        }
    }
}

impl Drop for Term {
    /// Nodes are told to look for the next controller; callers see their
    /// answer's channel close.
    fn drop(&mut self) {
        for stream in self.peers.keys().copied().collect::<Vec<_>>() {
            self.end_stream(stream, gone());
        }
    }
}

/// Resolves when there is a write and it has ended.
async fn ended<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

fn wall_now() -> TimestampMs {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    TimestampMs(since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX)))
}
