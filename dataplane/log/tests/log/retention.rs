//! What goes, when, and what is left: retention by time and size, deletion
//! before an offset, rolling by age, and readers in what was deleted.

use crate::common::*;
use talweg_log::{LogConfig, LogError, ReadError, fs::LogFs};
use talweg_types::{Offset, TimestampMs};

const HOUR: i64 = 3_600_000;

fn hourly() -> LogConfig {
    LogConfig {
        retention_ms: HOUR,
        segment_ms: 10 * HOUR as u64,
        file_delete_delay_ms: 1000,
        ..config()
    }
}

/// A tick and the flush it asks for, as the driver does.
fn tick(log: &mut talweg_log::PartitionLog, now: TimestampMs) -> talweg_log::TickReport {
    let report = log.tick(now, true);
    commit(log);
    log.check().expect("invariants after a tick");
    report
}

#[test]
fn segments_go_by_append_time_from_the_head_and_files_a_while_later() {
    let node = Node::new(1);
    let mut log = node.log(hourly());
    for n in 0..12 {
        append(&mut log, batch(&[sized(n, 1500)]), at(n as i64 * 60_000));
        commit(&mut log);
    }
    assert_eq!(node.segments(), [0, 2, 4, 6, 8, 10]);
    tick(&mut log, at(HOUR + 30_000));
    assert_eq!(
        log.bounds().log_start,
        Offset(0),
        "the first segment's last record is a minute younger"
    );
    let report = tick(&mut log, at(HOUR + 60_001));
    assert_eq!(report.log_start_moved, None, "not before it is durable");
    assert_eq!(log.bounds().log_start, Offset(2));
    assert_eq!(node.segments().len(), 6, "the files stay for readers");
    assert_eq!(
        tick(&mut log, at(HOUR + 60_002)).log_start_moved,
        Some(Offset(2))
    );
    tick(&mut log, at(HOUR + 61_100));
    assert_eq!(node.segments(), [2, 4, 6, 8, 10]);
    assert!(
        node.file_names()
            .iter()
            .all(|name| !name.starts_with("00000000000000000000")),
        "{:?}",
        node.file_names()
    );
    let error = log
        .reader()
        .read(Offset(1), Offset(12), 100)
        .expect_err("below the log start");
    assert!(
        matches!(error, ReadError::OutOfRange { bounds, .. } if bounds.log_start == Offset(2)),
        "{error}"
    );
}

#[test]
fn an_idle_topic_expires_to_the_last_record_with_the_setting_of_now() {
    // apache/iggy #2629: lower retention while running, without writes or restart.
    let node = Node::new(2);
    let mut log = node.log(LogConfig {
        retention_ms: -1,
        ..hourly()
    });
    fill(&mut log, 5, 1500, NOW);
    tick(&mut log, at(100 * HOUR));
    assert_eq!(log.bounds().log_start, Offset(0), "no retention");
    log.set_config(hourly());
    assert!(
        log.next_tick(at(100 * HOUR)) <= at(100 * HOUR),
        "due at once"
    );
    for step in 0..5 {
        tick(&mut log, at(100 * HOUR + step * 2000));
    }
    let bounds = log.bounds();
    assert_eq!((bounds.log_start, bounds.log_end), (Offset(5), Offset(5)));
    assert_eq!(node.segments(), Vec::<i64>::new());
    assert_eq!(
        node.file_names(),
        ["00000000000000000005.sessions", "partition"]
    );
    // The empty log goes on at its end, also after a restart.
    log.close().expect("closed");
    let node = node.restarted();
    let mut log = node.log(hourly());
    assert_eq!(
        append(&mut log, batch(&[rec("x")]), at(101 * HOUR)).base_offset,
        Offset(5)
    );
    commit(&mut log);
    drop(log);
    let node = node.power_lost();
    let log = node.log(hourly());
    assert_eq!(
        (log.bounds().log_start, log.bounds().log_end),
        (Offset(5), Offset(6))
    );
}

