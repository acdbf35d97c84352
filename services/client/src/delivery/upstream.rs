//! Drives a [`DeliveryCore`] over real streams: one per leader and acks,
//! opened on first need, opened again after they break, never used again after
//! a drain. The caller's task does all the work, inside [`Upstream::next`].

use super::batch::{Batch, LinkId, Settled};
use super::core::{DeliveryCore, Want};
use super::link::{Link, LinkKey};
use super::routes::{Route, Routes, Target};
use crate::{
    backoff::Backoff,
    clock::Clock,
    pool::{ChannelPool, Traffic},
};
use bytes::Bytes;
use futures::stream::{BoxStream, SelectAll, StreamExt, abortable};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use talweg_kit::{data_stream, errors::Refusal};
use talweg_proto::v1::{self, produce_request, produce_response::Frame};
use talweg_types::{Acks, TopicPartition, limits};
use tokio::sync::watch;
use tonic::Status;

/// How often time-outs and waiting lanes are looked at, and without any.
const TICK_MS: u64 = 20;
const IDLE_TICK_MS: u64 = 1_000;
/// A link that says nothing for this long is given up.
const SILENCE_MS: u64 = 3 * limits::HEARTBEAT_MS_RANGE.1;

/// What happened on a link.
struct LinkEvent {
    link: LinkId,
    what: What,
}

enum What {
    Frame(Frame),
    /// The last event of a link.
    Ended(Result<(), Status>),
}

/// When a target may be dialled again.
struct Dial {
    backoff: Backoff,
    at_ms: u64,
}

/// Settings of an [`Upstream`].
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    pub client_id: String,
    /// Told to the servers; the batches carry their own deadlines.
    pub delivery_timeout: Duration,
}

/// Batches on their way to leaders.
pub struct Upstream {
    core: DeliveryCore,
    links: BTreeMap<LinkId, Link>,
    /// The link in use for each key; links that drain are only in `links`.
    current: BTreeMap<LinkKey, LinkId>,
    dials: BTreeMap<LinkKey, Dial>,
    events: SelectAll<BoxStream<'static, LinkEvent>>,
    next_link: u64,
    acks: BTreeMap<TopicPartition, Acks>,
    /// Lanes whose link was full.
    blocked: BTreeSet<TopicPartition>,
    routes: Arc<dyn Routes>,
    changes: watch::Receiver<u64>,
    pool: ChannelPool,
    config: UpstreamConfig,
    clock: Clock,
    renumber_wanted: BTreeSet<TopicPartition>,
    ticked_ms: u64,
}

impl Upstream {
    /// `seed` spreads retries.
    pub fn new(
        routes: Arc<dyn Routes>,
        pool: ChannelPool,
        config: UpstreamConfig,
        clock: Clock,
        seed: u64,
    ) -> Self {
        Self {
            core: DeliveryCore::new(routes.to_leaders(), seed),
            links: BTreeMap::new(),
            current: BTreeMap::new(),
            dials: BTreeMap::new(),
            events: SelectAll::new(),
            next_link: 1,
            acks: BTreeMap::new(),
            blocked: BTreeSet::new(),
            changes: routes.changes(),
            routes,
            pool,
            config,
            clock,
            renumber_wanted: BTreeSet::new(),
            ticked_ms: 0,
        }
    }

    /// Takes a batch. What is already in flight for the partition keeps its
    /// acks; these count from the next idle moment of the partition.
    pub fn offer(&mut self, partition: TopicPartition, acks: Acks, batch: Batch) {
        // Acks 0 is answered to us as acks 1, so that credit and order work.
        let acks = acks.max(Acks::One);
        self.acks.insert(partition, acks);
        self.core.offer(partition, batch);
    }

    /// Batches without an answer.
    pub fn unanswered(&self) -> u64 {
        self.core.unanswered()
    }

    /// A numbered batch for this partition would be sent at once.
    pub fn has_room(&self, partition: TopicPartition) -> bool {
        self.core.has_room(partition)
    }

    /// Nothing for this partition is unanswered.
    pub fn is_idle(&self, partition: TopicPartition) -> bool {
        self.core.is_idle(partition)
    }

    /// Partitions whose batches have to be numbered anew; call
    /// [`Self::renumber`] for each.
    pub fn take_renumber(&mut self) -> BTreeSet<TopicPartition> {
        std::mem::take(&mut self.renumber_wanted)
    }

    /// Numbers what is left of the partition anew.
    pub fn renumber(
        &mut self,
        partition: TopicPartition,
        stamp: impl FnMut(&Batch) -> Option<Bytes>,
    ) {
        self.core.renumber(partition, stamp);
    }

