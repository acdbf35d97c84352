//! Compaction: whoever reads from the start rebuilds the newest value of each
//! key, whatever happens between; offsets and what stays never change.

use crate::common::*;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::collections::{BTreeMap, BTreeSet};
use talweg_batch::BatchHeader;
use talweg_log::{
    Compaction, CompactionConfig, CompactionReport, LogConfig, LogError, LogReader, PartitionLog,
    RewriteError, fs::power_loss::OpKind,
};
use talweg_types::{LeaderEpoch, Offset, Ratio, TimestampMs};

const HOUR: i64 = 3_600_000;

fn compacted(map_bytes: usize) -> LogConfig {
    LogConfig {
        retention_ms: -1,
        compaction: Some(CompactionConfig {
            delete_retention_ms: HOUR as u64,
            min_dirty_ratio: Ratio::HALF,
            min_lag_ms: 0,
            max_lag_ms: i64::MAX as u64,
            map_bytes,
        }),
        ..config()
    }
}

fn put(key: usize, value: usize) -> Rec {
    Rec {
        key: Some(format!("key {key}").into_bytes()),
        ..sized(value, 150)
    }
}

fn delete(key: usize) -> Rec {
    Rec {
        value: None,
        ..put(key, 0)
    }
}

/// One round, as the driver runs it.
fn round(log: &mut PartitionLog, now: TimestampMs) -> Option<CompactionReport> {
    let mut round = log.compaction(now, true)?;
    let report = round.run(&|| false).expect("compacted");
    log.rewrite_done(round);
    log.check().expect("invariants after compaction");
    Some(report)
}

fn rounds(log: &mut PartitionLog, now: TimestampMs) -> usize {
    let mut count = 0;
    while round(log, now).is_some() {
        count += 1;
        assert!(count < 200, "rounds end");
    }
    count
}

/// `count` records over `keys` keys, one a batch, committed.
fn write(log: &mut PartitionLog, count: usize, keys: usize) {
    for n in 0..count {
        append(log, batch(&[put(n % keys, n)]), NOW);
    }
    commit(log);
}

fn newest(found: &[Read]) -> BTreeMap<Vec<u8>, (i64, Option<Vec<u8>>)> {
    let mut newest = BTreeMap::new();
    for (offset, record, _) in found {
        let key = record.key.as_deref().unwrap_or_default().to_vec();
        newest.insert(key, (*offset, record.value.as_deref().map(<[u8]>::to_vec)));
    }
    newest
}

/// The headers of the log, which follow one another without a gap.
fn headers(reader: &LogReader) -> Vec<BatchHeader> {
    let mut next = reader.first_offset();
    let mut found: Vec<BatchHeader> = Vec::new();
    while next < end(reader) {
        let outcome = reader.read(next, end(reader), 4000).expect("readable");
        for one in talweg_batch::split_batches(outcome.batches) {
            let header = BatchHeader::parse(&one.expect("whole")).expect("header");
            assert_eq!(
                header.base_offset,
                found.last().map_or(next, BatchHeader::next_offset)
            );
            found.push(header);
        }
        next = outcome.next_offset;
    }
    found
}

/// Story: 300 records over 7 keys in small segments shrink to the newest of each
/// in the sealed part, offsets as they were, small segments joined.
#[test]
fn the_newest_record_of_each_key_stays_and_the_others_go() {
    let node = Node::new(1);
    let mut log = node.log(compacted(1 << 20));
    write(&mut log, 300, 7);
    let reader = log.reader();
    let before = read_all(&reader, 0);
    let segments = node.segments().len();
    assert!(segments > 5);
    let report = round(&mut log, NOW).expect("a round is due");
    assert!(report.bytes_after < report.bytes_before / 2);
    assert!(
        node.segments().len() < segments,
        "small neighbours are joined"
    );
    let after = read_all(&reader, 0);
    assert_eq!(newest(&before), newest(&after));
    let sealed: Vec<_> = after
        .iter()
        .filter(|read| read.0 < report.cleaned_end.0)
        .collect();
    assert_eq!(sealed.len(), 7);
    assert!(
        after.iter().all(|read| before.contains(read)),
        "what stays is as it was"
    );
    headers(&reader);
    assert!(log.compaction(NOW, true).is_none(), "all is done");
    // And after a restart, from the seals.
    drop((log, reader));
    let node = node.killed();
    let mut log = node.log(compacted(1 << 20));
    assert_eq!(read_all(&log.reader(), 0), after);
    assert!(
        log.compaction(NOW, true).is_none(),
        "what is clean is told by the seals"
    );
}

