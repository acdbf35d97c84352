//! One Fetch stream: one task that reads from the leaders over its own streams,
//! holds what the client has credit for, and sends it.
//!
//! Client frames come before data, so that a busy stream hears its client. A
//! partition whose leader moves or restarts waits and goes on by itself; its
//! client hears of it only after `leader_patience_ms`.

use super::{
    credit::FetchCredit,
    open::{self, Opening},
    outgoing::{self, Frame as DataFrame, Next, Outgoing, Payload},
    readers::Readers,
    thin,
    updates::{Asked, Pending, Updates},
};
use crate::{
    node::{Drain, Node},
    streams::{OPEN_TIMEOUT, begun, forced, ms_until, violation},
    token,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use std::{sync::Arc, time::Duration};
use talweg_batch::{BatchError, BatchHeader};
use talweg_client::fetch::{FetchCoreConfig, FetchEvent, FetchUpstream, StartAt};
use talweg_kit::{
    data_stream::{Closed, FrameReceiver, FrameSender},
    errors::{ErrorCode, Refusal},
};
use talweg_proto::v1::{
    self, FetchPartition, FetchRequest, FetchResponse, FetchUpdate, FetchedRecord, Form,
    fetch_request, fetch_response::Frame,
};
use talweg_types::{PartitionIndex, TopicId, TopicPartition, limits};
use tokio::{sync::watch, time::Instant};
use tonic::Status;

/// How long `opened` and `updated` wait for leaders.
const ANSWER_WAIT_MS: u64 = 2_000;
/// Updates that may wait for leaders at a time.
const UPDATES_MAX: usize = 16;
/// Positions in one frame; keeps it below the message limit.
const POSITIONS_A_FRAME: usize = 2_000;
/// A position that moved without data is told after this.
const POSITIONS_PAUSE: Duration = Duration::from_millis(100);
/// Larger batches, and compressed ones above the second, are unpacked on a worker.
const INLINE_BYTES: usize = 256 * 1024;
const INLINE_COMPRESSED_BYTES: usize = 8 * 1024;

/// Why a stream ended before its client ended it.
enum Ended {
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

/// A batch that is being unpacked on a worker.
struct Unpacking {
    partition: TopicPartition,
    due: i64,
    work: BoxFuture<'static, Result<Vec<FetchedRecord>, BatchError>>,
}

pub struct FetchStream {
    node: Arc<Node>,
    requests: FrameReceiver<FetchRequest>,
    responses: FrameSender<FetchResponse>,
    opening: Opening,
    credit: FetchCredit,
    readers: Readers,
    updates: Updates,
    outgoing: Outgoing,
    unpacking: Option<Unpacking>,
    upstream: FetchUpstream,
    half_closed: bool,
    drain: Option<Drain>,
    stops: watch::Receiver<Option<Drain>>,
    next_heartbeat: Instant,
    next_positions: Option<Instant>,
}

impl FetchStream {
    /// Waits for the open frame; `None` if the client ended the stream instead.
    pub async fn open(
        node: Arc<Node>,
        mut requests: FrameReceiver<FetchRequest>,
        responses: FrameSender<FetchResponse>,
    ) -> Result<Option<Self>, Status> {
        let first = tokio::time::timeout(OPEN_TIMEOUT, requests.next()).await;
        let first = first.map_err(|_| Status::from(violation("the open frame did not come")))?;
        let Some(request) = first.transpose()? else {
            return Ok(None);
        };
        let Some(fetch_request::Frame::Open(open)) = request.frame else {
            return Err(violation("the first frame must be `open`").into());
        };
        let opening = Opening::check(&open)?;
        // The credit's sign and size first; what it must hold is known with the topics.
        FetchCredit::open(open.credit.as_ref(), 0)?;
        let core = FetchCoreConfig {
            client_id: opening.client_id.clone(),
            form: Form::Batches,
            isolation: opening.isolation,
            rack: opening.rack.clone(),
            patience_ms: node.config.leader_patience_ms,
            leaders_may_lag: true,
        };
        let upstream = FetchUpstream::new(Arc::new(node.view.clone()), node.pool.clone(), core);
        let mut stream = Self {
            stops: node.watch_drain(),
            next_heartbeat: Instant::now() + node.heartbeat_wait(),
            next_positions: None,
            drain: None,
            half_closed: false,
            opening,
            credit: FetchCredit::open(open.credit.as_ref(), 0)?,
            readers: Readers::default(),
            updates: Updates::default(),
            outgoing: Outgoing::default(),
            unpacking: None,
            upstream,
            node,
            requests,
            responses,
        };
        stream.begin(open)?;
        Ok(Some(stream))
    }

    fn begin(&mut self, open: v1::FetchOpen) -> Result<(), Refusal> {
        let tokens = token::read_fetch(&open.resume_token, &self.node.view.get().cluster_id)?;
        let view = self.node.view.get();
        let named: Vec<TopicPartition> = open
            .partitions
            .iter()
            .filter_map(|it| Some(open::locate(&view, it).ok()?.1))
            .collect();
        let resumed = tokens
            .into_iter()
            .filter(|it| !named.contains(&it.partition))
            .map(|it| FetchPartition {
                topic_id: Bytes::copy_from_slice(it.partition.topic_id.as_bytes()),
                partition: it.partition.partition.0,
                start: Some(StartAt::Offset(it.next_offset).to_proto()),
                last_epoch: (it.last_epoch >= 0).then_some(it.last_epoch),
                ..FetchPartition::default()
            });
        let requests: Vec<FetchPartition> = open.partitions.into_iter().chain(resumed).collect();
        open::check_count(requests.len())?;
        let mut pending = Pending::new(Asked::Open, self.now_ms() + ANSWER_WAIT_MS);
        let mut largest = 0;
        for request in &requests {
            if let Ok((topic, _)) = open::locate(&view, request) {
                largest = largest.max(topic.config.max_message_bytes);
            }
            self.start(request, false, &mut pending);
        }
        self.credit = FetchCredit::open(open.credit.as_ref(), largest)?;
        self.updates.push(pending);
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        self.node.clock.now_ms()
    }

    /// Serves until the client has gone or broken the rules, nothing can follow
    /// any more, or the process stops.
    pub async fn run(mut self) -> Result<(), Status> {
        let forced = forced(self.stops.clone());
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
        loop {
            self.answer_updates().await?;
            self.send_data().await?;
            if let Some(reason) = self.end_reason() {
                return self
                    .send(Frame::Closing(v1::Closing {
                        reason: reason.into(),
                    }))
                    .await;
            }
            self.set_target();
            let reading = !self.half_closed && self.updates.len() < UPDATES_MAX;
            let timer = self.next_timer();
            tokio::select! {
                biased;
                drain = begun(&mut self.stops), if self.drain.is_none() => self.on_drain(drain).await?,
                frame = self.requests.next(), if reading => match frame {
                    Some(frame) => self.on_frame(frame?).await?,
                    None => self.half_closed = true,
                },
                unpacked = wait_for(&mut self.unpacking) => self.on_unpacked(unpacked),
                events = self.upstream.next() => self.on_events(events).await?,
                () = tokio::time::sleep_until(timer) => self.on_timer().await?,
            }
        }
    }

    /// Why nothing more will follow.
    fn end_reason(&self) -> Option<&'static str> {
        if self
            .drain
            .is_some_and(|drain| Instant::now() >= drain.deadline)
        {
            return Some("this gateway is stopping");
        }
        let starved = self.credit.room().is_none() && !self.credit.allows_any();
        let stuck = !self.outgoing.is_empty() && self.unpacking.is_none();
        let nothing = self.readers.is_empty() && self.outgoing.is_empty();
        let idle = self.updates.len() == 0;
        (self.half_closed && idle && (nothing || starved || stuck))
            .then_some("nothing can follow: the client granted no more")
    }

    /// What may be on its way here: what the client has left and we do not hold.
    fn set_target(&mut self) {
        let left = self.credit.left();
        let target = match self.drain.is_some() || left.records <= 0 {
            true => 0,
            false => left.bytes - self.outgoing.bytes(),
        };
        self.upstream.set_target(target);
    }

    fn next_timer(&self) -> Instant {
        let updates = self.updates.next_time().map(|ms| self.node.clock.at(ms));
        let drain = self.drain.map(|drain| drain.deadline);
        // Nothing goes out before the answer to `open`.
        let telling = [Some(self.next_heartbeat), self.next_positions];
        let telling = telling
            .into_iter()
            .flatten()
            .filter(|_| !self.updates.is_opening());
        // One of the first two is there while the stream opens.
        let far = Instant::now() + Duration::from_secs(60);
        [updates, drain]
            .into_iter()
            .flatten()
            .chain(telling)
            .fold(far, Instant::min)
    }

    async fn on_timer(&mut self) -> Result<(), Ended> {
        let now = Instant::now();
        let opening = self.updates.is_opening();
        if !opening
            && (now >= self.next_heartbeat || self.next_positions.is_some_and(|at| now >= at))
        {
            self.send_positions().await?;
        }
        Ok(())
    }

    async fn send_positions(&mut self) -> Result<(), Ended> {
        self.next_positions = None;
        loop {
            let positions = self.readers.take_changed(POSITIONS_A_FRAME);
            let full = positions.len() == POSITIONS_A_FRAME;
            let credit_left = Some(self.credit.left());
            self.send(Frame::Positions(v1::FetchPositions {
                positions,
                credit_left,
            }))
            .await?;
            if !full {
                return Ok(());
            }
        }
    }

    // The client

    async fn on_frame(&mut self, request: FetchRequest) -> Result<(), Ended> {
        match request.frame {
            Some(fetch_request::Frame::Credit(credit)) => Ok(self.credit.grant(credit)?),
            Some(fetch_request::Frame::Update(update)) => {
                self.on_update(update);
                Ok(())
            }
            Some(fetch_request::Frame::Heartbeat(_)) => Ok(()),
            Some(fetch_request::Frame::Credentials(_)) => {
                let refusal =
                    Refusal::not_built("Refreshed credentials are not built in this version.");
                let error = v1::FetchPartitionError {
                    error: Some(refusal.detail()),
                    ..Default::default()
                };
                Ok(self.send(Frame::PartitionError(error)).await?)
            }
            Some(fetch_request::Frame::Open(_)) => {
                Err(violation("the stream is open already").into())
            }
            None => Err(violation("a frame without content").into()),
        }
    }

    fn on_update(&mut self, update: FetchUpdate) {
        for request in &update.remove {
            if let Some(partition) = self.readers.named(request) {
                self.forget(partition);
            }
        }
        let mut pending = Pending::new(
            Asked::Update(update.update_id),
            self.now_ms() + ANSWER_WAIT_MS,
        );
        for request in &update.seek {
            self.start(request, true, &mut pending);
        }
        for request in &update.add {
            self.start(request, false, &mut pending);
        }
        self.updates.push(pending);
    }

    /// Drops everything about a partition.
    fn forget(&mut self, partition: TopicPartition) {
        self.readers.remove(partition);
        self.drop_held(partition);
        self.updates.forget(partition);
        self.upstream.remove(partition);
    }

    fn drop_held(&mut self, partition: TopicPartition) {
        self.outgoing.forget(partition);
        self.unpacking = self.unpacking.take().filter(|it| it.partition != partition);
    }

    /// Begins to read; `moves`: a seek, from wherever it stands.
    fn start(&mut self, request: &FetchPartition, moves: bool, pending: &mut Pending) {
        let view = self.node.view.get();
        let admitted = open::interest(&view, request).and_then(|(reader, interest)| {
            let partition = interest.partition;
            if !moves && self.readers.contains(partition) {
                let message = format!(
                    "partition {} of {:?} is on this stream already",
                    partition.partition, reader.name
                );
                return Err(Refusal::new(ErrorCode::DuplicatePartition, message));
            }
            let known = usize::from(self.readers.contains(partition));
            open::check_count(self.readers.len() + 1 - known)?;
            Ok((reader, interest))
        });
        match admitted {
            Err(refusal) => pending.errors.push(open::refused(request, &refusal)),
            Ok((reader, interest)) => {
                let partition = interest.partition;
                self.drop_held(partition);
                self.updates.forget(partition);
                self.readers.insert(partition, reader);
                pending.wait_for(partition);
                self.upstream.add(interest);
            }
        }
    }

    async fn answer_updates(&mut self) -> Result<(), Ended> {
        while let Some(pending) = self.updates.pop(self.now_ms()) {
            let Pending {
                asked,
                positions,
                errors,
                ..
            } = pending;
            match asked {
                Asked::Open => {
                    let opened = v1::FetchOpened {
                        positions,
                        heartbeat_interval_ms: self.node.heartbeat_interval_ms(),
                        node_id: self.node.id(),
                    };
                    self.send(Frame::Opened(opened)).await?;
                    self.send_errors(errors).await?;
                }
                Asked::Update(update_id) => {
                    self.send_errors(errors).await?;
                    self.send(Frame::Updated(v1::FetchUpdated {
                        update_id,
                        positions,
                    }))
                    .await?;
                }
            }
        }
        Ok(())
    }

    async fn send_errors(&mut self, errors: Vec<v1::FetchPartitionError>) -> Result<(), Ended> {
        for error in errors {
            self.send(Frame::PartitionError(error)).await?;
        }
        Ok(())
    }

    async fn on_drain(&mut self, drain: Drain) -> Result<(), Ended> {
        self.drain = Some(drain);
        // No data follows, so that the token stays true.
        let positions = self.readers.iter().filter_map(|(partition, reader)| {
            Some(token::Position {
                partition: *partition,
                next_offset: reader.position.as_ref()?.next_offset,
                last_epoch: reader.last_epoch,
            })
        });
        let resume_token = token::fetch(
            &self.node.view.get().cluster_id,
            &positions.collect::<Vec<_>>(),
        );
        let frame = v1::Drain {
            reason: "this gateway is stopping".into(),
            deadline_ms: ms_until(drain.deadline),
            resume_token,
        };
        self.send(Frame::Drain(frame)).await
    }

    // The leaders

    async fn on_events(&mut self, events: Vec<FetchEvent>) -> Result<(), Ended> {
        for event in events {
            match event {
                FetchEvent::Started(leader) => self.on_position(&leader, true),
                FetchEvent::Position(leader) => self.on_position(&leader, false),
                FetchEvent::Data(data) => {
                    if let Some(reader) = self.readers.get_mut(data.partition) {
                        reader.held += 1;
                        self.outgoing.push(data, self.opening.thin);
                    }
                }
                FetchEvent::Stopped { partition, refusal } => {
                    if self
                        .readers
                        .get(partition)
                        .is_some_and(|reader| reader.held > 0)
                    {
                        self.outgoing.push_stop(partition, refusal);
                    } else {
                        self.stop(partition, &refusal).await?;
                    }
                }
            }
        }
        Ok(())
    }

    fn on_position(&mut self, leader: &v1::PartitionPosition, started: bool) {
        let Some(topic_id) = TopicId::from_slice(&leader.topic_id) else {
            return;
        };
        let partition = TopicPartition {
            topic_id,
            partition: PartitionIndex(leader.partition),
        };
        let Some(position) = self.readers.on_position(partition, leader) else {
            return;
        };
        let told = started && self.updates.on_started(partition, &position);
        if let Some(reader) = self.readers.get_mut(partition) {
            reader.changed &= !told;
            if reader.changed {
                self.next_positions
                    .get_or_insert_with(|| Instant::now() + POSITIONS_PAUSE);
            }
        }
    }

    /// The partition ends here; the others go on.
    async fn stop(&mut self, partition: TopicPartition, refusal: &Refusal) -> Result<(), Ended> {
        self.upstream.remove(partition);
        let Some(error) = self.readers.stop(partition, refusal) else {
            return Ok(());
        };
        if !self.updates.on_stopped(partition, &error) {
            self.send(Frame::PartitionError(error)).await?;
        }
        Ok(())
    }

    // Data

    /// Sends what the client's credit allows.
    async fn send_data(&mut self) -> Result<(), Ended> {
        while self.unpacking.is_none() && self.drain.is_none() && !self.updates.is_opening() {
            match self.outgoing.next(&self.credit) {
                Next::Wait => return Ok(()),
                Next::Frame(frame) => self.send_frame(frame).await?,
                Next::Unpack {
                    partition,
                    batch,
                    due,
                } => self.unpack(partition, batch, due),
                Next::Passed {
                    partition,
                    position,
                } => self.on_passed(partition, &position),
                Next::Stopped { partition, refusal } => self.stop(partition, &refusal).await?,
            }
        }
        Ok(())
    }

    async fn send_frame(&mut self, frame: DataFrame) -> Result<(), Ended> {
        let Some(reader) = self.readers.get_mut(frame.partition) else {
            return Ok(());
        };
        let position = reader.position_of(&frame.position, frame.next_offset);
        reader.position = Some(position.clone());
        reader.last_epoch = frame.last_epoch;
        reader.changed = false;
        self.credit.spend(frame.payload_bytes, frame.records);
        self.node
            .metrics
            .bytes_out
            .inc_by(frame.payload_bytes as u64);
        let (position, credit_left) = (Some(position), Some(self.credit.left()));
        let frame = match frame.payload {
            Payload::Batches {
                first_offset,
                bytes,
            } => Frame::Batches(v1::FetchedBatches {
                position,
                credit_left,
                first_offset,
                batches: outgoing::compact(bytes),
            }),
            Payload::Records(records) => Frame::Records(v1::FetchedRecords {
                position,
                credit_left,
                records,
            }),
        };
        self.send(frame).await
    }

    fn on_passed(&mut self, partition: TopicPartition, leader: &v1::PartitionPosition) {
        let Some(reader) = self.readers.get_mut(partition) else {
            return;
        };
        reader.held = reader.held.saturating_sub(1);
        let position = reader.position_of(leader, leader.next_offset);
        if reader.position.as_ref().map(|it| it.next_offset) != Some(position.next_offset) {
            reader.position = Some(position);
            reader.changed = true;
            self.next_positions
                .get_or_insert_with(|| Instant::now() + POSITIONS_PAUSE);
        }
    }

    fn unpack(&mut self, partition: TopicPartition, batch: Bytes, due: i64) {
        let max = self
            .readers
            .get(partition)
            .map_or(limits::UNPACKED_BATCH_BYTES_MAX as usize, |it| {
                it.max_unpacked
            });
        let compressed = BatchHeader::parse(&batch).is_ok_and(|header| header.attributes & 7 != 0);
        let slow =
            batch.len() > INLINE_BYTES || (compressed && batch.len() > INLINE_COMPRESSED_BYTES);
        if !slow {
            let records = thin::unpack(&batch, due, max);
            return self.on_unpacked((partition, due, records));
        }
        let work = Box::pin(async move {
            let work = tokio::task::spawn_blocking(move || thin::unpack(&batch, due, max)).await;
            // The worker panicked or the runtime stops: as good as damaged.
            work.unwrap_or(Err(BatchError::TooShort {
                needed: 1,
                actual: 0,
            }))
        });
        self.unpacking = Some(Unpacking {
            partition,
            due,
            work,
        });
    }

    fn on_unpacked(
        &mut self,
        unpacked: (TopicPartition, i64, Result<Vec<FetchedRecord>, BatchError>),
    ) {
        self.unpacking = None;
        let (partition, due, result) = unpacked;
        match result {
            Ok(records) => drop(self.outgoing.on_unpacked(partition, due, records)),
            Err(error) => {
                let next_offset = due;
                let position = v1::PartitionPosition {
                    next_offset,
                    ..Default::default()
                };
                let refusal = outgoing::damaged(due, &position, &error.to_string());
                self.outgoing.forget(partition);
                self.outgoing.push_stop(partition, refusal);
            }
        }
    }

    async fn send(&mut self, frame: Frame) -> Result<(), Ended> {
        self.responses
            .send(FetchResponse { frame: Some(frame) })
            .await?;
        self.next_heartbeat = Instant::now() + self.node.heartbeat_wait();
        Ok(())
    }
}

/// The batch that is being unpacked, if there is one; else never.
async fn wait_for(
    unpacking: &mut Option<Unpacking>,
) -> (TopicPartition, i64, Result<Vec<FetchedRecord>, BatchError>) {
    match unpacking {
        Some(it) => {
            let result = it.work.as_mut().await;
            (it.partition, it.due, result)
        }
        None => std::future::pending().await,
    }
}
