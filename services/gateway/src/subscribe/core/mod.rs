//! One member on one stream: what it holds, what it was sent, what of that it
//! passed, and what is stored. Pure: an event and the time go in, effects come out.
//!
//! Always true:
//! - records of a partition go out in offset order, none twice within a
//!   generation, none left out but what a `gap` frame names;
//! - a stored offset is at most what was sent and what the member passed, and
//!   never beyond a failed record whose copy is not acknowledged;
//! - it goes back only after a seek;
//! - what the reset policy chose is stored before a record after it goes out;
//! - a partition that is asked back gets no more records, and is given up when
//!   the member has said so or has nothing of it in its hands;
//! - at most one request to the coordinator is on its way at a time, in order.

mod client;
mod commits;
mod failures;
mod fault;
mod part;
mod spans;
#[cfg(test)]
mod tests;
mod timing;
mod topics;
mod view;

pub use failures::{Copy, Destination, RECORDS_GONE};
pub use part::{Hold, Part};
pub use topics::Wanted;

use commits::{Stored, Waiting};
use fault::{Fault, planted};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use talweg_client::fetch::StartAt;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    coordinator::v1::{CommitOffset, CommitResult, DeliveryMode, MemberRemoved, MemberView},
    v1::{self, subscribe_request::Frame as Ask, subscribe_response::Frame},
};
use talweg_types::TopicPartition;
use topics::Topics;

/// A topic that the coordinator knows and this process does not.
const UNKNOWN_MS: u64 = 100;

/// How a member consumes, for the life of its stream.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// Where to begin without a stored offset.
    pub policy: v1::ResetPolicy,
    pub commit_on_ack: bool,
    pub session_ms: u64,
    pub processing_ms: u64,
    pub max_attempts: u32,
    /// Back-off before each retry; not empty.
    pub backoff_ms: Vec<u32>,
    pub block: bool,
    pub no_dead_letters: bool,
}

/// Offsets without a hole.
pub type Run = std::ops::Range<i64>;

/// What happens.
#[derive(Clone, Debug)]
pub enum Event {
    View(MemberView),
    Removed(MemberRemoved),
    /// The coordinator may not know that the stream lives.
    Nudged,
    /// The topics that the member is to have now.
    Topics(Wanted),
    /// Any frame but `open` and `credit`.
    Client(Ask),
    /// The client granted credit.
    Credited,
    /// A leader said where a partition begins.
    Started {
        at: TopicPartition,
        next: i64,
    },
    /// Its position moved without records.
    Advanced {
        at: TopicPartition,
        next: i64,
    },
    /// Records went to the client.
    Sent {
        at: TopicPartition,
        /// Their offsets without holes, in order; the last one may end below `to`.
        runs: Vec<Run>,
        to: i64,
        epoch: i32,
    },
    /// The next record is held back, for this long.
    NotDue {
        at: TopicPartition,
        next: i64,
        wait_ms: u64,
    },
    /// This process has not heard of its topic yet.
    Unknown {
        at: TopicPartition,
    },
    /// Leaders serve it no more.
    Stopped {
        at: TopicPartition,
        refusal: Refusal,
    },
    /// A copy is in its topic; `next` follows the record that was copied.
    Copied {
        copy: Copy,
        result: Result<i64, Refusal>,
    },
    /// An answer to the request under way.
    Answered(Result<Answer, Refusal>),
    /// Time has passed.
    Tick,
}

/// The coordinator's answers.
#[derive(Clone, Debug)]
pub enum Answer {
    Done,
    View(MemberView),
    Committed(Vec<CommitResult>),
}

/// A request to the coordinator.
#[derive(Clone, PartialEq, Debug)]
pub enum Request {
    Heartbeat,
    Leave,
    Revoked(Vec<TopicPartition>),
    Overran(Vec<TopicPartition>),
    Commit {
        seek: bool,
        offsets: Vec<CommitOffset>,
    },
    /// Join again as the same member: these are its topics now.
    Rejoin(Vec<String>),
}

/// What is to be done, in order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Begin to read, dropping what is held of the partition.
    Read {
        at: TopicPartition,
        start: StartAt,
        last_epoch: i32,
        generation: u64,
    },
    Stop(TopicPartition),
    Tell(Frame),
    /// For the operator.
    Warn(Refusal),
    Request(Request),
    Copy(Copy),
    /// The stream ends: with an error frame if there is a refusal, then `closing`.
    End {
        refusal: Option<Refusal>,
        reason: &'static str,
    },
}

/// The request under way, as its answer is used.
#[derive(Clone, PartialEq, Debug)]
enum Asked {
    Other(Request),
    /// Of acknowledgements.
    Acks(Vec<Stored>),
    /// So many of the first of `commits`: for each the places of its offsets in the request.
    Commits(Vec<Vec<usize>>),
}

