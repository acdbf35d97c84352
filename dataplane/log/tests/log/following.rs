//! A replica that follows: its log is the leader's, bytes, epochs and producer
//! state alike, through kills, power losses and a beginning in the middle.

use crate::common::*;
use talweg_log::{LogConfig, LogError, LogReader, PartitionLog, ReplicaBatch, ReplicaError};
use talweg_types::{LeaderEpoch, Offset, TimestampMs};

/// A log with sessions, keys and two epochs, over several segments.
fn leader(seed: u64) -> (Node, PartitionLog) {
    let node = Node::new(seed);
    let mut log = node.log(config());
    for n in 0..12 {
        append(
            &mut log,
            numbered(7, 0, n * 2, &[sized(1, 300), rec("b")]),
            at(i64::from(n)),
        );
        append(&mut log, keyed(&[&format!("key-{n}")]), at(i64::from(n)));
    }
    log.begin_epoch(LeaderEpoch(5)).expect("epoch");
    for n in 0..12 {
        append(&mut log, numbered(8, 0, n, &[sized(2, 500)]), at(100));
    }
    commit(&mut log);
    assert!(log.segment_count() > 2);
    (node, log)
}

fn follower(node: &Node, epoch: i32) -> PartitionLog {
    let (mut log, _) = PartitionLog::recover(&node.folder, tp(), config(), NOW).expect("recovered");
    log.check().expect("sound after recovery");
    log.follow(LeaderEpoch(epoch)).expect("follows");
    log
}

fn copy(from: &LogReader, to: &mut PartitionLog) {
    while copy_once(from, to, 1500) {}
    to.set_high_watermark(from.bounds().high_watermark);
}

fn whole(log: &PartitionLog) -> Vec<u8> {
    let (reader, mut next, mut bytes) = (log.reader(), log.bounds().log_start, Vec::new());
    while next < log.bounds().log_end {
        let outcome = reader.read_for_copy(next, 4096).expect("readable");
        bytes.extend_from_slice(&outcome.batches);
        next = outcome.next_offset;
    }
    bytes
}

#[test]
fn a_copy_has_the_same_bytes_and_recognises_the_same_repeats_when_it_leads() {
    let (_one, log) = leader(1);
    for power_lost in [false, true] {
        let mut two = Node::new(2);
        let mut copied = follower(&two, 5);
        let mut rounds = 0;
        while copy_once(&log.reader(), &mut copied, 1500) {
            rounds += 1;
            if rounds % 4 == 0 {
                flush(&mut copied);
                drop(copied);
                two = if power_lost {
                    two.power_lost()
                } else {
                    two.killed()
                };
                copied = follower(&two, 5);
            }
        }
        assert!(rounds > 8);
        copied.set_high_watermark(log.bounds().high_watermark);
        flush(&mut copied);
        assert_eq!(whole(&copied), whole(&log));
        for epoch in 0..7 {
            assert_eq!(
                copied.reader().epoch_end_offset(LeaderEpoch(epoch)),
                log.reader().epoch_end_offset(LeaderEpoch(epoch))
            );
        }
        copied.begin_epoch(LeaderEpoch(6)).expect("leads");
        let end = copied.bounds().log_end;
        let repeat = append(&mut copied, numbered(8, 0, 11, &[sized(2, 500)]), at(200));
        assert!(repeat.duplicate && repeat.base_offset == Offset(end.0 - 1));
        let repeat = append(&mut copied, keyed(&["key-3"]), at(200));
        assert!(repeat.duplicate && repeat.base_offset == Offset(11));
        assert_eq!(
            append(&mut copied, numbered(8, 0, 12, &[rec("new")]), at(200)).base_offset,
            end
        );
    }
}

