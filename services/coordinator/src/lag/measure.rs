//! The arithmetic of lag, apart from whom it is asked.

use crate::{leaders::BacklogFrom, shard::Seen};
use talweg_group::{Committed, Group};
use talweg_kit::errors::Refusal;
use talweg_proto::{
    storage::v1::Backlog,
    v1::{LagTrend, PartitionLag},
};
use talweg_types::{MemberId, Offset, TimestampMs, TopicPartition};

/// Rates that differ by less are the same: this part of the arrivals, or this many
/// records a second.
const SAME_PART: f64 = 0.05;
const SAME_PER_SECOND: f64 = 0.1;

/// Where a group stands in one partition.
#[derive(Clone, Debug)]
pub struct Position {
    pub at: TopicPartition,
    /// None: nothing is committed.
    pub committed: Option<Committed>,
    pub owner: Option<MemberId>,
    /// Records committed a second; none while it is too early to say.
    pub per_second: Option<f64>,
    /// Whoever reads it sees committed records only.
    pub reads_committed: bool,
}

impl Position {
    /// From where the backlog is measured.
    pub fn question(&self) -> BacklogFrom {
        let committed = self.committed.as_ref();
        BacklogFrom {
            at: self.at,
            offset: committed.map_or(Offset::ZERO, |stored| stored.offset),
            committed: self.reads_committed,
        }
    }
}

/// Partitions with an offset, and (`owned`) those that only have an owner.
pub fn positions(name: &str, group: &Group, seen: &Seen<'_>, owned: bool) -> Vec<Position> {
    let state = group.state();
    let now = seen.now.monotonic;
    let position = |at: TopicPartition, committed: Option<&Committed>| {
        let owner = state.owner(at);
        let meta = owner.and_then(|id| state.members().get(&id));
        Position {
            at,
            committed: committed.cloned(),
            owner,
            per_second: seen.pace.per_second(name, at, now),
            reads_committed: meta.is_some_and(|meta| meta.reads_committed),
        }
    };
    let stored = state.offsets();
    let mut all: Vec<Position> = stored
        .iter()
        .map(|(at, committed)| position(*at, Some(committed)))
        .collect();
    if owned {
        let members = state.members().keys();
        let currents = members.filter_map(|id| state.current(*id));
        let owned = currents.flat_map(|current| current.owned.keys());
        let bare = owned.filter(|at| !stored.contains_key(at));
        all.extend(bare.map(|at| position(*at, None)));
    }
    all.sort_by_key(|position| position.at);
    all
}

/// As a client sees it. `topic` may be empty: it is gone.
pub fn partition_lag(
    position: &Position,
    topic: String,
    backlog: Option<Result<Backlog, Refusal>>,
    now: TimestampMs,
) -> PartitionLag {
    let committed = position.committed.as_ref();
    let mut lag = PartitionLag {
        topic,
        topic_id: bytes::Bytes::copy_from_slice(position.at.topic_id.as_bytes()),
        partition: position.at.partition.0,
        member_id: position.owner.map(|id| id.to_string()).unwrap_or_default(),
        committed_offset: committed.map_or(-1, |stored| stored.offset.0),
        last_progress_ms: committed.map(|stored| stored.moved_at.0),
        processing_per_second: position.per_second,
        ..PartitionLag::default()
    };
    let backlog = backlog.unwrap_or_else(|| Err(Refusal::unavailable("the leader was not asked")));
    let backlog = match backlog {
        Ok(backlog) => backlog,
        Err(refusal) => {
            lag.error = Some(refusal.detail());
            return lag;
        }
    };
    let from = position.question().offset;
    lag.log_start_offset = backlog.log_start_offset;
    lag.log_end_offset = backlog.end_offset;
    lag.lag_records = backlog
        .end_offset
        .saturating_sub(from.0.max(backlog.log_start_offset))
        .max(0);
    lag.arrival_per_second = backlog.arrival_per_second;
    lag.trend = trend(
        lag.lag_records,
        position.per_second,
        backlog.arrival_per_second,
    )
    .into();
    if lag.lag_records == 0 {
        return lag;
    }
    lag.lag_bytes = backlog.bytes;
    let age = |appended: i64| now.0.saturating_sub(appended).max(0);
    lag.lag_ms = backlog.oldest_append_ms.map_or(0, age);
    lag.approximate = backlog.approximate;
    lag.loss_ms = backlog.loss_ms;
    lag.drain_ms = drain_ms(
        lag.lag_records,
        position.per_second,
        backlog.arrival_per_second,
    );
    lag
}

