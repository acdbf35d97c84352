//! One Produce stream: one task that takes frames, hands batches to the loops
//! and sends the answers.
//!
//! It holds at most one frame that was not handed on: while that waits for a
//! worker or for room in a mailbox, nothing more is read. Everything accepted
//! is answered before the stream ends, unless its client goes first.

use super::{
    accept::{self, Parts},
    hand_on::{Prepared, Preparing},
    open::{self, Opening},
    pending::{Amount, Answer, Fate, Pending},
    refusals,
};
use crate::{
    node::Node,
    partition::{Completion, Completions, Outcome},
    resolve,
    stream::{CLOSING_TIME, DrainWatch, ms_until, produce_grant, violation},
};
use bytes::Bytes;
use std::{collections::BTreeMap, sync::Arc};
use talweg_kit::{
    data_stream::{Closed, FrameReceiver, FrameSender, PeerInfo},
    errors::{ErrorCode, Refusal},
    net::Grant,
};
use talweg_proto::v1::{
    BatchFrame, Closing, Drain, Heartbeat, ProduceOpened, ProduceRefusal, ProduceRequest,
    ProduceResponse, produce_request, produce_response::Frame,
};
use talweg_types::{TopicPartition, limits};
use tokio::time::Instant;
use tonic::Status;

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

pub struct ProduceStream {
    pub(super) node: Arc<Node>,
    requests: FrameReceiver<ProduceRequest>,
    responses: FrameSender<ProduceResponse>,
    pub(super) opening: Opening,
    pub(super) completions: Arc<Completions>,
    taken: Vec<Completion>,
    pub(super) pending: Pending,
    /// First sequence of each batch's producer, for the words of a refusal.
    pub(super) base_sequences: BTreeMap<u64, i32>,
    pub(super) preparing: Option<Preparing>,
    /// Sequences of the frame that is being prepared.
    pub(super) preparing_sequences: std::ops::Range<u64>,
    next_sequence: u64,
    /// The last frame could not be counted: the next one may begin further on.
    uncounted: bool,
    half_closed: bool,
    drain: DrainWatch,
    next_heartbeat: Instant,
    /// This stream's share of its connection's credit; given back with the stream.
    _grant: Option<Grant>,
}

impl ProduceStream {
    /// Waits for the open frame and answers it; `None` if the client went first.
    pub async fn open(
        node: Arc<Node>,
        peer: &PeerInfo,
        mut requests: FrameReceiver<ProduceRequest>,
        responses: FrameSender<ProduceResponse>,
    ) -> Result<Option<Self>, Status> {
        let Some(opening) = open::receive(&node, &mut requests).await? else {
            return Ok(None);
        };
        let (bytes, grant) = produce_grant(peer)?;
        let granted = Amount {
            bytes,
            records: limits::PRODUCE_CREDIT_RECORDS,
        };
        let opened = Frame::Opened(ProduceOpened {
            credit: Some(granted.into()),
            heartbeat_interval_ms: u32::try_from(node.config.heartbeat_max_ms).unwrap_or(u32::MAX),
            node_id: node.id(),
            delivery_timeout_ms: u32::try_from(opening.delivery_timeout.as_millis())
                .unwrap_or(u32::MAX),
        });
        let mut stream = Self {
            next_heartbeat: Instant::now() + node.heartbeat_wait(),
            drain: DrainWatch::new(&node),
            node,
            requests,
            responses,
            opening,
            completions: Arc::default(),
            taken: Vec::new(),
            pending: Pending::new(granted),
            base_sequences: BTreeMap::new(),
            preparing: None,
            preparing_sequences: 0..0,
            next_sequence: 0,
            uncounted: false,
            half_closed: false,
            _grant: grant,
        };
        let gone = stream.send(opened).await.is_err();
        Ok((!gone).then_some(stream))
    }