/// Story: the map holds one key, and every round gets somewhere.
#[test]
fn a_map_that_is_too_small_takes_more_rounds_and_comes_to_the_same() {
    let node = Node::new(1);
    let mut log = node.log(compacted(0));
    write(&mut log, 200, 3);
    let before = read_all(&log.reader(), 0);
    assert!(rounds(&mut log, NOW) > 3);
    let after = read_all(&log.reader(), 0);
    assert_eq!(newest(&before), newest(&after));
    assert!(after.len() < 40, "{} are left", after.len());
}

/// Story: a key is deleted; its values go at once, its tombstone an hour after
/// compaction has met it, and not while the clock is not believed.
#[test]
fn a_tombstone_stays_for_its_time_and_then_goes() {
    let node = Node::new(1);
    let mut log = node.log(compacted(1 << 20));
    append(&mut log, batch(&[put(99, 1), put(98, 1)]), NOW);
    append(&mut log, batch(&[delete(99), delete(98)]), NOW);
    write(&mut log, 60, 2);
    let of_99 = |log: &PartitionLog| {
        let found = read_all(&log.reader(), 0);
        newest(&found).get(&b"key 99"[..]).cloned()
    };
    // Met without a clock: no horizon yet.
    let mut blind = log.compaction(NOW, false).expect("due");
    blind.run(&|| false).expect("compacted");
    log.rewrite_done(blind);
    assert_eq!(of_99(&log), Some((2, None)));
    assert_eq!(rounds(&mut log, at(1)), 1, "the horizon is set");
    let horizon = headers(&log.reader())
        .iter()
        .find_map(BatchHeader::delete_horizon);
    assert_eq!(horizon, Some(at(1 + HOUR)));
    assert_eq!(rounds(&mut log, at(HOUR)), 0);
    assert!(
        log.compaction(at(2 * HOUR), false).is_none(),
        "the clock is not believed"
    );
    assert_eq!(of_99(&log), Some((2, None)));
    assert_eq!(rounds(&mut log, at(1 + HOUR)), 1);
    assert_eq!(of_99(&log), None, "and its value does not come back");
    assert_eq!(rounds(&mut log, at(9 * HOUR)), 0);
}

/// Records that no key supersedes stay, whatever the policy was when they came.
#[test]
fn records_without_a_key_stay() {
    let node = Node::new(1);
    let mut log = node.log(compacted(1 << 20));
    for n in 0..40 {
        append(&mut log, batch(&[sized(n, 200), put(1, n)]), NOW);
    }
    commit(&mut log);
    round(&mut log, NOW).expect("due");
    let keyless = read_all(&log.reader(), 0);
    let keyless = keyless.iter().filter(|read| read.1.key.is_none());
    assert_eq!(keyless.count(), 40);
}

