//! A replica that does not lead: it fetches from the leader, makes its log a
//! prefix of the leader's, and says how far it has got.
//!
//! | before | event | after |
//! | --- | --- | --- |
//! | any | `Follow` in a higher epoch | opens a session at its log end once no write is under way |
//! | any | `Unfollow` in its or a later epoch | idle |
//! | opening | `Fetched`: position good | follows: its log is a prefix of the leader's; reports, takes bounds |
//! | opening | `Fetched`: diverged | cuts to the common end, or has failed if that is below its watermark and the epoch is not a recovered one |
//! | opening | `Fetched`: diverged below its log start, in a recovered epoch | restarts empty: the leader says where to begin |
//! | opening | `Fetched`: below start | restarts at the leader's log start, or has failed likewise |
//! | follows | `Fetched`: the next batches | handed to the log; bounds taken |
//! | follows | `Fetched`: a gap, or a break of the rules | opens another session |
//! | opening or follows | `Broken` of this session | opens another session |
//! | any | `Fetched`, `Broken` of another session or epoch | nothing |
//! | follows | `Written`, `Flushed` | reports; the watermark follows the log end |
//! | settling | `Written` of the last frame | opens a session |
//! | cutting | `Truncated` | opens a session: histories are compared again |
//! | restarting | `Restarted` | opens a session at the new log start |
//! | failed | anything but a higher epoch | nothing |
//!
//! One session is open at most. Frames in flight are those between the log end
//! and what was handed over; the driver bounds them with the stream's credits.

use crate::{
    MonotonicMs,
    divergence::History,
    replica::{ReplicaEnds, SessionTag},
};
use talweg_types::{Incarnation, LeaderEpoch, NodeId, Offset};

mod check;
mod fetch;
mod reconcile;
mod report;
#[cfg(test)]
mod tests;
mod types;

pub use types::{
    Fetched, FetchedBody, Follow, FollowerCheck, FollowerEffect, FollowerEvent, FollowerFailure,
    OpenFetch,
};

/// The wait after the first session that broke; it doubles up to the second.
const REOPEN_MS: u64 = 50;
const REOPEN_MAX_MS: u64 = 2_000;

/// What the follower is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// It follows nobody.
    Idle,
    /// Waits for writes to return.
    Settling,
    /// Has asked at a position; whether the histories agree is not known yet.
    Opening(SessionTag),
    /// The log is a prefix of the leader's.
    Following(SessionTag),
    /// The log is being cut.
    Cutting,
    /// The log is being dropped.
    Restarting,
    /// Until a later epoch.
    Failed(FollowerFailure),
}

/// Whom it follows.
#[derive(Clone, Copy, Debug)]
struct Source {
    leader: NodeId,
    epoch: LeaderEpoch,
    recovered: LeaderEpoch,
}

/// The state of one partition's follower.
#[derive(Clone, Debug)]
pub struct Follower {
    node: NodeId,
    incarnation: Incarnation,
    phase: Phase,
    source: Option<Source>,
    /// The highest epoch heard of; only forwards.
    fence: LeaderEpoch,
    last_session: SessionTag,
    log_start: Offset,
    ends: ReplicaEnds,
    /// One past the last offset handed to the log, and the epoch of the last
    /// batch handed over in this session.
    handed: Offset,
    handed_epoch: LeaderEpoch,
    high_watermark: Offset,
    /// The leader's bounds, as told in this epoch.
    leader_watermark: Offset,
    leader_start: Offset,
    /// In this session.
    reported: Option<ReplicaEnds>,
    /// Sessions in a row that brought nothing.
    broken: u32,
}

