//! One Fetch stream: one task that reads from the leaders over its own streams,
//! holds what the client has credit for, and sends it.
//!
//! Client frames come before data, so that a busy stream hears its client. A
//! partition whose leader moves or restarts waits and goes on by itself; its
//! client hears of it only after `leader_patience_ms`.

mod client;
mod data;

use super::{
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
    fetch_credit::FetchCredit,
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
