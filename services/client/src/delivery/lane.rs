//! The batches of one partition on their way to its leader: pure, no IO, no
//! clock.
//!
//! Always true ([`Lane::check`]):
//! - at most [`IN_FLIGHT_BATCHES`] numbered batches are unanswered, all on one link;
//! - what was sent lies before what waits, so that nothing overtakes;
//! - the bytes of a batch change only while it certainly was not appended.
//!
//! ```text
//!            next/mark_sent            on_ack
//!  Waiting ────────────────► InFlight ────────► Answered ──► (released in order)
//!     ▲   retriable refusal,    │  │ expire
//!     └──── broken link ────────┘  └──────► Ghost ──► (gone with its answer)
//! ```
//!
//! A leader that was replaced may never answer: it can be cut off from all but
//! us, and then it waits for followers that follow another. What is in flight to it
//! is *abandoned* as if its link had broken, if it may be repeated; its late answers count no more.
//!
//! After a retriable refusal or a broken link the lane *settles*: it sends
//! nothing until all that is in flight is answered, then everything waiting
//! goes again in order. A *ghost* was given up by its caller while in flight;
//! it keeps its place in the window until the leader has answered.

use super::batch::{Batch, Done, Freed, LinkId, Numbering, Outcome};
use super::verdict::{Circumstances, Verdict, judge};
use std::collections::VecDeque;
use talweg_kit::errors::Refusal;
use talweg_proto::v1::ErrorCode;
use talweg_types::limits::IN_FLIGHT_BATCHES;

/// Unanswered batches of one partition that no session bounds.
const IN_FLIGHT_UNNUMBERED: usize = 64;
/// First and longest pause after a retriable refusal without advice.
const RETRY_MS: (u64, u64) = (20, 1_000);

#[derive(Clone, Debug)]
enum State {
    Waiting,
    InFlight(u64),
    Ghost(u64),
    Answered(Box<Outcome>),
    /// A ghost whose answer has come; swept by [`Lane::release`].
    Gone,
}

#[derive(Clone, Debug)]
struct Entry {
    batch: Batch,
    state: State,
    /// It was sent at least once.
    sent: bool,
    /// A send of it is neither acknowledged nor certainly refused.
    maybe_appended: bool,
    last_refusal: Option<Refusal>,
    renumbered: u8,
}

/// What a lane wants.
#[derive(Debug)]
pub(super) enum Next<'a> {
    /// Send this, then call [`Lane::mark_sent`].
    Send(&'a Batch),
    /// Number what is left anew ([`Lane::renumber`]).
    Renumber,
    /// Nothing before an answer, a new batch or [`Lane::retry_at`].
    Nothing,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    entries: VecDeque<Entry>,
    /// InFlight and Ghost entries; the numbered ones among them.
    in_flight: usize,
    numbered: usize,
    /// Where they are.
    link: LinkId,
    settling: bool,
    /// Our numbers have a gap: number anew what is left once all is answered.
    renumber: bool,
    retry_at: u64,
    failures: u32,
}

/// An acknowledgement as a leader sends it, for one lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneAck<'a> {
    pub up_to: u64,
    pub base_offsets: &'a [i64],
    pub done: Done,
    pub duplicates: u32,
    /// So many of the first offsets belong to batches that were abandoned.
    pub skip: usize,
}

impl Lane {
    pub fn push(&mut self, batch: Batch) {
        self.entries.push_back(Entry {
            batch,
            state: State::Waiting,
            sent: false,
            maybe_appended: false,
            last_refusal: None,
            renumbered: 0,
        });
    }