    /// Sends what can be sent. Call it after [`Self::offer`]; [`Self::next`]
    /// does so too.
    pub fn pump(&mut self) {
        let now = self.clock.now_ms();
        for partition in self.core.take_ready() {
            self.pump_lane(partition, now);
        }
    }

    fn pump_lane(&mut self, partition: TopicPartition, now: u64) {
        if self.core.retry_at(partition) > now {
            return;
        }
        let target = match self.routes.route(partition) {
            Route::To(target) => target,
            Route::Wait(refusal) => return self.core.no_route(partition, Some(refusal), now + 500),
            Route::Gone(refusal) => return self.core.fail(partition, &refusal),
        };
        let acks = self.acks.get(&partition).copied().unwrap_or(Acks::All);
        let replaced = self.is_replaced(partition, &target);
        let Some(link) = self.link_for(LinkKey { target, acks }, now) else {
            return;
        };
        if replaced && self.links.get(&link).is_some_and(Link::is_open) {
            self.core.abandon(partition, link, now);
        }
        loop {
            match self.core.next(partition, link, now) {
                Want::Nothing => return,
                Want::Renumber => {
                    self.renumber_wanted.insert(partition);
                    return;
                }
                Want::Send(batch) => {
                    let sent = self
                        .links
                        .get_mut(&link)
                        .and_then(|l| l.send(partition, &batch, now));
                    match sent {
                        Some(sequence) => self.core.mark_sent(partition, link, sequence),
                        None => {
                            self.blocked.insert(partition);
                            return;
                        }
                    }
                }
            }
        }
    }

    /// Batches are in flight to a node that no longer leads; `leader` does. What
    /// drains answers all it has before it ends.
    fn is_replaced(&self, partition: TopicPartition, leader: &Target) -> bool {
        let link = self.core.link_of(partition);
        let link = link.and_then(|link| self.links.get(&link));
        self.routes.to_leaders()
            && link.is_some_and(|link| !link.draining && link.key.target.node != leader.node)
    }

    /// The link in use, or a new one if the target may be dialled.
    fn link_for(&mut self, key: LinkKey, now: u64) -> Option<LinkId> {
        if let Some(link) = self.current.get(&key) {
            return Some(*link);
        }
        if self.dials.get(&key).is_some_and(|dial| dial.at_ms > now) {
            return None;
        }
        match self.open(&key, now) {
            Ok(link) => Some(link),
            Err(refusal) => {
                tracing::warn!(address = %key.target.address, %refusal, "cannot dial");
                self.hold_off(&key, now, 0);
                None
            }
        }
    }

    fn open(&mut self, key: &LinkKey, now: u64) -> Result<LinkId, Refusal> {
        let lease = self.pool.lease(&key.target.address, Traffic::Produce)?;
        let (sender, receiver) =
            data_stream::open_produce(lease.channel(), tonic::metadata::MetadataMap::new());
        let id = LinkId(self.next_link);
        self.next_link += 1;
        let frames = futures::stream::unfold(Some(receiver), move |receiver| async move {
            let mut receiver = receiver?;
            let (what, rest) = match receiver.next().await {
                Some(Ok(v1::ProduceResponse { frame: Some(frame) })) => {
                    (What::Frame(frame), Some(receiver))
                }
                // A frame of a newer server that we do not know.
                Some(Ok(v1::ProduceResponse { frame: None })) => (
                    What::Frame(Frame::Heartbeat(v1::Heartbeat::default())),
                    Some(receiver),
                ),
                Some(Err(status)) => (What::Ended(Err(status)), None),
                None => (What::Ended(Ok(())), None),
            };
            Some((LinkEvent { link: id, what }, rest))
        });
        let (frames, reader) = abortable(frames);
        self.events.push(frames.boxed());
        let mut link = Link::new(id, key.clone(), sender, reader, lease, now);
        link.put(produce_request::Frame::Open(self.open_frame(key.acks)), now);
        self.links.insert(id, link);
        self.current.insert(key.clone(), id);
        Ok(id)
    }

    fn open_frame(&self, acks: Acks) -> v1::ProduceOpen {
        let acks = match acks {
            Acks::Zero | Acks::One => v1::Acks::Leader,
            Acks::All => v1::Acks::All,
        };
        v1::ProduceOpen {
            client_id: self.config.client_id.clone(),
            acks: acks.into(),
            delivery_timeout_ms: u32::try_from(self.config.delivery_timeout.as_millis())
                .unwrap_or(0),
            ..v1::ProduceOpen::default()
        }
    }

    fn hold_off(&mut self, key: &LinkKey, now: u64, advice_ms: u32) {
        let dial = self.dials.entry(key.clone()).or_insert_with(|| Dial {
            backoff: Backoff::new(Duration::from_millis(20), Duration::from_millis(1_000)),
            at_ms: 0,
        });
        let pause = u64::try_from(dial.backoff.pause(advice_ms).as_millis()).unwrap_or(u64::MAX);
        dial.at_ms = now.saturating_add(pause);
    }

