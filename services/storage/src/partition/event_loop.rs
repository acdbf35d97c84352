//! A thread that owns partitions.
//!
//! Each round takes everything that is queued (up to a bound), groups batches
//! by partition, appends each group with one write, begins the flush rounds
//! that are due, does what time asks for, and wakes each answered stream once.
//! Partitions with nothing to do are not visited: time is one ordered set of
//! deadlines per loop. The loop never ends before it is told to.

use super::{
    command::{AppendRequest, CaughtUp, Command, LoopHandle, Opened},
    completion::{AppendRefusal, Deliveries, Outcome},
    internal::{InternalAppend, refuse_internal},
    replica::{AppendedRound, Replica, refuse_all},
    rounds::{FlushKind, Flushed, FolderRounds, Taken},
};
use crate::{
    clock::{self, ClockWatch},
    flusher::{FlushBack, Flushers, Job},
    metrics::Metrics,
    replicate::ReplicaFrame,
    rewrites::Given,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};
use talweg_log::{Compaction, LogError, LogFolder, Repair, Rewrite};
use talweg_replication::{Fetched, MonotonicMs};
use talweg_types::{NodeId, Offset, TimestampMs, TopicId, TopicPartition};
use tokio::sync::oneshot;

/// Commands taken in one round.
const ROUND_COMMANDS: usize = 4096;
/// The longest sleep: a bound on how wrong a deadline can be.
const SLEEP_MS: u64 = 1_000;

/// No partition is ticked more often.
const TICK_MS: u64 = 20;

/// What all loops of a node share.
#[derive(Clone)]
pub struct LoopSettings {
    pub folders: Vec<Arc<LogFolder>>,
    pub flushers: Flushers,
    pub clock: Arc<ClockWatch>,
    pub metrics: Arc<Metrics>,
    /// Bytes that may wait in this loop's mailbox.
    pub mailbox_bytes: u32,
    /// A background flush begins early at this many dirty bytes of a folder.
    pub background_flush_bytes: u64,
}

/// Starts loop number `index`.
pub fn spawn_loop(
    index: usize,
    settings: LoopSettings,
) -> io::Result<(LoopHandle, JoinHandle<()>)> {
    let (sender, mailbox) = unbounded();
    let handle = LoopHandle::new(sender, settings.mailbox_bytes);
    let mut owner = EventLoop::new(index, mailbox, handle.clone(), settings);
    let thread = thread::Builder::new()
        .name(format!("partitions-{index}"))
        .spawn(move || owner.run())?;
    Ok((handle, thread))
}

/// Whether the loop goes on.
#[derive(PartialEq, Eq)]
enum Phase {
    Serving,
    /// No more appends; tickets come back, then closing tickets go out.
    Stopping,
    /// Closing tickets are out.
    Closing,
    Ended,
}

struct EventLoop {
    index: usize,
    mailbox: Receiver<Command>,
    settings: LoopSettings,
    own: LoopHandle,
    replicas: BTreeMap<TopicPartition, Replica>,
    folders: Vec<FolderRounds>,
    /// When each partition's `tick` is due, and the same by partition.
    timers: BTreeSet<(MonotonicMs, TopicPartition)>,
    due: BTreeMap<TopicPartition, MonotonicMs>,
    /// Since when each partition has had unflushed bytes.
    dirty: BTreeSet<(MonotonicMs, TopicPartition)>,
    out: Deliveries,
    phase: Phase,
    closed: Vec<oneshot::Sender<bool>>,
    /// A log could not be closed whole.
    unclean: bool,
}

impl EventLoop {
    fn new(
        index: usize,
        mailbox: Receiver<Command>,
        own: LoopHandle,
        settings: LoopSettings,
    ) -> Self {
        let rounds = |(folder_index, folder): (usize, &Arc<LogFolder>)| {
            let back = FlushBack {
                to: own.clone(),
                folder_index,
                folder: Arc::clone(folder),
                kind: FlushKind::Urgent,
            };
            FolderRounds::new(back, settings.background_flush_bytes)
        };
        Self {
            folders: settings.folders.iter().enumerate().map(rounds).collect(),
            index,
            mailbox,
            own,
            settings,
            replicas: BTreeMap::new(),
            timers: BTreeSet::new(),
            due: BTreeMap::new(),
            dirty: BTreeSet::new(),
            out: Deliveries::default(),
            phase: Phase::Serving,
            closed: Vec::new(),
            unclean: false,
        }
    }

