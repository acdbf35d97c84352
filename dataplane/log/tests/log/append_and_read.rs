//! What is appended is read back: any batches, any segment size, from any
//! offset, with any read size, before and after every kind of restart.

use crate::common::*;
use proptest::prelude::*;
use talweg_log::{Boot, LogConfig};
use talweg_types::{Offset, TimestampMs};

#[derive(Clone, Debug)]
enum Step {
    Append(Vec<Vec<Rec>>),
    Flush,
    CleanRestart,
    Kill,
    PowerLoss,
    Tick,
}

fn records_strategy() -> impl Strategy<Value = Vec<Rec>> {
    let bytes = || proptest::option::of(proptest::collection::vec(any::<u8>(), 0..300));
    let one = (0..1_000_000i64, bytes(), bytes()).prop_map(|(timestamp, key, value)| Rec {
        timestamp,
        key,
        value,
        idempotency: None,
    });
    proptest::collection::vec(one, 1..6)
}

fn step_strategy() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => proptest::collection::vec(records_strategy(), 1..5).prop_map(Step::Append),
        2 => Just(Step::Flush),
        1 => Just(Step::CleanRestart),
        1 => Just(Step::Kill),
        1 => Just(Step::PowerLoss),
        1 => Just(Step::Tick),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_appended_is_read_back(
        steps in proptest::collection::vec(step_strategy(), 1..25),
        interval in prop_oneof![Just(256u32), Just(512), Just(4096)],
        max_bytes in 1usize..9000,
        seed in any::<u64>(),
    ) {
        let config = LogConfig { index_interval_bytes: interval, ..config() };
        let mut node = Node::new(seed);
        let mut log = node.log(config.clone());
        let mut model: Vec<Rec> = Vec::new();
        let mut now = 0;
        for step in steps {
            now += 10;
            match step {
                Step::Append(batches) => {
                    let built: Vec<_> = batches.iter().map(|records| batch(records)).collect();
                    for (result, records) in log.append(&built, at(now)).into_iter().zip(batches) {
                        prop_assert_eq!(result.expect("appended").base_offset, Offset(model.len() as i64));
                        model.extend(records);
                    }
                }
                Step::Flush => commit(&mut log),
                Step::Tick => {
                    log.tick(at(now), true);
                }
                Step::CleanRestart => {
                    log.close().expect("closed");
                    node = node.restarted();
                    prop_assert_eq!(node.folder.boot(), Boot::Clean);
                    let (reopened, report) = node.recover(config.clone());
                    prop_assert_eq!(report.scanned_bytes, 0, "a clean stop leaves nothing to read");
                    log = reopened;
                }
                Step::Kill => {
                    node = node.killed();
                    log = node.log(config.clone());
                }
                Step::PowerLoss => {
                    let flushed = log.bounds().flushed_end;
                    node = node.power_lost();
                    log = node.log(config.clone());
                    prop_assert_eq!(log.bounds().log_end, flushed, "exactly what was flushed is there");
                    model.truncate(flushed.0 as usize);
                }
            }
            log.check().map_err(TestCaseError::fail)?;
        }
        let reader = log.reader();
        prop_assert_eq!(end(&reader), Offset(model.len() as i64));
        for from in 0..model.len() {
            let found = read_some(&reader, from as i64, max_bytes).expect("readable");
            prop_assert_eq!(found.len(), model.len() - from);
            for ((offset, record, _), (index, expected)) in found.iter().zip(model.iter().enumerate().skip(from)) {
                prop_assert_eq!(*offset, index as i64);
                prop_assert_eq!(record.timestamp, TimestampMs(expected.timestamp));
                prop_assert_eq!(record.key.as_deref(), expected.key.as_deref());
                prop_assert_eq!(record.value.as_deref(), expected.value.as_deref());
            }
            if from > 40 { break; }
        }
    }
}