#[test]
fn client_timestamps_do_not_steer_retention() {
    // KAFKA-6482: one record ten years ahead in each segment, and ones ten years old.
    let node = Node::new(3);
    let mut log = node.log(hourly());
    let years = 10 * 365 * 24 * HOUR;
    for n in 0..6 {
        let time = if n % 2 == 0 {
            NOW.0 + years
        } else {
            NOW.0 - years
        };
        append(
            &mut log,
            batch(&[Rec {
                timestamp: time,
                ..sized(n, 3000)
            }]),
            NOW,
        );
    }
    commit(&mut log);
    tick(&mut log, at(HOUR / 2));
    assert_eq!(
        log.bounds().log_start,
        Offset(0),
        "old timestamps do not hurry it"
    );
    for step in 0..4 {
        tick(&mut log, at(HOUR + 1 + step * 2000));
    }
    assert_eq!(
        log.bounds().log_start,
        Offset(6),
        "future ones do not stop it"
    );
}

#[test]
fn with_a_clock_that_jumped_nothing_goes_by_age() {
    let node = Node::new(4);
    let mut log = node.log(hourly());
    fill(&mut log, 6, 1500, NOW);
    let report = log.tick(at(1000 * HOUR), false);
    assert!(report.held_for_clock);
    assert_eq!(report.log_start_moved, None);
    assert_eq!(log.bounds().log_start, Offset(0));
    tick(&mut log, at(1000 * HOUR));
    assert!(log.bounds().log_start > Offset(0));
}

#[test]
fn size_takes_whole_segments_and_keeps_at_least_the_limit() {
    let node = Node::new(5);
    let mut log = node.log(LogConfig {
        retention_bytes: 10_000,
        ..hourly()
    });
    fill(&mut log, 20, 1500, NOW);
    tick(&mut log, at(1));
    let start = log.bounds().log_start;
    assert!(start > Offset(8), "{start}");
    let kept: u64 = node
        .segments()
        .into_iter()
        .filter(|base| *base >= start.0)
        .map(|base| {
            node.fs
                .open(&node.segment_path(base), false)
                .expect("there")
                .len()
                .expect("len")
        })
        .sum();
    assert!(
        (10_000..10_000 + 4096).contains(&kept),
        "{kept} bytes are kept"
    );
}

#[test]
fn nothing_above_the_high_watermark_and_nothing_unflushed_goes() {
    let node = Node::new(6);
    let mut log = node.log(hourly());
    for n in 0..12 {
        append(&mut log, batch(&[sized(n, 1500)]), NOW);
    }
    log.tick(at(50 * HOUR), true);
    assert_eq!(log.bounds().log_start, Offset(0), "nothing is flushed");
    flush(&mut log);
    log.set_high_watermark(Offset(5));
    log.tick(at(50 * HOUR), true);
    flush(&mut log);
    assert_eq!(
        log.bounds().log_start,
        Offset(4),
        "the segment that holds the watermark stays"
    );
}

#[test]
fn a_segment_is_rolled_by_age_on_an_idle_topic_too() {
    let node = Node::new(7);
    let config = LogConfig {
        segment_ms: 60_000,
        retention_ms: -1,
        ..config()
    };
    let mut log = node.log(config);
    append(&mut log, batch(&[rec("a")]), NOW);
    commit(&mut log);
    assert!(!tick(&mut log, at(59_999)).rolled);
    assert_eq!(log.next_tick(at(59_999)), at(60_000));
    assert!(tick(&mut log, at(60_000)).rolled);
    assert!(
        !tick(&mut log, at(600_000)).rolled,
        "an empty segment is not rolled"
    );
    append(&mut log, batch(&[rec("b")]), at(600_000));
    append(&mut log, batch(&[rec("c")]), at(660_000));
    assert_eq!(node.segments(), [0, 1, 2], "an append rolls by age as well");
}

