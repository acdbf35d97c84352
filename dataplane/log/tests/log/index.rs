//! The index store is a cache: lost, old, new, wrong or failing, the answers
//! stay right and it is rebuilt while serving.

use crate::common::*;
use bytes::Bytes;
use proptest::prelude::*;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use talweg_log::{
    IndexFound, LogReader, PartitionLog,
    kv::{IndexKv, KvError, KvOp, MemKv},
};
use talweg_types::{Incarnation, Offset, TimestampMs};

fn check_answers(reader: &LogReader, timestamps: &[i64]) {
    for from in 0..timestamps.len() as i64 {
        let outcome = reader.read(Offset(from), end(reader), 1).expect("readable");
        assert_eq!(outcome.next_offset, Offset(from + 1));
        assert_eq!(
            records(&outcome.batches)[0].1.timestamp.0,
            timestamps[from as usize]
        );
    }
    for asked in [-1, 0, 5, 17, 40, 41, 99, 100, 1000] {
        assert_eq!(
            by_time(reader, asked),
            model(timestamps, 0, asked),
            "timestamp {asked}"
        );
    }
}

fn by_time(reader: &LogReader, asked: i64) -> Option<(i64, i64)> {
    let found = reader
        .offset_for_time(TimestampMs(asked), end(reader))
        .expect("readable");
    found.map(|(offset, timestamp)| (offset.0, timestamp.0))
}

/// The smallest offset with a timestamp of at least `asked`.
fn model(timestamps: &[i64], start: usize, asked: i64) -> Option<(i64, i64)> {
    let all = timestamps.iter().enumerate().skip(start);
    all.map(|(offset, time)| (offset as i64, *time))
        .find(|(_, time)| *time >= asked)
}

/// `count` more records with scattered timestamps; all committed and flushed.
fn grow(log: &mut PartitionLog, timestamps: &mut Vec<i64>, count: usize) {
    for _ in 0..count {
        let time = (timestamps.len() as i64 * 37) % 101;
        append(
            log,
            batch(&[Rec {
                value: Some(vec![b'v'; 200]),
                ..timed(time)
            }]),
            NOW,
        );
        timestamps.push(time);
        if timestamps.len().is_multiple_of(7) {
            commit(log);
        }
    }
    commit(log);
}

#[test]
fn the_store_restored_from_any_other_moment_or_emptied_is_caught_up_or_rebuilt() {
    let mut node = Node::new(1);
    let mut log = node.log(config());
    let mut timestamps = Vec::new();
    let mut snapshots = vec![node.kv.snapshot()];
    for _ in 0..4 {
        grow(&mut log, &mut timestamps, 20);
        snapshots.push(node.kv.snapshot());
    }
    assert_eq!(
        log.reader().index_pending(),
        0,
        "what is flushed is in the store"
    );
    log.close().expect("closed");
    // A newer moment than the log: of a log that went on.
    let newer = {
        let other = Node::on(node.fs.clone(), Arc::clone(&node.kv), 2);
        let mut ahead = other.log(config());
        let before = other.kv.snapshot();
        let mut copy = timestamps.clone();
        grow(&mut ahead, &mut copy, 20);
        let newer = other.kv.snapshot();
        other.kv.restore(&before);
        // The log itself goes back, too: cut to where it was.
        drop(ahead);
        newer
    };
    snapshots.push(newer);
    let end_of_log = {
        node = Node { epoch: 2, ..node }.killed();
        let log = node.log(config());
        end(&log.reader()).0
    };
    let mut all = timestamps.clone();
    while (all.len() as i64) < end_of_log {
        all.push((all.len() as i64 * 37) % 101);
    }
    for (number, snapshot) in snapshots.iter().enumerate() {
        node.kv.restore(snapshot);
        node = node.killed();
        let (mut log, report) = node.recover(config());
        let reader = log.reader();
        match number {
            0 => assert_eq!(report.index, IndexFound::Missing),
            5 => assert_eq!(report.index, IndexFound::Complete),
            _ => assert_eq!(report.index, IndexFound::Behind),
        }
        check_answers(&reader, &all);
        rebuild(&reader);
        assert!(!reader.index_incomplete());
        check_answers(&reader, &all);
        settle(&mut log);
        drop(log);
        let (found, expected) = (entries(&node.kv), expected_entries(&node));
        // Entries lie elsewhere where a scan began elsewhere, and as close.
        assert!(
            found.len().abs_diff(expected.len()) <= 4,
            "{} and {} entries",
            found.len(),
            expected.len()
        );
    }
}

