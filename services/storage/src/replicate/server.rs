//! The leader's end of a Replicate stream: compares positions, sends what
//! follows them, passes reports on to the loops.
//!
//! A follower's data is read from the log as its write has returned, before the
//! leader's flush. Nothing here decides what is committed: the loops' cores do,
//! by the reports.

mod cursor;
mod pace;

use super::{HEARTBEAT, LogHistory, SILENCE, wire};
use crate::{
    clock,
    fetch::on_reader,
    node::Node,
    partition::{Command, StreamWaker},
    resolve,
    stream::DrainWatch,
};
use async_trait::async_trait;
use cursor::Cursor;
use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    pin::Pin,
    sync::Arc,
};
use talweg_kit::{
    data_stream::{FrameReceiver, FrameSender, PeerInfo, StreamHandler},
    errors::{ErrorCode, Refusal},
};
use talweg_log::ReadOutcome;
use talweg_proto::storage::v1::{
    ReplicaBatches, ReplicaPosition, ReplicaUpdate, ReplicaUpdates, ReplicateHeartbeat,
    ReplicateOpen, ReplicateOpened, ReplicateRequest, ReplicateResponse,
    replicate_request::Frame as Ask, replicate_response::Frame as Answer,
};
use talweg_replication::{
    FetchEnded, FetchOpened, MonotonicMs, Position, SessionTag, check_position,
};
use talweg_types::{Incarnation, LeaderEpoch, NodeId, Offset, TopicPartition};
use tokio::time::{Instant, sleep_until, timeout};
use tonic::Status;

/// Bytes of one frame; more only for a single batch.
const FRAME_BYTES: usize = 1 << 20;
/// Updates that wait to go out in one frame.
const UPDATES_MAX: usize = 1_000;
/// A follower can have asked for more than all partitions of a node no times.
const CURSORS_MAX: usize = 100_000;

/// Serves Replicate streams.
pub struct ReplicateHandler {
    pub node: Arc<Node>,
}

#[async_trait]
impl StreamHandler<ReplicateRequest, ReplicateResponse> for ReplicateHandler {
    /// Refuses a peer that means another node or cluster, and one whose first
    /// frame is not `open`; ends when the peer is silent or this process stops.
    async fn serve(
        &self,
        _peer: PeerInfo,
        mut requests: FrameReceiver<ReplicateRequest>,
        responses: FrameSender<ReplicateResponse>,
    ) -> Result<(), Status> {
        let first = timeout(SILENCE, requests.next()).await;
        let open = match first.map_err(|_| violation("the open frame did not come in time"))? {
            None => return Ok(()),
            Some(frame) => match frame?.frame {
                Some(Ask::Open(open)) => open,
                _ => return Err(violation("the first frame must open the stream").into()),
            },
        };
        check_open(&self.node, &open)?;
        let server = Server {
            peer: NodeId(open.node_id),
            incarnation: Incarnation(open.incarnation),
            credit: i64::try_from(open.credit_bytes).unwrap_or(i64::MAX),
            outstanding: 0,
            drain: DrainWatch::new(&self.node),
            node: Arc::clone(&self.node),
            requests,
            responses,
            waker: Arc::default(),
            cursors: BTreeMap::new(),
            keys: BTreeMap::new(),
            next_key: 0,
            ready: VecDeque::new(),
            held: BTreeMap::new(),
            updates: BTreeMap::new(),
            reading: None,
            heard: clock::monotonic_now(),
        };
        server.run().await
    }
}

fn violation(what: &str) -> Refusal {
    Refusal::new(ErrorCode::ProtocolViolation, what)
}

fn check_open(node: &Node, open: &ReplicateOpen) -> Result<(), Refusal> {
    let own = node.id();
    if open.leader_node_id != own {
        let message = format!("this is node {own}, not {}", open.leader_node_id);
        return Err(Refusal::new(ErrorCode::NotLeader, message));
    }
    let view = node.view.get();
    if open.cluster_id != view.cluster_id {
        let message = "this node belongs to another cluster";
        return Err(Refusal::new(ErrorCode::ClusterIdMismatch, message));
    }
    if open.node_id == 0 || open.node_id == own || open.incarnation == 0 {
        return Err(Refusal::invalid(
            "open.node_id",
            "must be another node's, with its incarnation",
        ));
    }
    if open.credit_bytes == 0 {
        return Err(Refusal::invalid("open.credit_bytes", "must be above 0"));
    }
    Ok(())
}