#[test]
fn what_does_not_follow_is_refused_and_changes_nothing() {
    let (_one, log) = leader(3);
    let two = Node::new(4);
    let mut copied = follower(&two, 5);
    let read = |from: i64| {
        let outcome = log.reader().read_for_copy(Offset(from), 1);
        ReplicaBatch::check_all(outcome.expect("readable").batches).expect("whole")
    };
    let refused = |copied: &mut PartitionLog, batches: &[ReplicaBatch]| {
        let before = copied.bounds();
        let error = copied.append_replica(batches, NOW).expect_err("refused");
        assert_eq!(copied.bounds(), before);
        copied.check().expect("sound");
        error
    };
    assert_eq!(
        refused(&mut copied, &read(3)),
        ReplicaError::NotNext {
            expected: Offset(0),
            found: Offset(3)
        }
    );
    let gap: Vec<_> = read(0).into_iter().chain(read(3)).collect();
    assert!(matches!(
        refused(&mut copied, &gap),
        ReplicaError::NotNext { .. }
    ));
    copied.append_replica(&read(0), NOW).expect("appended");
    assert!(matches!(
        refused(&mut copied, &read(0)),
        ReplicaError::NotNext { .. }
    ));
    // A leader of epoch 3 cannot have batches of 5.
    let three = Node::new(5);
    let mut old = follower(&three, 3);
    let error = loop {
        let next = read(old.bounds().log_end.0);
        if let Err(error) = old.append_replica(&next, NOW) {
            break error;
        }
    };
    assert_eq!(
        error,
        ReplicaError::EpochAhead {
            following: LeaderEpoch(3),
            found: LeaderEpoch(5)
        }
    );
    assert!(matches!(
        copied.follow(LeaderEpoch(4)),
        Err(LogError::StaleEpoch { .. })
    ));
    // A flipped bit never gets this far.
    let mut bytes = log
        .reader()
        .read_for_copy(Offset(3), 1)
        .expect("readable")
        .batches
        .to_vec();
    bytes[70] ^= 4;
    assert!(ReplicaBatch::check_all(bytes.into()).is_err());
}

#[test]
fn two_logs_that_parted_agree_after_a_cut_and_a_copy() {
    let (_one, mut log) = leader(6);
    let two = Node::new(7);
    let mut copied = follower(&two, 5);
    copy(&log.reader(), &mut copied);
    // Each goes its own way in an epoch of its own; the second one is not committed.
    copied.begin_epoch(LeaderEpoch(6)).expect("leads");
    for n in 0..9 {
        append(&mut copied, batch(&[sized(n, 400)]), at(300));
    }
    log.begin_epoch(LeaderEpoch(7)).expect("leads");
    let parted = log.bounds().log_end;
    for n in 0..4 {
        append(&mut log, numbered(9, 0, n, &[sized(8, 300)]), at(400));
    }
    commit(&mut log);
    copied.resign();
    copied.follow(LeaderEpoch(7)).expect("follows");
    let (_, end) = log.reader().epoch_end_offset(copied.reader().last_epoch());
    assert_eq!(end, parted);
    flush(&mut copied);
    assert_eq!(copied.truncate_to(end).expect("cut").log_end, parted);
    copy(&log.reader(), &mut copied);
    flush(&mut copied);
    assert_eq!(whole(&copied), whole(&log));
    copied.begin_epoch(LeaderEpoch(8)).expect("leads");
    let repeat = append(&mut copied, numbered(9, 0, 3, &[sized(8, 300)]), at(500));
    assert!(repeat.duplicate);
}

/// A leader whose head is gone, and the state at its first segment.
fn shortened(seed: u64) -> (Node, PartitionLog) {
    let (node, mut log) = leader(seed);
    flush(&mut log);
    log.delete_before(Offset(30), NOW).expect("deleted");
    log.tick(at(1000), true);
    flush(&mut log);
    assert!(log.reader().copy_start().expect("start").0 > Offset(0));
    (node, log)
}

#[test]
fn a_replica_below_the_leaders_start_begins_anew_with_its_producers() {
    let (_one, log) = shortened(8);
    let (start, sessions) = log.reader().copy_start().expect("start");
    assert!(!sessions.is_empty());
    let two = Node::new(9);
    let mut copied = follower(&two, 5);
    let first = leader(8).1;
    assert!(copy_once(&first.reader(), &mut copied, 1));
    copied
        .restart_at(start, &sessions, false)
        .expect("begun anew");
    copied.check().expect("sound");
    let bounds = copied.bounds();
    assert_eq!(
        (bounds.log_start, bounds.log_end, bounds.flushed_end),
        (start, start, start)
    );
    copy(&log.reader(), &mut copied);
    copied.follow_log_start(log.bounds().log_start);
    flush(&mut copied);
    assert_eq!(copied.bounds().log_start, log.bounds().log_start);
    let two = two.power_lost();
    let mut copied = {
        drop(copied);
        follower(&two, 5)
    };
    assert_eq!(copied.bounds().log_start, log.bounds().log_start);
    assert_eq!(whole(&copied), whole(&log));
    copied.begin_epoch(LeaderEpoch(6)).expect("leads");
    // Its record is below the start; the producer is remembered all the same.
    let repeat = append(&mut copied, keyed(&["key-0"]), at(500));
    assert!(repeat.duplicate);
}