/// A member.
pub struct Core {
    config: CoreConfig,
    names: Arc<dyn Fn(TopicPartition) -> Arc<str> + Send + Sync>,
    epoch: i32,
    /// Shard epoch and sequence of the newest view.
    seen: (i32, u64),
    parts: BTreeMap<TopicPartition, Part>,
    /// Generations of partitions that were taken: a later one goes on from there.
    generations: BTreeMap<TopicPartition, u64>,
    asked: Option<Asked>,
    queue: VecDeque<Request>,
    commits: VecDeque<Waiting>,
    /// Acknowledgements are not stored before this: the last try failed.
    acks_after_ms: u64,
    /// The client names what it passed; then each partition has its own time limit.
    passes: bool,
    /// When the client last said anything, and when the coordinator was last told.
    heard_ms: u64,
    told_ms: u64,
    credited_ms: u64,
    rejoining: bool,
    topics: Topics,
    leaving: bool,
    /// When the member leaves, whatever waits for copies.
    leave_by_ms: u64,
    ended: bool,
    now: u64,
    effects: Vec<Effect>,
}

impl Core {
    /// A member that has just joined with these topics; its first view follows as
    /// an event.
    pub fn new(
        config: CoreConfig,
        topics: Vec<String>,
        names: Arc<dyn Fn(TopicPartition) -> Arc<str> + Send + Sync>,
        now: u64,
    ) -> Self {
        Self {
            config,
            names,
            epoch: 0,
            seen: (0, 0),
            parts: BTreeMap::new(),
            generations: BTreeMap::new(),
            asked: None,
            queue: VecDeque::new(),
            commits: VecDeque::new(),
            acks_after_ms: 0,
            passes: false,
            heard_ms: now,
            told_ms: now,
            credited_ms: now,
            rejoining: false,
            topics: Topics::joined(topics),
            leaving: false,
            leave_by_ms: 0,
            ended: false,
            now,
            effects: Vec::new(),
        }
    }

    /// The member's epoch: requests carry it.
    pub fn epoch(&self) -> i32 {
        self.epoch
    }

    /// A partition in its hands.
    pub fn part(&self, at: TopicPartition) -> Option<&Part> {
        self.parts.get(&at)
    }

    /// Partitions with records that were sent and not passed.
    pub fn in_flight(&self) -> Vec<TopicPartition> {
        let flying = self.parts.iter().filter(|(_, part)| !part.spans.is_empty());
        flying.map(|(at, _)| *at).collect()
    }

    /// Offsets that were passed and are still to be stored, for the stream's end.
    pub fn unstored(&mut self) -> Option<Request> {
        self.acks_after_ms = 0;
        self.take_acks().map(|(request, _)| request)
    }

    /// Nothing is under way to the coordinator.
    pub fn is_idle(&self) -> bool {
        let wanted = self.parts.values().any(|part| part.want.is_some());
        self.asked.is_none() && self.commits.is_empty() && self.queue.is_empty() && !wanted
    }

    /// The stream is over.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// One event; effects are to be done in order.
    pub fn step(&mut self, now: u64, event: Event) -> Vec<Effect> {
        self.now = self.now.max(now);
        if self.ended {
            return Vec::new();
        }
        match event {
            Event::View(view) => self.on_view(&view),
            Event::Removed(removed) => self.on_removed(&removed),
            Event::Nudged => self.on_nudged(),
            Event::Topics(topics) => self.on_topics(topics),
            Event::Client(frame) => self.on_client(frame),
            Event::Credited => {
                self.heard_ms = self.now;
                self.credited_ms = self.now;
            }
            Event::Started { at, next } => {
                if let Some(part) = self.parts.get_mut(&at) {
                    part.on_started(next);
                }
            }
            Event::Advanced { at, next } => {
                let commit = self.config.commit_on_ack;
                if let Some(part) = self.parts.get_mut(&at).filter(|it| it.reading) {
                    part.advance_to(next);
                    if commit && part.committed.is_some() {
                        part.want_done(String::new());
                    }
                }
            }
            Event::Sent {
                at,
                runs,
                to,
                epoch,
            } => self.on_sent(at, &runs, to, epoch),
            Event::NotDue { at, next, wait_ms } => {
                if let Some(part) = self.parts.get_mut(&at) {
                    part.advance_to(next);
                    part.hold = Some(Hold::Until(self.now.saturating_add(wait_ms)));
                }
            }
            Event::Unknown { at } => {
                if let Some(part) = self.parts.get_mut(&at) {
                    part.reading = false;
                    part.hold = Some(Hold::Until(self.now.saturating_add(UNKNOWN_MS)));
                }
            }
            Event::Stopped { at, refusal } => self.on_stopped(at, refusal),
            Event::Copied { copy, result } => self.on_copied(&copy, result),
            Event::Answered(result) => self.on_answered(result),
            Event::Tick => self.on_tick(),
        }
        self.settle();
        std::mem::take(&mut self.effects)
    }

