//! Sessions and what they bring.

use super::{
    Fetched, FetchedBody, Follower, FollowerEffect, OpenFetch, Phase, REOPEN_MAX_MS, REOPEN_MS,
};
use crate::{
    MonotonicMs, SessionTag,
    divergence::History,
    fault::{Fault, planted},
};
use talweg_types::{LeaderEpoch, Offset};

impl Follower {
    /// Asks at the log end, once nothing moves it any more.
    pub(super) fn open<F>(
        &mut self,
        now: MonotonicMs,
        history: &impl History,
        effects: &mut Vec<FollowerEffect<F>>,
    ) {
        let Some(source) = self.source else {
            return;
        };
        self.reported = None;
        if self.in_flight() > 0 {
            self.phase = Phase::Settling;
            return;
        }
        if planted(Fault::TruncatesToWatermark) && self.high_watermark < self.ends.log_end {
            self.cut(self.high_watermark, false, effects);
            return;
        }
        self.last_session = SessionTag(self.last_session.0 + 1);
        self.phase = Phase::Opening(self.last_session);
        self.handed_epoch = history.last_epoch();
        effects.push(FollowerEffect::OpenFetch(OpenFetch {
            session: self.last_session,
            leader: source.leader,
            epoch: source.epoch,
            incarnation: self.incarnation,
            next: self.ends.log_end,
            last_epoch: self.handed_epoch,
            not_before: now.plus(self.wait_ms()),
        }));
    }

    /// Another session after one that ended, later each time.
    pub(super) fn reopen<F>(
        &mut self,
        now: MonotonicMs,
        history: &impl History,
        effects: &mut Vec<FollowerEffect<F>>,
    ) {
        self.broken = self.broken.saturating_add(1);
        self.open(now, history, effects);
    }

    fn wait_ms(&self) -> u64 {
        match self.broken {
            0 => 0,
            broken => (REOPEN_MS << broken.min(16)).min(REOPEN_MAX_MS),
        }
    }

    pub(super) fn on_fetched<F>(
        &mut self,
        now: MonotonicMs,
        fetched: Fetched<F>,
        history: &impl History,
        effects: &mut Vec<FollowerEffect<F>>,
    ) {
        let Some(session) = self.session() else {
            return;
        };
        let current = fetched.session == session && self.source_epoch() == fetched.epoch;
        if !current && !planted(Fault::OldSessionApplied) {
            return;
        }
        let opening = matches!(self.phase, Phase::Opening(_));
        match fetched.body {
            FetchedBody::Diverged { epoch, end } if opening => {
                return self.on_diverged(epoch, end, history, effects);
            }
            FetchedBody::BelowStart if opening => {
                return self.on_below_start(fetched.log_start, history, effects);
            }
            // The position was found good before: the peer breaks the rules.
            FetchedBody::Diverged { .. } | FetchedBody::BelowStart => {
                return self.reopen(now, history, effects);
            }
            FetchedBody::Nothing => {}
            FetchedBody::Batches {
                from,
                end,
                first_epoch,
                last_epoch,
                frame,
            } => {
                if from < self.handed && !opening {
                    // A repeat. Its bounds are true nevertheless.
                } else if self.continues(from, end, first_epoch, last_epoch) {
                    self.handed = end;
                    self.handed_epoch = last_epoch;
                    effects.push(FollowerEffect::Append { frame });
                } else {
                    return self.reopen(now, history, effects);
                }
            }
        }
        self.phase = Phase::Following(session);
        if self.in_flight() == 0 {
            // Batches count once they are written: a full disk is asked less and less.
            self.broken = 0;
        }
        self.take_bounds(fetched.high_watermark, fetched.log_start, effects);
        self.report(effects);
    }

    fn source_epoch(&self) -> LeaderEpoch {
        self.source.map_or(LeaderEpoch::NONE, |source| source.epoch)
    }

    /// Whether a frame comes next: epochs never fall along a log, and none is
    /// above the leader's.
    fn continues(&self, from: Offset, end: Offset, first: LeaderEpoch, last: LeaderEpoch) -> bool {
        let epochs = self.handed_epoch <= first && first <= last && last <= self.source_epoch();
        from == self.handed && end > from && epochs
    }

    pub(super) fn on_written<F>(
        &mut self,
        now: MonotonicMs,
        log_end: Offset,
        history: &impl History,
        effects: &mut Vec<FollowerEffect<F>>,
    ) {
        if matches!(self.phase, Phase::Cutting | Phase::Restarting) {
            return;
        }
        // A log that is further than what was handed to it was driven by others.
        let before = self.ends.log_end;
        self.ends.log_end = self.ends.log_end.max(log_end.min(self.handed));
        if self.ends.log_end > before {
            self.broken = 0;
        }
        match self.phase {
            Phase::Settling => self.open(now, history, effects),
            Phase::Following(_) => {
                self.move_bounds(effects);
                self.report(effects);
            }
            _ => {}
        }
    }

    pub(super) fn on_write_failed<F>(
        &mut self,
        now: MonotonicMs,
        log_end: Offset,
        history: &impl History,
        effects: &mut Vec<FollowerEffect<F>>,
    ) {
        self.on_written(now, log_end, history, effects);
        self.handed = self.ends.log_end;
        if matches!(self.phase, Phase::Settling | Phase::Following(_)) {
            self.reopen(now, history, effects);
        }
    }
}