/// A read on a worker, for the cursor of this key.
type Reading = Pin<Box<dyn Future<Output = (u32, Offset, Result<ReadOutcome, Refusal>)> + Send>>;

struct Server {
    node: Arc<Node>,
    peer: NodeId,
    incarnation: Incarnation,
    requests: FrameReceiver<ReplicateRequest>,
    responses: FrameSender<ReplicateResponse>,
    /// Granted and not spent; one batch may take it below zero.
    credit: i64,
    outstanding: u64,
    waker: Arc<StreamWaker>,
    cursors: BTreeMap<u32, Cursor>,
    keys: BTreeMap<TopicPartition, u32>,
    next_key: u32,
    /// Cursors with data, whose turn it is next in front.
    ready: VecDeque<u32>,
    /// Cursors with data that a limit holds back, and until when.
    held: BTreeMap<u32, Instant>,
    /// News without data, the newest for each partition.
    updates: BTreeMap<TopicPartition, ReplicaUpdate>,
    reading: Option<Reading>,
    drain: DrainWatch,
    heard: MonotonicMs,
}

/// However the stream ends, what the follower fetched on it is fetched no more.
impl Drop for Server {
    fn drop(&mut self) {
        for cursor in self.cursors.values() {
            let ended = FetchEnded {
                node: self.peer,
                incarnation: self.incarnation,
                session: cursor.session,
                heard: self.heard,
            };
            let (tp, owner) = (cursor.handle.tp, self.node.loop_of(&cursor.handle));
            // A loop that has ended leads nothing.
            let _ = owner.send(Command::FollowerEnded { tp, ended });
        }
    }
}

impl Server {
    async fn run(mut self) -> Result<(), Status> {
        let incarnation = self.node.incarnation().map_or(0, |own| own.0);
        self.send(Answer::Opened(ReplicateOpened { incarnation }))
            .await?;
        let mut heard = Instant::now();
        let mut beat = tokio::time::interval(HEARTBEAT);
        loop {
            let can_send = self.can_send();
            let has_updates = !self.updates.is_empty();
            let (is_held, until) = (!self.held.is_empty(), self.next_held());
            tokio::select! {
                biased;
                // Followers are told by the controller who leads next.
                _ = self.drain.begun() => return Ok(()),
                frame = self.requests.next() => {
                    heard = Instant::now();
                    self.heard = clock::monotonic_now();
                    let Some(frame) = frame else { return Ok(()) };
                    let frame = frame?;
                    if !self.cursors.is_empty() {
                        // A sign of life of one that fetches here.
                        let now = clock::monotonic_now();
                        self.node.contacts.write().node_heard(self.peer, now);
                    }
                    self.on_frame(frame).await?;
                }
                () = self.waker.ready() => self.on_wake(),
                () = sleep_until(until), if is_held => self.release(),
                () = std::future::ready(()), if has_updates => self.send_updates().await?,
                (key, from, read) = wait_for(&mut self.reading) => {
                    self.reading = None;
                    self.on_read(key, from, read).await?;
                }
                _ = beat.tick() => {
                    if heard.elapsed() > SILENCE {
                        return Err(Status::unavailable("the follower is silent"));
                    }
                    self.send(Answer::Heartbeat(ReplicateHeartbeat {})).await?;
                }
                () = std::future::ready(()), if can_send => self.send_next().await?,
            }
        }
    }

    async fn on_frame(&mut self, request: ReplicateRequest) -> Result<(), Status> {
        match request.frame {
            Some(Ask::Positions(positions)) => {
                for position in positions.positions {
                    self.on_position(position).await?;
                }
                Ok(())
            }
            Some(Ask::Credit(credit)) => {
                let bytes = i64::try_from(credit.bytes).unwrap_or(i64::MAX);
                self.credit = self.credit.saturating_add(bytes);
                self.outstanding = self.outstanding.saturating_sub(credit.bytes);
                Ok(())
            }
            Some(Ask::Heartbeat(_)) => Ok(()),
            Some(Ask::Open(_)) => Err(violation("the stream is open already").into()),
            None => Err(violation("a frame without content").into()),
        }
    }