#[test]
fn a_store_ahead_of_the_log_is_dropped() {
    let node = Node::new(2);
    let mut log = node.log(config());
    let mut timestamps = Vec::new();
    grow(&mut log, &mut timestamps, 40);
    // The same offsets, other data, further on: as if the log had been restored.
    let ahead = Node::new(3);
    let mut other = ahead.log(config());
    fill(&mut other, 90, 333, NOW);
    node.kv.restore(&ahead.kv.snapshot());
    drop(log);
    let node = node.killed();
    let (mut log, report) = node.recover(config());
    assert_eq!(report.index, IndexFound::Ahead);
    check_answers(&log.reader(), &timestamps);
    rebuild(&log.reader());
    check_answers(&log.reader(), &timestamps);
    settle(&mut log);
    drop(log);
    let (found, expected) = (entries(&node.kv), expected_entries(&node));
    assert!(
        found.len().abs_diff(expected.len()) <= 4,
        "{} and {} entries",
        found.len(),
        expected.len()
    );
}

#[test]
fn an_entry_that_fits_no_batch_is_noticed_and_the_index_rebuilt() {
    // Not ahead, not behind, just wrong: the entries of another log as long as this one.
    let node = Node::new(4);
    let mut log = node.log(config());
    let mut timestamps = Vec::new();
    grow(&mut log, &mut timestamps, 60);
    let other_node = Node::new(5);
    let mut other = other_node.log(config());
    fill(&mut other, 60, 77, NOW);
    node.kv.restore(&other_node.kv.snapshot());
    let reader = log.reader();
    for from in (0..60).rev() {
        assert_eq!(
            reader
                .read(Offset(from), end(&reader), 1)
                .expect("right in spite of it")
                .next_offset,
            Offset(from + 1)
        );
    }
    assert!(reader.index_incomplete(), "it was noticed");
    assert!(log.tick(NOW, true).wants_index_rebuild);
    rebuild(&reader);
    check_answers(&reader, &timestamps);
}

/// Fails while told to.
struct Failing(MemKv, AtomicBool);

impl Failing {
    fn check(&self) -> Result<(), KvError> {
        if self.1.load(Ordering::Relaxed) {
            Err(KvError("told to fail".into()))
        } else {
            Ok(())
        }
    }
}

impl IndexKv for Failing {
    fn write(&self, ops: Vec<KvOp>) -> Result<(), KvError> {
        self.check()?;
        self.0.write(ops)
    }
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.check()?;
        self.0.get(key)
    }
    fn last_in(&self, low: &[u8], high: &[u8]) -> Result<Option<(Bytes, Bytes)>, KvError> {
        self.check()?;
        self.0.last_in(low, high)
    }
    fn scan(&self, low: &[u8], high: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, KvError> {
        self.check()?;
        self.0.scan(low, high, limit)
    }
}

#[test]
fn a_failing_store_fails_no_append_no_flush_and_no_read() {
    let fs = talweg_log::fs::PowerLossFs::in_memory(6);
    let kv = Arc::new(Failing(MemKv::new(), AtomicBool::new(true)));
    let folder = open_folder(&fs, Arc::clone(&kv) as Arc<dyn IndexKv>);
    folder.mark_running(Incarnation(1)).expect("marked");
    let (mut log, report) = PartitionLog::recover(&folder, tp(), config(), NOW).expect("recovered");
    assert_eq!(report.index, IndexFound::Complete, "nothing to index yet");
    log.begin_epoch(talweg_types::LeaderEpoch(1))
        .expect("epoch");
    let mut timestamps = Vec::new();
    grow(&mut log, &mut timestamps, 60);
    let reader = log.reader();
    assert!(reader.index_pending() > 10, "kept in memory");
    check_answers(&reader, &timestamps);
    drop(log);
    fs.process_crash();
    let folder = open_folder(&fs, Arc::clone(&kv) as Arc<dyn IndexKv>);
    folder.mark_running(Incarnation(2)).expect("marked");
    let (mut log, report) = PartitionLog::recover(&folder, tp(), config(), NOW).expect("recovered");
    assert_eq!(report.index, IndexFound::Unreadable);
    log.begin_epoch(talweg_types::LeaderEpoch(2))
        .expect("epoch");
    let reader = log.reader();
    check_answers(&reader, &timestamps);
    assert!(reader.rebuild_index(512, 1 << 20).is_err());
    kv.1.store(false, Ordering::Relaxed);
    rebuild(&reader);
    grow(&mut log, &mut timestamps, 20);
    assert_eq!(reader.index_pending(), 0);
    check_answers(&reader, &timestamps);
}

