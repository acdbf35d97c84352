//! The task that owns a shard: takes it, then feeds its core and does what the
//! core says, until the shard is lost.

use super::{
    Command, LOADING, OVER, SERVING, Seen, ShardHandle,
    answers::committed_partitions,
    appending::{InFlight, append_end},
    commits::Parking,
    converse::Routes,
    keeping::Keeping,
    pace::Pace,
    take::{AGAIN, Taken, is_final, take},
    waiters::Waiter,
};
use crate::{node::Node, producer::Producer, refusals};
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use talweg_client::backoff::Backoff;
use talweg_coordinator_runtime::{Input, Output, Shard};
use talweg_group::{Event, Group, Topics};
use talweg_proto::coordinator::v1::converse_response::What;
use talweg_types::{MonotonicMs, TopicId, keeps_replay};
use tokio::sync::mpsc;

/// The kept view is written, and figures are taken.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Offsets expire.
const EXPIRY_EVERY: u32 = 60;
/// For the append in flight, when the shard is given up.
const LAST_APPEND: Duration = Duration::from_millis(200);
/// Commands taken before other things are looked at.
const AT_ONCE: usize = 256;

pub async fn run(node: Arc<Node>, handle: Arc<ShardHandle>, mut mailbox: mpsc::Receiver<Command>) {
    while let Some(taken) = take_until_done(&node, &handle).await {
        let task = Task::new(Arc::clone(&node), Arc::clone(&handle), taken);
        if task.serve(&mut mailbox).await != Ended::TakeAgain {
            break;
        }
        handle.set_phase(LOADING);
    }
    handle.set_phase(OVER);
    mailbox.close();
    while let Ok(command) = mailbox.try_recv() {
        refuse(command, handle.at.partition.0);
    }
    handle.ended.send_replace(true);
    node.shards.look();
}

/// How serving ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The shard is another's, or given up.
    Over,
    /// The log does not take our numbers any more: a fence and new ones are needed.
    TakeAgain,
}

async fn take_until_done(node: &Node, handle: &ShardHandle) -> Option<Taken> {
    let begun = Instant::now();
    let mut backoff = Backoff::new(AGAIN.0, AGAIN.1);
    debug_assert_eq!(
        handle.phase.load(std::sync::atomic::Ordering::Relaxed),
        LOADING
    );
    loop {
        let taken = tokio::select! {
            biased;
            () = handle.drop_it.cancelled() => return None,
            taken = take(node, handle.at, handle.epoch) => taken,
        };
        let refusal = match taken {
            Ok(taken) => {
                node.metrics
                    .load_seconds
                    .observe(begun.elapsed().as_secs_f64());
                let groups = taken.shard.machines().count();
                tracing::info!(at = %handle.at, epoch = handle.epoch.0, groups, "a shard is served");
                return Some(taken);
            }
            Err(refusal) => refusal,
        };
        if is_final(&refusal) {
            tracing::info!(at = %handle.at, epoch = handle.epoch.0, %refusal, "a shard went to another before it was taken");
            return None;
        }
        node.metrics.load_failures.inc();
        tracing::warn!(at = %handle.at, epoch = handle.epoch.0, %refusal, "a shard could not be taken; trying again");
        *handle.trouble.lock() = Some(refusal.to_string());
        tokio::select! {
            biased;
            () = handle.drop_it.cancelled() => return None,
            () = tokio::time::sleep(backoff.pause(refusal.retry_after_ms)) => {}
        }
    }
}

/// The answer of a shard that is over.
fn refuse(command: Command, shard: u32) {
    let refusal = refusals::not_coordinator(shard);
    match command {
        Command::Said(said) => {
            let what = What::Error(refusal.detail());
            said.link.answer(said.request_id, &said.group, what);
        }
        Command::Do { reply, .. } => drop(reply.send(Err(refusal))),
        Command::Check(reply) => drop(reply.send(Err(refusal))),
        // Its reply goes with it, which says the same.
        Command::Read(_) | Command::LinkGone(_) | Command::Deleted(_) => {}
    }
}