    async fn on_position(&mut self, position: ReplicaPosition) -> Result<(), Status> {
        let Some(tp) = wire::partition(&position.topic_id, position.partition) else {
            return Err(Refusal::invalid("positions.topic_id", "must have 16 bytes").into());
        };
        if position.stop {
            self.remove(&tp);
            return Ok(());
        }
        if !position.seek {
            self.on_report(tp, &position);
            return Ok(());
        }
        self.remove(&tp);
        if let Err(update) = self.seek(tp, &position).await {
            self.updates.insert(tp, *update);
        }
        Ok(())
    }

    /// A report counts for the session that is open here; its epoch is checked
    /// by the core.
    fn on_report(&mut self, tp: TopicPartition, position: &ReplicaPosition) {
        let cursor = self.keys.get(&tp).and_then(|key| self.cursors.get(key));
        if cursor.is_none_or(|cursor| cursor.session != SessionTag(position.session)) {
            return;
        }
        let report = wire::report(self.peer, self.incarnation, position);
        self.tell(tp, Command::Reported { tp, report });
    }

    fn tell(&self, tp: TopicPartition, command: Command) {
        // A loop that has ended leads nothing.
        let _ = self.node.loops[self.node.owner_of(&tp)].send(command);
    }

    /// Begins to send from a position, or says why not.
    async fn seek(
        &mut self,
        tp: TopicPartition,
        position: &ReplicaPosition,
    ) -> Result<(), Box<ReplicaUpdate>> {
        let refused = |refusal: &Refusal| Box::new(wire::trouble(position, wire::refused(refusal)));
        let handle = self.node.partitions.get(&tp);
        let handle = handle.ok_or_else(|| refused(&resolve::not_leading(&self.node, &tp)))?;
        let epoch = handle
            .leads()
            .ok_or_else(|| refused(&resolve::not_leading(&self.node, &tp)))?;
        resolve::check_epoch(Some(position.leader_epoch), epoch).map_err(|why| refused(&why))?;
        if self.cursors.len() >= CURSORS_MAX {
            let message = format!("a stream has at most {CURSORS_MAX} partitions");
            return Err(refused(&Refusal::new(ErrorCode::LimitExceeded, message)));
        }
        let reader = Arc::clone(&handle.reader);
        let start = reader.first_offset();
        let next = Offset(position.log_end_offset);
        let last = LeaderEpoch(position.last_epoch);
        let (log_end, history) = (reader.bounds().log_end, LogHistory(&reader));
        match check_position(&history, start, log_end, last, next) {
            Position::Ok => {}
            Position::Diverged { epoch, end } => {
                return Err(Box::new(wire::trouble(
                    position,
                    wire::diverged(epoch, end),
                )));
            }
            Position::BelowStart { .. } => {
                let reader = Arc::clone(&reader);
                let read = tokio::task::spawn_blocking(move || reader.copy_start()).await;
                let (start, sessions) = match read {
                    Ok(Ok(start)) => start,
                    Ok(Err(error)) => {
                        return Err(refused(&Refusal::unavailable(error.to_string())));
                    }
                    Err(_) => return Err(refused(&Refusal::internal("a read broke off"))),
                };
                let below = wire::below_start(start, sessions);
                return Err(Box::new(wire::trouble(position, below)));
            }
        }
        let opened = FetchOpened {
            node: self.peer,
            epoch,
            incarnation: self.incarnation,
            session: SessionTag(position.session),
        };
        self.tell(tp, Command::FollowerOpened { tp, opened });
        self.next_key = self.next_key.wrapping_add(1);
        let key = self.next_key;
        let session = SessionTag(position.session);
        self.cursors.insert(
            key,
            Cursor::new(handle, epoch, session, next, &self.waker, key),
        );
        self.keys.insert(tp, key);
        self.look(key);
        Ok(())
    }

    fn remove(&mut self, tp: &TopicPartition) {
        self.updates.remove(tp);
        if let Some(key) = self.keys.remove(tp) {
            self.cursors.remove(&key);
            self.ready.retain(|ready| *ready != key);
            self.held.remove(&key);
        }
    }

    fn on_wake(&mut self) {
        let mut keys = Vec::new();
        self.waker.take(&mut keys);
        keys.into_iter().for_each(|key| self.look(key));
    }