    /// What follows from what is known now.
    fn settle(&mut self) {
        self.parts.values_mut().for_each(Part::want_saved);
        self.read_or_stop();
        self.start_dead_letters();
        self.confirm_revoked();
        self.join_again();
        self.ask_next();
    }

    fn read_or_stop(&mut self) {
        for (at, part) in &mut self.parts {
            let should = part.may_read();
            if should == part.reading {
                continue;
            }
            part.reading = should;
            self.effects.push(if should {
                Effect::Read {
                    at: *at,
                    start: part.start,
                    last_epoch: part.next.map_or(-1, |next| part.spans.epoch_at(next)),
                    generation: part.generation,
                }
            } else {
                Effect::Stop(*at)
            });
        }
    }

    fn on_sent(&mut self, at: TopicPartition, runs: &[Run], to: i64, epoch: i32) {
        let now = self.now;
        let Some(part) = self.parts.get_mut(&at) else {
            return;
        };
        part.on_sent(runs, to, epoch, now);
        part.pass_copied(now);
        let careful = part.mode == DeliveryMode::OneByOne && !planted(Fault::DeadlySentTogether);
        if careful && !part.spans.is_empty() {
            part.hold = Some(Hold::Passed);
        }
    }

    /// One request at a time. A client may commit without a pause, so what the group
    /// waits for goes first; nothing of it concerns a commit that is under way. A
    /// goodbye goes last.
    fn ask_next(&mut self) {
        if (self.asked.is_some() && !planted(Fault::RequestsOvertake)) || self.ended {
            return;
        }
        let leaves = self.queue.front() == Some(&Request::Leave);
        let mut next = if leaves { None } else { self.take_queued() };
        next = next.or_else(|| self.take_commits()).or_else(|| {
            let acks = self.take_acks();
            acks.map(|(request, acks)| (request, Asked::Acks(acks)))
        });
        let waits = !self.commits.is_empty() && self.now < self.leave_by_ms;
        if leaves && !waits {
            next = next.or_else(|| self.take_queued());
        }
        if let Some((request, asked)) = next {
            self.asked = Some(asked);
            self.told_ms = self.now;
            self.effects.push(Effect::Request(request));
        }
    }

    fn take_queued(&mut self) -> Option<(Request, Asked)> {
        let request = self.queue.pop_front()?;
        Some((request.clone(), Asked::Other(request)))
    }

    fn asked_to_rejoin(&self) -> bool {
        matches!(self.asked, Some(Asked::Other(Request::Rejoin(_))))
    }

    fn on_answered(&mut self, result: Result<Answer, Refusal>) {
        let Some(asked) = self.asked.take() else {
            return;
        };
        if let Err(refusal) = &result
            && is_out(refusal)
        {
            return self.end(Some(refusal.clone()), "the group has no such member now");
        }
        match (asked, result) {
            (Asked::Commits(places), result) => self.on_committed(&places, result),
            (Asked::Acks(acks), result) => self.on_acks_stored(&acks, result),
            (Asked::Other(Request::Leave), _) => self.end(None, "the member left"),
            (Asked::Other(Request::Rejoin(topics)), result) => {
                if let Ok(Answer::View(view)) = &result {
                    self.on_view(view);
                }
                self.on_rejoined(topics, result.err().as_ref());
            }
            (Asked::Other(_), Ok(Answer::View(view))) => self.on_view(&view),
            (Asked::Other(request), Err(refusal)) => self.on_not_told(request, &refusal),
            (Asked::Other(_), Ok(_)) => {}
        }
    }

    fn tell(&mut self, frame: Frame) {
        self.effects.push(Effect::Tell(frame));
    }

    fn tell_refused(&mut self, at: TopicPartition, refusal: &Refusal) {
        let generation = self.parts.get(&at).map_or(0, |part| part.generation);
        let error = v1::FetchPartitionError {
            topic: self.name(at).to_string(),
            topic_id: crate::groups::id_bytes(at.topic_id),
            partition: at.partition.0,
            generation,
            error: Some(refusal.detail()),
        };
        self.tell(Frame::PartitionError(error));
    }

    fn name(&self, at: TopicPartition) -> Arc<str> {
        match self.parts.get(&at) {
            Some(part) if !part.topic.is_empty() => Arc::clone(&part.topic),
            Some(_) | None => (self.names)(at),
        }
    }

    fn end(&mut self, refusal: Option<Refusal>, reason: &'static str) {
        if !self.ended {
            self.ended = true;
            self.effects.push(Effect::End { refusal, reason });
        }
    }
}

/// The member's life is over.
fn is_out(refusal: &Refusal) -> bool {
    matches!(refusal.code, ErrorCode::Fenced | ErrorCode::UnknownMember)
}