#[test]
fn a_beginning_anew_that_is_cut_short_anywhere_leaves_a_log_that_can_begin_anew() {
    let (_one, log) = shortened(10);
    let (start, sessions) = log.reader().copy_start().expect("start");
    let first = leader(10).1;
    for power_lost in [false, true] {
        let mut cut_short = 0;
        for step in 1.. {
            let two = Node::new(11);
            let mut copied = follower(&two, 5);
            for _ in 0..3 {
                assert!(copy_once(&first.reader(), &mut copied, 1));
            }
            flush(&mut copied);
            let old_end = copied.bounds().log_end;
            two.fs.freeze_at(two.fs.operations() + step);
            let done = copied.restart_at(start, &sessions, false).is_ok();
            drop(copied);
            let two = if power_lost {
                two.power_lost()
            } else {
                two.killed()
            };
            let mut copied = follower(&two, 5);
            let end = copied.bounds().log_end;
            assert!(
                [Offset(0), old_end, start].contains(&end),
                "{end} after step {step}"
            );
            if end < start {
                cut_short += 1;
                copied
                    .restart_at(start, &sessions, false)
                    .expect("begun anew");
            }
            copy(&log.reader(), &mut copied);
            flush(&mut copied);
            let copied_from_start = whole(&copied);
            assert!(copied_from_start.ends_with(&whole(&log)));
            if done {
                break;
            }
        }
        assert!(cut_short > 3, "{cut_short}");
    }
}

/// The log start lies within a batch, and the leader has lost what lay there: the
/// whole log is cut, and goes on at its start as if nothing had been before.
#[test]
fn a_log_that_is_cut_at_its_start_goes_on_there_without_a_gap() {
    for power_lost in [false, true] {
        let mut cut_short = 0;
        for step in 1.. {
            let (_one, log) = leader(12);
            let two = Node::new(13);
            let mut copied = follower(&two, 5);
            while copy_once(&log.reader(), &mut copied, 1500) {}
            copied.set_high_watermark(Offset(31));
            copied.follow_log_start(Offset(31));
            flush(&mut copied);
            assert_eq!(copied.bounds().log_start, Offset(31));
            two.fs.freeze_at(two.fs.operations() + step);
            let done = copied.truncate_to(Offset(31)).is_ok();
            if done {
                assert_eq!(
                    (copied.segment_count(), copied.bounds().log_end),
                    (0, Offset(31))
                );
            }
            drop(copied);
            let two = match power_lost {
                true => two.power_lost(),
                false => two.killed(),
            };
            let mut copied = follower(&two, 5);
            copied.truncate_to(Offset(31)).expect("cut");
            copied.begin_epoch(LeaderEpoch(6)).expect("leads");
            let repeat = append(
                &mut copied,
                numbered(7, 0, 18, &[sized(1, 300), rec("b")]),
                at(300),
            );
            assert!(repeat.duplicate, "its producers are known");
            let first = append(&mut copied, batch(&[sized(3, 400)]), at(300));
            assert_eq!(first.base_offset, Offset(31));
            commit(&mut copied);
            let before = whole(&copied);
            drop(copied);
            let two = two.killed();
            let (copied, report) =
                PartitionLog::recover(&two.folder, tp(), config(), NOW).expect("recovered");
            copied.check().expect("sound");
            assert_eq!(
                (report.damaged.clone(), report.kept_to),
                (vec![], Offset(32)),
                "step {step}, {power_lost}, {report:?}"
            );
            assert_eq!(whole(&copied), before);
            if done {
                break;
            }
            cut_short += 1;
        }
        assert!(cut_short > 5, "{cut_short}");
    }
}

#[test]
fn a_follower_retains_by_its_leaders_word_only() {
    let short = LogConfig {
        retention_ms: 1,
        ..config()
    };
    let (_one, log) = leader(12);
    let two = Node::new(13);
    let mut copied = follower(&two, 5);
    copied.set_config(short);
    copy(&log.reader(), &mut copied);
    flush(&mut copied);
    let late = TimestampMs(NOW.0 + 1_000_000_000);
    assert!(!copied.tick(late, true).held_for_clock);
    flush(&mut copied);
    assert_eq!(copied.bounds().log_start, Offset(0));
    // Never above what is known to be committed here.
    copied.follow_log_start(Offset(1_000));
    flush(&mut copied);
    assert_eq!(copied.bounds().log_start, copied.bounds().high_watermark);
}

