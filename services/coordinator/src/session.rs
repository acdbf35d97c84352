//! How long the controller's word holds: what is answered without a write rests on it.
//!
//! The controller ends a session one time-out after the last heartbeat that it heard,
//! and each of its answers names the revision that it had told watchers by then. So a
//! coordinator whose heartbeat of moment `t` was answered, and whose view has the
//! revision of that answer, knows all that was decided about shards before `t`. A
//! time-out after `t` it knows nothing any more.

use std::collections::VecDeque;
use talweg_types::MonotonicMs;

/// Answers whose revision the view has not reached. More say nothing that the newest
/// does not.
const AWAITED_MAX: usize = 16;

/// What was heard, and what of it is known here.
#[derive(Debug, Default)]
pub struct Session {
    timeout_ms: u64,
    /// The view has all that the controller had told at this moment.
    known_at: Option<MonotonicMs>,
    /// When it was asked, and the revision that the view must reach; oldest first.
    awaited: VecDeque<(MonotonicMs, i64)>,
}

impl Session {
    pub fn set_timeout(&mut self, timeout_ms: u64) {
        self.timeout_ms = timeout_ms;
    }

    /// The controller has answered what was sent at `sent`.
    pub fn on_answer(&mut self, sent: MonotonicMs, revision: i64, view: i64) {
        if revision <= view {
            return self.know(sent);
        }
        if self.awaited.len() >= AWAITED_MAX {
            // The oldest is reached first; the newest reaches farthest.
            self.awaited.pop_back();
        }
        self.awaited.push_back((sent, revision));
    }

    /// The view has reached this revision.
    pub fn on_view(&mut self, view: i64) {
        let reached = self
            .awaited
            .iter()
            .filter(|(_, revision)| *revision <= view);
        if let Some(newest) = reached.map(|(sent, _)| *sent).max() {
            self.know(newest);
        }
        self.awaited.retain(|(_, revision)| *revision > view);
    }

    fn know(&mut self, at: MonotonicMs) {
        self.known_at = self.known_at.max(Some(at));
    }

    /// Since when changes of the cluster may be unknown here.
    pub fn known_at(&self) -> Option<MonotonicMs> {
        self.known_at
    }

    /// Our shards were given to nobody else, as far as the controller keeps to its
    /// time-out.
    pub fn holds(&self, now: MonotonicMs) -> bool {
        let until = self.known_at.map(|at| at.plus(self.timeout_ms));
        until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        let mut session = Session::default();
        session.set_timeout(1_000);
        session
    }

    /// Story: the answer to a heartbeat was under way for almost a time-out. It says
    /// nothing about the time since the heartbeat was sent.
    #[test]
    fn it_counts_from_the_sending_of_what_was_answered() {
        let mut session = session();
        assert!(!session.holds(MonotonicMs(0)), "nothing was heard yet");
        session.on_answer(MonotonicMs(100), 5, 5);
        // Heard at 1,000.
        assert!(session.holds(MonotonicMs(1_099)));
        assert!(!session.holds(MonotonicMs(1_100)));
    }

    /// Story: heartbeats are answered, and the watch by which a move of the shards
    /// would be known is late.
    #[test]
    fn an_answer_counts_once_the_view_has_what_was_told_before_it() {
        let mut session = session();
        session.on_answer(MonotonicMs(100), 5, 5);
        session.on_answer(MonotonicMs(900), 7, 5);
        assert!(
            !session.holds(MonotonicMs(1_200)),
            "the move may be in 6 or 7"
        );
        session.on_view(6);
        assert!(!session.holds(MonotonicMs(1_200)));
        session.on_view(7);
        assert!(session.holds(MonotonicMs(1_200)));
        assert_eq!(session.known_at(), Some(MonotonicMs(900)));
    }

    #[test]
    fn a_view_that_never_comes_costs_no_room_and_an_old_answer_takes_nothing_back() {
        let mut session = session();
        for n in 0..100 {
            session.on_answer(MonotonicMs(n), 10, 5);
        }
        assert!(session.awaited.len() <= AWAITED_MAX);
        session.on_view(10);
        assert_eq!(session.known_at(), Some(MonotonicMs(99)));
        session.on_answer(MonotonicMs(50), 0, 10);
        assert_eq!(session.known_at(), Some(MonotonicMs(99)));
    }
}
