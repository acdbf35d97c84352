//! One partition of a reader: where it stands and who serves it.

use super::event::{Interest, StartAt};
use crate::delivery::{LinkId, Target};
use talweg_kit::errors::Refusal;
use talweg_proto::v1;

/// Who serves a partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Nobody yet, or nobody any more.
    Waiting,
    On(LinkId, Target),
}

#[derive(Clone, Debug)]
pub(super) struct Part {
    pub interest: Interest,
    /// Names this placement; frames that carry another are late voices.
    pub token: u64,
    pub place: Place,
    /// The next offset due, once a leader has said.
    pub next_offset: Option<i64>,
    /// The caller knows where it begins.
    pub started: bool,
    pub retry_at: u64,
    /// On a follower in the reader's rack.
    pub near: bool,
    /// No follower is asked before this.
    pub near_after: u64,
    /// The highest bounds that the caller was told: log start, last stable, high
    /// watermark. A follower hears of them later than its leader says them.
    told: (i64, i64, i64),
    failures: u32,
    /// The first failure since it last worked, and the newest one.
    failing: Option<(u64, Refusal)>,
}

/// First and longest pause before a partition is asked for again.
const RETRY_MS: (u64, u64) = (25, 500);

/// After a follower near by did not serve a partition.
const NEAR_PAUSE_MS: u64 = 5_000;

impl Part {
    pub fn new(interest: Interest, token: u64) -> Self {
        Self {
            interest,
            token,
            place: Place::Waiting,
            next_offset: None,
            started: false,
            retry_at: 0,
            near: false,
            near_after: 0,
            told: (0, 0, 0),
            failures: 0,
            failing: None,
        }
    }

    /// Begins elsewhere.
    pub fn seek(&mut self, start: StartAt, last_epoch: Option<i32>, token: u64) {
        self.interest.start = start;
        self.interest.leader_epoch = None;
        self.interest.last_epoch = last_epoch;
        self.token = token;
        self.next_offset = None;
        self.started = false;
        self.failing = None;
        (self.failures, self.retry_at) = (0, 0);
    }

    /// As it is asked for, from where the reader stands.
    pub fn request(&self) -> v1::FetchPartition {
        let start = self
            .next_offset
            .map_or(self.interest.start, StartAt::Offset);
        v1::FetchPartition {
            topic_id: bytes::Bytes::copy_from_slice(self.interest.partition.topic_id.as_bytes()),
            partition: self.interest.partition.partition.0,
            start: Some(start.to_proto()),
            // A later leader has a later epoch, which the reader cannot know.
            leader_epoch: self
                .interest
                .leader_epoch
                .filter(|_| self.next_offset.is_none()),
            last_epoch: self.interest.last_epoch,
            generation: self.token,
            ..v1::FetchPartition::default()
        }
    }

    /// It works: what failed before is forgotten.
    pub fn on_progress(&mut self, position: &v1::PartitionPosition) {
        self.next_offset = Some(position.next_offset);
        self.failing = None;
        self.failures = 0;
    }

    /// What clients see never steps back, whoever serves them.
    pub fn raise(&mut self, position: &mut v1::PartitionPosition) {
        let (start, stable, watermark) = self.told;
        position.log_start_offset = position.log_start_offset.max(start);
        position.last_stable_offset = position.last_stable_offset.max(stable);
        position.high_watermark = position.high_watermark.max(watermark);
        self.told = (
            position.log_start_offset,
            position.last_stable_offset,
            position.high_watermark,
        );
    }

    /// The follower near by does not serve it: the leader has the last word.
    pub fn leave_near(&mut self, now: u64) {
        self.near = false;
        self.near_after = now + NEAR_PAUSE_MS;
        self.place = Place::Waiting;
        self.retry_at = now;
    }

    /// Nobody serves it for now. Some: patience is at an end.
    pub fn on_failure(&mut self, refusal: Refusal, now: u64, patience_ms: u64) -> Option<Refusal> {
        self.place = Place::Waiting;
        let since = self.failing.as_ref().map_or(now, |(since, _)| *since);
        self.failing = Some((since, refusal.clone()));
        let pause = (RETRY_MS.0 << self.failures.min(6)).min(RETRY_MS.1);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = now + pause.max(u64::from(refusal.retry_after_ms));
        self.out_of_patience(now, patience_ms)
    }

    /// Its server cannot be reached yet.
    pub fn waits_for(&mut self, target: &Target, now: u64) {
        if self.place == Place::Waiting && self.failing.is_none() {
            let why = format!("{} cannot be reached", target.address);
            self.failing = Some((now, Refusal::unavailable(why)));
        }
    }

    /// Why it has failed for longer than `patience_ms`.
    pub fn out_of_patience(&self, now: u64, patience_ms: u64) -> Option<Refusal> {
        let (since, refusal) = self.failing.as_ref()?;
        (now.saturating_sub(*since) >= patience_ms).then(|| refusal.clone())
    }
}