    /// Queues a cursor that has data, tells one that has news, ends one whose
    /// leadership has ended; else it waits.
    fn look(&mut self, key: u32) {
        let Some(cursor) = self.cursors.get_mut(&key) else {
            return;
        };
        let tp = cursor.handle.tp;
        if let Err(refusal) = cursor.check(&self.node) {
            let update = cursor.update(Some(wire::refused(&refusal)));
            self.remove(&tp);
            self.updates.insert(tp, update);
            return;
        }
        cursor.arm();
        if cursor.has_data() {
            if !cursor.queued {
                cursor.queued = true;
                self.ready.push_back(key);
            }
        } else if cursor.has_news() {
            let update = cursor.update(None);
            self.updates.insert(tp, update);
        }
    }

    fn can_send(&self) -> bool {
        self.reading.is_none()
            && !self.ready.is_empty()
            && (self.credit > 0 || self.outstanding == 0)
    }

    async fn send_next(&mut self) -> Result<(), Status> {
        let Some(key) = self.ready.pop_front() else {
            return Ok(());
        };
        let Some(cursor) = self.cursors.get_mut(&key) else {
            return Ok(());
        };
        cursor.queued = false;
        if cursor.check(&self.node).is_err() {
            self.look(key);
            return Ok(());
        }
        let (from, reader) = (cursor.next, Arc::clone(&cursor.handle.reader));
        let Some(bytes) = self.frame_bytes(key) else {
            return Ok(());
        };
        match reader.try_read_for_copy(from, bytes) {
            Ok(Some(outcome)) => self.on_read(key, from, Ok(outcome)).await,
            Ok(None) => {
                let node = Arc::clone(&self.node);
                self.reading = Some(Box::pin(async move {
                    let read = move || reader.read_for_copy(from, bytes);
                    (key, from, on_reader(&node, read).await)
                }));
                Ok(())
            }
            Err(error) => {
                self.on_read(key, from, Err(crate::fetch::read_refusal(&error)))
                    .await
            }
        }
    }

    async fn on_read(
        &mut self,
        key: u32,
        from: Offset,
        read: Result<ReadOutcome, Refusal>,
    ) -> Result<(), Status> {
        let Some(cursor) = self
            .cursors
            .get_mut(&key)
            .filter(|cursor| cursor.next == from)
        else {
            return Ok(());
        };
        let tp = cursor.handle.tp;
        let outcome = match read {
            Ok(outcome) => outcome,
            Err(refusal) => {
                tracing::warn!(partition = %tp, follower = self.peer.0, %refusal, "cannot be copied");
                let update = cursor.update(Some(wire::refused(&refusal)));
                self.remove(&tp);
                self.updates.insert(tp, update);
                return Ok(());
            }
        };
        if outcome.batches.is_empty() {
            self.look(key);
            return Ok(());
        }
        cursor.next = outcome.next_offset;
        cursor
            .pace
            .sent(clock::monotonic_now(), outcome.batches.len() as u64);
        let update = cursor.update(None);
        self.updates.remove(&tp);
        let bytes = outcome.batches.len() as u64;
        self.credit = self
            .credit
            .saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.outstanding += bytes;
        self.node.metrics.replicated_out_bytes.inc_by(bytes);
        self.send(Answer::Batches(ReplicaBatches {
            update: Some(update),
            append_time_ms: wire::last_time(&outcome.append_times),
            append_times: wire::append_times(&outcome.append_times),
            batches: outcome.batches,
        }))
        .await?;
        self.look(key);
        Ok(())
    }

    async fn send_updates(&mut self) -> Result<(), Status> {
        let mut updates = Vec::new();
        while updates.len() < UPDATES_MAX
            && let Some((_, update)) = self.updates.pop_first()
        {
            updates.push(update);
        }
        self.send(Answer::Updates(ReplicaUpdates { updates })).await
    }

    async fn send(&mut self, frame: Answer) -> Result<(), Status> {
        let response = ReplicateResponse { frame: Some(frame) };
        let sent = self.responses.send(response).await;
        sent.map_err(|_| Status::cancelled("the follower has gone"))
    }
}

async fn wait_for(reading: &mut Option<Reading>) -> (u32, Offset, Result<ReadOutcome, Refusal>) {
    match reading {
        Some(reading) => reading.await,
        None => std::future::pending().await,
    }
}