    /// Works until something ended or has to be renumbered; then
    /// [`Self::take_settled`] or [`Self::take_renumber`] have it. Dropping the
    /// future loses nothing.
    pub async fn next(&mut self) {
        loop {
            self.pump();
            if self.core.has_settled() || !self.renumber_wanted.is_empty() {
                return;
            }
            let busy = self.core.unanswered() > 0 || !self.links.is_empty();
            let tick = if self.core.unanswered() > 0 {
                TICK_MS
            } else {
                IDLE_TICK_MS
            };
            let due = self.ticked_ms + tick;
            if busy && self.clock.now_ms() >= due {
                self.on_tick();
                continue;
            }
            tokio::select! {
                biased;
                Some(event) = self.events.next() => self.on_event(event),
                Ok(()) = self.changes.changed() => self.core.wake_all(),
                () = tokio::time::sleep_until(self.clock.at(due)), if busy => {}
                else => std::future::pending().await,
            }
        }
    }

    /// What ended, in order for each partition.
    pub fn take_settled(&mut self) -> Vec<Settled> {
        self.core.take_settled()
    }

    fn on_event(&mut self, event: LinkEvent) {
        let now = self.clock.now_ms();
        if let Some(link) = self.links.get_mut(&event.link) {
            link.heard_ms = now;
        }
        match event.what {
            What::Frame(frame) => self.on_frame(event.link, frame, now),
            What::Ended(result) => self.on_ended(event.link, result, now),
        }
        for partition in std::mem::take(&mut self.blocked) {
            self.core.set_ready(partition);
        }
    }

    fn on_frame(&mut self, id: LinkId, frame: Frame, now: u64) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        match frame {
            Frame::Opened(opened) => {
                link.on_opened(&opened);
                self.dials.remove(&link.key);
                self.core.set_all_ready();
            }
            Frame::BatchAck(ack) => link.on_answer(self.core.on_ack(id, &ack)),
            Frame::Refusal(refusal) => {
                let why = Refusal::from_detail(refusal.error.unwrap_or_default());
                link.on_answer(self.core.on_refusal(id, &refusal.sequences, &why, now));
            }
            Frame::Drain(drain) => {
                tracing::debug!(reason = drain.reason, address = %link.key.target.address, "link drains");
                link.drain();
                let key = link.key.clone();
                self.current.remove(&key);
                self.routes.avoid(&key.target);
                self.hold_off(&key, now, 0);
            }
            Frame::Throttle(throttle) => {
                let until = now + u64::from(throttle.delay_ms);
                tracing::debug!(until, reason = throttle.reason, "link is throttled");
            }
            // Batches are acknowledged as batches; we ask for acks 1 or all.
            Frame::RecordsAck(_) | Frame::Credit(_) | Frame::Heartbeat(_) | Frame::Closing(_) => {}
        }
    }

    fn on_ended(&mut self, id: LinkId, result: Result<(), Status>, now: u64) {
        let Some(link) = self.links.remove(&id) else {
            return;
        };
        self.core.on_broken(id, now);
        if self.current.get(&link.key) == Some(&id) {
            self.current.remove(&link.key);
        }
        let advice = match result {
            Ok(()) => 0,
            Err(status) => {
                let refusal = Refusal::from_status(&status);
                tracing::debug!(%refusal, address = %link.key.target.address, "link broke");
                refusal.retry_after_ms
            }
        };
        if !link.draining {
            self.routes.avoid(&link.key.target);
            self.hold_off(&link.key, now, advice);
        }
        self.core.set_all_ready();
    }

    fn on_tick(&mut self) {
        let now = self.clock.now_ms();
        self.ticked_ms = now;
        self.core.tick(now);
        self.core.set_all_ready();
        let silent: Vec<LinkId> = self
            .links
            .values()
            .filter(|link| now.saturating_sub(link.heard_ms) > SILENCE_MS)
            .map(|link| link.id)
            .collect();
        for id in silent {
            self.on_ended(id, Err(Status::unavailable("the link is silent")), now);
        }
        let wall = Clock::wall_ms();
        for link in self.links.values_mut() {
            let quiet = now.saturating_sub(link.said_ms);
            if link.is_open() && quiet > limits::HEARTBEAT_MS_RANGE.0 {
                link.heartbeat(wall, now);
            }
        }
    }
}

/// The target that a caller outside may want to see in logs.
impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let targets: Vec<&Target> = self.current.keys().map(|key| &key.target).collect();
        f.debug_struct("Upstream")
            .field("targets", &targets)
            .finish_non_exhaustive()
    }
}