#[test]
fn every_answer_says_where_to_go_on_and_out_of_range_brings_the_bounds() {
    let node = Node::new(1);
    let mut log = node.log(config());
    let reader = log.reader();
    let empty = reader
        .read(Offset(0), Offset(0), 1000)
        .expect("an empty log is readable at its end");
    assert_eq!((empty.batches.len(), empty.next_offset), (0, Offset(0)));
    fill(&mut log, 10, 100, NOW);
    let hidden = reader
        .read(Offset(5), Offset(5), 1000)
        .expect("nothing is visible yet");
    assert_eq!((hidden.batches.len(), hidden.next_offset), (0, Offset(5)));
    let at_end = reader
        .read(Offset(10), Offset(10), 1000)
        .expect("the end is not out of range");
    assert_eq!(at_end.next_offset, Offset(10));
    let error = reader
        .read(Offset(11), Offset(10), 1000)
        .expect_err("above the end");
    assert!(error.to_string().contains("log_end: Offset(10)"), "{error}");
}

#[test]
fn batches_of_one_call_go_into_several_segments_and_none_spans_two() {
    let node = Node::new(1);
    let mut log = node.log(config());
    let batches: Vec<_> = (0..50).map(|n| batch(&[sized(n, 400)])).collect();
    let results = log.append(&batches, NOW);
    assert!(
        results.iter().enumerate().all(|(n, result)| result
            .as_ref()
            .expect("appended")
            .base_offset
            .0
            == n as i64)
    );
    commit(&mut log);
    assert!(log.segment_count() > 5);
    assert_eq!(node.segments().len(), log.segment_count());
    use talweg_log::fs::LogFs;
    for base in node.segments() {
        let len = node
            .fs
            .open(&node.segment_path(base), false)
            .expect("there")
            .len()
            .expect("len");
        assert!(len <= 4096, "segment {base} has {len} bytes");
    }
    assert_eq!(read_all(&log.reader(), 0).len(), 50);
    // A batch that no segment may hold is refused and nothing else is disturbed.
    let big = batch(&[sized(0, 5000)]);
    let error = try_append(&mut log, big, NOW).expect_err("larger than a segment");
    assert!(error.to_string().contains("4096"), "{error}");
    append(&mut log, batch(&[rec("next")]), NOW);
}

#[test]
fn tailing_readers_need_no_worker_once_they_are_under_way() {
    let node = Node::new(1);
    let mut log = node.log(LogConfig {
        segment_bytes: 1 << 20,
        ..config()
    });
    let reader = log.reader();
    append(&mut log, batch(&[rec("first")]), NOW);
    let mut next = reader
        .read(Offset(0), end(&reader), 4096)
        .expect("read")
        .next_offset;
    for n in 0..100 {
        append(&mut log, batch(&[sized(n, 50)]), NOW);
        let outcome = reader
            .try_read(next, end(&reader), 4096)
            .expect("no error")
            .expect("in memory");
        assert_eq!(records(&outcome.batches).len(), 1);
        next = outcome.next_offset;
    }
}

#[test]
fn readers_beside_the_writer_see_whole_batches_in_order_and_never_a_hole() {
    let node = Node::new(1);
    let mut log = node.log(LogConfig {
        segment_bytes: 8192,
        ..config()
    });
    const COUNT: i64 = 3000;
    let readers: Vec<_> = (0..3)
        .map(|n| {
            let reader = log.reader();
            std::thread::spawn(move || {
                let mut next = Offset(0);
                while next < Offset(COUNT) {
                    let visible = end(&reader);
                    let outcome = match (n + next.0) % 2 {
                        0 => reader.read(next, visible, 700).expect("read"),
                        _ => match reader.try_read(next, visible, 700).expect("try_read") {
                            Some(outcome) => outcome,
                            None => reader.read(next, visible, 700).expect("read"),
                        },
                    };
                    for (expected, (offset, record, _)) in (next.0..).zip(records(&outcome.batches))
                    {
                        assert_eq!(offset, expected);
                        assert_eq!(
                            record.value.expect("value")[..8],
                            *format!("{offset:08}").as_bytes()
                        );
                    }
                    next = outcome.next_offset;
                }
            })
        })
        .collect();
    for n in 0..COUNT {
        append(&mut log, batch(&[sized(n as usize, 60)]), NOW);
        if n % 50 == 0 {
            commit(&mut log);
        }
    }
    for reader in readers {
        reader.join().expect("reader saw everything");
    }
}