#[test]
fn memory_for_entries_is_bounded_while_the_store_fails() {
    let fs = talweg_log::fs::PowerLossFs::in_memory(7);
    let kv = Arc::new(Failing(MemKv::new(), AtomicBool::new(true)));
    let folder = open_folder(&fs, kv as Arc<dyn IndexKv>);
    folder.mark_running(Incarnation(1)).expect("marked");
    let dense = talweg_log::LogConfig {
        segment_bytes: 1 << 30,
        index_interval_bytes: 256,
        ..config()
    };
    let mut log = PartitionLog::create(&folder, tp(), dense);
    log.begin_epoch(talweg_types::LeaderEpoch(1))
        .expect("epoch");
    let batches: Vec<_> = (0..100).map(|n| batch(&[sized(n, 250)])).collect();
    for _ in 0..300 {
        log.append(&batches, NOW);
    }
    let reader = log.reader();
    assert!(
        reader.index_pending() <= 8192,
        "{} entries",
        reader.index_pending()
    );
    for from in [0, 1, 5000, 29_999] {
        assert_eq!(
            reader
                .read(Offset(from), end(&reader), 1)
                .expect("read")
                .next_offset,
            Offset(from + 1)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_first_record_at_or_after_a_time_is_found_whatever_the_order_of_timestamps(
        batches in proptest::collection::vec(proptest::collection::vec(0i64..200, 1..5), 1..60),
        flush_every in 1usize..10,
        restart in any::<bool>(),
        lose_index in any::<bool>(),
        delete_to in 0usize..100,
    ) {
        let node = Node::new(9);
        let mut log = node.log(config());
        let mut timestamps: Vec<i64> = Vec::new();
        for (n, times) in batches.iter().enumerate() {
            let recs: Vec<Rec> = times.iter().map(|time| Rec { value: Some(vec![b'v'; 120]), ..timed(*time) }).collect();
            append(&mut log, batch(&recs), NOW);
            timestamps.extend(times);
            if n % flush_every == 0 { commit(&mut log); }
        }
        let (node, mut log) = if restart {
            if lose_index { node.kv.clear(); }
            drop(log);
            let node = node.killed();
            let log = node.log(config());
            (node, log)
        } else {
            commit(&mut log);
            (node, log)
        };
        let start = delete_to.min(timestamps.len());
        log.delete_before(Offset(start as i64), NOW).expect("deleted");
        let reader = log.reader();
        for asked in 0..=200 {
            prop_assert_eq!(by_time(&reader, asked), model(&timestamps, start, asked), "timestamp {}", asked);
        }
        // Only what is visible is found.
        let half = Offset(timestamps.len() as i64 / 2);
        let found = reader.offset_for_time(TimestampMs(100), half).expect("readable");
        let visible_starts_batch = found.is_none_or(|(offset, _)| offset < half);
        prop_assert!(visible_starts_batch);
        drop(node);
    }
}

/// All keys and values of the store but the meta entries.
fn entries(kv: &MemKv) -> Vec<(Bytes, Bytes)> {
    let all = kv.scan(&[], &[0xff; 64], usize::MAX).expect("scanned");
    // Append times are the segment's in rebuilt entries.
    let without_time = |(key, value): (Bytes, Bytes)| {
        let keep = value.len() - 8;
        (key, value.slice(..keep))
    };
    all.into_iter()
        .filter(|(key, _)| key[20] != b'm')
        .map(without_time)
        .collect()
}

/// The driver's tick and flush: entries that recovery made go to the store.
fn settle(log: &mut PartitionLog) {
    log.tick(NOW, true);
    flush(log);
    assert_eq!(log.reader().index_pending(), 0);
}

/// What a rebuild from nothing gives.
fn expected_entries(node: &Node) -> Vec<(Bytes, Bytes)> {
    node.kv.clear();
    let (mut log, _) = PartitionLog::recover(&node.folder, tp(), config(), NOW).expect("recovered");
    rebuild(&log.reader());
    settle(&mut log);
    entries(&node.kv)
}
