//! One Fetch stream: one task that serves all its partitions in turn.
//!
//! Client frames, wake-ups and time come before data, so that a busy stream
//! hears its client. Reads take what is in memory at once; what must wait for
//! the disk goes to a worker, one at a time, and data waits for it while
//! everything else goes on.

use super::{
    cursor::{self, Cursor},
    open,
    pump::Held,
};
use crate::{
    node::Node,
    partition::StreamWaker,
    repairer,
    stream::{CLOSING_TIME, DrainWatch, ms_until, violation},
};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    pin::Pin,
    sync::Arc,
};
use talweg_kit::{
    data_stream::{Closed, FrameReceiver, FrameSender},
    errors::{ErrorCode, Refusal},
    fetch_credit::FetchCredit,
};
use talweg_log::ReadOutcome;
use talweg_proto::v1::{
    Closing, Drain, FetchOpen, FetchOpened, FetchPartition, FetchPartitionError, FetchPositions,
    FetchRequest, FetchResponse, FetchUpdate, FetchUpdated, PartitionPosition, fetch_request,
    fetch_response::Frame,
};
use talweg_types::{Offset, PartitionIndex, TopicPartition, limits};
use tokio::time::Instant;
use tonic::Status;

/// Positions in one frame; keeps it below the message limit.
const POSITIONS_A_FRAME: usize = 2_000;

/// Why a stream ended before its client ended it.
pub enum Ended {
    /// The client has gone.
    Gone,
    Refused(Status),
}

impl From<Closed> for Ended {
    fn from(_: Closed) -> Self {
        Self::Gone
    }
}

impl From<Refusal> for Ended {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal.into())
    }
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

/// A read on a worker, for the cursor of this key.
pub(super) type Reading =
    Pin<Box<dyn Future<Output = (u32, Offset, Result<ReadOutcome, Refusal>)> + Send>>;

pub struct FetchStream {
    pub(super) node: Arc<Node>,
    requests: FrameReceiver<FetchRequest>,
    responses: FrameSender<FetchResponse>,
    pub(super) credit: FetchCredit,
    waker: Arc<StreamWaker>,
    /// By key; a partition that starts again has a new key.
    pub(super) cursors: BTreeMap<u32, Cursor>,
    by_partition: BTreeMap<TopicPartition, u32>,
    next_key: u32,
    /// Cursors with data, whose turn it is next in front.
    pub(super) ready: VecDeque<u32>,
    /// Read, and waiting for credit.
    pub(super) held: Option<Held>,
    pub(super) reading: Option<Reading>,
    half_closed: bool,
    /// The reader is of this node's rack.
    near: bool,
    drain: DrainWatch,
    next_positions: Instant,
}

impl FetchStream {
    /// Waits for the open frame and answers it; `None` if the client went first.
    pub async fn open(
        node: Arc<Node>,
        mut requests: FrameReceiver<FetchRequest>,
        responses: FrameSender<FetchResponse>,
    ) -> Result<Option<Self>, Status> {
        let Some(open) = open::receive(&node, &mut requests).await? else {
            return Ok(None);
        };
        // The credit's sign and size first; what it must hold is known once the topics are.
        let credit = FetchCredit::open(open.credit.as_ref(), 0)?;
        let mut stream = Self {
            drain: DrainWatch::new(&node),
            next_positions: Instant::now() + node.heartbeat_wait(),
            node,
            requests,
            responses,
            credit,
            waker: Arc::default(),
            cursors: BTreeMap::new(),
            by_partition: BTreeMap::new(),
            next_key: 0,
            ready: VecDeque::new(),
            held: None,
            reading: None,
            half_closed: false,
            near: false,
        };
        match stream.begin(&open).await {
            Ok(()) => Ok(Some(stream)),
            Err(Ended::Gone) => Ok(None),
            Err(Ended::Refused(status)) => Err(status),
        }
    }

    async fn begin(&mut self, open: &FetchOpen) -> Result<(), Ended> {
        self.near = !open.rack.is_empty() && open.rack == self.node.config.rack;
        let mut started = Vec::with_capacity(open.partitions.len());
        for request in &open.partitions {
            started.push(cursor::start(&self.node, request, self.near).await);
        }
        let largest = started
            .iter()
            .flatten()
            .map(|started| started.largest_batch)
            .max()
            .unwrap_or(0);
        self.credit = FetchCredit::open(open.credit.as_ref(), largest)?;
        let (mut positions, mut errors) = (Vec::new(), Vec::new());
        for (request, started) in open.partitions.iter().zip(started) {
            match started.and_then(|started| self.insert(started, request.generation)) {
                Ok(position) => positions.push(position),
                Err(refusal) => errors.push(partition_error(request, &refusal)),
            }
        }
        let opened = FetchOpened {
            positions,
            heartbeat_interval_ms: u32::try_from(self.node.config.heartbeat_max_ms)
                .unwrap_or(u32::MAX),
            node_id: self.node.id(),
        };
        self.send(Frame::Opened(opened)).await?;
        for error in errors {
            self.send(Frame::PartitionError(error)).await?;
        }
        Ok(())
    }