#[test]
fn a_reader_in_a_deleted_segment_reads_on_or_is_told_the_bounds() {
    let node = Node::new(8);
    let mut log = node.log(hourly());
    fill(&mut log, 12, 1500, NOW);
    let reader = log.reader();
    let outcome = reader.read(Offset(0), Offset(12), 1).expect("read");
    assert_eq!(outcome.next_offset, Offset(1));
    for step in 0..6 {
        tick(&mut log, at(2 * HOUR + step * 2000));
        append(&mut log, batch(&[rec("young")]), at(2 * HOUR + step * 2000));
        commit(&mut log);
    }
    let error = reader
        .read(outcome.next_offset, end(&reader), 1)
        .expect_err("deleted meanwhile");
    let ReadError::OutOfRange { bounds, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(bounds.log_start, Offset(12));
    // The advised offset works.
    assert!(reader.read(bounds.log_start, end(&reader), 1).is_ok());
}

#[test]
fn readers_and_a_writer_with_tiny_segments_and_tiny_retention_never_meet_anything_odd() {
    // apache/iggy #2572: a roll or a deletion under a write or a read in flight.
    let node = Node::new(9);
    let config = LogConfig {
        retention_bytes: 8192,
        file_delete_delay_ms: 0,
        ..config()
    };
    let mut log = node.log(config);
    append(&mut log, batch(&[sized(0, 300)]), NOW);
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let reader = log.reader();
            std::thread::spawn(move || {
                let mut next = Offset(0);
                let mut reads = 0u64;
                while next < Offset(2000) {
                    match reader.read(next, end(&reader), 2000) {
                        Ok(outcome) => {
                            for (offset, record, _) in records(&outcome.batches) {
                                assert_eq!(
                                    record.value.expect("value")[..8],
                                    *format!("{offset:08}").as_bytes()
                                );
                            }
                            next = outcome.next_offset;
                        }
                        Err(ReadError::OutOfRange { bounds, .. }) => {
                            next = next.max(bounds.log_start)
                        }
                        Err(error) => panic!("at {next}: {error}"),
                    }
                    reads += 1;
                }
                reads
            })
        })
        .collect();
    for n in 1..2000 {
        append(&mut log, batch(&[sized(n, 300)]), at(n as i64));
        if n % 3 == 0 {
            commit(&mut log);
            log.tick(at(n as i64), true);
        }
    }
    commit(&mut log);
    for reader in readers {
        assert!(reader.join().expect("no panic") > 0);
    }
    let kept = read_all(&log.reader(), log.bounds().log_start.0);
    drop(log);
    let node = node.power_lost();
    let log = node.log(talweg_log::LogConfig {
        retention_bytes: 8192,
        ..crate::common::config()
    });
    assert_eq!(read_all(&log.reader(), log.bounds().log_start.0), kept);
}

#[test]
fn deleting_records_again_is_a_no_op_and_the_start_never_goes_back() {
    // redpanda PR #22905. Adapted: one replica; "fail over" is a power loss.
    let node = Node::new(10);
    let mut log = node.log(config());
    fill(&mut log, 100, 100, NOW);
    let table = [
        (50, Some(50)),
        (50, Some(50)),
        (40, Some(50)),
        (0, Some(50)),
        (101, None),
        (-1, None),
        (100, Some(100)),
        (50, Some(100)),
    ];
    for (offset, expected) in table {
        let answer = log.delete_before(Offset(offset), NOW);
        match (answer, expected) {
            (Ok(start), Some(expected)) => {
                assert_eq!(start, Offset(expected), "delete before {offset}")
            }
            (Err(LogError::OutOfRange { bounds, .. }), None) => {
                assert_eq!(bounds.log_end, Offset(100))
            }
            (answer, _) => panic!("delete before {offset}: {answer:?}"),
        }
        log.check().expect("invariants");
    }
    drop(log);
    let node = node.killed();
    assert_eq!(node.log(config()).bounds().log_start, Offset(100));
    let node = node.power_lost();
    let mut log = node.log(config());
    assert_eq!(log.bounds().log_start, Offset(100));
    assert_eq!(
        append(&mut log, batch(&[rec("x")]), NOW).base_offset,
        Offset(100)
    );
}