pub struct Task {
    pub node: Arc<Node>,
    pub handle: Arc<ShardHandle>,
    pub core: Shard<Group>,
    pub topics: Arc<Topics>,
    pub waiters: HashMap<u64, Waiter>,
    pub routes: Routes,
    pub parking: Parking,
    pub keeping: Keeping,
    pub pace: Pace,
    pub producer: Producer,
    pub next_token: u64,
    pub append: Option<InFlight>,
    pub ended: Option<Ended>,
    pub seconds: u32,
    /// Since when nobody else writes in the log.
    pub fenced_at: MonotonicMs,
    /// What is stored was compared with the topics that there are.
    pub compared: bool,
    /// Groups and members, as they are in the metrics.
    pub counted: (i64, i64),
}

impl Task {
    fn new(node: Arc<Node>, handle: Arc<ShardHandle>, taken: Taken) -> Self {
        let fenced_at = taken.fenced_at;
        let keeping = Keeping::new(&node, &handle, &taken.shard, taken.leader_epoch);
        let topics = Arc::clone(&node.topics.borrow());
        Self {
            topics,
            core: taken.shard,
            producer: taken.producer,
            waiters: HashMap::new(),
            routes: Routes::default(),
            parking: Parking::default(),
            pace: Pace::default(),
            keeping,
            next_token: 0,
            append: None,
            ended: None,
            seconds: 0,
            fenced_at,
            compared: false,
            counted: (0, 0),
            node,
            handle,
        }
    }

