//! One Subscribe stream: one task that moves frames between the client, the
//! leaders, the coordinator and the [`Core`] that decides.
//!
//! Client frames come before data, so that a busy stream hears its member. A
//! coordinator that is out of reach stops nothing that is being delivered.

use super::{
    core::{Answer, Copy, Core, Effect, Event, Request},
    cut::{Rules, cut, runs},
    derived, failed,
    open::{Claim, MemberOptions},
    requests::{self, Who},
};
use crate::{
    fetch::{
        outgoing::Frame as DataFrame,
        readers::Reader,
        reading::{Due, Heard, Reading, Sent},
    },
    groups::{self, Coordinators, Registered},
    node::{Drain, Node},
    streams::{Ended, OPEN_TIMEOUT, begun, forced, ms_until, violation},
    token,
};
use futures::{
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt},
};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use talweg_client::{
    clock::Clock,
    delivery::Routes,
    fetch::{Interest, StartAt},
};
use talweg_kit::{
    data_stream::{FrameReceiver, FrameSender},
    errors::{ErrorCode, Refusal},
};
use talweg_proto::{
    coordinator::v1::{
        DeliveryMode, JoinEvent, MemberProfile, MemberView, converse_request, converse_response,
    },
    v1::{
        self, SubscribeRequest, SubscribeResponse, subscribe_request::Frame as Ask,
        subscribe_response::Frame,
    },
};
use talweg_types::{MemberId, TopicPartition};
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};
use tonic::Status;

/// For a member to get in, and for one of its requests to be answered.
const JOINING: Duration = Duration::from_secs(20);
const ASKING: Duration = Duration::from_secs(30);
/// For the last words of a stream that has ended.
const LAST_WORDS: Duration = Duration::from_secs(5);

type Asking = BoxFuture<'static, Result<Answer, Refusal>>;
type Copying = BoxFuture<'static, (Copy, Result<i64, Refusal>)>;

pub struct Session {
    node: Arc<Node>,
    options: Arc<MemberOptions>,
    requests: FrameReceiver<SubscribeRequest>,
    responses: FrameSender<SubscribeResponse>,
    member: MemberId,
    registered: Registered,
    core: Core,
    reading: Reading,
    /// What the core asked for and is not done yet.
    effects: VecDeque<Effect>,
    asking: Option<Asking>,
    copies: FuturesUnordered<Copying>,
    views: watch::Receiver<u64>,
    drain: Option<Drain>,
    stops: watch::Receiver<Option<Drain>>,
    next_heartbeat: Instant,
    /// The client ended the stream on its side; it is closed then at the latest.
    closed: Option<Instant>,
    /// The coordinator knows that the stream is over.
    over: bool,
}

impl Session {
    /// Waits for the open frame and joins; `None` if the client ended the stream
    /// instead.
    pub async fn open(
        node: Arc<Node>,
        mut requests: FrameReceiver<SubscribeRequest>,
        responses: FrameSender<SubscribeResponse>,
    ) -> Result<Option<Self>, Status> {
        let first = tokio::time::timeout(OPEN_TIMEOUT, requests.next()).await;
        let first = first.map_err(|_| Status::from(violation("the open frame did not come")))?;
        let Some(request) = first.transpose()? else {
            return Ok(None);
        };
        let Some(Ask::Open(open)) = request.frame else {
            return Err(violation("the first frame must be `open`").into());
        };
        let views = node.view.changes();
        let view = node.view.get();
        let (options, credit) = MemberOptions::check(open, &view)?;
        let topics = options.topics(&view);
        let profile = options.profile(topics.names.clone());
        let (registered, member, first_view) = join_or_go(&node, &options, profile).await?;
        let names = {
            let views = node.view.clone();
            move |at: TopicPartition| {
                let view = views.get();
                let topic = view.topic(at.topic_id);
                topic.map_or_else(|| "".into(), |it| it.topic.name.as_str().into())
            }
        };
        let now = node.clock.now_ms();
        let joined = topics.names.clone();
        let mut core = Core::new(options.core.clone(), joined, Arc::new(names), now);
        let epoch = first_view.member_epoch;
        let mut effects = VecDeque::from(core.step(now, Event::View(first_view)));
        effects.extend(core.step(now, Event::Topics(topics)));
        let mut session = Self {
            reading: Reading::new(Arc::clone(&node), options.reading.clone(), credit),
            stops: node.watch_drain(),
            next_heartbeat: Instant::now() + node.heartbeat_wait(),
            options: Arc::new(options),
            registered,
            member,
            core,
            effects,
            asking: None,
            copies: FuturesUnordered::new(),
            views,
            drain: None,
            closed: None,
            over: false,
            node,
            requests,
            responses,
        };
        session.say_opened(epoch).await.ok();
        Ok(Some(session))
    }