    /// Serves until the client has gone or broken the rules, nothing can follow
    /// any more, or the process stops.
    pub async fn run(mut self) -> Result<(), Status> {
        let node = Arc::clone(&self.node);
        let forced = async {
            let drain = DrainWatch::new(&node).begun().await;
            tokio::time::sleep_until(drain.deadline + CLOSING_TIME).await;
        };
        let ended = tokio::select! {
            biased;
            ended = self.serve() => ended,
            () = forced => Ok(()),
        };
        match ended {
            Ok(()) | Err(Ended::Gone) => Ok(()),
            Err(Ended::Refused(status)) => Err(status),
        }
    }

    async fn serve(&mut self) -> Result<(), Ended> {
        let keys: Vec<u32> = self.cursors.keys().copied().collect();
        for key in keys {
            self.look(key).await?;
        }
        loop {
            if self.drain.is_over() {
                self.send(Frame::Closing(Closing {
                    reason: "this node is stopping".into(),
                }))
                .await?;
                return Ok(());
            }
            if self.half_closed && (self.cursors.is_empty() || self.is_starved()) {
                let reason = "nothing can follow: the client granted no more".into();
                self.send(Frame::Closing(Closing { reason })).await?;
                return Ok(());
            }
            let timer = self
                .drain
                .deadline()
                .map_or(self.next_positions, |at| at.min(self.next_positions));
            let can_send = self.can_send();
            tokio::select! {
                biased;
                drain = self.drain.begun() => {
                    let frame = Drain { reason: "this node is stopping".into(), deadline_ms: ms_until(drain.deadline), resume_token: Bytes::new() };
                    self.send(Frame::Drain(frame)).await?;
                }
                frame = self.requests.next(), if !self.half_closed => match frame {
                    Some(frame) => self.on_frame(frame?).await?,
                    None => self.half_closed = true,
                },
                () = self.waker.ready() => self.on_wake().await?,
                (key, end, read) = wait_for(&mut self.reading) => {
                    self.reading = None;
                    self.on_read(key, end, read).await?;
                }
                () = tokio::time::sleep_until(timer) => self.on_timer().await?,
                () = std::future::ready(()), if can_send => self.send_next().await?,
            }
        }
    }

    async fn on_frame(&mut self, request: FetchRequest) -> Result<(), Ended> {
        match request.frame {
            Some(fetch_request::Frame::Credit(credit)) => Ok(self.credit.grant(credit)?),
            Some(fetch_request::Frame::Update(update)) => self.on_update(update).await,
            Some(fetch_request::Frame::Heartbeat(_)) => Ok(()),
            Some(fetch_request::Frame::Credentials(_)) => {
                let refusal =
                    Refusal::not_built("Refreshed credentials are not built in this version.");
                let error = FetchPartitionError {
                    error: Some(refusal.detail()),
                    ..Default::default()
                };
                self.send(Frame::PartitionError(error)).await
            }
            Some(fetch_request::Frame::Open(_)) => {
                Err(violation("the stream is open already").into())
            }
            None => Err(violation("a frame without content").into()),
        }
    }

    async fn on_update(&mut self, update: FetchUpdate) -> Result<(), Ended> {
        for request in &update.remove {
            if let Some(tp) = self.named(request) {
                self.remove(&tp);
            }
        }
        let (mut positions, mut keys) = (Vec::new(), Vec::new());
        let seeks = update.seek.iter().map(|request| (request, true));
        let adds = update.add.iter().map(|request| (request, false));
        for (request, moves) in seeks.chain(adds) {
            match self.start(request, moves).await {
                Ok((key, position)) => {
                    keys.push(key);
                    positions.push(position);
                }
                Err(refusal) => {
                    self.send(Frame::PartitionError(partition_error(request, &refusal)))
                        .await?
                }
            }
        }
        self.send(Frame::Updated(FetchUpdated {
            update_id: update.update_id,
            positions,
        }))
        .await?;
        for key in keys {
            self.look(key).await?;
        }
        Ok(())
    }

    /// The partition that a request names, if it is on this stream.
    fn named(&self, request: &FetchPartition) -> Option<TopicPartition> {
        let by_name = |tp: &TopicPartition, key: &u32| {
            tp.partition == PartitionIndex(request.partition)
                && (request.topic_id.is_empty()
                    || tp.topic_id.as_bytes()[..] == request.topic_id[..])
                && (!request.topic_id.is_empty()
                    || self
                        .cursors
                        .get(key)
                        .is_some_and(|c| c.topic == request.topic))
        };
        self.by_partition
            .iter()
            .find(|(tp, key)| by_name(tp, key))
            .map(|(tp, _)| *tp)
    }

