//! The follower's end of a Replicate stream: one task for each node that this
//! one follows partitions of.
//!
//! The stream is opened when there is something to say and again when it
//! breaks; every session that was open on it is told to its core then, which
//! asks anew where its log ends.

use super::{
    CREDIT_BYTES, HEARTBEAT, SILENCE,
    outbox::{CreditBack, Letters, NewNodes, ReplicaFrame, Word},
    wire,
};
use crate::{clock, control::BackOff, node::Node, partition::Command};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use talweg_kit::{
    data_stream::{FrameReceiver, FrameSender, ReplicateMethod, open},
    net::{ChannelOptions, channel},
};
use talweg_log::ReplicaBatch;
use talweg_proto::storage::v1::{
    ReplicaBatches, ReplicaPositions, ReplicaUpdate, ReplicateCredit, ReplicateHeartbeat,
    ReplicateOpen, ReplicateRequest, ReplicateResponse, replica_update::Trouble,
    replicate_request::Frame as Ask, replicate_response::Frame as Answer,
};
use talweg_replication::{Fetched, FetchedBody, SessionTag};
use talweg_types::{LeaderEpoch, NodeId, Offset, TopicPartition};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tonic::{Status, metadata::MetadataMap};

/// Positions in one frame.
const POSITIONS_MAX: usize = 2_000;
/// Credit is granted again in pieces of at least this.
const CREDIT_PIECE: u64 = CREDIT_BYTES / 8;
/// For the leader's first word.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);

/// Starts a puller for each node that somebody follows; runs for as long as the
/// process does.
pub async fn pull(node: Arc<Node>, mut nodes: NewNodes) {
    // Dropped with this task, and they with it.
    let mut pullers = JoinSet::new();
    while let Some((leader, letters)) = nodes.recv().await {
        let puller = Puller {
            node: Arc::clone(&node),
            leader,
            letters,
            credit: Arc::default(),
            sessions: BTreeMap::new(),
            later: BTreeMap::new(),
        };
        pullers.spawn(puller.run());
    }
}

struct Puller {
    node: Arc<Node>,
    leader: NodeId,
    letters: Arc<Letters>,
    /// Over all streams: what an earlier one brought may still wait in a loop.
    credit: Arc<CreditBack>,
    /// Asked for on the present stream.
    sessions: BTreeMap<TopicPartition, SessionTag>,
    /// Fetches that are not to be asked for yet.
    later: BTreeMap<TopicPartition, (Instant, Word)>,
}

struct Stream {
    requests: FrameSender<ReplicateRequest>,
    responses: FrameReceiver<ReplicateResponse>,
    credit: Arc<CreditBack>,
    owed: u64,
}

impl Puller {
    async fn run(mut self) {
        let mut back_off = BackOff::default();
        loop {
            tokio::select! {
                () = self.letters.ready() => {}
                () = sleep_until(self.next_later()), if !self.later.is_empty() => {}
            }
            let begun = Instant::now();
            let ended = match self.connect().await {
                Ok(stream) => self.serve(stream).await,
                Err(status) => {
                    // Whoever cannot be reached needs no goodbye.
                    self.letters.forget_stops();
                    status
                }
            };
            tracing::info!(leader = self.leader.0, status = %ended, "the replication stream broke; opened again");
            self.break_sessions();
            if begun.elapsed() > Duration::from_secs(5) {
                back_off.reset();
            }
            back_off.wait().await;
        }
    }

    /// Every core asks anew.
    fn break_sessions(&mut self) {
        for (tp, session) in std::mem::take(&mut self.sessions) {
            self.tell(tp, Command::FetchBroken { tp, session });
        }
    }

