//! Bounds that come in and positions that go out.

use super::{Follower, FollowerEffect, Phase};
use crate::replica::Report;
use talweg_types::Offset;

impl Follower {
    pub(super) fn on_flushed<F>(
        &mut self,
        flushed_end: Offset,
        effects: &mut Vec<FollowerEffect<F>>,
    ) {
        if matches!(self.phase, Phase::Cutting | Phase::Restarting) {
            return;
        }
        let flushed_end = flushed_end.min(self.ends.log_end);
        self.ends.flushed_end = self.ends.flushed_end.max(flushed_end);
        self.report(effects);
    }

    pub(super) fn take_bounds<F>(
        &mut self,
        high_watermark: Option<Offset>,
        log_start: Offset,
        effects: &mut Vec<FollowerEffect<F>>,
    ) {
        let told = high_watermark.unwrap_or(Offset::ZERO);
        self.leader_watermark = self.leader_watermark.max(told);
        self.leader_start = self.leader_start.max(log_start);
        self.move_bounds(effects);
    }

    /// Watermark = the leader's, as far as the own log goes; the log start
    /// follows the leader's below it. Neither falls.
    pub(super) fn move_bounds<F>(&mut self, effects: &mut Vec<FollowerEffect<F>>) {
        let watermark = self.leader_watermark.min(self.ends.log_end);
        if watermark > self.high_watermark {
            self.high_watermark = watermark;
            effects.push(FollowerEffect::SetHighWatermark(watermark));
        }
        let start = self.leader_start.min(self.high_watermark);
        if start > self.log_start {
            self.log_start = start;
            effects.push(FollowerEffect::SetLogStart(start));
        }
    }

    /// Only once the histories agree, and only what is new in this session.
    pub(super) fn report<F>(&mut self, effects: &mut Vec<FollowerEffect<F>>) {
        let (Phase::Following(session), Some(source)) = (self.phase, self.source) else {
            return;
        };
        if self.reported == Some(self.ends) {
            return;
        }
        self.reported = Some(self.ends);
        effects.push(FollowerEffect::Report(Report {
            node: self.node,
            epoch: source.epoch,
            incarnation: self.incarnation,
            session,
            ends: self.ends,
        }));
    }
}
