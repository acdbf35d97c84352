//! One partition in the member's hands.

use super::{
    Run,
    fault::{Fault, planted},
    spans::Spans,
};
use std::{collections::BTreeMap, sync::Arc};
use talweg_client::fetch::StartAt;
use talweg_proto::coordinator::v1::{AssignedPartition, DeliveryMode};

/// Why nothing is read for now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hold {
    /// The next record is not due before this, monotonic milliseconds.
    Until(u64),
    /// One record has gone; the next follows when it is passed.
    Passed,
    /// A copy of the next record is on its way to the dead-letter topic.
    Copying,
    /// Until the member seeks.
    Sought,
}

/// Offsets to store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    pub offset: i64,
    pub metadata: String,
}

/// A nack under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failed {
    /// Its copy is not acknowledged yet.
    Copying,
    /// It counts as passed.
    Copied,
    /// There will be no copy; nothing beyond it is stored.
    Stuck,
}

#[derive(Clone, Debug)]
pub struct Part {
    pub topic: Arc<str>,
    pub given_epoch: i32,
    /// Counts how often it was given or moved on this stream, from 1.
    pub generation: u64,
    /// Its generation when it was given: what is of before is of another ownership.
    pub first_generation: u64,
    /// Its generation when it was last moved to where the member said.
    pub moved_generation: u64,
    /// Where reading begins or goes on.
    pub start: StartAt,
    /// The next offset to send; none before a leader has said.
    pub next: Option<i64>,
    /// Everything below is passed; none before a leader has said.
    pub done: Option<i64>,
    /// As the coordinator stores it; none: nothing is.
    pub committed: Option<i64>,
    /// The reset policy chose the position and the coordinator does not know it: a
    /// later owner would choose anew, and skip what came in between.
    pub unsaved: bool,
    /// After a gap the policy chose the end here. Until it is stored nothing is read:
    /// who chose anew would skip what was sent since.
    pub end_chosen: Option<i64>,
    /// It was moved: the next commit may go back.
    pub sought: bool,
    /// A member named its position, and no leader has said that the log reaches there.
    pub unproven: bool,
    pub spans: Spans,
    /// To be stored for acknowledgements.
    pub want: Option<Want>,
    pub failed: BTreeMap<i64, Failed>,
    /// Attempts at records that wait in place, by offset.
    pub attempts: BTreeMap<i64, u32>,
    /// The next record is a dead letter already; the coordinator does not know yet.
    pub buried: bool,
    pub hold: Option<Hold>,
    pub paused: bool,
    pub mode: DeliveryMode,
    pub lost: u32,
    pub reason: String,
    pub revoking: bool,
    /// The client says that it gave the partition up.
    pub given_up: bool,
    /// The coordinator was told so.
    pub confirmed: bool,
    /// The coordinator was told that a delivery took too long.
    pub overran: bool,
    /// It is being read now.
    pub reading: bool,
    /// When the member last did something about it, monotonic milliseconds.
    pub active_ms: u64,
}

impl Part {
    pub fn given(topic: Arc<str>, given: &AssignedPartition, policy: StartAt, now: u64) -> Self {
        let next = given.next_offset;
        Self {
            topic,
            given_epoch: given.given_epoch,
            generation: 1,
            first_generation: 1,
            moved_generation: 1,
            start: next.map_or(policy, StartAt::Offset),
            next,
            done: next,
            committed: next,
            unsaved: next.is_none(),
            end_chosen: None,
            sought: false,
            unproven: false,
            spans: Spans::new(next, given.leader_epoch),
            want: None,
            failed: BTreeMap::new(),
            attempts: BTreeMap::new(),
            buried: false,
            hold: None,
            paused: false,
            mode: DeliveryMode::Normal,
            lost: 0,
            reason: String::new(),
            revoking: false,
            given_up: false,
            confirmed: false,
            overran: false,
            reading: false,
            active_ms: now,
        }
    }

    /// Whether its records are to be read now.
    pub fn may_read(&self) -> bool {
        let revoking = self.revoking && !planted(Fault::SentWhileRevoked);
        let held = self.paused || revoking || self.hold.is_some() || self.must_be_saved();
        let held = held || self.end_chosen.is_some();
        !held && self.mode_allows()
    }

    /// Its position must be stored before records follow. Those in the member's hands
    /// go first: they are before it.
    pub fn must_be_saved(&self) -> bool {
        let unsaved = self.unsaved && !planted(Fault::BeginsUnstored);
        unsaved && self.next.is_some() && self.spans.is_empty()
    }

    /// A wish to store the position that the reset policy chose.
    pub fn want_saved(&mut self) {
        let position = self.done.filter(|_| self.must_be_saved());
        let held = matches!(self.hold, Some(Hold::Sought | Hold::Copying));
        let free = self.want.is_none() && !held;
        if let Some(done) = position.filter(|_| free) {
            let offset = self.storable(done);
            self.want = Some(Want {
                offset,
                metadata: String::new(),
            });
        }
    }