    async fn connect(&self) -> Result<Stream, Status> {
        let credit_bytes = self.credit.room(CREDIT_BYTES, CREDIT_PIECE).await;
        let view = self.node.view.get();
        let known = view.storage_node(self.leader.0);
        let known = known.ok_or_else(|| Status::unavailable("the node is not alive"))?;
        let other = self.node.config.replicates_via(self.leader.0);
        let address = other.unwrap_or(&known.grpc_address);
        let incarnation = self
            .node
            .incarnation()
            .ok_or_else(|| Status::unavailable("not registered"))?;
        let options = ChannelOptions {
            connect_timeout: Duration::from_secs(1),
            keep_alive_interval: Duration::from_secs(2),
            keep_alive_timeout: SILENCE,
            timeout: None,
            ..ChannelOptions::default()
        };
        let channel = channel(address, &options).map_err(|e| Status::unavailable(e.to_string()))?;
        let (requests, mut responses) = open::<ReplicateMethod>(&channel, MetadataMap::new());
        let hello = ReplicateOpen {
            node_id: self.node.id(),
            incarnation: incarnation.0,
            cluster_id: view.cluster_id.clone(),
            leader_node_id: self.leader.0,
            credit_bytes,
        };
        send(&requests, Ask::Open(hello)).await?;
        let first = timeout(OPEN_TIMEOUT, responses.next()).await;
        match first.map_err(|_| Status::deadline_exceeded("the leader did not answer"))? {
            Some(Ok(ReplicateResponse {
                frame: Some(Answer::Opened(_)),
            })) => Ok(Stream {
                requests,
                responses,
                credit: Arc::clone(&self.credit),
                owed: 0,
            }),
            Some(Err(status)) => Err(status),
            _ => Err(Status::internal("the leader did not open the stream")),
        }
    }

    /// Until the stream breaks; why it did.
    async fn serve(&mut self, mut stream: Stream) -> Status {
        let mut heard = Instant::now();
        let mut beat = tokio::time::interval(HEARTBEAT);
        loop {
            let step = tokio::select! {
                biased;
                frame = stream.responses.next() => {
                    heard = Instant::now();
                    match frame {
                        Some(Ok(frame)) => { self.on_frame(&stream, frame); Ok(()) }
                        Some(Err(status)) => Err(status),
                        None => Err(Status::unavailable("the leader ended the stream")),
                    }
                }
                () = stream.credit.returned() => stream.grant().await,
                () = self.letters.ready() => self.say(stream.requests.clone()).await,
                () = sleep_until(self.next_later()), if !self.later.is_empty() => self.say(stream.requests.clone()).await,
                _ = beat.tick() => match heard.elapsed() > SILENCE {
                    true => Err(Status::unavailable("the leader is silent")),
                    false => send(&stream.requests, Ask::Heartbeat(ReplicateHeartbeat {})).await,
                },
            };
            if let Err(status) = step {
                return status;
            }
        }
    }

    fn next_later(&self) -> Instant {
        let first = self.later.values().map(|(at, _)| *at).min();
        first.unwrap_or_else(Instant::now)
    }

    /// Says what waits and is due.
    async fn say(&mut self, requests: FrameSender<ReplicateRequest>) -> Result<(), Status> {
        let mut words = self.letters.take();
        let now = Instant::now();
        // A newer word takes the place of one that was put off.
        self.later.retain(|tp, _| !words.contains_key(tp));
        let clock = clock::monotonic_now();
        words.retain(|tp, word| match word {
            Word::Fetch { fetch, .. } if fetch.not_before > clock => {
                let wait = Duration::from_millis(fetch.not_before.since(clock));
                self.later.insert(*tp, (now + wait, *word));
                false
            }
            _ => true,
        });
        let due: Vec<_> = self
            .later
            .iter()
            .filter(|(_, (at, _))| *at <= now)
            .map(|(tp, _)| *tp)
            .collect();
        words.extend(
            due.into_iter()
                .filter_map(|tp| Some((tp, self.later.remove(&tp)?.1))),
        );
        let mut positions = Vec::with_capacity(words.len());
        for (tp, word) in words {
            match word {
                Word::Fetch { fetch, .. } => drop(self.sessions.insert(tp, fetch.session)),
                Word::Stop => drop(self.sessions.remove(&tp)),
                Word::Report(_) => {}
            }
            positions.push(wire::position(&tp, &word));
        }
        for some in positions.chunks(POSITIONS_MAX) {
            let positions = some.to_vec();
            send(&requests, Ask::Positions(ReplicaPositions { positions })).await?;
        }
        Ok(())
    }