/// Nothing above the watermark, nothing unsealed, nothing younger than asked, and
/// no record whose idempotency key a copy must still learn.
#[test]
fn what_is_not_committed_or_too_young_is_left_alone() {
    let node = Node::new(1);
    let mut log = node.log(compacted(1 << 20));
    for n in 0..100 {
        append(&mut log, batch(&[put(n % 2, n)]), NOW);
    }
    flush(&mut log);
    assert!(log.compaction(NOW, true).is_none(), "nothing is committed");
    log.set_high_watermark(Offset(60));
    let report = round(&mut log, NOW).expect("due");
    assert!(report.cleaned_end <= Offset(60) && report.cleaned_end > Offset(0));

    let node = Node::new(2);
    let mut slow = compacted(1 << 20);
    slow.compaction = slow.compaction.map(|compaction| CompactionConfig {
        min_lag_ms: 1000,
        ..compaction
    });
    let mut log = node.log(slow);
    write(&mut log, 100, 2);
    assert!(log.compaction(at(1000), true).is_none(), "too young");
    assert!(
        log.compaction(at(9000), false).is_none(),
        "nobody knows how old"
    );
    assert!(round(&mut log, at(1001)).is_some());

    let node = Node::new(3);
    let mut log = node.log(compacted(1 << 20));
    let keyed = Rec {
        idempotency: Some(b"once".to_vec()),
        ..put(1, 0)
    };
    append(&mut log, batch(&[keyed]), NOW);
    write(&mut log, 100, 2);
    assert!(
        log.compaction(at(1), true).is_none(),
        "its key is in its window"
    );
    log.tick(at(HOUR), true);
    assert!(round(&mut log, at(HOUR)).is_some());
}

/// Story: a replica begins from nothing at a compacted leader, and ends up with
/// the same records, the same epochs and the same memory of producers. Another
/// one ended in the middle of what was compacted since.
#[test]
fn a_copy_of_a_compacted_log_knows_what_the_log_knows() {
    let leader = Node::new(1);
    let mut log = leader.log(compacted(1 << 20));
    let copy_to = |log: &PartitionLog, copy: &mut PartitionLog, most: usize| {
        copy.follow(log.leader_epoch()).expect("follows");
        let reader = log.reader();
        while copy.bounds().log_end < most.min(end(&reader).0 as usize).into_offset() {
            assert!(copy_once(&reader, copy, 700));
        }
        flush(copy);
        copy.check().expect("invariants of a copy");
    };
    let other = Node::new(9);
    let (mut early, _) =
        PartitionLog::recover(&other.folder, tp(), compacted(1 << 20), NOW).expect("recovered");
    for n in 0..120 {
        let producer = 1 + i64::from(n % 4);
        append(
            &mut log,
            numbered(producer, 0, n / 4, &[put(0, n as usize)]),
            NOW,
        );
    }
    append(&mut log, numbered(77, 3, 0, &[put(0, 1)]), NOW);
    commit(&mut log);
    copy_to(&log, &mut early, 35);
    drop(log);
    // A second epoch, in the middle of what is compacted.
    let leader = leader.killed();
    let mut log = leader.log(compacted(1 << 20));
    write(&mut log, 200, 1);
    round(&mut log, NOW).expect("due");
    assert!(
        headers(&log.reader())
            .iter()
            .any(BatchHeader::is_placeholder)
    );

    let third = Node::new(10);
    let (mut late, _) =
        PartitionLog::recover(&third.folder, tp(), compacted(1 << 20), NOW).expect("recovered");
    for copy in [&mut early, &mut late] {
        copy_to(&log, copy, usize::MAX);
        copy.set_high_watermark(end(&log.reader()));
        assert_eq!(
            newest(&read_all(&copy.reader(), 0)),
            newest(&read_all(&log.reader(), 0))
        );
        for epoch in 0..4 {
            assert_eq!(
                copy.reader().epoch_end_offset(LeaderEpoch(epoch)),
                log.reader().epoch_end_offset(LeaderEpoch(epoch))
            );
        }
        // It leads, and knows every repeat.
        copy.begin_epoch(LeaderEpoch(9)).expect("leads");
        for producer in 1..=4_i64 {
            let last = numbered(producer, 0, 29, &[put(0, 116 + producer as usize - 1)]);
            let repeat = append(copy, last, NOW);
            assert!(
                repeat.duplicate && repeat.offset_known,
                "producer {producer}"
            );
            assert_eq!(repeat.base_offset, Offset(116 + producer - 1));
        }
        assert!(append(copy, numbered(77, 3, 0, &[put(0, 1)]), NOW).duplicate);
        append(copy, numbered(77, 3, 1, &[put(0, 2)]), NOW);
        round(copy, NOW);
        assert_eq!(newest(&read_all(&copy.reader(), 0)).len(), 1);
    }
}