    /// Serves until the client is done, has gone or broken the rules, or the
    /// process stops.
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
        loop {
            if self.is_done() {
                if self.drain.deadline().is_some() {
                    self.send(Frame::Closing(Closing {
                        reason: "this node is stopping".into(),
                    }))
                    .await?;
                }
                return Ok(());
            }
            let reading = self.preparing.is_none() && !self.half_closed && !self.drain.is_over();
            let timer = self.next_timer();
            tokio::select! {
                biased;
                () = self.completions.ready() => self.on_completions().await?,
                prepared = wait_for(&mut self.preparing) => self.on_prepared(prepared).await?,
                drain = self.drain.begun() => {
                    let frame = Drain { reason: "this node is stopping".into(), deadline_ms: ms_until(drain.deadline), resume_token: Bytes::new() };
                    self.send(Frame::Drain(frame)).await?;
                }
                () = tokio::time::sleep_until(timer) => self.on_timer().await?,
                frame = self.requests.next(), if reading => match frame {
                    Some(frame) => self.on_frame(frame?).await?,
                    None => self.half_closed = true,
                },
            }
        }
    }

    /// Everything is answered, and no more is to come.
    fn is_done(&self) -> bool {
        let ending = self.half_closed || self.drain.is_over();
        ending && self.preparing.is_none() && self.pending.is_empty()
    }

    fn next_timer(&mut self) -> Instant {
        let drain = self.drain.deadline().filter(|_| !self.drain.is_over());
        let delivery = self.pending.next_deadline();
        [drain, delivery]
            .into_iter()
            .flatten()
            .fold(self.next_heartbeat, Instant::min)
    }

    async fn on_timer(&mut self) -> Result<(), Ended> {
        let now = Instant::now();
        let ms = self.opening.delivery_timeout.as_millis();
        let late = Refusal::new(
            ErrorCode::DeliveryTimeout,
            format!("not committed within {ms} ms"),
        );
        let slots = self.pending.expire(now, &late);
        self.answer(slots.into_iter()).await?;
        if now >= self.next_heartbeat {
            let time_ms = crate::clock::wall_now().0;
            self.send(Frame::Heartbeat(Heartbeat { time_ms })).await?;
        }
        Ok(())
    }

    async fn on_frame(&mut self, request: ProduceRequest) -> Result<(), Ended> {
        match request.frame {
            Some(produce_request::Frame::Batch(frame)) => self.on_batches(frame).await,
            Some(produce_request::Frame::Heartbeat(_)) => Ok(()),
            Some(produce_request::Frame::Records(_)) => {
                Err(resolve::only_gateways(&self.node, "The thin form").into())
            }
            Some(produce_request::Frame::Credentials(_)) => {
                let refusal =
                    Refusal::not_built("Refreshed credentials are not built in this version.");
                self.refuse(None, 0..0, &refusal).await
            }
            Some(produce_request::Frame::Open(_)) => {
                Err(violation("the stream is open already").into())
            }
            None => Err(violation("a frame without content").into()),
        }
    }

    async fn on_batches(&mut self, mut frame: BatchFrame) -> Result<(), Ended> {
        let parts = Parts::of(&mut frame);
        let sequences = parts.sequences();
        let follows = parts.first_sequence == self.next_sequence
            || (self.uncounted && parts.first_sequence > self.next_sequence);
        if !follows || sequences.end == u64::MAX {
            let message = format!(
                "stream sequence {} was due, not {}",
                self.next_sequence, parts.first_sequence
            );
            let refusal = Refusal::new(ErrorCode::InvalidStreamSequence, message).with_field(
                "batch.first_sequence",
                "must continue the stream's sequence",
            );
            return self.refuse(None, sequences, &refusal).await;
        }
        self.next_sequence = sequences.end;
        self.uncounted = parts.rest.is_some();
        let fits = parts.check_size().and_then(|()| self.check_credit(&parts));
        if fits.is_ok() {
            resolve::wait_for_news(&self.node, &frame.topic, &frame.topic_id, frame.partition)
                .await;
        }
        let target = fits.and_then(|()| accept::target(&self.node, &frame, self.opening.acks));
        match target {
            Err(refusal) => self.refuse(None, sequences, &refusal).await,
            Ok(target) => {
                if let Some(refusal) = &parts.rest {
                    let tp = target.handle.tp;
                    self.refuse(Some(tp), sequences.end - 1..sequences.end, refusal)
                        .await?;
                }
                self.prepare(parts, target).await
            }
        }
    }

    async fn on_completions(&mut self) -> Result<(), Ended> {
        let mut taken = std::mem::take(&mut self.taken);
        self.completions.take(&mut taken);
        let mut slots: Vec<u32> = Vec::new();
        for Completion {
            slot,
            sequence,
            outcome,
        } in taken.drain(..)
        {
            let base_sequence = self.base_sequences.remove(&sequence).unwrap_or(-1);
            let Some(tp) = self.pending.partition(slot) else {
                continue;
            };
            let fate = match outcome {
                Outcome::Done {
                    base_offset,
                    append_time,
                    duplicate,
                    reached,
                } => Fate::Done {
                    base_offset,
                    append_time,
                    duplicate,
                    reached,
                },
                Outcome::Refused(why) => {
                    self.node.metrics.refused_batches.inc();
                    Fate::Refused(refusals::refusal(&self.node, &tp, base_sequence, &why))
                }
            };
            if self.pending.decide(slot, sequence, fate) && !slots.contains(&slot) {
                slots.push(slot);
            }
        }
        self.taken = taken;
        self.answer(slots.into_iter()).await
    }

    /// Sends what can be said about these slots.
    pub(super) async fn answer(&mut self, slots: impl Iterator<Item = u32>) -> Result<(), Ended> {
        let mut answers = Vec::new();
        let mut credit = Amount::default();
        for slot in slots {
            self.pending.answers(slot, &mut answers);
        }
        for answer in answers {
            match answer {
                Answer::Ack(ack) => self.send(Frame::BatchAck(ack)).await?,
                Answer::Refusal(refusal) => self.send(Frame::Refusal(refusal)).await?,
                Answer::Credit(amount) => credit += amount,
            }
        }
        if credit != Amount::default() {
            self.send(Frame::Credit(credit.into())).await?;
        }
        Ok(())
    }

    /// Refuses what was never taken in.
    pub(super) async fn refuse(
        &mut self,
        tp: Option<TopicPartition>,
        sequences: std::ops::Range<u64>,
        refusal: &Refusal,
    ) -> Result<(), Ended> {
        self.node
            .metrics
            .refused_batches
            .inc_by(sequences.end - sequences.start);
        let frame = ProduceRefusal {
            topic_id: tp
                .map(|tp| Bytes::copy_from_slice(tp.topic_id.as_bytes()))
                .unwrap_or_default(),
            partition: tp.map(|tp| tp.partition.0),
            sequences: sequences.collect(),
            error: Some(refusal.detail()),
        };
        self.send(Frame::Refusal(frame)).await
    }

    async fn send(&mut self, frame: Frame) -> Result<(), Ended> {
        self.responses
            .send(ProduceResponse { frame: Some(frame) })
            .await?;
        self.next_heartbeat = Instant::now() + self.node.heartbeat_wait();
        Ok(())
    }
}

/// The frame in preparation, if there is one; else never.
async fn wait_for(preparing: &mut Option<Preparing>) -> Result<Prepared, Refusal> {
    match preparing {
        Some(preparing) => preparing.await,
        None => std::future::pending().await,
    }
}