#[test]
fn history_reaches_back_as_far_as_copies_begin() {
    // Records are deleted up to the second epoch; the segment still has the first.
    let (_one, mut log) = leader(14);
    flush(&mut log);
    log.delete_before(Offset(38), NOW).expect("deleted");
    log.tick(at(1000), true);
    flush(&mut log);
    let reader = log.reader();
    let (start, _) = reader.copy_start().expect("start");
    assert!(
        start < Offset(36) && log.bounds().log_start == Offset(38),
        "{start}"
    );
    // A copy that stands in the first epoch is a prefix, and is told so.
    let first = (LeaderEpoch(1), Offset(36));
    assert_eq!(reader.epoch_end_offset(LeaderEpoch(1)), first);
    assert_eq!(
        reader.epoch_end_offset(LeaderEpoch(0)),
        (LeaderEpoch::NONE, start)
    );
}

#[test]
fn a_replica_may_begin_anew_below_its_own_uncommitted_end() {
    let (_one, log) = leader(15);
    let two = Node::new(16);
    let mut copied = follower(&two, 5);
    for _ in 0..4 {
        assert!(copy_once(&log.reader(), &mut copied, 1));
    }
    let end = copied.bounds().log_end;
    let start = Offset(end.0 - 1);
    copied.restart_at(start, &[], false).expect("begun anew");
    copied.check().expect("sound");
    assert_eq!(
        (copied.bounds().log_start, copied.bounds().log_end),
        (start, start)
    );
    copied.set_high_watermark(start);
    let below = Offset(start.0 - 1);
    let committed = copied.restart_at(below, &[], false);
    assert!(matches!(committed, Err(LogError::OutOfRange { .. })));
    // In a recovered epoch.
    copied.restart_at(below, &[], true).expect("begun anew");
    copied.check().expect("sound");
    let bounds = copied.bounds();
    assert_eq!((bounds.log_start, bounds.high_watermark), (below, below));
}

#[test]
fn a_follower_that_was_restarted_does_not_ask_to_be_ticked_all_the_time() {
    let (_one, log) = leader(17);
    let two = Node::new(18);
    let mut copied = follower(&two, 5);
    copy(&log.reader(), &mut copied);
    copied.close().expect("closed");
    drop(copied);
    let two = two.killed();
    let mut copied = follower(&two, 5);
    copied.set_config(LogConfig {
        retention_ms: 1,
        ..config()
    });
    let late = TimestampMs(NOW.0 + 1_000_000_000);
    copied.tick(late, true);
    flush(&mut copied);
    assert!(copied.next_tick(late).0 > late.0 + 1_000);
}

/// The epochs of a log's batches, in order.
fn epochs(log: &PartitionLog) -> Vec<i32> {
    let batches = ReplicaBatch::check_all(whole(log).into()).expect("whole");
    batches.iter().map(|batch| batch.epoch().0).collect()
}

/// Words of an epoch that is over come late, to one that leads and to one that follows.
/// What the two logs hold afterwards.
fn late_words() -> [Vec<i32>; 2] {
    let one = Node::new(11);
    let mut leads = one.log(config());
    leads.begin_epoch(LeaderEpoch(5)).expect("leads");
    append(&mut leads, batch(&[rec("five")]), NOW);
    let _ = leads.begin_epoch(LeaderEpoch(3));
    append(&mut leads, batch(&[rec("five")]), NOW);

    let two = Node::new(12);
    let mut old = two.log(config());
    old.begin_epoch(LeaderEpoch(3)).expect("leads");
    append(&mut old, batch(&[rec("three")]), NOW);
    append(&mut old, batch(&[rec("three")]), NOW);
    let three = Node::new(13);
    let mut follows = follower(&three, 5);
    let read = |log: &PartitionLog, from: i64| {
        let outcome = log.reader().read_for_copy(Offset(from), 1);
        ReplicaBatch::check_all(outcome.expect("readable").batches).expect("whole")
    };
    follows
        .append_replica(&read(&leads, 0), NOW)
        .expect("appended");
    let _ = follows.follow(LeaderEpoch(3));
    let _ = follows.append_replica(&read(&old, 1), NOW);
    [epochs(&leads), epochs(&follows)]
}

#[test]
fn a_late_word_of_an_epoch_that_is_over_changes_nothing() {
    assert_eq!(late_words(), [vec![5, 5], vec![5]]);
}

/// The guards are what keeps the promise: without them epochs fall along the log.
#[cfg(feature = "planted-faults")]
#[test]
fn planted_an_epoch_that_is_not_checked_is_seen() {
    use talweg_log::fault::{Fault, plant};
    plant(Some(Fault::EpochNotChecked));
    let found = late_words();
    plant(None);
    for epochs in &found {
        assert!(!epochs.is_sorted(), "not seen: {found:?}");
    }
}