    fn mode_allows(&self) -> bool {
        matches!(
            self.mode,
            DeliveryMode::Unspecified | DeliveryMode::Normal | DeliveryMode::OneByOne
        )
    }

    /// Everything about records before the move is forgotten.
    pub fn move_to(&mut self, start: StartAt) {
        let offset = match start {
            StartAt::Offset(offset) => Some(offset),
            StartAt::TimestampMs(_) | StartAt::Earliest | StartAt::Latest => None,
        };
        self.generation += u64::from(!planted(Fault::GenerationKept));
        self.moved_generation = self.generation;
        self.start = start;
        (self.next, self.done) = (offset, offset);
        self.spans = Spans::new(None, -1);
        self.want = None;
        // The member chose it: it is stored when it says so.
        (self.unsaved, self.end_chosen) = (false, None);
        self.failed.clear();
        self.hold = None;
        self.reading = false;
    }

    /// Reads again from `to` on. What was sent below stays in the member's hands, and
    /// copies of failed records below go on.
    pub fn rewind(&mut self, to: i64) {
        self.generation += 1;
        self.start = StartAt::Offset(to);
        self.next = Some(to);
        self.done = self.done.map(|done| done.min(to));
        self.spans.cut(to);
        self.want = self.want.take().filter(|want| want.offset <= to);
        self.failed.retain(|at, _| *at < to);
        self.end_chosen = self.end_chosen.filter(|chosen| *chosen <= to);
        self.hold = None;
        self.reading = false;
    }

    /// Leaders said where it begins.
    pub fn on_started(&mut self, next: i64) {
        self.next.get_or_insert(next);
        self.done.get_or_insert(next);
        self.start = StartAt::Offset(self.next.unwrap_or(next));
        self.unproven = false;
    }

    /// Records up to `to` went to the member.
    pub fn on_sent(&mut self, runs: &[Run], to: i64, epoch: i32, now: u64) {
        for run in runs {
            self.done.get_or_insert(run.start);
            self.spans.push(run.start, run.end, epoch, now);
        }
        self.advance_to(to);
    }

    /// The position moved, with or without records.
    pub fn advance_to(&mut self, to: i64) {
        self.unproven = false;
        let to = self.next.map_or(to, |next| next.max(to));
        self.next = Some(to);
        self.start = StartAt::Offset(to);
        if self.spans.is_empty() {
            self.done = Some(to);
        }
    }

    /// The member passed everything below `next`.
    pub fn pass(&mut self, next: i64, now: u64) {
        self.done = Some(self.done.map_or(next, |done| done.max(next)));
        self.spans.pass(next);
        self.active_ms = now;
        // What is passed needs no memory but of copies under way.
        self.failed
            .retain(|at, failed| *at >= next || *failed != Failed::Copied);
        self.attempts = self.attempts.split_off(&next);
        if self.hold == Some(Hold::Passed) && self.spans.is_empty() {
            self.hold = None;
        }
        self.pass_copied(now);
        if self.spans.is_empty() {
            // What lies between the last record and the position holds none.
            self.done = self.next.max(self.done);
        }
    }

    /// Failed records at the front that are copied count as passed.
    pub fn pass_copied(&mut self, now: u64) {
        while let Some(first) = self.spans.first() {
            if self.failed.get(&first) != Some(&Failed::Copied) {
                return;
            }
            self.failed.remove(&first);
            self.spans.pass(first + 1);
            // Offsets may have gaps: what follows begins with the next one sent.
            let next = self.spans.first().or(self.next).unwrap_or(first + 1);
            self.done = Some(next);
            self.active_ms = now;
            if self.hold == Some(Hold::Passed) && self.spans.is_empty() {
                self.hold = None;
            }
        }
    }

    /// What may be stored of a wish to store `offset`: nothing beyond a failed
    /// record without a copy.
    pub fn storable(&self, offset: i64) -> i64 {
        let kept = |(at, failed): (&i64, &Failed)| (*failed != Failed::Copied).then_some(*at);
        let first = self.failed.iter().find_map(kept);
        first.map_or(offset, |first| first.min(offset))
    }

    /// A record below `offset` will not be copied.
    pub fn stuck_below(&self, offset: i64) -> Option<i64> {
        let below = self.failed.range(..offset);
        below
            .filter(|(_, it)| **it == Failed::Stuck)
            .map(|(at, _)| *at)
            .next()
    }

    /// A copy is still under way.
    pub fn is_copying(&self) -> bool {
        self.failed.values().any(|it| *it == Failed::Copying) || self.hold == Some(Hold::Copying)
    }

    /// Acknowledged offsets are to be stored.
    pub fn want_done(&mut self, metadata: String) {
        if let Some(done) = self.done {
            let offset = self.storable(done);
            if self.committed != Some(offset) {
                self.want = Some(Want { offset, metadata });
            }
        }
    }
}