    async fn say_opened(&mut self, member_epoch: i32) -> Result<(), Ended> {
        let opened = v1::SubscribeOpened {
            member_id: self.member.to_string(),
            member_epoch,
            resume_token: self.resume_token(),
            heartbeat_interval_ms: self.node.heartbeat_interval_ms(),
        };
        let frame = Some(Frame::Opened(opened));
        Ok(self.responses.send(SubscribeResponse { frame }).await?)
    }

    fn resume_token(&self) -> bytes::Bytes {
        let cluster_id = &self.node.view.get().cluster_id;
        token::subscribe(cluster_id, self.member, &self.options.group)
    }

    /// Serves until the client has gone or broken the rules, the member is out, or
    /// the process stops.
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
            self.act().await?;
            self.send_data().await?;
            if self.core.has_ended() {
                self.over = true;
                return Ok(());
            }
            if let Some(reason) = self.end_reason() {
                return self.close(reason).await;
            }
            self.reading.set_target(self.drain.is_none());
            let timer = self.next_timer();
            tokio::select! {
                biased;
                drain = begun(&mut self.stops), if self.drain.is_none() => self.on_drain(drain).await?,
                frame = self.requests.next(), if self.closed.is_none() => match frame {
                    Some(frame) => self.on_frame(frame?)?,
                    None => self.closed = Some(Instant::now() + LAST_WORDS),
                },
                post = self.registered.mailbox().take() => self.on_post(post),
                answer = wait_for(&mut self.asking) => self.step(Event::Answered(answer)),
                Some((copy, result)) = self.copies.next() => {
                    self.step(Event::Copied { copy, result });
                }
                Ok(()) = self.views.changed() => self.on_new_view(),
                // Before the leaders: a busy stream must still say that it lives.
                () = tokio::time::sleep_until(timer) => self.on_timer().await?,
                heard = self.reading.wait() => self.on_heard(heard),
            }
        }
    }

    fn step(&mut self, event: Event) {
        let now = self.node.clock.now_ms();
        self.effects.extend(self.core.step(now, event));
    }

    /// Why nothing more will follow.
    fn end_reason(&self) -> Option<&'static str> {
        // What it asked for before it closed is still answered.
        let closed = self
            .closed
            .is_some_and(|by| self.core.is_idle() || Instant::now() >= by);
        if closed {
            return Some("the member closed the stream");
        }
        let drain = self.drain.is_some_and(|it| Instant::now() >= it.deadline);
        drain.then_some("this gateway is stopping")
    }

    async fn close(&mut self, reason: &str) -> Result<(), Ended> {
        let reason = reason.into();
        self.send(Frame::Closing(v1::Closing { reason })).await
    }

    fn next_timer(&self) -> Instant {
        let core = self.core.next_deadline().map(|ms| self.node.clock.at(ms));
        let drain = self.drain.map(|drain| drain.deadline);
        [core, drain, self.closed, self.reading.positions_due()]
            .into_iter()
            .flatten()
            .fold(self.next_heartbeat, Instant::min)
    }

    async fn on_timer(&mut self) -> Result<(), Ended> {
        self.step(Event::Tick);
        let now = Instant::now();
        let positions = self.reading.positions_due().is_some_and(|at| now >= at);
        if positions || now >= self.next_heartbeat {
            self.send_positions().await?;
        }
        Ok(())
    }

    async fn send_positions(&mut self) -> Result<(), Ended> {
        loop {
            let (positions, more) = self.reading.take_positions();
            for position in &positions.positions {
                let at = groups::partition_at(&position.topic_id, position.partition);
                if let Some(at) = at {
                    let next = position.next_offset;
                    self.step(Event::Advanced { at, next });
                }
            }
            self.send(Frame::Positions(positions)).await?;
            if !more {
                return Ok(());
            }
        }
    }

    async fn send(&mut self, frame: Frame) -> Result<(), Ended> {
        let frame = Some(frame);
        self.responses.send(SubscribeResponse { frame }).await?;
        self.next_heartbeat = Instant::now() + self.node.heartbeat_wait();
        Ok(())
    }

    // The client

    fn on_frame(&mut self, request: SubscribeRequest) -> Result<(), Ended> {
        match request.frame {
            Some(Ask::Credit(credit)) => {
                self.reading.credit.grant(credit)?;
                self.step(Event::Credited);
                Ok(())
            }
            Some(Ask::Open(_)) => Err(violation("the stream is open already").into()),
            Some(frame) => {
                self.step(Event::Client(frame));
                Ok(())
            }
            None => Err(violation("a frame without content").into()),
        }
    }

    /// No records follow; what was sent can still be acknowledged until the deadline.
    async fn on_drain(&mut self, drain: Drain) -> Result<(), Ended> {
        self.drain = Some(drain);
        let frame = v1::Drain {
            reason: "this gateway is stopping".into(),
            deadline_ms: ms_until(drain.deadline),
            resume_token: self.resume_token(),
        };
        self.send(Frame::Drain(frame)).await
    }

    // The coordinator

    fn on_post(&mut self, post: groups::Post) {
        if let Some(view) = post.view {
            self.step(Event::View(view));
        }
        if post.nudged {
            self.step(Event::Nudged);
        }
        if let Some(removed) = post.removed {
            self.step(Event::Removed(removed));
        }
    }

    /// The group may have more retry topics now.
    fn on_new_view(&mut self) {
        let topics = self.options.topics(&self.node.view.get());
        self.step(Event::Topics(topics));
    }

    // The leaders

    fn on_heard(&mut self, heard: Vec<Heard>) {
        for heard in heard {
            match heard {
                Heard::Started(at, position) => {
                    self.reading.tell_later(at);
                    let next = position.next_offset;
                    self.step(Event::Started { at, next });
                }
                Heard::Stopped(at, refusal) => {
                    self.reading.remove(at);
                    self.step(Event::Stopped { at, refusal });
                }
            }
        }
    }

    /// Sends what the client's credit allows.
    async fn send_data(&mut self) -> Result<(), Ended> {
        while self.drain.is_none() && !self.core.has_ended() {
            match self.reading.next_due() {
                None => break,
                Some(Due::Stopped(at, refusal)) => {
                    self.reading.remove(at);
                    self.step(Event::Stopped { at, refusal });
                }
                Some(Due::Frame(frame)) => self.send_frame(frame).await?,
            }
            self.act().await?;
        }
        Ok(())
    }

    fn rules(&self, at: TopicPartition) -> Rules {
        let part = self.core.part(at);
        let one_by_one = part.is_some_and(|part| part.mode == DeliveryMode::OneByOne);
        let view = self.node.view.get();
        let topic = view.topic(at.topic_id);
        let retry = topic.is_some_and(|it| derived::is_retry_of(it, &self.options.group));
        Rules {
            one_by_one,
            due_by: retry.then(Clock::wall_ms),
            max_unpacked: topic.map_or(0, |it| it.config.max_unpacked_batch_bytes as usize),
        }
    }

    async fn send_frame(&mut self, frame: DataFrame) -> Result<(), Ended> {
        let at = frame.partition;
        let rules = self.rules(at);
        let (frame, not_due) = cut(frame, rules);
        if let Some(frame) = frame {
            let runs = runs(&frame, rules.max_unpacked);
            let (to, epoch) = (frame.next_offset, frame.last_epoch);
            match self.reading.send(frame) {
                Some(Sent::Records(records)) => self.send(Frame::Records(records)).await?,
                Some(Sent::Batches(batches)) => self.send(Frame::Batches(batches)).await?,
                None => return Ok(()),
            }
            self.step(Event::Sent {
                at,
                runs,
                to,
                epoch,
            });
        }
        if let Some(not_due) = not_due {
            self.step(Event::NotDue {
                at,
                next: not_due.next,
                wait_ms: not_due.wait_ms,
            });
        }
        Ok(())
    }

    // The core

    async fn act(&mut self) -> Result<(), Ended> {
        while let Some(effect) = self.effects.pop_front() {
            match effect {
                Effect::Read {
                    at,
                    start,
                    last_epoch,
                    generation,
                } => self.read(at, start, last_epoch, generation),
                Effect::Stop(at) => drop(self.reading.remove(at)),
                Effect::Tell(frame) => {
                    if let Frame::Gap(gap) = &frame {
                        self.node.metrics.gap_told(gap.records_lost);
                    }
                    self.send(frame).await?;
                }
                Effect::Warn(refusal) => {
                    let (group, member) = (&self.options.group, self.member);
                    tracing::warn!(%group, %member, %refusal, "a member lacks something");
                }
                Effect::Request(request) => self.ask(request),
                Effect::Copy(copy) => {
                    let (node, options) = (Arc::clone(&self.node), Arc::clone(&self.options));
                    self.copies
                        .push(Box::pin(failed::copy(node, options, copy)));
                }
                Effect::End { refusal, reason } => {
                    if let Some(refusal) = refusal {
                        self.send(Frame::Error(refusal.detail())).await?;
                    }
                    self.close(reason).await?;
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, at: TopicPartition, start: StartAt, last_epoch: i32, generation: u64) {
        let view = self.node.view.get();
        let Some(topic) = view.topic(at.topic_id) else {
            return self.step(Event::Unknown { at });
        };
        let name: Arc<str> = topic.topic.name.as_str().into();
        let reader = Reader::new(String::new(), Arc::clone(&name), generation, &topic.config);
        let interest = Interest {
            partition: at,
            topic: name,
            start,
            leader_epoch: None,
            // Only where we say which offset follows it.
            last_epoch: matches!(start, StartAt::Offset(_))
                .then_some(last_epoch)
                .filter(|it| *it >= 0),
            largest_batch: topic.config.max_message_bytes,
        };
        self.reading.start(reader, interest);
    }

    fn who(&self) -> Who {
        Who {
            member: self.member,
            epoch: self.core.epoch(),
        }
    }

    fn ask(&mut self, request: Request) {
        let profile = |topics| self.options.profile(topics);
        let event = self.who().event(request, profile);
        let coordinators = self.node.coordinators.clone();
        let group = self.options.group.clone();
        self.asking = Some(Box::pin(async move {
            let what = coordinators.request(&group, event, ASKING).await?;
            requests::answer(what)
        }));
    }
}

/// However the stream ends, its coordinator hears of it; what was acknowledged
/// and is not stored yet is stored before.
impl Drop for Session {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let who = self.who();
        let store = self.core.unstored();
        // After a close by the client nothing is suspect, nor while we stop.
        let calm = self.closed.is_some() || self.drain.is_some();
        let in_flight = if calm {
            Vec::new()
        } else {
            self.core.in_flight()
        };
        let (coordinators, group) = (self.node.coordinators.clone(), self.options.group.clone());
        // Without a runtime the process is going, and the coordinator sees that.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            last_words(&coordinators, &group, who, store, &in_flight).await;
        });
    }
}

