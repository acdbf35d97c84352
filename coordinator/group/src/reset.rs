//! Where an operator moves a group to: the arithmetic, apart from the group.

use talweg_types::{LeaderEpoch, Offset, TopicPartition};

/// As asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResetTo {
    Earliest,
    Latest,
    /// Kept within the log.
    Offset(Offset),
    /// The first record at or after a time.
    Time(ResolvedTime),
    /// Records forward, or backward if negative; from the committed offset, or
    /// from the log start where there is none. Kept within the log.
    Shift(i64),
}

/// What the leader answered to a look-up by time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResolvedTime {
    At(Offset),
    /// All records are older: the high watermark.
    AfterTheLast,
}

/// One partition's move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResetChange {
    pub at: TopicPartition,
    /// As it was when the change was worked out; checked again when it is made.
    pub before: Option<Offset>,
    pub after: Offset,
    /// Of the batch before `after`; `NONE` if unknown.
    pub leader_epoch: LeaderEpoch,
}

/// The next offset to read; within `log_start..=high_watermark`, both allowed.
pub fn resolve_reset(
    to: ResetTo,
    committed: Option<Offset>,
    log_start: Offset,
    high_watermark: Offset,
) -> Offset {
    let wished = match to {
        ResetTo::Earliest => log_start,
        ResetTo::Latest | ResetTo::Time(ResolvedTime::AfterTheLast) => high_watermark,
        ResetTo::Offset(offset) | ResetTo::Time(ResolvedTime::At(offset)) => offset,
        ResetTo::Shift(by) => committed.unwrap_or(log_start).plus(by),
    };
    // Not `clamp`, which panics on bounds that cross.
    wished.min(high_watermark).max(log_start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_stays_within_the_log() {
        let at = |to, committed: Option<i64>| {
            resolve_reset(to, committed.map(Offset), Offset(10), Offset(50)).0
        };
        for (to, committed, expected) in [
            (ResetTo::Earliest, Some(20), 10),
            (ResetTo::Latest, None, 50),
            (ResetTo::Offset(Offset(30)), None, 30),
            (ResetTo::Offset(Offset(5)), None, 10),
            (ResetTo::Offset(Offset::MAX), None, 50),
            (ResetTo::Time(ResolvedTime::At(Offset(12))), None, 12),
            (ResetTo::Time(ResolvedTime::At(Offset(2))), None, 10),
            (ResetTo::Time(ResolvedTime::AfterTheLast), None, 50),
            (ResetTo::Shift(5), Some(20), 25),
            (ResetTo::Shift(-5), Some(20), 15),
            (ResetTo::Shift(-50), Some(20), 10),
            (ResetTo::Shift(5), None, 15),
            (ResetTo::Shift(i64::MAX), Some(20), 50),
            (ResetTo::Shift(i64::MIN), Some(20), 10),
        ] {
            assert_eq!(at(to, committed), expected, "{to:?} from {committed:?}");
        }
    }
}
