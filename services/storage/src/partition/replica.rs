//! One replica as its loop holds it: the log, the leader's state, and how the
//! two move together.
//!
//! The log is the first to act, the leader decides what may be said about it:
//! no answer leaves here that is not an effect of [`Leader::step`] or a refusal
//! of something that was not appended.

use super::{
    command::{AppendRequest, Leadership, Opened, ProposalAnswer},
    completion::{AppendRefusal, Completion, Completions, Deliveries, Outcome},
    handle::PartitionHandle,
    rounds::Taken,
};
use crate::{
    metrics::{Metrics, Refusing},
    replicate::Outbox,
};
use bytes::Bytes;
use parking_lot::RwLock;
use std::{io, sync::Arc};
use talweg_batch::CheckedBatch;
use talweg_log::{
    AppendError, Appended, Compaction, FlushTicket, LogConfig, LogError, PartitionLog, Repair,
    Rewrite, TickReport,
};
use talweg_replication::{
    Contacts, Effect, Event, Failure, FetchEnded, FetchOpened, Follower, FollowerEvent, InSync,
    Lead, Leader, LeaderSettings, MonotonicMs, NotAdmitted, ReplicaEnds, Report, Role, Waiter,
};
use talweg_types::{Acks, Durability, LeaderEpoch, NodeId, Offset, TimestampMs, TopicPartition};

/// Whom a batch is answered to, and with what.
pub struct Ticket {
    stream: Arc<Completions>,
    slot: u32,
    sequence: u64,
    base_offset: Offset,
    append_time: TimestampMs,
    duplicate: bool,
}

/// A replica in its loop.
pub struct Replica {
    pub log: PartitionLog,
    pub handle: Arc<PartitionHandle>,
    pub folder: usize,
    pub ticket_out: bool,
    pub rebuilding: bool,
    /// Since when there have been unflushed bytes.
    pub dirty_since: Option<MonotonicMs>,
    /// When the ticket that is out was taken.
    ticket_since: MonotonicMs,
    /// Answered once the log is gone.
    pub deleting: Option<tokio::sync::oneshot::Sender<Result<(), LogError>>>,
    settings: LeaderSettings,
    leader: Leader<Ticket>,
    pub(super) follower: Follower,
    pub(super) outbox: Arc<Outbox>,
    contacts: Arc<RwLock<Contacts>>,
    pub(super) wall_clock: fn() -> TimestampMs,
    pub(super) metrics: Option<Arc<Metrics>>,
    /// While it refuses to cut what its leader lacks.
    pub(super) refusing: Option<Refusing>,
    /// The node that fetches were asked of.
    pub(super) upstream: Option<NodeId>,
    /// Waits for the ticket that is out.
    pub(super) cut: Option<Cut>,
    /// There was no room for it.
    pub(super) cut_not_before: MonotonicMs,
    /// As a leader sent it with "below start".
    pub(super) sessions: Bytes,
    /// The epoch in which nothing more is appended.
    handed_over: Option<LeaderEpoch>,
}

/// A change of the log that no flush may run beside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    Truncate { to: Offset, below_watermark: bool },
    Restart { at: Offset, below_watermark: bool },
}

/// What an append did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AppendedRound {
    pub bytes: u64,
    pub records: u64,
}

/// A batch that goes to the log, and its producer.
pub(super) struct Waiting {
    stream: Arc<Completions>,
    slot: u32,
    sequence: u64,
    acks: Acks,
}

impl Waiting {
    /// For a stream that asks once.
    pub(super) fn one(stream: &Arc<Completions>, acks: Acks) -> Self {
        Self {
            stream: Arc::clone(stream),
            slot: 0,
            sequence: 0,
            acks,
        }
    }
}