fn trend(lag: i64, processing: Option<f64>, arrival: Option<f64>) -> LagTrend {
    let (Some(processing), Some(arrival)) = (processing, arrival) else {
        return match lag {
            0 => LagTrend::Flat,
            _ => LagTrend::Unspecified,
        };
    };
    let same = (arrival * SAME_PART).max(SAME_PER_SECOND);
    let grows_by = arrival - processing;
    if lag == 0 || grows_by.abs() <= same {
        LagTrend::Flat
    } else if grows_by > 0.0 {
        LagTrend::Growing
    } else {
        LagTrend::Draining
    }
}

/// None: never at this pace, or a pace is not known.
fn drain_ms(lag: i64, processing: Option<f64>, arrival: Option<f64>) -> Option<i64> {
    let gains = processing? - arrival?;
    if gains <= 0.0 {
        return None;
    }
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    let ms = (lag as f64 / gains * 1_000.0).ceil() as i64;
    Some(ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_types::{LeaderEpoch, PartitionIndex, TopicId};

    fn position(committed: Option<i64>, per_second: Option<f64>) -> Position {
        Position {
            at: TopicPartition {
                topic_id: TopicId::NIL,
                partition: PartitionIndex(2),
            },
            committed: committed.map(|offset| Committed {
                offset: Offset(offset),
                leader_epoch: LeaderEpoch(0),
                metadata: String::new(),
                committed_at: TimestampMs(99),
                moved_at: TimestampMs(77),
            }),
            owner: None,
            per_second,
            reads_committed: false,
        }
    }

    fn backlog(log_start: i64, end: i64, arrival: f64) -> Backlog {
        Backlog {
            log_start_offset: log_start,
            end_offset: end,
            bytes: 500,
            oldest_append_ms: Some(9_000),
            loss_ms: Some(5),
            arrival_per_second: Some(arrival),
            ..Backlog::default()
        }
    }

    fn lag(position: &Position, backlog: Backlog) -> PartitionLag {
        partition_lag(position, "t".into(), Some(Ok(backlog)), TimestampMs(10_000))
    }

    #[test]
    fn lag_is_bounded_by_the_log_start_and_nothing_at_the_end() {
        let behind = lag(&position(Some(3), None), backlog(10, 50, 1.0));
        assert_eq!(
            (behind.lag_records, behind.lag_bytes, behind.lag_ms),
            (40, 500, 1_000)
        );
        assert_eq!(behind.loss_ms, Some(5));
        assert_eq!(behind.last_progress_ms, Some(77), "not the repeat's time");
        let bare = lag(&position(None, None), backlog(10, 50, 1.0));
        assert_eq!((bare.committed_offset, bare.lag_records), (-1, 40));
        let done = lag(&position(Some(50), None), backlog(10, 50, 1.0));
        assert_eq!((done.lag_records, done.lag_bytes, done.lag_ms), (0, 0, 0));
        assert_eq!((done.loss_ms, done.trend()), (None, LagTrend::Flat));
        let ahead = lag(&position(Some(60), None), backlog(10, 50, 1.0));
        assert_eq!(ahead.lag_records, 0, "an end that went back");
    }

    #[test]
    fn trend_and_drain_follow_from_the_two_rates() {
        for (processing, arrival, trend, drain) in [
            (None, 5.0, LagTrend::Unspecified, None),
            (Some(5.0), 10.0, LagTrend::Growing, None),
            (Some(10.0), 5.0, LagTrend::Draining, Some(8_000)),
            (Some(10.0), 10.2, LagTrend::Flat, None),
            (Some(0.0), 0.0, LagTrend::Flat, None),
        ] {
            let it = lag(&position(Some(10), processing), backlog(10, 50, arrival));
            assert_eq!(
                (it.trend(), it.drain_ms),
                (trend, drain),
                "{processing:?} {arrival}"
            );
        }
    }

    /// Story: commits and arrivals have been seen for a moment only. No pace is 0 for that.
    #[test]
    fn a_pace_that_is_not_known_is_absent() {
        let arrivals = |per_second| Backlog {
            arrival_per_second: per_second,
            ..backlog(10, 50, 0.0)
        };
        let it = lag(&position(Some(10), None), arrivals(Some(2.0)));
        assert_eq!(it.processing_per_second, None);
        assert_eq!((it.arrival_per_second, it.drain_ms), (Some(2.0), None));
        let it = lag(&position(Some(10), Some(5.0)), arrivals(None));
        assert_eq!(it.processing_per_second, Some(5.0));
        assert_eq!((it.arrival_per_second, it.drain_ms), (None, None));
        assert_eq!(it.trend(), LagTrend::Unspecified);
    }

    #[test]
    fn a_leader_that_does_not_answer_is_in_the_answer() {
        let refusal = Refusal::unavailable("gone");
        let it = partition_lag(
            &position(Some(10), None),
            "t".into(),
            Some(Err(refusal)),
            TimestampMs(0),
        );
        assert_eq!(it.committed_offset, 10);
        assert!(it.error.is_some() && it.log_end_offset == 0);
    }
}
