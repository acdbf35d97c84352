//! What time alone makes due.

use super::{Core, Hold, Request};
use talweg_kit::errors::Refusal;

impl Core {
    /// When a [`super::Event::Tick`] is due, monotonic milliseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.ended {
            return None;
        }
        let holds = self.parts.values().filter_map(|part| match part.hold {
            Some(Hold::Until(at)) => Some(at),
            _ => None,
        });
        let overruns = self
            .parts
            .values()
            .filter_map(|part| self.overruns_at(part));
        let quiet = !self.queue.contains(&Request::Heartbeat);
        let beat = (quiet && self.heard_ms > self.told_ms).then(|| self.told_ms + self.beat_ms());
        let leave = (self.leaving && self.leave_by_ms > self.now).then_some(self.leave_by_ms);
        holds
            .chain(overruns)
            .chain(beat)
            .chain(leave)
            .chain(self.acks_due())
            .chain(self.join_due())
            .min()
    }

    /// The coordinator hears of a member this often while its client lives.
    fn beat_ms(&self) -> u64 {
        (self.config.session_ms / 4).max(1)
    }

    /// When the partition's deliveries will have taken too long.
    fn overruns_at(&self, part: &super::Part) -> Option<u64> {
        if part.overran {
            return None;
        }
        let sent = part.spans.oldest_ms()?;
        // One that never says what it passed is judged by its asking for more.
        let credited = if self.passes || self.config.commit_on_ack {
            0
        } else {
            self.credited_ms
        };
        let since = sent.max(part.active_ms).max(credited);
        Some(since.saturating_add(self.config.processing_ms))
    }

    pub(super) fn on_tick(&mut self) {
        let now = self.now;
        for part in self.parts.values_mut() {
            if matches!(part.hold, Some(Hold::Until(at)) if at <= now) {
                part.hold = None;
            }
        }
        let late = self.parts.iter().filter(|(_, part)| {
            let at = self.overruns_at(part);
            at.is_some_and(|at| at <= now)
        });
        let late: Vec<_> = late.map(|(at, _)| *at).collect();
        if !late.is_empty() {
            for at in &late {
                if let Some(part) = self.parts.get_mut(at) {
                    part.overran = true;
                }
            }
            self.queue.push_back(Request::Overran(late));
        }
        if self.heard_ms > self.told_ms && now >= self.told_ms + self.beat_ms() {
            self.beat();
        }
    }

    fn beat(&mut self) {
        if !self.queue.contains(&Request::Heartbeat) {
            self.queue.push_back(Request::Heartbeat);
        }
    }

    /// Only for a client that lives: one that is silent must run out.
    pub(super) fn on_nudged(&mut self) {
        if self.now.saturating_sub(self.heard_ms) <= self.config.session_ms {
            self.beat();
        }
    }

    /// A request was not done: what it said is said again if it is still so.
    pub(super) fn on_not_told(&mut self, request: Request, refusal: &Refusal) {
        if !refusal.is_retriable() {
            return;
        }
        let (partitions, revoked) = match request {
            Request::Revoked(partitions) => (partitions, true),
            Request::Overran(partitions) => (partitions, false),
            Request::Heartbeat | Request::Leave | Request::Commit { .. } | Request::Rejoin(_) => {
                return;
            }
        };
        for at in partitions {
            if let Some(part) = self.parts.get_mut(&at) {
                match revoked {
                    true => part.confirmed = false,
                    false => part.overran = false,
                }
            }
        }
    }
}