impl Follower {
    /// A replica on `node` that follows nobody yet.
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            incarnation: Incarnation(0),
            phase: Phase::Idle,
            source: None,
            fence: LeaderEpoch::NONE,
            last_session: SessionTag(0),
            log_start: Offset::ZERO,
            ends: ReplicaEnds::default(),
            handed: Offset::ZERO,
            handed_epoch: LeaderEpoch::NONE,
            high_watermark: Offset::ZERO,
            leader_watermark: Offset::ZERO,
            leader_start: Offset::ZERO,
            reported: None,
            broken: 0,
        }
    }

    /// The leader and the epoch that it follows.
    pub fn following(&self) -> Option<(NodeId, LeaderEpoch)> {
        self.source.map(|source| (source.leader, source.epoch))
    }

    /// The session that is open or asked for.
    pub fn session(&self) -> Option<SessionTag> {
        match self.phase {
            Phase::Opening(session) | Phase::Following(session) => Some(session),
            _ => None,
        }
    }

    /// Whether the log is known to be a prefix of the leader's.
    pub fn is_reconciled(&self) -> bool {
        matches!(self.phase, Phase::Following(_))
    }

    pub fn failure(&self) -> Option<FollowerFailure> {
        match self.phase {
            Phase::Failed(why) => Some(why),
            _ => None,
        }
    }

    /// Exclusive; as stored.
    pub fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    pub fn ends(&self) -> ReplicaEnds {
        self.ends
    }

    /// Records handed to the log whose write has not returned.
    pub fn in_flight(&self) -> i64 {
        self.handed.0.saturating_sub(self.ends.log_end.0)
    }

    /// Takes in what happened at `now`; `history` is that of the log as it is.
    /// The effects are in the order in which the driver acts on them.
    pub fn step<F>(
        &mut self,
        now: MonotonicMs,
        event: FollowerEvent<F>,
        history: &impl History,
    ) -> Vec<FollowerEffect<F>> {
        let mut effects = Vec::new();
        match event {
            FollowerEvent::Follow(follow) => self.on_follow(now, follow, history, &mut effects),
            FollowerEvent::Unfollow { epoch } => self.on_unfollow(epoch),
            // The replica's bounds come with the next `Follow`.
            _ if self.source.is_none() => {}
            FollowerEvent::Broken { session } => {
                if self.session() == Some(session) {
                    self.reopen(now, history, &mut effects);
                }
            }
            FollowerEvent::Fetched(fetched) => self.on_fetched(now, fetched, history, &mut effects),
            FollowerEvent::Written { log_end } => {
                self.on_written(now, log_end, history, &mut effects)
            }
            FollowerEvent::WriteFailed { log_end } => {
                self.on_write_failed(now, log_end, history, &mut effects)
            }
            FollowerEvent::Flushed { flushed_end } => self.on_flushed(flushed_end, &mut effects),
            FollowerEvent::Truncated { ends } => {
                self.on_truncated(now, ends, history, &mut effects)
            }
            FollowerEvent::Restarted { at } => self.on_restarted(now, at, history, &mut effects),
        }
        debug_assert_eq!(self.check(history), Ok(()));
        effects
    }

    fn on_follow<F>(
        &mut self,
        now: MonotonicMs,
        follow: Follow,
        history: &impl History,
        effects: &mut Vec<FollowerEffect<F>>,
    ) {
        // Whoever knows less than the own log does is late.
        if follow.epoch <= self.fence || follow.epoch < history.last_epoch() {
            return;
        }
        // Writes under way and a log on the move belong to the log, not to the epoch.
        let writes = self.source.is_some() && self.in_flight() > 0;
        let moves = matches!(self.phase, Phase::Cutting | Phase::Restarting);
        self.fence = follow.epoch;
        self.incarnation = follow.incarnation;
        self.source = Some(Source {
            leader: follow.leader,
            epoch: follow.epoch,
            recovered: follow.recovered,
        });
        self.leader_watermark = Offset::ZERO;
        self.leader_start = Offset::ZERO;
        self.broken = 0;
        self.reported = None;
        if moves {
            return;
        }
        self.log_start = follow.log_start;
        self.high_watermark = follow.high_watermark;
        self.ends = follow.ends;
        self.handed = if writes {
            self.handed.max(self.ends.log_end)
        } else {
            self.ends.log_end
        };
        self.open(now, history, effects);
    }

    /// The log may move on under another core; nothing of it is remembered.
    fn on_unfollow(&mut self, epoch: LeaderEpoch) {
        if epoch < self.fence {
            return;
        }
        self.fence = epoch;
        self.source = None;
        self.phase = Phase::Idle;
        self.reported = None;
        self.handed = self.ends.log_end;
    }
}