    async fn serve(mut self, mailbox: &mut mpsc::Receiver<Command>) -> Ended {
        let mut topics = self.node.topics.subscribe();
        self.topics = Arc::clone(&topics.borrow_and_update());
        self.feed(Input::All(Event::TopicsChanged));
        self.handle.set_phase(SERVING);
        *self.handle.trouble.lock() = None;
        self.node.shards.look();
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while self.ended.is_none() {
            let now = self.node.now().monotonic;
            let due = self.core.next_deadline();
            if due.is_some_and(|due| due <= now) {
                self.feed(Input::Tick);
                continue;
            }
            let due = due.unwrap_or(now.plus(60_000));
            tokio::select! {
                biased;
                () = self.handle.drop_it.cancelled() => break,
                (id, begun, end) = append_end(&mut self.append) => self.on_append_end(id, begun, end),
                Some(looked) = self.parking.looked() => self.on_looked(looked),
                changed = topics.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    self.topics = Arc::clone(&topics.borrow_and_update());
                    self.feed(Input::All(Event::TopicsChanged));
                }
                _ = housekeeping.tick() => self.keep_house(),
                command = mailbox.recv() => {
                    let Some(command) = command else { break };
                    self.on_command(command);
                    for _ in 1..AT_ONCE {
                        let Ok(command) = mailbox.try_recv() else { break };
                        self.on_command(command);
                    }
                }
                () = tokio::time::sleep_until(self.node.at(due)) => {}
            }
        }
        let ended = self.ended.unwrap_or(Ended::Over);
        self.end().await;
        ended
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Said(said) => self.on_said(said),
            Command::Do {
                group,
                event,
                reply,
            } => {
                let at = committed_partitions(&event);
                let waiter = Waiter::Do {
                    reply,
                    group: Arc::clone(&group),
                    at,
                };
                self.request(group, event, waiter);
            }
            Command::Read(read) => {
                let release = read(&Seen {
                    shard: &self.core,
                    pace: &self.pace,
                    now: self.node.now(),
                    at: self.handle.at,
                });
                self.barrier(Waiter::Read(release), false);
            }
            Command::Check(reply) => {
                let waiter = Waiter::Check {
                    hash: self.core.state_hash(),
                    groups: self.core.machines().count() as u64,
                    reply,
                };
                self.barrier(waiter, true);
            }
            Command::LinkGone(id) => {
                for (name, members) in self.routes.remove_link(id) {
                    let event = Event::LinkBroken(members);
                    self.feed(Input::Event { name, event });
                }
            }
            Command::Deleted(ids) => self.feed(Input::All(Event::TopicsDeleted(ids))),
        }
    }

    /// Somebody waits for what `event` comes to.
    pub fn request(&mut self, name: Arc<str>, event: Event, waiter: Waiter) {
        let token = self.token(waiter);
        self.feed(Input::Request { token, name, event });
    }

    fn barrier(&mut self, waiter: Waiter, seal: bool) {
        let token = self.token(waiter);
        self.feed(Input::Barrier { token, seal });
    }

    fn token(&mut self, waiter: Waiter) -> u64 {
        self.next_token += 1;
        self.waiters.insert(self.next_token, waiter);
        self.next_token
    }

    pub fn feed(&mut self, input: Input<Group>) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let now = self.node.now();
            for output in self.core.step(now, &self.topics, input) {
                inputs.extend(self.on_output(output));
            }
        }
    }

    /// Does what the core says; what that comes to at once goes back in.
    fn on_output(&mut self, output: Output<Group>) -> Option<Input<Group>> {
        match output {
            Output::Append { id, records } => return self.on_append(id, &records),
            Output::Answer {
                token,
                number,
                wrote,
                outcome,
            } => return self.on_answer(token, number, wrote, outcome),
            Output::Effect {
                name,
                number,
                effect,
            } => self.on_effect(&name, number, effect),
            Output::Applied { records, applied } => self.keeping.add(records, applied),
            Output::Oversized { name, bytes } => {
                self.node.metrics.oversized.inc();
                tracing::error!(group = %name, bytes, "a change of the group does not fit one batch of the internal topic; raise its max.message.bytes");
            }
        }
        None
    }

    fn keep_house(&mut self) {
        self.seconds = self.seconds.wrapping_add(1);
        self.keeping.write();
        self.count();
        if !self.compared {
            self.forget_deleted();
        }
        if self.seconds.is_multiple_of(EXPIRY_EVERY) {
            self.forget_deleted();
            let core = &self.core;
            self.pace.retain(|group, at| {
                let group = core.machine(group);
                group.is_some_and(|group| group.state().offsets().contains_key(&at))
            });
            if self.node.wall.is_trusted() {
                self.expire();
            }
        }
    }

    /// Topics whose deletion nobody here has heard of: their tombstones came and went
    /// while no coordinator was there, or between two watches.
    ///
    /// Absence alone says nothing. But what is stored was decided before our fence, by
    /// ourselves or by who had the topic in its view, and the controller had told that
    /// before: once the view has all that was told at a moment after the fence, a topic
    /// that is not in it is no more.
    fn forget_deleted(&mut self) {
        if self.node.known_at() <= Some(self.fenced_at) {
            return;
        }
        self.compared = true;
        let view = self.node.view.get();
        let groups = self.core.machines().map(|(_, group)| group.state());
        let ids = groups.flat_map(|state| state.topics_stored());
        let gone: BTreeSet<TopicId> = ids.filter(|id| view.topic(*id).is_none()).collect();
        if !gone.is_empty() {
            tracing::info!(at = %self.handle.at, topics = gone.len(), "topics were deleted while nobody here could hear of it; their offsets go");
            self.feed(Input::All(Event::TopicsDeleted(gone)));
        }
    }

    fn expire(&mut self) {
        let retention_ms = self.node.config.offsets_retention_ms;
        let ages = |(name, group): &(&Arc<str>, &Group)| {
            let offsets = group.state().offsets().keys();
            !keeps_replay(name, offsets.map(|at| at.topic_id))
        };
        let aging = self.core.machines().filter(ages);
        for name in aging.map(|(name, _)| Arc::clone(name)).collect::<Vec<_>>() {
            let event = Event::Expire { retention_ms };
            self.feed(Input::Event { name, event });
        }
    }

    fn count(&mut self) {
        let machines = self.core.machines();
        let (groups, members) = machines.fold((0_i64, 0_i64), |(groups, members), (_, group)| {
            let more = i64::try_from(group.state().members().len()).unwrap_or(i64::MAX);
            (groups + 1, members.saturating_add(more))
        });
        self.show((groups, members));
    }

    fn show(&mut self, now: (i64, i64)) {
        let metrics = &self.node.metrics;
        metrics.groups.add(now.0 - self.counted.0);
        metrics.members.add(now.1 - self.counted.1);
        self.counted = now;
    }

    /// Who waits is told, and gateways whose members are here.
    async fn end(mut self) {
        self.handle.set_phase(OVER);
        if self.ended.is_none() {
            let last = tokio::time::timeout(LAST_APPEND, append_end(&mut self.append)).await;
            if let Ok((id, begun, end)) = last {
                self.on_append_end(id, begun, end);
            }
        }
        self.append = None;
        self.show((0, 0));
        let shard = self.handle.at.partition.0;
        for refused in self.parking.take_all() {
            refuse(Command::Said(refused), shard);
        }
        let (settings, limits) = (Default::default(), self.core.limits());
        let core = std::mem::replace(&mut self.core, Shard::empty(settings, limits));
        for output in core.lose() {
            self.on_output(output);
        }
        self.routes.say_moved(shard);
        self.keeping.end().await;
    }
}