trait IntoOffset {
    fn into_offset(self) -> Offset;
}

impl IntoOffset for usize {
    fn into_offset(self) -> Offset {
        Offset(i64::try_from(self).unwrap_or(i64::MAX))
    }
}

/// While a round is out the log is not cut or dropped; cancelled, it comes back
/// and leaves nothing behind.
#[test]
fn a_round_that_is_out_keeps_the_log_from_being_cut_until_it_is_back() {
    let node = Node::new(1);
    let mut log = node.log(compacted(1 << 20));
    write(&mut log, 100, 2);
    append(&mut log, batch(&[put(0, 1)]), NOW);
    let mut round: Compaction = log.compaction(NOW, true).expect("due");
    assert!(log.compaction(NOW, true).is_none(), "one at a time");
    let cut = log.truncate_to(Offset(100));
    assert!(matches!(cut, Err(LogError::RewriteInFlight)), "{cut:?}");
    log.cancel_rewrite();
    assert!(matches!(round.run(&|| false), Err(RewriteError::Cancelled)));
    log.rewrite_done(round);
    assert!(
        node.file_names()
            .iter()
            .all(|name| !name.ends_with(".cleaned"))
    );
    assert_eq!(
        log.truncate_to(Offset(100)).expect("cut").log_end,
        Offset(100)
    );
    assert!(self::round(&mut log, NOW).is_some());
    // Retention waits for the round, too.
    write(&mut log, 200, 2);
    let round = log.compaction(NOW, true).expect("due");
    log.delete_before(Offset(150), NOW).expect("deleted");
    assert_eq!(log.reader().first_offset(), Offset(0));
    log.rewrite_done(round);
    assert!(log.reader().first_offset() > Offset(0));
}

/// Readers that are in a segment while it is replaced go on in what they have.
#[test]
fn readers_and_look_ups_go_on_across_a_replacement() {
    let node = Node::new(1);
    let mut log = node.log(compacted(1 << 20));
    for n in 0..150_i64 {
        let record = Rec {
            timestamp: NOW.0 + n * 10,
            ..put(n as usize % 5, n as usize)
        };
        append(&mut log, batch(&[record]), at(n));
    }
    commit(&mut log);
    let reader = log.reader();
    let all = read_all(&reader, 0);
    let mut round = log.compaction(NOW, true).expect("due");
    round.run(&|| false).expect("compacted");
    // The files are new, the views are not.
    assert_eq!(read_all(&reader, 0), all);
    log.rewrite_done(round);
    rebuild(&reader);
    assert_look_ups(&reader);
}

/// Every look-up by offset and time against what reading from the start finds.
fn assert_look_ups(reader: &LogReader) {
    let all = read_all(reader, reader.first_offset().0);
    for from in (reader.bounds().log_start.0..end(reader).0).step_by(7) {
        let expected: Vec<_> = all.iter().filter(|read| read.0 >= from).cloned().collect();
        assert_eq!(
            read_some(reader, from, 300).expect("readable"),
            expected,
            "from {from}"
        );
    }
    let times: BTreeSet<i64> = all.iter().map(|read| read.1.timestamp.0).collect();
    for time in times.iter().flat_map(|time| [*time, *time + 1]) {
        let naive = all.iter().find(|read| read.1.timestamp.0 >= time);
        let found = reader
            .offset_for_time(TimestampMs(time), end(reader))
            .expect("looked up");
        assert_eq!(
            found.map(|(offset, _)| offset.0),
            naive.map(|read| read.0),
            "time {time}"
        );
    }
    assert_eq!(
        reader.index_valid_to(),
        reader.bounds().log_end.min(reader.index_valid_to())
    );
}

