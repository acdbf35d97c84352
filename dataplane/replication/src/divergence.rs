//! Where two histories part.
//!
//! A fetch names the epoch of the last batch that the reader holds and its log
//! end. The leader looks for the end of that epoch, or of the largest one below
//! it, in its own log:
//!
//! | the leader has | answer |
//! | --- | --- |
//! | its log start above the reader's end | below start |
//! | that epoch, up to the reader's end or further | ok |
//! | that epoch, ending earlier | diverged, with that end |
//! | only lower epochs | diverged, with the largest of them and its end |
//! | none so old, because its log starts later | below start: nothing of it can be compared |
//!
//! The follower cuts and asks again; each round lowers its last epoch or its end.

use crate::fault::{Fault, planted};
use talweg_types::{LeaderEpoch, Offset};

/// The epochs of a log, as the driver keeps them.
pub trait History {
    /// The epoch of the last batch; NONE in an empty log.
    fn last_epoch(&self) -> LeaderEpoch;

    /// The largest epoch at or below `epoch` in the log, and the end (exclusive)
    /// of its batches; (NONE, log start) if there is none.
    fn end_of(&self, epoch: LeaderEpoch) -> (LeaderEpoch, Offset);
}

/// What a leader says to a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// Everything that the reader holds is in this log.
    Ok,
    /// The histories part at or before `end` (exclusive), the end of `epoch` here.
    Diverged { epoch: LeaderEpoch, end: Offset },
    /// The reader has to begin at the log start.
    BelowStart { log_start: Offset },
}

/// Compares a reader's (`last_epoch`, `next`) with this log: `next` is one past
/// what the reader holds, `last_epoch` the epoch of its last batch or NONE.
pub fn check_position(
    history: &impl History,
    log_start: Offset,
    log_end: Offset,
    last_epoch: LeaderEpoch,
    next: Offset,
) -> Position {
    if planted(Fault::DivergenceNotFound) {
        return Position::Ok;
    }
    if next < log_start {
        return Position::BelowStart { log_start };
    }
    if last_epoch == LeaderEpoch::NONE {
        // It holds nothing that could differ.
        return if next <= log_end {
            Position::Ok
        } else {
            Position::Diverged {
                epoch: LeaderEpoch::NONE,
                end: log_end,
            }
        };
    }
    match history.end_of(last_epoch) {
        (epoch, end) if epoch == last_epoch && next <= end => Position::Ok,
        (LeaderEpoch::NONE, _) if log_start > Offset::ZERO => Position::BelowStart { log_start },
        (epoch, end) => Position::Diverged { epoch, end },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (epoch, start), log start, log end.
    struct Model(&'static [(i32, i64)], i64, i64);

    impl History for Model {
        fn last_epoch(&self) -> LeaderEpoch {
            LeaderEpoch(self.0.last().map_or(-1, |entry| entry.0))
        }

        fn end_of(&self, epoch: LeaderEpoch) -> (LeaderEpoch, Offset) {
            let next = self.0.iter().find(|entry| entry.0 > epoch.0);
            let end = Offset(next.map_or(self.2, |entry| entry.1));
            match self.0.iter().rfind(|entry| entry.0 <= epoch.0) {
                Some(entry) => (LeaderEpoch(entry.0), end),
                None => (LeaderEpoch::NONE, Offset(self.1)),
            }
        }
    }

    #[test]
    fn positions_are_compared_by_epochs() {
        let diverged = |epoch, end| Position::Diverged {
            epoch: LeaderEpoch(epoch),
            end: Offset(end),
        };
        let below = |at| Position::BelowStart {
            log_start: Offset(at),
        };
        let whole = Model(&[(1, 0), (3, 10), (7, 20)], 0, 25);
        let trimmed = Model(&[(3, 10), (7, 20)], 12, 25);
        let late = Model(&[(7, 20)], 20, 25);
        let empty = Model(&[], 0, 0);
        for (log, last_epoch, next, expected) in [
            (&whole, -1, 0, Position::Ok),
            (&whole, -1, 25, Position::Ok),
            (&whole, -1, 26, diverged(-1, 25)),
            (&whole, 1, 10, Position::Ok),
            (&whole, 1, 11, diverged(1, 10)),
            (&whole, 2, 5, diverged(1, 10)),
            (&whole, 3, 20, Position::Ok),
            (&whole, 5, 24, diverged(3, 20)),
            (&whole, 7, 25, Position::Ok),
            (&whole, 7, 26, diverged(7, 25)),
            (&whole, 9, 30, diverged(7, 25)),
            (&whole, 0, 4, diverged(-1, 0)),
            (&trimmed, 3, 11, below(12)),
            (&trimmed, 3, 12, Position::Ok),
            (&trimmed, 1, 14, below(12)),
            (&late, 3, 20, below(20)),
            (&late, -1, 20, Position::Ok),
            (&empty, 3, 4, diverged(-1, 0)),
            (&empty, -1, 0, Position::Ok),
        ] {
            let (epoch, next) = (LeaderEpoch(last_epoch), Offset(next));
            let found = check_position(log, Offset(log.1), Offset(log.2), epoch, next);
            assert_eq!(found, expected, "epoch {last_epoch}, next {next}");
        }
    }
}