#[test]
fn a_deletion_inside_a_segment_hides_its_records_and_is_durable_when_answered() {
    let node = Node::new(11);
    let mut log = node.log(config());
    fill(&mut log, 30, 300, NOW);
    log.delete_before(Offset(17), NOW).expect("deleted");
    drop(log);
    let node = node.power_lost();
    let mut log = node.log(LogConfig {
        file_delete_delay_ms: 0,
        ..config()
    });
    let reader = log.reader();
    assert_eq!(log.bounds().log_start, Offset(17));
    assert!(matches!(
        reader.read(Offset(16), end(&reader), 1),
        Err(ReadError::OutOfRange { .. })
    ));
    assert_eq!(read_all(&reader, 17).len(), 13);
    for step in 0..4 {
        tick(&mut log, at(step * 2000));
    }
    assert!(
        node.segments()[0] <= 17 && node.segments()[1] > 17,
        "{:?}",
        node.segments()
    );
}

/// Story: on a `replicated` partition the watermark is ahead of the flushed end,
/// and records are deleted up to it. A power loss then must not leave a log
/// start above what the log holds: a hole that no copy could be taken across.
#[test]
fn a_log_start_is_never_durable_above_what_is() {
    let node = Node::new(13);
    let mut log = node.log(config());
    fill(&mut log, 10, 300, NOW);
    for n in 10..30 {
        append(&mut log, batch(&[sized(n, 300)]), NOW);
    }
    log.set_high_watermark(Offset(30));
    assert_eq!(log.bounds().flushed_end, Offset(10));
    log.delete_before(Offset(27), NOW).expect("deleted");
    drop(log);
    let node = node.power_lost();
    let (mut log, report) = node.recover(config());
    assert_eq!(report.kept_to, Offset(30));
    append(&mut log, batch(&[rec("x")]), NOW);
    flush(&mut log);
    drop(log);
    let node = node.power_lost();
    let (log, report) = node.recover(config());
    assert!(report.damaged.is_empty(), "{report:?}");
    let reader = log.reader();
    let mut next = reader.first_offset();
    while next < end(&reader) {
        next = reader
            .read_for_copy(next, 2048)
            .expect("copied")
            .next_offset;
    }
}

#[test]
fn the_index_forgets_what_retention_took() {
    let node = Node::new(12);
    let mut log = node.log(LogConfig {
        file_delete_delay_ms: 0,
        retention_bytes: 5000,
        ..config()
    });
    fill(&mut log, 200, 300, NOW);
    let before = node.kv.len();
    for step in 0..4 {
        tick(&mut log, at(step * 2000));
    }
    assert!(
        node.kv.len() < before / 4,
        "{} of {before} entries are left",
        node.kv.len()
    );
}

#[test]
fn a_deleted_log_is_gone_and_its_readers_are_told() {
    let node = Node::new(13);
    let mut log = node.log(config());
    fill(&mut log, 30, 300, NOW);
    let reader = log.reader();
    log.delete().expect("deleted");
    assert!(matches!(
        reader.read(Offset(0), Offset(1), 1),
        Err(ReadError::Deleted)
    ));
    assert_eq!(node.folder.partitions().expect("listed"), []);
    assert!(node.kv.is_empty());
    let node = node.power_lost();
    assert_eq!(
        node.folder.partitions().expect("listed"),
        [],
        "also after a power loss"
    );
}

#[test]
fn unknown_folders_are_set_aside_and_an_interrupted_deletion_is_finished() {
    let node = Node::new(14);
    let mut log = node.log(config());
    fill(&mut log, 3, 100, NOW);
    let root = std::path::PathBuf::from(ROOT);
    for name in ["somebody-elses", "set-aside", "index", ".hidden"] {
        node.fs.create_dir_all(&root.join(name)).expect("made");
    }
    let deleted = format!(
        "{}.deleted",
        talweg_types::TopicPartition {
            partition: talweg_types::PartitionIndex(8),
            ..tp()
        }
    );
    node.fs.create_dir_all(&root.join(&deleted)).expect("made");
    assert_eq!(node.folder.partitions().expect("listed"), [tp()]);
    let names: Vec<String> = node
        .fs
        .list(&root)
        .expect("listed")
        .into_iter()
        .map(|entry| entry.name)
        .collect();
    assert!(
        !names.contains(&"somebody-elses".to_owned()) && !names.contains(&deleted),
        "{names:?}"
    );
    let aside = node.fs.list(&root.join("set-aside")).expect("listed");
    assert_eq!(aside.len(), 1);
    assert_eq!(aside[0].name, "somebody-elses", "never removed");
}