/// Story: the process or the machine ends at every single step of a round, in the
/// middle of it or before it; the next start finds one whole log, and another
/// round ends well.
#[test]
fn a_crash_at_every_step_of_a_round_leaves_one_whole_log() {
    let prepare = |seed: u64| {
        let node = Node::new(seed);
        let mut log = node.log(compacted(1 << 20));
        append(&mut log, batch(&[put(90, 1), put(91, 1), delete(90)]), NOW);
        write(&mut log, 90, 4);
        (node, log)
    };
    let (node, mut log) = prepare(1);
    let began = node.fs.operations();
    round(&mut log, NOW).expect("due");
    let steps = node.fs.operations() - began;
    assert!(steps > 15, "{steps} steps");
    drop(log);
    let mut points = 0;
    for step in 1..=steps {
        for kind in 0..3 {
            let (node, mut log) = prepare(step * 3 + kind);
            let expected = newest(&read_all(&log.reader(), 0));
            let at_step = node.fs.operations() + step;
            node.fs.freeze_at(at_step);
            let mut out = log.compaction(NOW, true).expect("due");
            let _ = out.run(&|| false);
            drop((out, log));
            let node = match kind {
                0 => node.killed(),
                1 => node.power_lost(),
                _ => {
                    node.fs.power_loss_keeping_some().expect("power loss");
                    Node::on(node.fs, node.kv, node.epoch + 1)
                }
            };
            let (mut log, report) = node.recover(compacted(1 << 20));
            assert_eq!(report.damaged, [], "step {step} kind {kind}");
            assert_eq!(report.kept_to, Offset(93));
            let left: Vec<_> = node.file_names();
            assert!(
                left.iter()
                    .all(|name| !name.ends_with(".swap") && !name.ends_with(".cleaned")),
                "step {step} kind {kind}: {left:?}"
            );
            assert_eq!(
                newest(&read_all(&log.reader(), 0)),
                expected,
                "step {step} kind {kind}"
            );
            headers(&log.reader());
            rounds(&mut log, NOW);
            assert_eq!(newest(&read_all(&log.reader(), 0)), expected);
            rebuild(&log.reader());
            assert_look_ups(&log.reader());
            points += 1;
        }
    }
    assert_eq!(points, steps * 3);
}

/// Every single operation of a round fails once, with an error of the device or
/// for want of room: the log is whole, and what is on disk is found again.
#[test]
fn an_error_at_every_step_of_a_round_harms_nothing() {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };
    for full in [false, true] {
        for step in 1..60_u64 {
            let node = Node::new(step);
            let mut log = node.log(compacted(1 << 20));
            write(&mut log, 60, 4);
            let expected = newest(&read_all(&log.reader(), 0));
            let count = Arc::new(AtomicU64::new(0));
            let counted = Arc::clone(&count);
            node.fs.set_hook(Some(Arc::new(move |operation| {
                if operation.kind == OpKind::Space
                    || counted.fetch_add(1, Ordering::Relaxed) + 1 != step
                {
                    return Ok(());
                }
                Err(std::io::Error::from(match full {
                    true => std::io::ErrorKind::StorageFull,
                    false => std::io::ErrorKind::Other,
                }))
            })));
            let mut out = log.compaction(NOW, true).expect("due");
            let result = out.run(&|| false);
            node.fs.set_hook(None);
            log.rewrite_done(out);
            if node.folder.failed().is_none() {
                log.check().expect("invariants");
                assert_eq!(newest(&read_all(&log.reader(), 0)), expected, "step {step}");
                let again = round(&mut log, NOW);
                assert!(result.is_ok() || again.is_some(), "step {step}: {result:?}");
            }
            drop(log);
            let node = node.killed();
            let (log, report) = node.recover(compacted(1 << 20));
            assert_eq!(report.damaged, [], "step {step}");
            assert_eq!(newest(&read_all(&log.reader(), 0)), expected, "step {step}");
        }
    }
}

