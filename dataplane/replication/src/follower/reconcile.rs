//! Making the log a prefix of the leader's.

use super::{Follower, FollowerEffect, FollowerFailure, Phase};
use crate::{MonotonicMs, divergence::History, replica::ReplicaEnds};
use talweg_types::{LeaderEpoch, Offset};

impl Follower {
    /// The histories part at the lower one of the leader's end of `epoch` and
    /// the own end of the largest epoch up to it, or before: asked again after
    /// the cut with a lower last epoch or end.
    pub(super) fn on_diverged<F>(
        &mut self,
        epoch: LeaderEpoch,
        end: Offset,
        history: &impl History,
        effects: &mut Vec<FollowerEffect<F>>,
    ) {
        let Some(source) = self.source else {
            return;
        };
        let (_, own_end) = history.end_of(epoch);
        let to = own_end.min(end);
        if to >= self.ends.log_end {
            return self.fail(
                FollowerFailure::NoProgress {
                    epoch: source.epoch,
                    end,
                    log_end: self.ends.log_end,
                },
                effects,
            );
        }
        let below = to < self.high_watermark;
        if below && !self.may_cut_below(history) {
            return self.fail(
                FollowerFailure::RefusedTruncation {
                    epoch: source.epoch,
                    to,
                    high_watermark: self.high_watermark,
                },
                effects,
            );
        }
        if to < self.log_start {
            // Nothing of this log stays. Where to begin, the leader says to an empty one.
            return self.restart(Offset::ZERO, below, effects);
        }
        self.cut(to, below, effects);
    }

    /// The controller has said that an epoch began with less than was promised,
    /// and this log has not been made to agree with that epoch yet.
    fn may_cut_below(&self, history: &impl History) -> bool {
        self.source
            .is_some_and(|source| history.last_epoch() < source.recovered)
    }

    pub(super) fn cut<F>(
        &mut self,
        to: Offset,
        below_watermark: bool,
        effects: &mut Vec<FollowerEffect<F>>,
    ) {
        self.phase = Phase::Cutting;
        effects.push(FollowerEffect::Truncate {
            to,
            below_watermark,
        });
    }

    pub(super) fn on_truncated<F>(
        &mut self,
        now: MonotonicMs,
        ends: ReplicaEnds,
        history: &impl History,
        effects: &mut Vec<FollowerEffect<F>>,
    ) {
        if self.phase != Phase::Cutting {
            return;
        }
        self.set_ends(ends);
        self.open(now, history, effects);
    }

    pub(super) fn on_below_start<F>(
        &mut self,
        at: Offset,
        history: &impl History,
        effects: &mut Vec<FollowerEffect<F>>,
    ) {
        let below_watermark = at < self.high_watermark;
        if below_watermark && !self.may_cut_below(history) {
            return self.fail(
                FollowerFailure::RefusedRestart {
                    epoch: self.fence,
                    at,
                    high_watermark: self.high_watermark,
                },
                effects,
            );
        }
        self.restart(at, below_watermark, effects);
    }

    fn restart<F>(
        &mut self,
        at: Offset,
        below_watermark: bool,
        effects: &mut Vec<FollowerEffect<F>>,
    ) {
        self.phase = Phase::Restarting;
        effects.push(FollowerEffect::DropAndRestart {
            at,
            below_watermark,
        });
    }

    pub(super) fn on_restarted<F>(
        &mut self,
        now: MonotonicMs,
        at: Offset,
        history: &impl History,
        effects: &mut Vec<FollowerEffect<F>>,
    ) {
        if self.phase != Phase::Restarting {
            return;
        }
        self.log_start = at;
        self.high_watermark = at;
        self.set_ends(ReplicaEnds {
            log_end: at,
            flushed_end: at,
        });
        self.open(now, history, effects);
    }

    /// The log was moved; a watermark above it was given up on purpose.
    fn set_ends(&mut self, ends: ReplicaEnds) {
        self.ends = ReplicaEnds {
            log_end: ends.log_end,
            flushed_end: ends.flushed_end.min(ends.log_end),
        };
        self.handed = ends.log_end;
        self.high_watermark = self.high_watermark.min(ends.log_end);
        self.log_start = self.log_start.min(ends.log_end);
    }

    fn fail<F>(&mut self, why: FollowerFailure, effects: &mut Vec<FollowerEffect<F>>) {
        self.phase = Phase::Failed(why);
        effects.push(FollowerEffect::Failed(why));
    }
}
