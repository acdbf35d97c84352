//! A replica that follows, as its loop holds it: the follower core's effects,
//! done on the log.
//!
//! Writes are made in the loop, so that none is under way between two steps. A
//! cut waits for the flush that is out, and nothing else is flushed before it; a
//! compaction that is out is cancelled for it.

use super::{
    command::Following,
    completion::Deliveries,
    handle::LogCut,
    replica::{AppendedRound, Cut, Replica},
};
use crate::replicate::{LogHistory, ReplicaFrame, Word};
use bytes::Bytes;
use std::collections::VecDeque;
use talweg_log::{LogError, ReplicaBatch, ReplicaError};
use talweg_replication::{
    Fetched, Follow, FollowerEffect, FollowerEvent, FollowerFailure, MonotonicMs, OpenFetch,
    ReplicaEnds, SessionTag,
};
use talweg_types::LeaderEpoch;

/// A cut for which there was no room is tried again after this.
const CUT_AGAIN_MS: u64 = 1_000;

impl Replica {
    /// Begins to follow; leads no more.
    pub fn follow(&mut self, now: MonotonicMs, following: Following, out: &mut Deliveries) {
        self.resign_leadership(now, following.epoch, out);
        match self.log.follow(following.epoch) {
            Ok(()) => {}
            // An older word than what the log holds.
            Err(error @ LogError::StaleEpoch { .. }) => {
                tracing::warn!(partition = %self.tp(), epoch = %following.epoch, %error, "does not follow");
                return;
            }
            Err(error) => {
                tracing::error!(partition = %self.tp(), epoch = %following.epoch, %error, "cannot follow");
                self.mark_failed(&error.to_string());
                return;
            }
        }
        if self.upstream != Some(following.leader) {
            self.stop_fetching();
        }
        let bounds = self.log.bounds();
        let follow = Follow {
            leader: following.leader,
            epoch: following.epoch,
            incarnation: following.incarnation,
            recovered: following.recovered,
            log_start: bounds.log_start,
            high_watermark: bounds.high_watermark,
            ends: self.ends(),
        };
        tracing::debug!(partition = %self.tp(), epoch = %following.epoch, leader = following.leader.0, ?bounds, "follows");
        self.step_follower(now, FollowerEvent::Follow(follow));
    }

    /// Another role begins in `epoch`.
    pub(super) fn unfollow(&mut self, now: MonotonicMs, epoch: LeaderEpoch) {
        if self
            .follower
            .following()
            .is_some_and(|(_, followed)| followed > epoch)
        {
            // An older word: the fetch goes on.
            return;
        }
        self.stop_fetching();
        self.step_follower(now, FollowerEvent::Unfollow { epoch });
        // What the old leader asked for is nobody's wish any more.
        self.cut = None;
        self.sessions = Bytes::new();
    }

    fn stop_fetching(&mut self) {
        if let Some(upstream) = self.upstream.take() {
            self.outbox.say(upstream, self.tp(), Word::Stop);
        }
    }

    pub fn on_fetched(
        &mut self,
        now: MonotonicMs,
        fetched: Fetched<ReplicaFrame>,
    ) -> AppendedRound {
        self.step_follower(now, FollowerEvent::Fetched(fetched))
    }

    /// Producer state that a leader sent for a log that begins anew.
    pub fn take_sessions(&mut self, sessions: Bytes) {
        self.sessions = sessions;
    }

    pub fn on_fetch_broken(&mut self, now: MonotonicMs, session: SessionTag) {
        self.step_follower(now, FollowerEvent::Broken { session });
    }

    fn ends(&self) -> ReplicaEnds {
        let bounds = self.log.bounds();
        ReplicaEnds {
            log_end: bounds.log_end,
            flushed_end: bounds.flushed_end,
        }
    }