/// Damage is not compacted away, and gets no new checksum.
#[test]
fn a_damaged_segment_stops_the_round_and_stays_as_it_is() {
    // In a batch's leader epoch, which no batch checksum covers, and in a value.
    for position in [15, 100] {
        let node = Node::new(1);
        let mut log = node.log(compacted(1 << 20));
        write(&mut log, 100, 3);
        node.fs
            .flip_bit(&node.segment_path(0), position, 0)
            .expect("flipped");
        let mut round = log.compaction(NOW, true).expect("due");
        let result = round.run(&|| false);
        assert!(
            matches!(result, Err(RewriteError::Damaged { .. })),
            "{result:?}"
        );
        log.rewrite_done(round);
        assert!(
            node.file_names()
                .iter()
                .all(|name| !name.contains("cleaned"))
        );
    }
}

/// The seal that decides a replacement is flipped while the machine is down: the
/// batches themselves say what was replaced.
#[test]
fn a_damaged_decision_is_read_from_the_batches() {
    let node = Node::new(1);
    let mut log = node.log(compacted(1 << 20));
    write(&mut log, 100, 3);
    let expected = newest(&read_all(&log.reader(), 0));
    let placed = node.dir().join("00000000000000000000.swap");
    let seen = placed.clone();
    let fs = node.fs.clone();
    node.fs.set_hook(Some(std::sync::Arc::new(move |operation| {
        // The first operation after the decision.
        match operation.kind == OpKind::RemoveFile && fs.durable_len(&seen).is_ok() {
            true => Err(std::io::Error::other("the power fails here")),
            false => Ok(()),
        }
    })));
    let mut round = log.compaction(NOW, true).expect("due");
    round.run(&|| false).expect_err("stopped");
    node.fs.set_hook(None);
    drop((round, log));
    let node = node.power_lost();
    node.fs.flip_bit(&placed, 20, 3).expect("flipped");
    let (mut log, report) = node.recover(compacted(1 << 20));
    assert_eq!(report.damaged, []);
    assert_eq!(newest(&read_all(&log.reader(), 0)), expected);
    rounds(&mut log, NOW);
    assert_eq!(newest(&read_all(&log.reader(), 0)), expected);
}