impl Replica {
    pub fn new(opened: Opened) -> Self {
        Self {
            leader: Leader::new(opened.node, opened.settings),
            follower: Follower::new(opened.node),
            outbox: opened.outbox,
            contacts: opened.contacts,
            wall_clock: opened.wall_clock,
            metrics: None,
            refusing: None,
            upstream: None,
            cut: None,
            cut_not_before: MonotonicMs(0),
            sessions: Bytes::new(),
            handed_over: None,
            log: opened.log,
            handle: opened.handle,
            folder: opened.folder,
            ticket_out: false,
            rebuilding: false,
            dirty_since: None,
            ticket_since: MonotonicMs(0),
            deleting: None,
            settings: opened.settings,
        }
    }

    /// Shows what it does in these figures.
    #[must_use]
    pub fn shown_in(self, metrics: Arc<Metrics>) -> Self {
        let metrics = Some(metrics);
        Self { metrics, ..self }
    }

    pub fn tp(&self) -> TopicPartition {
        self.handle.tp
    }

    pub fn is_synced(&self) -> bool {
        self.settings.durability == Durability::Synced
    }

    /// Members of the in-sync set as last confirmed; 0 unless it leads.
    pub fn confirmed(&self) -> usize {
        match self.leader.role() {
            Role::Leader { .. } => self.leader.in_sync().len(),
            Role::NotLeader => 0,
        }
    }

    /// Produces that wait for an answer.
    pub fn waiting(&self) -> usize {
        self.leader.waiting()
    }

    /// Begins to lead. A log that cannot begin the epoch serves nothing.
    pub fn lead(&mut self, now: MonotonicMs, leadership: Leadership, out: &mut Deliveries) {
        if self.leader.epoch() == Some(leadership.epoch) {
            return self.members(now, leadership, out);
        }
        self.unfollow(now, leadership.epoch);
        match self.log.begin_epoch(leadership.epoch) {
            Ok(()) => {}
            // An older word than what the log holds.
            Err(error @ LogError::StaleEpoch { .. }) => {
                tracing::warn!(partition = %self.tp(), epoch = %leadership.epoch, %error, "does not lead");
                return;
            }
            Err(error) => {
                tracing::error!(partition = %self.tp(), epoch = %leadership.epoch, %error, "cannot lead");
                self.mark_failed(&error.to_string());
                return;
            }
        }
        let bounds = self.log.bounds();
        let lead = Lead {
            epoch: leadership.epoch,
            incarnation: leadership.incarnation,
            partition_epoch: leadership.partition_epoch,
            ends: ReplicaEnds {
                log_end: bounds.log_end,
                flushed_end: bounds.flushed_end,
            },
            high_watermark: bounds.high_watermark,
            in_sync: leadership.in_sync,
            replicas: leadership.replicas,
            settings: self.settings,
        };
        self.step(now, Event::Lead(lead), out);
        self.handle.set_leads(Some(leadership.epoch));
        tracing::debug!(partition = %self.tp(), epoch = %leadership.epoch, ?bounds, "leads");
    }

    /// The controller's newer word within the epoch.
    fn members(&mut self, now: MonotonicMs, leadership: Leadership, out: &mut Deliveries) {
        self.step(now, Event::ReplicasChanged(leadership.replicas), out);
        let in_sync = InSync {
            epoch: leadership.epoch,
            partition_epoch: leadership.partition_epoch,
            members: leadership.in_sync,
        };
        self.step(now, Event::InSyncChanged(in_sync), out);
    }

    pub fn on_opened(&mut self, now: MonotonicMs, opened: FetchOpened, out: &mut Deliveries) {
        self.step(now, Event::FetchOpened(opened), out);
    }

    pub fn on_ended(&mut self, now: MonotonicMs, ended: FetchEnded, out: &mut Deliveries) {
        self.step(now, Event::FetchEnded(ended), out);
    }

    pub fn on_report(&mut self, now: MonotonicMs, report: Report, out: &mut Deliveries) {
        self.step(now, Event::Reported(report), out);
    }

    pub fn on_proposal(&mut self, now: MonotonicMs, answer: ProposalAnswer, out: &mut Deliveries) {
        let event = match answer {
            ProposalAnswer::Confirmed(in_sync) => Event::InSyncChanged(in_sync),
            ProposalAnswer::Refused {
                id,
                partition_epoch,
            } => Event::ProposalRefused {
                id,
                partition_epoch,
            },
            ProposalAnswer::TimedOut { id } => Event::ProposalTimedOut { id },
        };
        self.step(now, event, out);
    }