    /// Steps the core and does what it says, until it has nothing more to say.
    pub(super) fn step_follower(
        &mut self,
        now: MonotonicMs,
        event: FollowerEvent<ReplicaFrame>,
    ) -> AppendedRound {
        let mut done = AppendedRound::default();
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let reader = self.log.reader();
            let effects = self.follower.step(now, event, &LogHistory(&reader));
            for effect in effects {
                events.extend(self.act(effect, &mut done));
            }
            events.extend(self.try_cut(now));
        }
        self.show_following();
        self.count_refusal();
        done
    }

    /// Readers near by are served while the log is a prefix of the leader's.
    fn show_following(&self) {
        let near = self.follower.is_reconciled() && self.upstream.is_some();
        let epoch = self.follower.following().map(|(_, epoch)| epoch);
        self.handle.set_follows(epoch.filter(|_| near));
    }

    fn count_refusal(&mut self) {
        let refuses = matches!(
            self.follower.failure(),
            Some(
                FollowerFailure::RefusedTruncation { .. } | FollowerFailure::RefusedRestart { .. }
            )
        );
        if !refuses {
            self.refusing = None;
        } else if self.refusing.is_none() {
            self.refusing = self.metrics.as_ref().map(|metrics| metrics.refusing());
        }
    }

    /// A cut that had to wait for a flush.
    pub(super) fn cut_now(&mut self, now: MonotonicMs) {
        if let Some(event) = self.try_cut(now) {
            self.step_follower(now, event);
        }
    }

    /// What became of it, if the core wants to know.
    fn act(
        &mut self,
        effect: FollowerEffect<ReplicaFrame>,
        done: &mut AppendedRound,
    ) -> Option<FollowerEvent<ReplicaFrame>> {
        match effect {
            FollowerEffect::OpenFetch(fetch) => self.open_fetch(fetch),
            FollowerEffect::Append { frame } => return Some(self.append_frame(&frame, done)),
            FollowerEffect::Truncate {
                to,
                below_watermark,
            } => {
                self.cut = Some(Cut::Truncate {
                    to,
                    below_watermark,
                });
            }
            FollowerEffect::DropAndRestart {
                at,
                below_watermark,
            } => {
                self.cut = Some(Cut::Restart {
                    at,
                    below_watermark,
                });
            }
            FollowerEffect::SetHighWatermark(offset) => {
                self.log.set_high_watermark(offset);
                self.handle.watchers.wake_armed();
            }
            FollowerEffect::SetLogStart(offset) => {
                self.log.follow_log_start(offset);
                self.handle.watchers.wake_all();
            }
            FollowerEffect::Report(report) => {
                if let Some(upstream) = self.upstream {
                    self.outbox.say(upstream, self.tp(), Word::Report(report));
                }
            }
            FollowerEffect::Failed(why) => {
                tracing::error!(partition = %self.tp(), %why, "this replica cannot follow; it waits for a later epoch");
            }
        }
        None
    }

    fn open_fetch(&mut self, fetch: OpenFetch) {
        let bounds = self.log.bounds();
        self.upstream = Some(fetch.leader);
        let word = Word::Fetch {
            fetch,
            flushed_end: bounds.flushed_end,
            log_start: bounds.log_start,
            high_watermark: bounds.high_watermark,
        };
        self.outbox.say(fetch.leader, self.tp(), word);
    }

    fn append_frame(
        &mut self,
        frame: &ReplicaFrame,
        done: &mut AppendedRound,
    ) -> FollowerEvent<ReplicaFrame> {
        for (time, batches) in ReplicaBatch::runs(&frame.batches, &frame.append_times) {
            let time = time.unwrap_or_else(|| (self.wall_clock)());
            if let Err(error) = self.log.append_replica(batches, time) {
                self.show(&error);
                let log_end = self.log.bounds().log_end;
                return FollowerEvent::WriteFailed { log_end };
            }
            done.bytes += batches.iter().map(|batch| batch.size() as u64).sum::<u64>();
        }
        let log_end = self.log.bounds().log_end;
        FollowerEvent::Written { log_end }
    }

    fn show(&self, error: &ReplicaError) {
        match error {
            ReplicaError::Append(error) => {
                tracing::warn!(partition = %self.tp(), %error, "replicated batches could not be written");
            }
            error => {
                tracing::error!(partition = %self.tp(), %error, "replicated batches do not fit")
            }
        }
    }

    /// Cuts, if no flush is out. A log that cannot be cut serves nothing more.
    fn try_cut(&mut self, now: MonotonicMs) -> Option<FollowerEvent<ReplicaFrame>> {
        if self.cut.is_some() {
            self.log.cancel_rewrite();
        }
        if self.ticket_out || self.log.is_rewriting() || now < self.cut_not_before {
            return None;
        }
        let cut = self.cut.take()?;
        let (event, result) = match cut {
            Cut::Truncate {
                to,
                below_watermark,
            } => {
                let before = self.log.bounds();
                if below_watermark {
                    tracing::error!(partition = %self.tp(), %to, high_watermark = %before.high_watermark, "cut below the high watermark: the leader's epoch began with less than was promised");
                    self.log.lower_high_watermark(to);
                }
                let result = self.log.truncate_to(to).map(|cut| {
                    if let Some(metrics) = &self.metrics {
                        metrics.truncated(cut.cut_bytes);
                    }
                    tracing::warn!(partition = %self.tp(), from = %before.log_end, to = %cut.log_end, bytes = cut.cut_bytes, "cut the end of the log, which the leader does not have");
                    self.handle.note_cut(LogCut {
                        from: before.log_end,
                        to: cut.log_end,
                        bytes: cut.cut_bytes,
                        time: (self.wall_clock)(),
                        below_watermark,
                    });
                });
                (None, result)
            }
            Cut::Restart {
                at,
                below_watermark,
            } => {
                let sessions = std::mem::take(&mut self.sessions);
                if below_watermark {
                    tracing::error!(partition = %self.tp(), %at, high_watermark = %self.log.bounds().high_watermark, "dropped below the high watermark: the leader's epoch began with less than was promised");
                }
                tracing::warn!(partition = %self.tp(), log_end = %self.log.bounds().log_end, %at, "dropped the log, which ends below the leader's start");
                let result = self.log.restart_at(at, &sessions, below_watermark);
                (Some(FollowerEvent::Restarted { at }), result)
            }
        };
        self.handle.wake_all();
        match result {
            Err(LogError::DiskFull) => {
                self.cut = Some(cut);
                self.cut_not_before = now.plus(CUT_AGAIN_MS);
                None
            }
            Ok(()) => Some(event.unwrap_or(FollowerEvent::Truncated { ends: self.ends() })),
            Err(error) => {
                tracing::error!(partition = %self.tp(), %error, "the log cannot be cut; the replica serves no more");
                self.stop_fetching();
                self.mark_failed(&error.to_string());
                None
            }
        }
    }
}