/// What a reader from the start must find.
struct World {
    random: SmallRng,
    node: Option<Node>,
    log: Option<PartitionLog>,
    written: BTreeMap<i64, Rec>,
    now: i64,
    sequences: BTreeMap<i64, (i16, i32)>,
    removed: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let node = Node::new(seed);
        let mut world = Self {
            random: SmallRng::seed_from_u64(seed),
            log: None,
            node: Some(node),
            written: BTreeMap::new(),
            now: 0,
            sequences: BTreeMap::new(),
            removed: 0,
        };
        world.open();
        world
    }

    fn config(&mut self) -> LogConfig {
        let map_bytes = [0, 600, 1 << 20][self.random.random_range(0..3)];
        LogConfig {
            segment_bytes: 4096 * self.random.random_range(1..4),
            ..compacted(map_bytes)
        }
    }

    fn open(&mut self) {
        let config = self.config();
        let (log, report) = self.node.as_ref().expect("node").recover(config);
        assert_eq!(report.damaged, []);
        self.written.retain(|offset, _| *offset < report.kept_to.0);
        self.sequences.clear();
        self.log = Some(log);
    }

    fn log(&mut self) -> &mut PartitionLog {
        self.log.as_mut().expect("open")
    }

    fn append(&mut self) {
        let records: Vec<Rec> = (0..self.random.random_range(1..6))
            .map(|_| {
                let key = self.random.random_range(0..12);
                let mut record = match self.random.random_bool(0.15) {
                    true => delete(key),
                    false => put(key, self.random.random_range(0..1_000_000)),
                };
                record.timestamp = NOW.0 + self.now + self.random.random_range(-50..50);
                record
            })
            .collect();
        let now = at(self.now);
        let checked = match self.random.random_bool(0.5) {
            true => batch(&records),
            false => {
                let producer = self.random.random_range(1..4);
                let epoch = self.node.as_ref().expect("node").epoch as i16;
                let (_, next) = *self.sequences.entry(producer).or_insert((epoch, 0));
                self.sequences
                    .insert(producer, (epoch, next + records.len() as i32));
                numbered(producer, epoch, next, &records)
            }
        };
        let appended = append(self.log(), checked, now);
        for (n, record) in records.into_iter().enumerate() {
            self.written
                .insert(appended.base_offset.0 + n as i64, record);
        }
    }

    fn compact(&mut self) {
        let (now, trusted) = (at(self.now), self.random.random_bool(0.8));
        let Some(mut round) = self.log().compaction(now, trusted) else {
            return;
        };
        let batches = std::cell::Cell::new(self.random.random_range(0..200));
        let give_up = self.random.random_bool(0.2);
        let result = round.run(&|| {
            batches.set(batches.get() - 1);
            give_up && batches.get() < 0
        });
        match result {
            Ok(report) => self.removed += report.removed_records,
            Err(RewriteError::Cancelled) => assert!(give_up),
            Err(error) => panic!("{error} {:?}", self.node.as_ref().map(Node::file_names)),
        }
        self.log().rewrite_done(round);
    }

    fn crash(&mut self) {
        self.log = None;
        let node = self.node.take().expect("node");
        self.node = Some(match self.random.random_range(0..2) {
            0 => node.killed(),
            _ => node.power_lost(),
        });
        self.open();
    }

    fn truncate(&mut self) {
        let bounds = self.log().bounds();
        let to = self
            .random
            .random_range(bounds.high_watermark.0..=bounds.log_end.0);
        let cut = self.log().truncate_to(Offset(to)).expect("cut");
        self.written.retain(|offset, _| *offset < cut.log_end.0);
        self.sequences.clear();
        let node = self.node.as_mut().expect("node");
        node.epoch += 1;
        let epoch = LeaderEpoch(node.epoch);
        self.log().begin_epoch(epoch).expect("newer");
    }

    fn step(&mut self) {
        self.now += self.random.random_range(0..HOUR / 20);
        match self.random.random_range(0..40) {
            0..=27 => self.append(),
            28..=33 => commit(self.log()),
            34 | 35 => self.compact(),
            36 => {
                let now = at(self.now);
                // What is due is looked at by the other steps.
                let _ = self.log().tick(now, true);
            }
            37 => self.crash(),
            38 => self.truncate(),
            _ => {
                let config = self.config();
                self.log().set_config(config);
            }
        }
    }

    /// A reader from the start: what it finds was written there, and the newest of
    /// each key is what was written last.
    fn check(&mut self) {
        let log = self.log.as_mut().expect("open");
        log.check().expect("invariants");
        let reader = log.reader();
        let found = read_all(&reader, reader.first_offset().0);
        let mut state = BTreeMap::new();
        for (offset, record, _) in &found {
            let written = self.written.get(offset).expect("was written");
            assert_eq!(
                record.key.as_deref(),
                written.key.as_deref(),
                "offset {offset}"
            );
            assert_eq!(
                record.value.as_deref(),
                written.value.as_deref(),
                "offset {offset}"
            );
            assert_eq!(record.timestamp.0, written.timestamp, "offset {offset}");
            match &written.value {
                Some(value) => drop(state.insert(written.key.clone(), value.clone())),
                None => drop(state.remove(&written.key)),
            }
        }
        let mut expected = BTreeMap::new();
        for record in self.written.values() {
            match &record.value {
                Some(value) => drop(expected.insert(record.key.clone(), value.clone())),
                None => drop(expected.remove(&record.key)),
            }
        }
        assert_eq!(state, expected);
        headers(&reader);
    }
}

/// Random histories: keyed writes, tombstones, rounds with tiny maps that are
/// given up, crashes, lost power, cuts of the uncommitted end.
#[test]
fn whatever_happens_a_reader_from_the_start_rebuilds_the_newest_value_of_each_key() {
    let mut removed = 0;
    for seed in 0..60 {
        let mut world = World::new(seed);
        for step in 0..220 {
            world.step();
            if step % 20 == 0 {
                world.check();
            }
        }
        commit(world.log());
        world.check();
        rebuild(&world.log().reader());
        assert_look_ups(&world.log().reader());
        removed += world.removed;
    }
    assert!(removed > 5_000, "rounds remove something: {removed}");
}