    /// When the leader wants to be told that time has passed, or a cut is tried again.
    pub fn next_leader_tick(&self) -> Option<MonotonicMs> {
        let cut = self
            .cut
            .filter(|_| !self.ticket_out && !self.log.is_rewriting());
        let cut = cut.map(|_| self.cut_not_before);
        [self.leader.next_tick(), cut].into_iter().flatten().min()
    }

    pub fn leader_tick(&mut self, now: MonotonicMs, out: &mut Deliveries) {
        self.cut_now(now);
        if self.leader.next_tick().is_some_and(|at| at <= now) {
            self.step(now, Event::Tick, out);
        }
    }

    /// Appends no more in this epoch; what was appended is still answered.
    pub fn hand_over(&mut self, epoch: LeaderEpoch) {
        self.handed_over = self.handed_over.max(Some(epoch));
    }

    /// Neither leads nor follows any more.
    pub fn resign(&mut self, now: MonotonicMs, epoch: LeaderEpoch, out: &mut Deliveries) {
        self.unfollow(now, epoch);
        self.resign_leadership(now, epoch, out);
    }

    /// Leads no more; what waits is answered as unknown.
    pub(super) fn resign_leadership(
        &mut self,
        now: MonotonicMs,
        epoch: LeaderEpoch,
        out: &mut Deliveries,
    ) {
        self.step(now, Event::Resign { epoch }, out);
        if self.leader.role() == Role::NotLeader {
            self.log.resign();
            if self.handle.leads().is_some() {
                self.handle.set_leads(None);
            }
        }
    }

    /// The replica serves no more; the reason is shown to whoever asks.
    pub fn fail(&mut self, now: MonotonicMs, why: &str, out: &mut Deliveries) {
        self.mark_failed(why);
        self.resign(now, LeaderEpoch(i32::MAX), out);
    }

    /// Told to readers, and to the controller.
    pub(super) fn mark_failed(&self, why: &str) {
        self.handle.fail(why);
        self.outbox.say_failed();
    }

    /// When each follower last held all that this leader held; empty while it
    /// does not lead.
    pub fn caught_up(&self, now: MonotonicMs) -> Vec<(NodeId, MonotonicMs)> {
        self.leader.caught_up(now)
    }

    pub fn configure(
        &mut self,
        now: MonotonicMs,
        log: LogConfig,
        settings: LeaderSettings,
        out: &mut Deliveries,
    ) {
        self.log.set_config(log);
        self.settings = settings;
        self.step(now, Event::SettingsChanged(settings), out);
    }

    /// Appends all batches of a round with one call of the log.
    pub fn append(
        &mut self,
        now: MonotonicMs,
        requests: Vec<AppendRequest>,
        out: &mut Deliveries,
    ) -> AppendedRound {
        let (mut batches, mut waiting, mut room) = (Vec::new(), Vec::new(), Vec::new());
        for request in requests {
            match self.admit(now, request.acks, request.expected_epoch) {
                Ok(()) => {
                    let AppendRequest {
                        acks,
                        stream,
                        slot,
                        reservation,
                        ..
                    } = request;
                    room.push(reservation);
                    for (sequence, batch) in request.batches {
                        waiting.push(Waiting {
                            stream: Arc::clone(&stream),
                            slot,
                            sequence,
                            acks,
                        });
                        batches.push(batch);
                    }
                }
                Err(refusal) => refuse_all(request, &refusal, out),
            }
        }
        if batches.is_empty() {
            return AppendedRound::default();
        }
        let results = self.log.append(&batches, (self.wall_clock)());
        let done = count(&batches, &results);
        drop((batches, room));
        self.settle(now, waiting, results, out);
        done
    }