    fn run(&mut self) {
        while self.phase != Phase::Ended {
            let first = match self.mailbox.recv_timeout(self.sleep()) {
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            self.round(first);
        }
        self.own.close();
        // Whoever came too late is told.
        let now = clock::monotonic_now();
        while let Ok(command) = self.mailbox.try_recv() {
            match command {
                Command::Append(request) => {
                    self.append(now, BTreeMap::from([(request.tp, vec![request])]));
                }
                Command::AppendInternal(request) => self.append_internal(now, request),
                _ => {}
            }
        }
        self.out.wake();
    }

    /// Until the next deadline.
    fn sleep(&self) -> Duration {
        let now = clock::monotonic_now();
        let timer = self.timers.first().map(|(at, _)| *at);
        let flush = self.folders.iter().filter_map(FolderRounds::next).min();
        let next = [timer, flush]
            .into_iter()
            .flatten()
            .min()
            .map_or(SLEEP_MS, |at| at.0.saturating_sub(now.0));
        Duration::from_millis(next.min(SLEEP_MS))
    }

    fn round(&mut self, first: Option<Command>) {
        let now = clock::monotonic_now();
        let mut appends: BTreeMap<TopicPartition, Vec<AppendRequest>> = BTreeMap::new();
        let queued = std::iter::from_fn({
            let mailbox = self.mailbox.clone();
            move || mailbox.try_recv().ok()
        });
        for command in first.into_iter().chain(queued.take(ROUND_COMMANDS)) {
            match command {
                Command::Append(request) => appends.entry(request.tp).or_default().push(request),
                other => {
                    // What was asked before is done before.
                    self.append(now, std::mem::take(&mut appends));
                    self.on_command(now, other);
                }
            }
        }
        self.append(now, appends);
        self.tick(now);
        self.start_flushes(now);
        self.advance_stop();
        self.out.wake();
        let oldest = self.dirty.first().map(|(since, _)| *since);
        self.settings.metrics.oldest_unflushed(self.index, oldest);
    }

    fn append(&mut self, now: MonotonicMs, appends: BTreeMap<TopicPartition, Vec<AppendRequest>>) {
        let mut total = AppendedRound::default();
        if !appends.is_empty() {
            self.settings.metrics.writes(self.index, now);
        }
        for (tp, requests) in appends {
            let refusal = match self.replicas.get_mut(&tp) {
                _ if self.phase != Phase::Serving => AppendRefusal::Stopping,
                Some(replica) if replica.deleting.is_none() => {
                    let done = replica.append(now, requests, &mut self.out);
                    total.bytes += done.bytes;
                    total.records += done.records;
                    if done.bytes > 0 {
                        self.wrote(now, tp, done.bytes);
                    }
                    continue;
                }
                _ => AppendRefusal::NotLeader,
            };
            for request in requests {
                refuse_all(request, &refusal, &mut self.out);
            }
        }
        self.settings.metrics.appended(total.bytes, total.records);
    }

    fn append_internal(&mut self, now: MonotonicMs, request: InternalAppend) {
        let tp = request.tp;
        let refusal = match self.replicas.get_mut(&tp) {
            _ if self.phase != Phase::Serving => AppendRefusal::Stopping,
            Some(replica) if replica.deleting.is_none() => {
                let done = replica.append_internal(now, request, &mut self.out);
                self.settings.metrics.appended(done.bytes, done.records);
                if done.bytes > 0 {
                    self.settings.metrics.writes(self.index, now);
                    self.wrote(now, tp, done.bytes);
                }
                return;
            }
            _ => AppendRefusal::NotLeader,
        };
        let outcome = Outcome::Refused(refusal);
        refuse_internal(&request.stream, outcome, &mut self.out);
    }

    /// A replica has `bytes` more to flush.
    fn wrote(&mut self, now: MonotonicMs, tp: TopicPartition, bytes: u64) {
        let Some(replica) = self.replicas.get_mut(&tp) else {
            return;
        };
        if replica.dirty_since.is_none() {
            replica.dirty_since = Some(now);
            self.dirty.insert((now, tp));
        }
        let rounds = &mut self.folders[replica.folder];
        if replica.is_synced() {
            rounds.want_urgent(tp);
        } else {
            rounds.want_background(tp, bytes);
        }
        self.schedule(now, tp);
    }

    fn on_command(&mut self, now: MonotonicMs, command: Command) {
        match command {
            Command::Append(request) => {
                self.append(now, BTreeMap::from([(request.tp, vec![request])]))
            }
            Command::AppendInternal(request) => self.append_internal(now, request),
            Command::Open(opened) => self.on_open(now, *opened),
            Command::Lead { tp, leadership } => {
                self.with(now, tp, |replica, out| replica.lead(now, leadership, out));
            }
            Command::Follow { tp, following } => {
                self.with(now, tp, |replica, out| replica.follow(now, following, out));
            }
            Command::Fetched { tp, fetched } => self.on_fetched(now, tp, *fetched),
            Command::SessionsSent { tp, sessions } => {
                self.with(now, tp, |replica, _| replica.take_sessions(sessions));
            }
            Command::FetchBroken { tp, session } => {
                self.with(now, tp, |replica, _| replica.on_fetch_broken(now, session));
            }
            Command::FollowerOpened { tp, opened } => {
                self.with(now, tp, |replica, out| replica.on_opened(now, opened, out));
            }
            Command::FollowerEnded { tp, ended } => {
                if let Some(replica) = self.replicas.get_mut(&tp) {
                    replica.on_ended(now, ended, &mut self.out);
                    self.schedule(now, tp);
                }
            }
            Command::Reported { tp, report } => {
                self.with(now, tp, |replica, out| replica.on_report(now, report, out));
            }
            Command::ProposalAnswered { tp, answer } => {
                self.with(now, tp, |replica, out| {
                    replica.on_proposal(now, answer, out)
                });
            }
            Command::HandOver { tp, epoch, held } => {
                if let Some(replica) = self.replicas.get_mut(&tp) {
                    replica.hand_over(epoch);
                }
                // Whoever stops this process may have given up waiting.
                let _ = held.send(());
            }
            Command::Resign { tp, epoch } => {
                self.with(now, tp, |replica, out| replica.resign(now, epoch, out));
            }
            Command::Configure { tp, log, settings } => {
                if let Some(replica) = self.replicas.get_mut(&tp) {
                    replica.configure(now, log, settings, &mut self.out);
                    if replica.waiting() > 0 {
                        self.folders[replica.folder].want_urgent(tp);
                    }
                    self.schedule(now, tp);
                }
            }
            Command::Delete { tp, done } => self.on_delete(now, tp, done),
            Command::DeleteRecords { tp, before, done } => {
                let result = self.on_delete_records(now, tp, before);
                // Whoever asked may have given up; the records are gone all the same.
                let _ = done.send(result);
            }
            Command::Flushed {
                folder,
                kind,
                results,
            } => self.on_flushed(now, folder, kind, results),
            // Whoever asked may have given up.
            Command::CaughtUp { topics, done } => drop(done.send(self.caught_up(now, &topics))),
            Command::Compact { tp, give } => {
                let round = self.start_compaction(tp);
                self.give(now, tp, round, &give);
            }
            Command::Repair { tp, give } => {
                let repair = self.start_repair(now, tp);
                self.give(now, tp, repair, &give);
            }
            Command::Rewritten { tp, rewrite, done } => {
                self.on_rewritten(now, tp, *rewrite);
                // Whoever ran it may have ended.
                let _ = done.try_send(());
            }
            Command::IndexRebuilt { tp } => {
                self.with(now, tp, |replica, _| replica.rebuilding = false);
            }
            Command::Close { done } => self.on_close(done),
            Command::Abort => self.phase = Phase::Ended,
        }
    }

    /// Something happens to a replica, if it is here; its tick may be due earlier.
    fn with(
        &mut self,
        now: MonotonicMs,
        tp: TopicPartition,
        happens: impl FnOnce(&mut Replica, &mut Deliveries),
    ) {
        if let Some(replica) = self.replicas.get_mut(&tp) {
            happens(replica, &mut self.out);
            self.schedule(now, tp);
        }
    }

    fn caught_up(&self, now: MonotonicMs, topics: &BTreeSet<TopicId>) -> CaughtUp {
        let asked = self
            .replicas
            .iter()
            .filter(|(tp, _)| topics.is_empty() || topics.contains(&tp.topic_id));
        let led = asked.filter(|(_, replica)| replica.handle.leads().is_some());
        let ago = |(node, at): (NodeId, MonotonicMs)| (node, now.since(at));
        led.map(|(tp, replica)| (*tp, replica.caught_up(now).into_iter().map(ago).collect()))
            .collect()
    }

    fn on_open(&mut self, now: MonotonicMs, opened: Opened) {
        let tp = opened.handle.tp;
        let metrics = Arc::clone(&self.settings.metrics);
        self.replicas
            .insert(tp, Replica::new(opened).shown_in(metrics));
        self.schedule(now, tp);
    }

    /// What a leader sent: written like what clients send, flushed like it.
    fn on_fetched(&mut self, now: MonotonicMs, tp: TopicPartition, fetched: Fetched<ReplicaFrame>) {
        let Some(replica) = self.replicas.get_mut(&tp) else {
            return;
        };
        if self.phase != Phase::Serving || replica.deleting.is_some() {
            return;
        }
        self.settings.metrics.writes(self.index, now);
        let done = replica.on_fetched(now, fetched);
        self.settings.metrics.replicated_in_bytes.inc_by(done.bytes);
        if done.bytes > 0 {
            self.wrote(now, tp, done.bytes);
        } else {
            self.schedule(now, tp);
        }
    }

    fn on_delete(
        &mut self,
        now: MonotonicMs,
        tp: TopicPartition,
        done: oneshot::Sender<Result<(), LogError>>,
    ) {
        let Some(replica) = self.replicas.get_mut(&tp) else {
            let _ = done.send(Ok(()));
            return;
        };
        replica.fail(now, "the topic was deleted", &mut self.out);
        replica.deleting = Some(done);
        replica.log.cancel_rewrite();
        self.delete_if_idle(tp);
    }

    fn start_compaction(&mut self, tp: TopicPartition) -> Option<Compaction> {
        let serving = self.phase == Phase::Serving;
        let replica = self.replicas.get_mut(&tp).filter(|_| serving)?;
        replica.start_compaction(clock::wall_now(), self.settings.clock.is_trusted())
    }

    fn start_repair(&mut self, now: MonotonicMs, tp: TopicPartition) -> Option<Repair> {
        if self.phase != Phase::Serving {
            return None;
        }
        let replica = self.replicas.get_mut(&tp)?;
        let repair = replica.start_repair(clock::wall_now());
        if repair.is_none() && replica.handle.reader.is_damaged() {
            // Sealed and recorded, it can be repaired.
            self.folders[replica.folder].want_urgent(tp);
        }
        self.schedule(now, tp);
        repair
    }

    /// What nobody takes goes back to the log.
    fn give<T: Into<Rewrite>>(
        &mut self,
        now: MonotonicMs,
        tp: TopicPartition,
        round: Option<T>,
        give: &Given<T>,
    ) {
        if let Err(unsent) = give.try_send(round)
            && let Some(round) = unsent.into_inner()
        {
            self.on_rewritten(now, tp, round.into());
        }
    }

    fn on_rewritten(&mut self, now: MonotonicMs, tp: TopicPartition, rewrite: Rewrite) {
        self.with(now, tp, |replica, _| replica.rewritten(now, rewrite));
        self.delete_if_idle(tp);
    }

    /// A log is deleted when no ticket and no rewrite of it is out.
    fn delete_if_idle(&mut self, tp: TopicPartition) {
        let idle = |replica: &Replica| {
            replica.deleting.is_some() && !replica.ticket_out && !replica.log.is_rewriting()
        };
        if !self.replicas.get(&tp).is_some_and(idle) {
            return;
        }
        self.unschedule(&tp);
        if let Some(Replica {
            log,
            folder,
            dirty_since,
            deleting: Some(done),
            ..
        }) = self.replicas.remove(&tp)
        {
            if let Some(since) = dirty_since {
                self.dirty.remove(&(since, tp));
            }
            self.folders[folder].forget(&tp);
            self.settings.flushers.run(Job::Delete {
                log: Box::new(log),
                done,
            });
        }
    }

    fn on_delete_records(
        &mut self,
        now: MonotonicMs,
        tp: TopicPartition,
        before: Option<Offset>,
    ) -> Result<Offset, LogError> {
        let replica = self.replicas.get_mut(&tp).ok_or(LogError::Deleted)?;
        let result = replica.delete_records(before);
        self.schedule(now, tp);
        result
    }

    fn on_flushed(
        &mut self,
        now: MonotonicMs,
        folder: usize,
        kind: FlushKind,
        results: Vec<Flushed>,
    ) {
        self.folders[folder].returned(now, kind, results.len());
        for Flushed { tp, ticket, result } in results {
            let Some(replica) = self.replicas.get_mut(&tp) else {
                continue;
            };
            let was_dirty = replica.dirty_since;
            let ok = replica.flushed(now, ticket, result, &mut self.out);
            if let Some(since) = was_dirty.filter(|_| replica.dirty_since != was_dirty) {
                self.dirty.remove(&(since, tp));
                self.dirty
                    .extend(replica.dirty_since.map(|since| (since, tp)));
            }
            self.unclean |= ok.is_err() && self.phase == Phase::Closing;
            if let Err(error) = ok {
                replica.fail(now, &error.to_string(), &mut self.out);
            } else if replica.waiting() > 0 {
                self.folders[folder].want_urgent(tp);
            }
            self.schedule(now, tp);
            self.delete_if_idle(tp);
        }
    }

    fn start_flushes(&mut self, now: MonotonicMs) {
        for (index, rounds) in self.folders.iter_mut().enumerate() {
            if let Some(why) = rounds.folder.failed().filter(|_| !rounds.failure_seen) {
                rounds.failure_seen = true;
                let lost = self
                    .replicas
                    .values_mut()
                    .filter(|replica| replica.folder == index);
                lost.for_each(|replica| replica.fail(now, &why, &mut self.out));
            }
            if self.phase == Phase::Serving {
                rounds.start(now, &self.settings.flushers, |tp| {
                    self.replicas
                        .get_mut(tp)
                        .map_or(Taken::Nothing, |replica| replica.take_ticket(now))
                });
            }
        }
    }

    /// Does what is due.
    fn tick(&mut self, now: MonotonicMs) {
        if self.phase != Phase::Serving {
            return;
        }
        let wall = clock::wall_now();
        let trusted = self.settings.clock.is_trusted();
        while let Some((at, tp)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, tp));
            self.due.remove(&tp);
            let Some(replica) = self.replicas.get_mut(&tp) else {
                continue;
            };
            let report = replica.tick(wall, trusted);
            replica.leader_tick(now, &mut self.out);
            if report.wants_flush {
                self.folders[replica.folder].want_background(tp, 0);
            }
            if report.wants_index_rebuild && !replica.rebuilding {
                replica.rebuilding = true;
                let interval_bytes = replica.log.config().index_interval_bytes;
                let reader = replica.log.reader();
                self.settings.flushers.run(Job::RebuildIndex {
                    reader,
                    interval_bytes,
                    back: self.own.clone(),
                });
            }
            if replica.handle.failure().is_none() {
                // What a tick could not do now is not asked for at once again.
                let floor = if report.held_for_clock {
                    SLEEP_MS
                } else {
                    TICK_MS
                };
                let at = next_tick(replica, now, wall, floor);
                self.set_timer(tp, at);
            }
        }
    }

    /// After something happened to a partition: its tick may be due earlier.
    fn schedule(&mut self, now: MonotonicMs, tp: TopicPartition) {
        let Some(replica) = self.replicas.get(&tp) else {
            return;
        };
        let at = next_tick(replica, now, clock::wall_now(), TICK_MS);
        if self.due.get(&tp).is_none_or(|due| at < *due) {
            self.set_timer(tp, at);
        }
    }

    fn set_timer(&mut self, tp: TopicPartition, at: MonotonicMs) {
        if let Some(old) = self.due.insert(tp, at) {
            self.timers.remove(&(old, tp));
        }
        self.timers.insert((at, tp));
    }

    fn unschedule(&mut self, tp: &TopicPartition) {
        if let Some(at) = self.due.remove(tp) {
            self.timers.remove(&(at, *tp));
        }
    }

    fn on_close(&mut self, done: oneshot::Sender<bool>) {
        self.closed.push(done);
        if self.phase == Phase::Serving {
            self.phase = Phase::Stopping;
        }
    }

    /// Stopping → all tickets back → closing tickets out → back → ended.
    fn advance_stop(&mut self) {
        let idle = self.folders.iter().all(|rounds| rounds.out() == 0);
        if self.phase == Phase::Stopping && idle {
            self.phase = Phase::Closing;
            self.start_closing();
        }
        if self.phase == Phase::Closing && self.folders.iter().all(|rounds| rounds.out() == 0) {
            self.phase = Phase::Ended;
            let clean = !self.unclean;
            for done in self.closed.drain(..) {
                let _ = done.send(clean);
            }
        }
    }

    fn start_closing(&mut self) {
        let mut tickets: Vec<Vec<_>> = self.folders.iter().map(|_| Vec::new()).collect();
        for (tp, replica) in &mut self.replicas {
            if let Some(ticket) = replica.take_closing_ticket() {
                tickets[replica.folder].push((*tp, ticket));
            }
        }
        for (rounds, tickets) in self.folders.iter_mut().zip(tickets) {
            rounds.start_closing(&self.settings.flushers, tickets);
        }
    }
}

/// When the log wants its next tick, on the monotonic clock.
fn next_tick(replica: &Replica, now: MonotonicMs, wall: TimestampMs, floor_ms: u64) -> MonotonicMs {
    let wait = replica.log.next_tick(wall).0.saturating_sub(wall.0);
    let log = MonotonicMs(now.0 + u64::try_from(wait).unwrap_or(0).max(floor_ms));
    let leader = replica.next_leader_tick();
    // Never sooner than the next possible moment, so that a loop cannot spin.
    leader.map_or(log, |leader| log.min(leader.max(now.plus(TICK_MS))))
}