#[test]
fn epochs_only_rise_and_say_where_histories_part() {
    use talweg_types::LeaderEpoch;
    let node = Node::new(1);
    let mut log = node.log(config());
    fill(&mut log, 5, 50, NOW);
    assert!(
        log.begin_epoch(LeaderEpoch(0)).is_err(),
        "a lower epoch is refused"
    );
    log.begin_epoch(LeaderEpoch(1))
        .expect("the present one again is no change");
    log.begin_epoch(LeaderEpoch(4)).expect("a higher one");
    fill(&mut log, 5, 50, NOW);
    assert_eq!(
        log.reader().epoch_end_offset(LeaderEpoch(1)),
        (LeaderEpoch(1), Offset(5))
    );
    assert_eq!(
        log.reader().epoch_end_offset(LeaderEpoch(3)),
        (LeaderEpoch(1), Offset(5))
    );
    assert_eq!(
        log.reader().epoch_end_offset(LeaderEpoch(4)),
        (LeaderEpoch(4), Offset(10))
    );
    log.close().expect("closed");
    let node = node.restarted();
    let (mut log, _) =
        talweg_log::PartitionLog::recover(&node.folder, tp(), config(), NOW).expect("recovered");
    assert!(
        log.begin_epoch(LeaderEpoch(4)).is_err(),
        "a process never continues an epoch"
    );
    let refused = log
        .append(&[batch(&[rec("x")])], NOW)
        .remove(0)
        .expect_err("no epoch was begun");
    assert!(refused.to_string().contains("epoch"), "{refused}");
    assert_eq!(
        log.reader().epoch_end_offset(LeaderEpoch(2)),
        (LeaderEpoch(1), Offset(5))
    );
}

#[test]
fn tailing_readers_share_what_was_just_written_and_idle_partitions_keep_nothing() {
    let node = Node::new(1);
    let mut log = node.log(LogConfig {
        segment_bytes: 1 << 20,
        ..config()
    });
    let readers = [log.reader(), log.reader(), log.reader()];
    assert_eq!(
        readers[0]
            .read(Offset(0), Offset(0), 1000)
            .expect("waits at the end")
            .next_offset,
        Offset(0)
    );
    for n in 0..50i64 {
        let batches = [
            batch(&[sized(2 * n as usize, 50)]),
            batch(&[sized(2 * n as usize + 1, 50)]),
        ];
        log.append(&batches, NOW)
            .into_iter()
            .for_each(|result| drop(result.expect("appended")));
        let answers: Vec<_> = readers
            .iter()
            .map(|reader| {
                reader
                    .try_read(Offset(2 * n), end(reader), 10_000)
                    .expect("no error")
                    .expect("in memory")
            })
            .collect();
        assert_eq!(answers[0].next_offset, Offset(2 * n + 2));
        assert!(
            answers
                .iter()
                .all(|answer| answer.batches.as_ptr() == answers[0].batches.as_ptr()),
            "one copy for all"
        );
        // From the middle of a write, with a bound that cuts it.
        let second = readers[1]
            .read(Offset(2 * n + 1), end(&readers[1]), 1)
            .expect("read");
        assert_eq!(
            (records(&second.batches)[0].0, second.next_offset),
            (2 * n + 1, Offset(2 * n + 2))
        );
        let half = readers[1]
            .read(Offset(2 * n), Offset(2 * n + 1), 10_000)
            .expect("read");
        assert_eq!(
            half.next_offset,
            Offset(2 * n + 1),
            "what is not visible is not shown"
        );
    }
    assert_eq!(read_all(&readers[2], 0).len(), 100);
    assert!(log.next_tick(NOW) <= at(5000));
    log.tick(at(5000), true);
    log.tick(at(10_000), true);
    let before = readers[0]
        .read(Offset(98), end(&readers[0]), 1000)
        .expect("from the file")
        .batches;
    let again = readers[1]
        .read(Offset(98), end(&readers[1]), 1000)
        .expect("from the file")
        .batches;
    assert_ne!(before.as_ptr(), again.as_ptr(), "nothing is kept");
}