    /// What was appended waits for its acknowledgement; the rest is refused.
    pub(super) fn settle(
        &mut self,
        now: MonotonicMs,
        waiting: Vec<Waiting>,
        results: Vec<Result<Appended, AppendError>>,
        out: &mut Deliveries,
    ) {
        let mut waiters = Vec::with_capacity(waiting.len());
        for (waiting, result) in waiting.into_iter().zip(results) {
            match result {
                Ok(appended) => waiters.push(waiter(waiting, &appended)),
                Err(error) => {
                    let outcome = Outcome::Refused(AppendRefusal::Log(error));
                    let Waiting {
                        stream,
                        slot,
                        sequence,
                        ..
                    } = waiting;
                    out.push(
                        stream,
                        Completion {
                            slot,
                            sequence,
                            outcome,
                        },
                    );
                }
            }
        }
        let log_end = self.log.bounds().log_end;
        self.step(now, Event::Appended { log_end, waiters }, out);
        self.handle.copiers.wake_armed();
    }

    pub(super) fn admit(
        &self,
        now: MonotonicMs,
        acks: Acks,
        expected_epoch: Option<LeaderEpoch>,
    ) -> Result<(), AppendRefusal> {
        self.leader
            .admit_at(now, acks, &self.contacts.read())
            .map_err(|refusal| match refusal {
                NotAdmitted::NotLeader => match self.handle.failure() {
                    Some(why) => AppendRefusal::Log(AppendError::FolderFailed(why)),
                    None => AppendRefusal::NotLeader,
                },
                NotAdmitted::NotEnoughReplicas { in_sync, needed } => {
                    AppendRefusal::NotEnoughReplicas { in_sync, needed }
                }
                NotAdmitted::NoQuorumContact { heard, needed } => {
                    AppendRefusal::NoQuorumContact { heard, needed }
                }
            })?;
        if self.handed_over >= self.leader.epoch() {
            return Err(AppendRefusal::NotLeader);
        }
        match (expected_epoch, self.leader.epoch()) {
            (Some(asked), Some(current)) if asked != current => {
                Err(AppendRefusal::OtherEpoch { asked, current })
            }
            _ => Ok(()),
        }
    }

    /// What is unflushed now.
    pub fn take_ticket(&mut self, now: MonotonicMs) -> Taken {
        if self.ticket_out {
            return Taken::Out;
        }
        if self.cut.is_some() {
            // It comes first.
            return Taken::Out;
        }
        match self.log.flush_ticket() {
            Some(ticket) => {
                self.ticket_out = true;
                self.ticket_since = now;
                Taken::Ticket(Box::new(ticket))
            }
            None => Taken::Nothing,
        }
    }

    /// What is unflushed, and what a clean stop writes beside it.
    pub fn take_closing_ticket(&mut self) -> Option<FlushTicket> {
        let ticket = self.log.close_ticket();
        self.ticket_out |= ticket.is_some();
        ticket
    }

    /// A ticket is back.
    pub fn flushed(
        &mut self,
        now: MonotonicMs,
        ticket: FlushTicket,
        result: io::Result<()>,
        out: &mut Deliveries,
    ) -> Result<(), LogError> {
        self.ticket_out = false;
        let flushed_end = self.log.flush_done(ticket, result)?;
        let all = flushed_end >= self.log.bounds().log_end;
        self.dirty_since = self
            .dirty_since
            .filter(|_| !all)
            .map(|since| since.max(self.ticket_since));
        self.step(now, Event::Flushed { flushed_end }, out);
        self.step_follower(now, FollowerEvent::Flushed { flushed_end });
        self.cut_now(now);
        Ok(())
    }

    /// Moves the log start; `None` is the high watermark.
    pub fn delete_records(&mut self, before: Option<Offset>) -> Result<Offset, LogError> {
        let before = before.unwrap_or(self.log.bounds().high_watermark);
        let start = self.log.delete_before(before, (self.wall_clock)())?;
        self.handle.wake_all();
        Ok(start)
    }

    pub fn tick(&mut self, now: TimestampMs, clock_trusted: bool) -> TickReport {
        let report = self.log.tick(now, clock_trusted);
        if report.log_start_moved.is_some() {
            self.handle.wake_all();
        }
        report
    }