    async fn start(
        &mut self,
        request: &FetchPartition,
        moves: bool,
    ) -> Result<(u32, PartitionPosition), Refusal> {
        let started = cursor::start(&self.node, request, self.near).await?;
        if moves {
            self.remove(&started.handle.tp);
        }
        let position = self.insert(started, request.generation)?;
        Ok((self.next_key, position))
    }

    fn insert(
        &mut self,
        started: cursor::Started,
        generation: u64,
    ) -> Result<PartitionPosition, Refusal> {
        let tp = started.handle.tp;
        if self.by_partition.contains_key(&tp) {
            let message = format!(
                "partition {} of {:?} is on this stream already",
                tp.partition, started.topic
            );
            return Err(Refusal::new(ErrorCode::DuplicatePartition, message));
        }
        let max = limits::FETCH_PARTITIONS_MAX;
        if self.cursors.len() >= max {
            let message = format!("a stream has at most {max} partitions");
            return Err(Refusal::new(ErrorCode::LimitExceeded, message).with_limit(
                "partitions",
                max as u64,
                max as u64 + 1,
                "partitions",
            ));
        }
        self.next_key = self.next_key.wrapping_add(1);
        let mut cursor = Cursor::new(started, generation, &self.waker, self.next_key);
        let position = cursor.position();
        self.cursors.insert(self.next_key, cursor);
        self.by_partition.insert(tp, self.next_key);
        Ok(position)
    }

    fn remove(&mut self, tp: &TopicPartition) {
        if let Some(key) = self.by_partition.remove(tp) {
            self.cursors.remove(&key);
            self.held = self.held.take().filter(|held| held.key != key);
        }
    }

    /// Stops one partition and says why; the others go on.
    pub(super) async fn stop(&mut self, key: u32, refusal: Refusal) -> Result<(), Ended> {
        let Some(cursor) = self.cursors.get(&key) else {
            return Ok(());
        };
        let refusal = repairer::soften(&self.node, &cursor.handle, refusal);
        let tp = cursor.handle.tp;
        let error = FetchPartitionError {
            topic: cursor.topic.clone(),
            topic_id: Bytes::copy_from_slice(tp.topic_id.as_bytes()),
            partition: tp.partition.0,
            generation: cursor.generation,
            error: Some(refusal.detail()),
        };
        self.remove(&tp);
        self.send(Frame::PartitionError(error)).await
    }

    async fn on_wake(&mut self) -> Result<(), Ended> {
        let mut keys = Vec::new();
        self.waker.take(&mut keys);
        for key in keys {
            self.look(key).await?;
        }
        Ok(())
    }

    /// Looks at a partition: stops it, queues it for its turn, or waits for its data.
    pub(super) async fn look(&mut self, key: u32) -> Result<(), Ended> {
        let Some(cursor) = self.cursors.get_mut(&key) else {
            return Ok(());
        };
        if let Err(refusal) = cursor.check(&self.node) {
            return self.stop(key, refusal).await;
        }
        if cursor.queued {
            return Ok(());
        }
        if cursor.next >= cursor.visible_end() {
            cursor.arm();
            // The watermark may have moved just before it was armed.
            if cursor.next >= cursor.visible_end() {
                return Ok(());
            }
        }
        cursor.queued = true;
        self.ready.push_back(key);
        Ok(())
    }

    async fn on_timer(&mut self) -> Result<(), Ended> {
        if Instant::now() < self.next_positions {
            return Ok(());
        }
        self.next_positions = Instant::now() + self.node.heartbeat_wait();
        let news = self.cursors.values_mut().filter(|cursor| cursor.has_news());
        let mut positions: Vec<PartitionPosition> = news.map(Cursor::position).collect();
        loop {
            let rest = positions.split_off(positions.len().min(POSITIONS_A_FRAME));
            let credit_left = Some(self.credit.left());
            self.send(Frame::Positions(FetchPositions {
                positions,
                credit_left,
            }))
            .await?;
            if rest.is_empty() {
                return Ok(());
            }
            positions = rest;
        }
    }

    pub(super) async fn send(&mut self, frame: Frame) -> Result<(), Ended> {
        Ok(self
            .responses
            .send(FetchResponse { frame: Some(frame) })
            .await?)
    }
}

fn partition_error(request: &FetchPartition, refusal: &Refusal) -> FetchPartitionError {
    FetchPartitionError {
        topic: request.topic.clone(),
        topic_id: request.topic_id.clone(),
        partition: request.partition,
        generation: request.generation,
        error: Some(refusal.detail()),
    }
}

/// The read that is under way, if there is one; else never.
async fn wait_for(reading: &mut Option<Reading>) -> (u32, Offset, Result<ReadOutcome, Refusal>) {
    match reading {
        Some(reading) => reading.await,
        None => std::future::pending().await,
    }
}