    fn on_frame(&mut self, stream: &Stream, frame: ReplicateResponse) {
        match frame.frame {
            Some(Answer::Batches(batches)) => self.on_batches(stream, batches),
            Some(Answer::Updates(updates)) => {
                updates
                    .updates
                    .into_iter()
                    .for_each(|update| self.on_update(update));
            }
            Some(Answer::Opened(_) | Answer::Heartbeat(_)) | None => {}
        }
    }

    /// The partition that an answer is for, if its session is still open.
    fn session_of(&self, update: &ReplicaUpdate) -> Option<(TopicPartition, SessionTag)> {
        let tp = wire::partition(&update.topic_id, update.partition)?;
        let session = SessionTag(update.session);
        (self.sessions.get(&tp) == Some(&session)).then_some((tp, session))
    }

    fn on_batches(&mut self, stream: &Stream, frame: ReplicaBatches) {
        let bytes = frame.batches.len() as u64;
        let credit = stream.credit.hold(bytes);
        let Some(update) = frame.update else { return };
        let Some((tp, session)) = self.session_of(&update) else {
            return;
        };
        let batches = match ReplicaBatch::check_all(frame.batches) {
            Ok(batches) => batches,
            Err(error) => {
                tracing::error!(partition = %tp, leader = self.leader.0, %error, "a batch from the leader does not fit its checksum; fetched again");
                self.sessions.remove(&tp);
                return self.tell(tp, Command::FetchBroken { tp, session });
            }
        };
        let (Some(first), Some(last)) = (batches.first(), batches.last()) else {
            return;
        };
        let body = FetchedBody::Batches {
            from: first.base_offset(),
            end: last.next_offset(),
            first_epoch: first.epoch(),
            last_epoch: last.epoch(),
            frame: ReplicaFrame {
                batches,
                append_times: wire::marks(&frame.append_times, frame.append_time_ms),
                _credit: credit,
            },
        };
        self.fetched(tp, &update, body);
    }

    fn on_update(&mut self, mut update: ReplicaUpdate) {
        let Some((tp, session)) = self.session_of(&update) else {
            return;
        };
        let (body, sessions) = match update.trouble.take() {
            None => (FetchedBody::Nothing, None),
            Some(Trouble::Diverged(diverged)) => {
                let (epoch, end) = (LeaderEpoch(diverged.epoch), Offset(diverged.end_offset));
                (FetchedBody::Diverged { epoch, end }, None)
            }
            Some(Trouble::BelowStart(below)) => (FetchedBody::BelowStart, Some(below.sessions)),
            Some(Trouble::Refused(error)) => {
                tracing::debug!(partition = %tp, leader = self.leader.0, why = %error.message, "the leader refused a fetch");
                self.sessions.remove(&tp);
                return self.tell(tp, Command::FetchBroken { tp, session });
            }
        };
        if let Some(sessions) = sessions {
            self.tell(tp, Command::SessionsSent { tp, sessions });
        }
        self.fetched(tp, &update, body);
    }

    fn fetched(&self, tp: TopicPartition, update: &ReplicaUpdate, body: FetchedBody<ReplicaFrame>) {
        let fetched = Fetched {
            session: SessionTag(update.session),
            epoch: LeaderEpoch(update.leader_epoch),
            body,
            high_watermark: (update.high_watermark >= 0).then_some(Offset(update.high_watermark)),
            log_start: Offset(update.log_start_offset.max(0)),
        };
        let fetched = Box::new(fetched);
        self.tell(tp, Command::Fetched { tp, fetched });
    }

    fn tell(&self, tp: TopicPartition, command: Command) {
        // A loop that has ended follows nobody.
        let _ = self.node.loops[self.node.owner_of(&tp)].send(command);
    }
}

impl Stream {
    /// Grants again what loops have given back, once it is worth a frame.
    async fn grant(&mut self) -> Result<(), Status> {
        self.owed += self.credit.take();
        if self.owed < CREDIT_PIECE {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.owed);
        send(&self.requests, Ask::Credit(ReplicateCredit { bytes })).await
    }
}

async fn send(requests: &FrameSender<ReplicateRequest>, frame: Ask) -> Result<(), Status> {
    let request = ReplicateRequest { frame: Some(frame) };
    let sent = requests.send(request).await;
    sent.map_err(|_| Status::unavailable("the stream has ended"))
}