    /// A round of compaction, if one is due and nothing is to be cut first.
    pub fn start_compaction(
        &mut self,
        wall: TimestampMs,
        clock_trusted: bool,
    ) -> Option<Compaction> {
        self.may_be_rewritten()
            .then(|| self.log.compaction(wall, clock_trusted))?
    }

    /// A repair, if a damaged segment is ready for it and nothing is to be cut first.
    pub fn start_repair(&mut self, wall: TimestampMs) -> Option<Repair> {
        self.may_be_rewritten().then(|| self.log.repair(wall))?
    }

    fn may_be_rewritten(&self) -> bool {
        self.cut.is_none() && self.deleting.is_none() && self.handle.failure().is_none()
    }

    /// Rewritten segments are back.
    pub fn rewritten(&mut self, now: MonotonicMs, rewrite: Rewrite) {
        self.log.rewrite_done(rewrite);
        self.cut_now(now);
    }

    fn step(&mut self, now: MonotonicMs, event: Event<Ticket>, out: &mut Deliveries) {
        let mut moved = false;
        for effect in self.leader.step(now, event) {
            match effect {
                Effect::HighWatermark(offset) => {
                    self.log.set_high_watermark(offset);
                    moved = true;
                }
                Effect::Done { token, reached } => {
                    let Ticket {
                        base_offset,
                        append_time,
                        duplicate,
                        ..
                    } = token;
                    answer(
                        token,
                        Outcome::Done {
                            base_offset,
                            append_time,
                            duplicate,
                            reached,
                        },
                        out,
                    );
                }
                Effect::ProposeInSync(proposal) => self.outbox.propose(self.handle.tp, proposal),
                Effect::Failed { token, why } => {
                    let refusal = match why {
                        Failure::LeadershipLost => AppendRefusal::LeadershipLost,
                        Failure::NotEnoughReplicasAfterAppend => {
                            AppendRefusal::NotEnoughReplicasAfterAppend
                        }
                    };
                    answer(token, Outcome::Refused(refusal), out);
                }
            }
        }
        let knows = self.leader.epoch().is_some() && self.leader.watermark_is_known();
        self.handle.set_knows_watermark(knows);
        if moved {
            self.handle.watchers.wake_armed();
            self.handle.copiers.wake_armed();
        }
        debug_assert_eq!(self.log.bounds().check(), Ok(()));
    }
}

fn answer(ticket: Ticket, outcome: Outcome, out: &mut Deliveries) {
    let Ticket {
        stream,
        slot,
        sequence,
        ..
    } = ticket;
    out.push(
        stream,
        Completion {
            slot,
            sequence,
            outcome,
        },
    );
}

fn waiter(waiting: Waiting, appended: &Appended) -> Waiter<Ticket> {
    let Waiting {
        stream,
        slot,
        sequence,
        acks,
    } = waiting;
    let base_offset = if appended.offset_known {
        appended.base_offset
    } else {
        Offset(-1)
    };
    let token = Ticket {
        stream,
        slot,
        sequence,
        base_offset,
        append_time: appended.append_time,
        duplicate: appended.duplicate,
    };
    Waiter {
        acks,
        end: appended.last_offset.plus(1),
        token,
    }
}

fn count(batches: &[CheckedBatch], results: &[Result<Appended, AppendError>]) -> AppendedRound {
    let mut done = AppendedRound::default();
    for (batch, result) in batches.iter().zip(results) {
        if result.as_ref().is_ok_and(|appended| !appended.duplicate) {
            done.bytes += batch.bytes.len() as u64;
            done.records += u64::try_from(batch.header.record_count).unwrap_or(0);
        }
    }
    done
}

/// Refuses every batch of a request.
pub(super) fn refuse_all(request: AppendRequest, refusal: &AppendRefusal, out: &mut Deliveries) {
    for (sequence, _) in request.batches {
        let outcome = Outcome::Refused(refusal.clone());
        out.push(
            Arc::clone(&request.stream),
            Completion {
                slot: request.slot,
                sequence,
                outcome,
            },
        );
    }
}