    /// Nothing is left to do here.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && !self.renumber
    }

    /// Nothing is unanswered: a new batch would be sent at once.
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// Room in the window for a numbered batch that is sent right away.
    pub fn has_room(&self) -> bool {
        !self.settling && self.entries.len() < IN_FLIGHT_BATCHES
    }

    /// Where batches are unanswered.
    pub fn link(&self) -> Option<LinkId> {
        (self.in_flight > 0).then_some(self.link)
    }

    pub fn retry_at(&self) -> u64 {
        self.retry_at
    }

    /// Does not wait any longer for a leader.
    pub fn wake(&mut self) {
        self.retry_at = 0;
    }

    /// Waits, since there is no way to a leader now.
    pub fn no_route(&mut self, refusal: Option<Refusal>, until: u64) {
        self.retry_at = until;
        if let Some(refusal) = refusal {
            for entry in &mut self.entries {
                if matches!(entry.state, State::Waiting) && !entry.maybe_appended {
                    entry.last_refusal = Some(refusal.clone());
                }
            }
        }
    }

    pub fn next(&self, link: LinkId, now: u64) -> Next<'_> {
        if now < self.retry_at || (self.in_flight > 0 && (self.settling || link != self.link)) {
            return Next::Nothing;
        }
        if self.renumber {
            return self.next_before_renumbering();
        }
        match self.first_waiting() {
            Some(at) if self.fits(&self.entries[at].batch) => Next::Send(&self.entries[at].batch),
            _ => Next::Nothing,
        }
    }

    /// What may have been appended is settled under its old number first.
    fn next_before_renumbering(&self) -> Next<'_> {
        let unsure = |e: &&Entry| matches!(e.state, State::Waiting) && e.maybe_appended;
        match self.entries.iter().find(unsure) {
            Some(entry) if self.fits(&entry.batch) => Next::Send(&entry.batch),
            Some(_) => Next::Nothing,
            None if self.in_flight == 0 => Next::Renumber,
            None => Next::Nothing,
        }
    }

    fn fits(&self, batch: &Batch) -> bool {
        self.in_flight < IN_FLIGHT_UNNUMBERED
            && (!batch.numbering.numbered() || self.numbered < IN_FLIGHT_BATCHES)
    }

    fn first_waiting(&self) -> Option<usize> {
        self.entries
            .iter()
            .position(|e| matches!(e.state, State::Waiting))
    }

    /// The batch of the last [`Next::Send`] was sent on `link` as `sequence`.
    pub fn mark_sent(&mut self, link: LinkId, sequence: u64) {
        let unsure = self.renumber;
        let sendable =
            |e: &&mut Entry| matches!(e.state, State::Waiting) && (!unsure || e.maybe_appended);
        let Some(entry) = self.entries.iter_mut().find(sendable) else {
            return;
        };
        entry.state = State::InFlight(sequence);
        entry.sent = true;
        self.numbered += usize::from(entry.batch.numbering.numbered());
        self.in_flight += 1;
        self.link = link;
        self.settling = false;
    }

    /// Numbers everything left of ours anew; `stamp` gives the new bytes.
    /// Only after [`Next::Renumber`].
    pub fn renumber(&mut self, mut stamp: impl FnMut(&Batch) -> Option<bytes::Bytes>) {
        self.renumber = false;
        for entry in &mut self.entries {
            if entry.batch.numbering != Numbering::Ours || !matches!(entry.state, State::Waiting) {
                continue;
            }
            debug_assert!(!entry.maybe_appended, "its first number may be in the log");
            match stamp(&entry.batch) {
                Some(bytes) => entry.batch.bytes = bytes,
                None => {
                    let why = Refusal::new(ErrorCode::Internal, "the batch could not be numbered");
                    entry.state = State::Answered(Box::new(Outcome::Refused(why)));
                }
            }
            entry.renumbered = entry.renumbered.saturating_add(1);
        }
    }

    fn leaves(&mut self, at: usize) -> Freed {
        let mut freed = Freed::default();
        let batch = &self.entries[at].batch;
        freed.add(batch);
        self.numbered -= usize::from(batch.numbering.numbered());
        self.in_flight -= 1;
        freed
    }

    fn flying(&self, link: LinkId, up_to: u64) -> Vec<usize> {
        if link != self.link {
            return Vec::new();
        }
        let flies = |(at, e): (usize, &Entry)| match e.state {
            State::InFlight(seq) | State::Ghost(seq) if seq <= up_to => Some(at),
            _ => None,
        };
        self.entries.iter().enumerate().filter_map(flies).collect()
    }

    /// `answered`: told each sequence that it answers.
    pub fn on_ack(
        &mut self,
        link: LinkId,
        ack: LaneAck<'_>,
        mut answered: impl FnMut(u64),
    ) -> Freed {
        let mut freed = Freed::default();
        let flying = self.flying(link, ack.up_to);
        let repeats = mark_repeats(ack.base_offsets, ack.duplicates);
        for (nth, at) in (ack.skip..).zip(flying) {
            freed.merge(self.leaves(at));
            let offset = ack.base_offsets.get(nth).copied().filter(|o| *o >= 0);
            let duplicate = repeats.get(nth).copied().unwrap_or(false);
            let done = Done {
                base_offset: offset,
                duplicate,
                ..ack.done
            };
            let entry = &mut self.entries[at];
            if let State::InFlight(sequence) | State::Ghost(sequence) = entry.state {
                answered(sequence);
            }
            entry.state = match entry.state {
                State::InFlight(_) => State::Answered(Box::new(Outcome::Done(done))),
                _ => State::Gone,
            };
        }
        self.failures = 0;
        freed
    }

    pub fn on_refusal(
        &mut self,
        link: LinkId,
        sequence: u64,
        refusal: &Refusal,
        leaders_may_lag: bool,
        (now, jitter): (u64, u64),
    ) -> Freed {
        let is_it = |e: &Entry| match e.state {
            State::InFlight(seq) | State::Ghost(seq) => seq == sequence,
            _ => false,
        };
        let Some(at) = self
            .entries
            .iter()
            .position(is_it)
            .filter(|_| link == self.link)
        else {
            return Freed::default();
        };
        let freed = self.leaves(at);
        if matches!(self.entries[at].state, State::Ghost(_)) {
            self.entries[at].state = State::Gone;
            return freed;
        }
        match judge(refusal, self.circumstances(at, leaders_may_lag)) {
            Verdict::Retry => self.again(at, Some(refusal), false, (now, jitter)),
            Verdict::Repeat => self.again(at, Some(refusal), true, (now, jitter)),
            Verdict::Renumber => {
                self.renumber = true;
                self.entries[at].maybe_appended = false;
                self.again(at, None, false, (now, jitter));
                self.retry_at = now;
            }
            Verdict::Final => self.answer(at, refusal.clone()),
            Verdict::Unknown => self.answer(
                at,
                Refusal::new(
                    ErrorCode::OutcomeUnknown,
                    format!("after a repeat: {}", refusal.message),
                ),
            ),
        }
        freed
    }

    fn circumstances(&self, at: usize, leaders_may_lag: bool) -> Circumstances {
        let entry = &self.entries[at];
        let waits = |e: &Entry| {
            matches!(e.state, State::Waiting | State::InFlight(_))
                && e.batch.numbering.same_session(entry.batch.numbering)
        };
        Circumstances {
            numbering: entry.batch.numbering,
            maybe_appended: entry.maybe_appended,
            behind_a_retry: self.settling && self.entries.iter().take(at).any(waits),
            leaders_may_lag,
            renumbered: entry.renumbered,
        }
    }

    fn again(&mut self, at: usize, why: Option<&Refusal>, maybe: bool, (now, jitter): (u64, u64)) {
        let entry = &mut self.entries[at];
        entry.state = State::Waiting;
        entry.maybe_appended |= maybe;
        if let Some(refusal) = why {
            entry.last_refusal = Some(refusal.clone());
        }
        let advice = why.map_or(0, |r| u64::from(r.retry_after_ms));
        if !self.settling {
            self.settling = true;
            self.failures = self.failures.saturating_add(1);
        }
        let backoff = (RETRY_MS.0 << self.failures.min(6).saturating_sub(1)).min(RETRY_MS.1);
        let pause = backoff.max(advice);
        self.retry_at = self.retry_at.max(now + pause + jitter % (pause / 4 + 1));
    }

    /// Answers a batch for good. One of ours that is not appended leaves a gap.
    fn answer(&mut self, at: usize, refusal: Refusal) {
        let entry = &mut self.entries[at];
        entry.state = State::Answered(Box::new(Outcome::Refused(refusal)));
        self.renumber |= entry.batch.numbering == Numbering::Ours;
    }

    /// The link is gone; what was in flight on it may or may not be appended.
    pub fn on_broken(&mut self, link: LinkId, now: u64) {
        if link != self.link || self.in_flight == 0 {
            return;
        }
        for at in 0..self.entries.len() {
            let entry = &mut self.entries[at];
            match entry.state {
                State::InFlight(_) if entry.batch.numbering.repeatable() => {
                    entry.state = State::Waiting;
                    entry.maybe_appended = true;
                }
                State::InFlight(_) => {
                    entry.state = State::Answered(Box::new(Outcome::Refused(Refusal::new(
                        ErrorCode::OutcomeUnknown,
                        "the stream to the leader broke before it answered",
                    ))));
                }
                State::Ghost(_) => entry.state = State::Gone,
                State::Waiting | State::Answered(_) | State::Gone => {}
            }
        }
        (self.in_flight, self.numbered) = (0, 0);
        self.retry_at = self.retry_at.max(now);
    }

    /// Another leader is at `link`: what is in flight elsewhere goes to it. Returns
    /// the link and sequences whose answers no longer count, with what each has
    /// borrowed there; nothing where a batch may not be repeated, which waits for its answer.
    pub fn abandon(&mut self, link: LinkId, now: u64) -> (LinkId, Vec<(u64, Freed)>) {
        let flies = |e: &&Entry| matches!(e.state, State::InFlight(_) | State::Ghost(_));
        let mut flying = self.entries.iter().filter(flies);
        if link == self.link || !flying.all(|e| e.batch.numbering.repeatable()) {
            return (self.link, Vec::new());
        }
        let borrowed = self.entries.iter().filter_map(|entry| {
            let (State::InFlight(sequence) | State::Ghost(sequence)) = entry.state else {
                return None;
            };
            let mut cost = Freed::default();
            cost.add(&entry.batch);
            Some((sequence, cost))
        });
        let borrowed = borrowed.collect();
        let old = self.link;
        self.on_broken(old, now);
        (old, borrowed)
    }

    /// Answers every batch whose time is over.
    pub fn expire(&mut self, now: u64) {
        let mut at = 0;
        while at < self.entries.len() {
            let entry = &mut self.entries[at];
            at += 1;
            if entry.batch.deadline_ms > now {
                continue;
            }
            match entry.state {
                State::Waiting => {
                    let refusal = timed_out(entry);
                    self.answer(at - 1, refusal);
                }
                State::InFlight(sequence) => {
                    // Told at once; its place in the window stays taken.
                    let ghost = Entry {
                        state: State::Ghost(sequence),
                        ..entry.clone()
                    };
                    entry.maybe_appended = true;
                    let refusal = timed_out(entry);
                    self.answer(at - 1, refusal);
                    self.entries.insert(at, ghost);
                }
                State::Ghost(_) | State::Answered(_) | State::Gone => {}
            }
        }
    }

    /// Answers everything that is not in flight, because it cannot be delivered.
    pub fn fail_waiting(&mut self, refusal: &Refusal) {
        for at in 0..self.entries.len() {
            let entry = &self.entries[at];
            if matches!(entry.state, State::Waiting) {
                let why = match entry.maybe_appended {
                    true => Refusal::new(ErrorCode::OutcomeUnknown, refusal.message.clone()),
                    false => refusal.clone(),
                };
                self.answer(at, why);
            }
        }
    }

    /// Takes the answers that may be given now: in order, past ghosts.
    pub fn release(&mut self, mut tell: impl FnMut(u64, Outcome)) {
        let mut at = 0;
        while at < self.entries.len() {
            match self.entries[at].state {
                State::Ghost(_) => at += 1,
                State::Gone => drop(self.entries.remove(at)),
                State::Answered(_) => {
                    if let Some(Entry {
                        batch,
                        state: State::Answered(outcome),
                        ..
                    }) = self.entries.remove(at)
                    {
                        tell(batch.ticket, *outcome);
                    }
                }
                State::Waiting | State::InFlight(_) => break,
            }
        }
        if self.in_flight == 0 && self.first_waiting().is_none() {
            self.settling = false;
        }
        debug_assert_eq!(self.check(), Ok(()));
    }

    /// The invariant, written once.
    pub fn check(&self) -> Result<(), &'static str> {
        let flies = |e: &&Entry| matches!(e.state, State::InFlight(_) | State::Ghost(_));
        let flying: Vec<&Entry> = self.entries.iter().filter(flies).collect();
        if flying.len() != self.in_flight {
            return Err("in_flight miscounts");
        }
        let numbered = flying
            .iter()
            .filter(|e| e.batch.numbering.numbered())
            .count();
        if numbered != self.numbered {
            return Err("numbered miscounts");
        }
        if numbered > IN_FLIGHT_BATCHES {
            return Err("more unanswered batches than a session remembers");
        }
        let mut waiting = self
            .entries
            .iter()
            .skip_while(|e| !matches!(e.state, State::Waiting));
        if !self.settling
            && !self.renumber
            && waiting.any(|e| matches!(e.state, State::InFlight(_)))
        {
            return Err("a later batch overtook one that waits");
        }
        Ok(())
    }
}

fn timed_out(entry: &Entry) -> Refusal {
    if entry.maybe_appended {
        return Refusal::new(
            ErrorCode::DeliveryTimeout,
            "the delivery time-out passed before the leader answered",
        );
    }
    match &entry.last_refusal {
        Some(refusal) => refusal.clone(),
        None => Refusal::new(
            ErrorCode::DeliveryTimeoutNotSent,
            "the delivery time-out passed before a leader could be reached",
        ),
    }
}

/// Which of the acknowledged batches were the `count` repeats: what is fresh
/// has larger offsets than any repeat, so the smallest ones are.
fn mark_repeats(base_offsets: &[i64], count: u32) -> Vec<bool> {
    let mut marks = vec![false; base_offsets.len()];
    if count == 0 {
        return marks;
    }
    let mut order: Vec<usize> = (0..base_offsets.len()).collect();
    order.sort_by_key(|at| (base_offsets[*at], std::cmp::Reverse(*at)));
    for at in order.into_iter().take(count as usize) {
        marks[at] = true;
    }
    marks
}