async fn last_words(
    coordinators: &Coordinators,
    group: &str,
    who: Who,
    store: Option<Request>,
    in_flight: &[TopicPartition],
) {
    if let Some(store) = store {
        let event = who.event(store, |_| Default::default());
        let stored = coordinators.request(group, event, LAST_WORDS).await;
        tracing::debug!(ok = stored.is_ok(), "last acknowledgements of a stream");
    }
    let told = coordinators
        .request(group, who.broken(in_flight), LAST_WORDS)
        .await;
    tracing::debug!(ok = told.is_ok(), "the end of a stream");
}

type Joined = (Registered, MemberId, MemberView);

/// Joins to the end, also if the client has gone meanwhile: else its name would be
/// taken by a stream that nobody holds until the session is over.
async fn join_or_go(
    node: &Arc<Node>,
    options: &MemberOptions,
    profile: MemberProfile,
) -> Result<Joined, Refusal> {
    let (tell, told) = oneshot::channel();
    let (node, group, claim) = (Arc::clone(node), options.group.clone(), options.claim);
    tokio::spawn(async move {
        let joined = join(&node, &group, claim, profile).await;
        if let Err(Ok((_registered, member, view))) = tell.send(joined) {
            let epoch = view.member_epoch;
            let who = Who { member, epoch };
            last_words(&node.coordinators, &group, who, None, &[]).await;
        }
    });
    let ended = |_| Err(Refusal::unavailable("the gateway is stopping"));
    told.await.unwrap_or_else(ended)
}

