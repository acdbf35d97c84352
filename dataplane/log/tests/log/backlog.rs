//! What lies unread and since when: to the record, although the index is coarse,
//! and past what compaction took.

use crate::common::*;
use proptest::prelude::*;
use talweg_log::{CompactionConfig, LogConfig, LogReader, PartitionLog};
use talweg_types::{LeaderEpoch, Offset, Ratio, TimestampMs};

const SECOND: i64 = 1_000;

fn compacted() -> LogConfig {
    LogConfig {
        retention_ms: -1,
        compaction: Some(CompactionConfig {
            delete_retention_ms: 0,
            min_dirty_ratio: Ratio::HALF,
            min_lag_ms: 0,
            max_lag_ms: i64::MAX as u64,
            map_bytes: 1 << 20,
        }),
        ..config()
    }
}

fn oldest(reader: &LogReader, from: i64) -> Option<TimestampMs> {
    let measured = reader.backlog(Offset(from), end(reader));
    measured.expect("measured").oldest_append
}

/// Small records, far apart in time: many share one entry of the index.
#[test]
fn a_slow_topic_knows_the_age_of_each_record() {
    let node = Node::new(7);
    let mut log = node.log(config());
    for n in 0..50 {
        let when = NOW.0 + n * 60 * SECOND;
        append(&mut log, batch(&[timed(when)]), TimestampMs(when + 3));
    }
    commit(&mut log);
    for n in 1..50 {
        let age = oldest(&log.reader(), n).expect("unread").0 - NOW.0;
        let appended = n * 60 * SECOND;
        assert!((appended..=appended + 3).contains(&age), "{n}: {age}");
    }
    assert_eq!(oldest(&log.reader(), 50), None);
}

/// A producer's clock that is wrong moves the age by no more than the index's grain.
#[test]
fn a_wrong_clock_is_not_believed() {
    let node = Node::new(8);
    let mut log = node.log(config());
    for n in 0..400 {
        let lie = if n % 2 == 0 { 1 } else { NOW.0 * 2 };
        let record = Rec {
            value: Some(vec![b'v'; 200]),
            ..timed(lie)
        };
        append(&mut log, batch(&[record]), TimestampMs(NOW.0 + n * SECOND));
    }
    commit(&mut log);
    for n in 0..400 {
        let age = oldest(&log.reader(), n).expect("unread").0 - NOW.0;
        let grain = config().index_interval_bytes as i64 / 200 + 1;
        let earliest = (n - grain) * SECOND;
        assert!((earliest..=n * SECOND).contains(&age), "{n}: {age}");
    }
}

/// By offset that is still there: when it was appended.
fn survivors(log: &PartitionLog) -> Vec<(i64, i64)> {
    let found = read_all(&log.reader(), 0);
    found
        .iter()
        .map(|(offset, ..)| (*offset, NOW.0 + offset * SECOND))
        .collect()
}

/// What a copy holds that is made from `log` now.
fn copy_of(log: &PartitionLog, seed: u64) -> (Node, PartitionLog) {
    let node = Node::new(seed);
    let mut copy = PartitionLog::create(&node.folder, tp(), config());
    copy.follow(LeaderEpoch(1)).expect("follows");
    while copy_once(&log.reader(), &mut copy, 3_000) {}
    copy.set_high_watermark(log.bounds().log_end);
    (node, copy)
}

/// A log of `count` records, one a minute, that claim to be of `claimed`.
fn one_a_minute(count: i64, claimed: impl Fn(i64) -> i64) -> (Node, PartitionLog) {
    let node = Node::new(9);
    let mut log = node.log(config());
    for n in 0..count {
        let when = NOW.0 + n * 60 * SECOND;
        let record = Rec {
            value: Some(vec![b'v'; 30]),
            ..timed(claimed(when))
        };
        append(&mut log, batch(&[record]), TimestampMs(when + 3));
    }
    commit(&mut log);
    flush(&mut log);
    (node, log)
}

fn restarted(node: Node, log: PartitionLog) -> (Node, PartitionLog) {
    drop(log);
    let node = node.killed();
    let (log, _) = node.recover(config());
    (node, log)
}

/// A copy that is made later keeps the times of the leader.
#[test]
fn a_copy_knows_when_the_leader_appended() {
    let (_node, log) = one_a_minute(200, |when| when);
    let (_other, copy) = copy_of(&log, 10);
    for n in 0..200 {
        let age = oldest(&copy.reader(), n).expect("unread").0 - NOW.0;
        let appended = n * 60 * SECOND;
        assert!((appended..=appended + 3).contains(&age), "{n}: {age}");
    }
}

/// Retention at a copy, and what it remembers of producers, goes by these times: old
/// timestamps of producers must not age them, also where the leader has restarted and
/// does not know better than that a segment was written to until some moment.
#[test]
fn old_timestamps_do_not_age_a_copy() {
    for count in [12, 200] {
        for claimed in [1, NOW.0 / 2, NOW.0 * 2] {
            let (node, log) = one_a_minute(count, |_| claimed);
            let (_node, log) = restarted(node, log);
            let (_other, copy) = copy_of(&log, 10);
            let grain = config().index_interval_bytes as i64 / 90 + 2;
            for n in 0..count {
                let age = oldest(&copy.reader(), n).expect("unread").0 - NOW.0;
                let earliest = (n - grain) * 60 * SECOND;
                let latest = count * 60 * SECOND;
                assert!((earliest..=latest).contains(&age), "{n}: {age}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// What compaction took is not unread.
    #[test]
    fn the_oldest_is_one_that_is_still_there(
        keys in proptest::collection::vec(0..9_usize, 60..200),
        per_batch in 1..4_usize,
        seed in any::<u64>(),
    ) {
        let node = Node::new(seed);
        let mut log = node.log(compacted());
        let mut offset = 0;
        for group in keys.chunks(per_batch) {
            let when = NOW.0 + offset * SECOND;
            let records: Vec<Rec> = group
                .iter()
                .enumerate()
                .map(|(n, key)| Rec {
                    key: Some(format!("key {key}").into_bytes()),
                    value: Some(vec![b'v'; 150]),
                    ..timed(when + n as i64 * SECOND)
                })
                .collect();
            let last = when + (records.len() as i64 - 1) * SECOND;
            append(&mut log, batch(&records), TimestampMs(last));
            offset += group.len() as i64;
        }
        commit(&mut log);
        let now = TimestampMs(NOW.0 + offset * SECOND);
        while let Some(mut round) = log.compaction(now, true) {
            round.run(&|| false).expect("compacted");
            log.rewrite_done(round);
        }
        let there = survivors(&log);
        for from in 0..offset {
            let expected = there.iter().find(|(offset, _)| *offset >= from);
            let found = oldest(&log.reader(), from).map(|time| time.0);
            match (expected, found) {
                (None, None) => {}
                // A batch has one time of append.
                (Some((_, appended)), Some(found)) => prop_assert!(
                    (found - appended).abs() <= per_batch as i64 * SECOND,
                    "from {}: {} and not {}", from, found - NOW.0, appended - NOW.0
                ),
                other => prop_assert!(false, "from {}: {:?}", from, other),
            }
        }
    }
}