/// A token of a member that the group does not know any more joins anew.
async fn join(
    node: &Node,
    group: &str,
    mut claim: Option<Claim>,
    profile: MemberProfile,
) -> Result<Joined, Refusal> {
    let fresh = MemberId(uuid::Uuid::now_v7());
    loop {
        let member = claim.map_or(fresh, |claim| claim.member);
        // Before the join: the first words unasked may come right behind the answer.
        let registered = node.coordinators.register(group, member);
        let event = converse_request::Event::Join(JoinEvent {
            new_member_id: groups::member_bytes(fresh),
            claim: claim
                .map(|claim| groups::member_bytes(claim.member))
                .unwrap_or_default(),
            profile: Some(profile.clone()),
        });
        let joined = node.coordinators.request(group, event, JOINING).await;
        match joined {
            Ok(converse_response::What::View(view)) => return Ok((registered, member, view)),
            Ok(_) => return Err(Refusal::internal("the coordinator did not answer the join")),
            Err(refusal)
                if refusal.code == ErrorCode::UnknownMember
                    && claim.is_some_and(|claim| !claim.strict) =>
            {
                claim = None;
            }
            Err(refusal) => return Err(refusal),
        }
    }
}

/// The request under way, if there is one; else never.
async fn wait_for(asking: &mut Option<Asking>) -> Result<Answer, Refusal> {
    match asking {
        Some(it) => {
            let answer = it.await;
            *asking = None;
            answer
        }
        None => std::future::pending().await,
    }
}
