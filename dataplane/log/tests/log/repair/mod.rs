//! Repair: what a disk has lost comes back from another replica, byte for byte, and
//! a crash or an error at any step leaves the log as it was before or after.

mod compacted;

use crate::common::*;
use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use talweg_log::{
    AppendError, CompactionConfig, LogConfig, LogReader, PartitionLog, RepairPart, RepairReport,
    RepairWish, RewriteError, fs::LogFs,
};
use talweg_types::{LeaderEpoch, Offset, Ratio, TimestampMs};

/// A log of several segments and two epochs, and its copy on another node that was
/// stopped cleanly.
struct Pair {
    good: PartitionLog,
    node: Node,
}

fn opened(node: &Node, config: LogConfig) -> PartitionLog {
    let opened = PartitionLog::recover(&node.folder, tp(), config, NOW);
    opened.expect("recovered").0
}

impl Pair {
    fn new(seed: u64) -> Self {
        let (source, node) = (Node::new(seed), Node::new(seed + 1));
        let mut good = source.log(config());
        fill(&mut good, 17, 300, NOW);
        good.begin_epoch(LeaderEpoch(5)).expect("epoch");
        fill(&mut good, 30, 300, NOW);
        let mut copy = opened(&node, config());
        follow(&good, &mut copy);
        copy.close().expect("closed");
        let node = Node { epoch: 8, ..node }.restarted();
        Self { good, node }
    }

    /// The copy, as the next process finds it.
    fn open(&self) -> PartitionLog {
        let mut log = opened(&self.node, config());
        log.follow(LeaderEpoch(5)).expect("follows");
        log.set_high_watermark(self.good.bounds().high_watermark);
        log
    }

    fn size(&self, base: i64) -> u64 {
        let file = self.node.fs.open(&self.node.segment_path(base), false);
        file.expect("there").len().expect("length")
    }
}

fn follow(from: &PartitionLog, to: &mut PartitionLog) {
    let epoch = from.reader().last_epoch();
    to.follow(epoch).expect("follows");
    while copy_once(&from.reader(), to, 2_000) {}
    flush(to);
    to.set_high_watermark(from.bounds().high_watermark);
}

/// As a node asks another one.
fn from_reader(reader: &LogReader, wish: RepairWish) -> Result<RepairPart, String> {
    match reader.read_for_repair(wish, 1_000) {
        Ok(Some(part)) => Ok(part),
        Ok(None) => Err("not compacted so far".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// One repair, as the driver runs it.
fn repair(log: &mut PartitionLog, good: &LogReader) -> Option<Result<RepairReport, RewriteError>> {
    let mut repair = log.repair(NOW)?;
    let result = repair.run(&mut |wish| from_reader(good, wish), &|| false);
    log.rewrite_done(repair);
    log.check().expect("invariants after a repair");
    Some(result)
}

fn repair_all(log: &mut PartitionLog, good: &LogReader) -> u64 {
    let mut restored = 0;
    for _ in 0..100 {
        match repair(log, good) {
            Some(result) => {
                let result =
                    result.unwrap_or_else(|error| panic!("{error}: {:?}", log.reader().damage()));
                restored += result.restored_offsets;
            }
            None if !log.reader().is_damaged() => return restored,
            // Rolled for it: sealed by the next flush.
            None => {
                commit(log);
            }
        }
    }
    panic!("repairs end: {:?}", log.reader().damage());
}

/// Damage is met by reading only.
fn meet_damage(log: &PartitionLog) -> Vec<(i64, i64)> {
    read_around_damage(&log.reader(), 0).1
}

fn assert_same(log: &PartitionLog, good: &PartitionLog) {
    let (one, other) = (log.reader(), good.reader());
    assert_eq!(read_all(&one, 0), read_all(&other, 0));
    assert!(!one.is_damaged());
    assert_eq!(one.damage(), []);
    for epoch in 0..8 {
        let epoch = LeaderEpoch(epoch);
        assert_eq!(
            one.epoch_end_offset(epoch),
            other.epoch_end_offset(epoch),
            "{epoch}"
        );
    }
    rebuild(&one);
    for from in (0..end(&one).0).rev() {
        let read = one.read(Offset(from), end(&one), 1).expect("readable");
        assert_eq!(read.next_offset, Offset(from + 1));
    }
}

/// Story: a bit flips anywhere in a sealed segment; after the repair the log is as
/// the other one, also for the next process, which finds nothing to complain about.
#[test]
fn a_flipped_bit_anywhere_comes_back_from_another_replica() {
    let base = Pair::new(1).node.segments()[1];
    let size = Pair::new(1).size(base);
    for position in (0..size).step_by(13) {
        let pair = Pair::new(1);
        let path = pair.node.segment_path(base);
        pair.node.fs.flip_bit(&path, position, 3).expect("flipped");
        let mut log = pair.open();
        let lost: i64 = meet_damage(&log).iter().map(|(from, to)| to - from).sum();
        assert_eq!(lost, 1, "byte {position}");
        assert_eq!(repair_all(&mut log, &pair.good.reader()), 1);
        assert_same(&log, &pair.good);
        log.close().expect("closed");
        drop(log);
        let log = pair.open();
        assert_eq!(meet_damage(&log), [], "byte {position}");
        assert_same(&log, &pair.good);
    }
}

/// Whole files, their ends, and their seals.
#[test]
fn a_missing_or_short_file_comes_back() {
    for kind in 0..4 {
        let pair = Pair::new(2);
        let bases = pair.node.segments();
        let path = pair.node.segment_path(bases[1]);
        let fs = &pair.node.fs;
        match kind {
            0 => fs.remove_file(&path).expect("removed"),
            1 => {
                fs.remove_file(&path).expect("removed");
                fs.remove_file(&path.with_extension("seal"))
                    .expect("removed");
            }
            2 => {
                let file = fs.open(&path, false).expect("there");
                file.set_len(700).expect("cut");
            }
            _ => {
                fs.remove_file(&path.with_extension("seal"))
                    .expect("removed");
                fs.flip_bit(&path, 900, 1).expect("flipped");
            }
        }
        let mut log = pair.open();
        assert!(!meet_damage(&log).is_empty(), "kind {kind}");
        assert!(repair_all(&mut log, &pair.good.reader()) > 0);
        assert_same(&log, &pair.good);
        log.close().expect("closed");
        drop(log);
        assert_same(&pair.open(), &pair.good);
    }
}

/// Story: the end of the active segment, flushed and promised, is cut off while the
/// node is down. Its offsets are not used again; they come back, and appends go on.
#[test]
fn the_cut_end_of_the_active_segment_comes_back() {
    let mut pair = Pair::new(3);
    let base = *pair.node.segments().last().expect("segments");
    let size = pair.size(base);
    let file = pair.node.fs.open(&pair.node.segment_path(base), false);
    file.expect("there").set_len(size - 100).expect("cut");
    let mut log = pair.open();
    assert_eq!(log.bounds().log_end, pair.good.bounds().log_end);
    assert!(log.reader().is_damaged());
    assert_eq!(repair_all(&mut log, &pair.good.reader()), 1);
    assert_same(&log, &pair.good);
    fill(&mut pair.good, 5, 300, NOW);
    follow(&pair.good, &mut log);
    assert_same(&log, &pair.good);
}

/// An epoch whose first batches were lost is known again where it began.
#[test]
fn an_epoch_that_began_in_the_damage_is_learned() {
    let pair = Pair::new(4);
    let bases = pair.node.segments();
    // Without its `partition` file nothing but batches says where epochs begin.
    let fs = &pair.node.fs;
    fs.remove_file(&pair.node.dir().join("partition"))
        .expect("removed");
    for base in &bases {
        let path = pair.node.segment_path(*base);
        if (*base..*base + 11).contains(&17) {
            fs.remove_file(&path).expect("removed");
        }
    }
    let mut log = pair.open();
    meet_damage(&log);
    repair_all(&mut log, &pair.good.reader());
    assert_same(&log, &pair.good);
}

/// What the other replica sends is believed only if it fits in every way.
#[test]
fn what_does_not_fit_is_refused_and_nothing_changes() {
    type Spoil = fn(RepairWish, Bytes) -> Result<Bytes, String>;
    let spoilt: [(&str, Spoil); 7] = [
        ("away", |_, _| Err("away".into())),
        ("nothing came", |_, _| Ok(Bytes::new())),
        ("cut short", |_, bytes| Ok(bytes.slice(..100))),
        ("CRC", |_, bytes| {
            let mut bytes = bytes.to_vec();
            bytes[70] ^= 1;
            Ok(bytes.into())
        }),
        ("where", |_, bytes| {
            // An offset lies outside the checksum.
            let mut bytes = bytes.to_vec();
            bytes[7] ^= 1;
            Ok(bytes.into())
        }),
        ("after", |wish, bytes| {
            let mut bytes = bytes.to_vec();
            if wish.from.0 > 0 {
                bytes[12..16].copy_from_slice(&0_i32.to_be_bytes());
            }
            Ok(bytes.into())
        }),
        ("epoch 9", |_, bytes| {
            let mut bytes = bytes.to_vec();
            bytes[12..16].copy_from_slice(&9_i32.to_be_bytes());
            Ok(bytes.into())
        }),
    ];
    for (what, spoil) in spoilt {
        let pair = Pair::new(5);
        let base = pair.node.segments()[1];
        let path = pair.node.segment_path(base);
        pair.node.fs.flip_bit(&path, 800, 1).expect("flipped");
        let mut log = pair.open();
        let before = meet_damage(&log);
        assert_eq!(before.len(), 1);
        let good = pair.good.reader();
        let mut out = log.repair(NOW).expect("damaged");
        let error = out
            .run(
                &mut |wish| {
                    let part = from_reader(&good, wish)?;
                    let batches = spoil(wish, part.batches)?;
                    Ok(RepairPart { batches, ..part })
                },
                &|| false,
            )
            .expect_err(what);
        assert!(
            matches!(error, RewriteError::Source { .. }) && error.to_string().contains(what),
            "{what}: {error}"
        );
        log.rewrite_done(out);
        assert_eq!(pair.node.folder.failed(), None);
        assert_eq!(meet_damage(&log), before, "{what}");
        let left = pair.node.file_names();
        assert!(
            !left.iter().any(|name| name.contains("cleaned")),
            "{left:?}"
        );
        repair_all(&mut log, &good);
        assert_same(&log, &pair.good);
    }
}

/// What the log of another replica does not show its readers is not given either.
#[test]
fn only_what_is_committed_is_given() {
    let mut pair = Pair::new(6);
    append(&mut pair.good, batch(&[sized(1, 300)]), NOW);
    let (reader, bounds) = (pair.good.reader(), pair.good.bounds());
    assert!(bounds.high_watermark < bounds.log_end);
    let wish = RepairWish {
        from: bounds.high_watermark,
        end: bounds.log_end,
        cleaned_end: None,
    };
    assert_eq!(from_reader(&reader, wish), Ok(RepairPart::default()));
    let spanning = RepairWish {
        from: bounds.high_watermark.plus(-2),
        ..wish
    };
    let part = reader.read_for_repair(spanning, 1 << 20).expect("read");
    let given = records(&part.expect("given").batches);
    let offsets: Vec<_> = given.iter().map(|(offset, ..)| *offset).collect();
    assert_eq!(
        offsets,
        [bounds.high_watermark.0 - 2, bounds.high_watermark.0 - 1]
    );
}

/// Story: the process or the machine ends at every single step of a repair; the next
/// start finds the log with its damage or without, and repairs what is left.
#[test]
fn a_crash_at_every_step_leaves_one_whole_log() {
    let prepare = |seed: u64| {
        let pair = Pair::new(seed);
        let path = pair.node.segment_path(pair.node.segments()[1]);
        pair.node.fs.flip_bit(&path, 800, 1).expect("flipped");
        let log = pair.open();
        assert_eq!(meet_damage(&log).len(), 1);
        (pair, log)
    };
    let (pair, mut log) = prepare(7);
    let began = pair.node.fs.operations();
    repair(&mut log, &pair.good.reader())
        .expect("due")
        .expect("done");
    let steps = pair.node.fs.operations() - began;
    assert!(steps > 10, "{steps} steps");
    drop(log);
    let mut whole = [0, 0];
    for step in 1..=steps {
        for kind in 0..3 {
            let (mut pair, mut log) = prepare(100 + step * 3 + kind);
            let good = pair.good.reader();
            pair.node.fs.freeze_at(pair.node.fs.operations() + step);
            let mut out = log.repair(NOW).expect("due");
            let _ = out.run(&mut |wish| from_reader(&good, wish), &|| false);
            drop((out, log));
            let node = pair.node;
            pair.node = match kind {
                0 => node.killed(),
                1 => node.power_lost(),
                _ => {
                    node.fs.power_loss_keeping_some().expect("power loss");
                    Node::on(node.fs, node.kv, node.epoch + 1)
                }
            };
            let mut log = pair.open();
            let left = pair.node.file_names();
            assert!(
                !left
                    .iter()
                    .any(|name| name.ends_with(".swap") || name.ends_with(".cleaned")),
                "step {step} kind {kind}: {left:?}"
            );
            let lost = meet_damage(&log).len();
            assert!(lost <= 1, "step {step} kind {kind}");
            whole[lost] += 1;
            repair_all(&mut log, &good);
            assert_same(&log, &pair.good);
        }
    }
    assert!(whole[0] > 0 && whole[1] > 0, "before and after: {whole:?}");
}

/// Every single operation of a repair fails once.
#[test]
fn an_error_at_every_step_harms_nothing() {
    for full in [false, true] {
        for step in 1.. {
            let mut pair = Pair::new(9);
            let path = pair.node.segment_path(pair.node.segments()[1]);
            pair.node.fs.flip_bit(&path, 800, 1).expect("flipped");
            let mut log = pair.open();
            meet_damage(&log);
            let good = pair.good.reader();
            let count = Arc::new(AtomicU64::new(0));
            let counted = Arc::clone(&count);
            pair.node.fs.set_hook(Some(Arc::new(move |_| {
                if counted.fetch_add(1, Ordering::Relaxed) + 1 != step {
                    return Ok(());
                }
                Err(std::io::Error::from(match full {
                    true => std::io::ErrorKind::StorageFull,
                    false => std::io::ErrorKind::Other,
                }))
            })));
            let mut out = log.repair(NOW).expect("due");
            let result = out.run(&mut |wish| from_reader(&good, wish), &|| false);
            pair.node.fs.set_hook(None);
            log.rewrite_done(out);
            if pair.node.folder.failed().is_none() {
                repair_all(&mut log, &good);
                assert_same(&log, &pair.good);
            } else {
                assert!(result.is_err(), "step {step}");
            }
            drop(log);
            pair.node = pair.node.killed();
            let mut log = pair.open();
            meet_damage(&log);
            repair_all(&mut log, &good);
            assert_same(&log, &pair.good);
            if count.load(Ordering::Relaxed) < step {
                // The repair has fewer operations.
                assert!(step > 10, "{step}");
                break;
            }
        }
    }
}

/// A byte of the batch at `offset` in the segment at `base` is another.
fn flip_batch(node: &Node, base: i64, offset: i64) {
    let path = node.segment_path(base);
    let file = node.fs.open(&path, false).expect("there");
    let mut bytes = vec![0; file.len().expect("length") as usize];
    file.read_at(&mut bytes, 0).expect("read");
    let mut position = 0;
    loop {
        let header = talweg_batch::BatchHeader::parse(&bytes[position..]).expect("a batch");
        if header.next_offset().0 > offset {
            break;
        }
        position += header.total_bytes();
    }
    let within = position as u64 + 65;
    node.fs.flip_bit(&path, within, 1).expect("flipped");
}

/// A segment that nobody can give back does not stand before those that somebody can.
#[test]
fn what_cannot_be_repaired_stops_nothing_else() {
    let pair = Pair::new(41);
    let bases = pair.node.segments();
    flip_batch(&pair.node, bases[0], bases[0] + 1);
    flip_batch(&pair.node, bases[2], bases[2] + 1);
    let mut log = pair.open();
    assert_eq!(meet_damage(&log).len(), 2);
    let good = pair.good.reader();
    for _ in 0..4 {
        let Some(mut out) = log.repair(NOW) else {
            break;
        };
        let _ = out.run(
            &mut |wish| match wish.from.0 < bases[1] {
                true => Err("lost here too".into()),
                false => from_reader(&good, wish),
            },
            &|| false,
        );
        log.rewrite_done(out);
    }
    assert_eq!(meet_damage(&log), [(bases[0] + 1, bases[0] + 2)]);
    assert!(log.reader().is_damaged());
}

/// What lies below the log start is deleted: it needs nobody, and what lies across it
/// comes from a replica that has nothing below.
#[test]
fn damage_below_the_log_start_is_not_asked_for() {
    let mut pair = Pair::new(51);
    let bases = pair.node.segments();
    let start = Offset(bases[1] + 4);
    pair.good.delete_before(start, NOW).expect("deleted");
    for (hurt, asked) in [(bases[1] + 1, false), (bases[1] + 6, true)] {
        flip_batch(&pair.node, bases[1], hurt);
        let mut log = pair.open();
        log.delete_before(start, NOW).expect("deleted");
        // Both are met, whether they matter or not.
        let _ = log.reader().read_for_copy(Offset(hurt), 100);
        let good = pair.good.reader();
        assert!(log.reader().is_damaged());
        assert_eq!(log.reader().settle_damage(), asked);
        if asked {
            // In the same segment, what is deleted is damaged as well.
            flip_batch(&pair.node, bases[1], bases[1] + 1);
            let mut out = log.repair(NOW).expect("due");
            let report = out
                .run(
                    &mut |wish| {
                        assert!(wish.from >= start, "{wish:?}");
                        from_reader(&good, wish)
                    },
                    &|| false,
                )
                .expect("repaired");
            log.rewrite_done(out);
            assert_eq!(report.restored_offsets, 1);
        }
        assert_eq!(read_all(&log.reader(), start.0), read_all(&good, start.0));
        assert!(!log.reader().settle_damage());
    }
}

/// A replica of a later leader has another history from some offset on: its batches
/// are not taken by one that has not heard of that leader.
#[test]
fn a_batch_of_a_later_epoch_is_not_taken() {
    let pair = Pair::new(61);
    let base = *pair.node.segments().last().expect("segments");
    let path = pair.node.segment_path(base);
    let file = pair.node.fs.open(&path, false).expect("there");
    file.set_len(pair.size(base) - 100).expect("cut");
    let mut log = pair.open();
    let end = pair.good.bounds().log_end;
    let other = Node::new(62);
    let mut later = opened(&other, config());
    later.follow(LeaderEpoch(5)).expect("follows");
    while later.bounds().log_end.plus(1) < end {
        assert!(copy_once(&pair.good.reader(), &mut later, 1));
    }
    later.begin_epoch(LeaderEpoch(6)).expect("epoch");
    fill(&mut later, 3, 300, NOW);
    let mut refused = None;
    for _ in 0..3 {
        match repair(&mut log, &later.reader()) {
            Some(result) => refused = Some(result),
            None => drop(flush(&mut log)),
        }
    }
    assert!(
        matches!(&refused, Some(Err(RewriteError::Source { reason, .. })) if reason.contains("epoch 6")),
        "{refused:?}"
    );
    repair_all(&mut log, &pair.good.reader());
    assert_same(&log, &pair.good);
}

/// Damage that a seal lists is repaired after a start, whoever reads the seal first.
#[test]
fn damage_that_a_seal_lists_is_known_from_any_read() {
    let pair = Pair::new(71);
    let base = *pair.node.segments().last().expect("segments");
    let path = pair.node.segment_path(base);
    let file = pair.node.fs.open(&path, false).expect("there");
    file.set_len(pair.size(base) - 100).expect("cut");
    let mut log = pair.open();
    // Sealed as it is.
    assert!(log.repair(NOW).is_none());
    flush(&mut log);
    log.close().expect("closed");
    drop(log);
    let mut log = pair.open();
    let reader = log.reader();
    let last = Offset(end(&reader).0 - 1);
    let _ = reader.offset_for_time(TimestampMs(NOW.0 + 1), end(&reader));
    let read = reader.read(last, end(&reader), 100);
    assert!(read.is_err(), "{read:?}");
    assert!(reader.is_damaged());
    repair_all(&mut log, &pair.good.reader());
    assert_same(&log, &pair.good);
}

/// Story: the damage has taken the newest fence and a producer's newest batch, which
/// only a replay knows. No coordinator appends until they are back; then the old one is
/// fenced and the repeat is recognised, also by a process that starts in between.
#[test]
fn a_fence_and_a_producers_batch_are_known_again_after_the_repair() {
    for restarted in [false, true] {
        let (source, node) = (Node::new(81), Node::new(82));
        let mut good = source.log(config());
        let epoch = talweg_types::ShardEpoch;
        good.append_fence(epoch(1), NOW).expect("fenced");
        for n in 0..12 {
            let other = numbered(5, 0, n, &[sized(1, 300)]);
            good.append_in_shard(&other, epoch(1), NOW)
                .expect("appended");
        }
        good.append_fence(epoch(2), NOW).expect("fenced");
        let ours = numbered(7, 0, 0, &[rec("once")]);
        good.append_in_shard(&ours, epoch(2), NOW)
            .expect("appended");
        commit(&mut good);
        let mut copy = opened(&node, config());
        follow(&good, &mut copy);
        drop(copy);
        let mut node = node.killed();
        let base = *node.segments().last().expect("segments");
        let path = node.segment_path(base);
        let file = node.fs.open(&path, false).expect("there");
        let keep = file.len().expect("length") - 100;
        file.set_len(keep).expect("cut");
        flip_last(&node, base);
        let mut log = opened(&node, config());
        assert!(log.reader().is_damaged());
        if restarted {
            log.follow(LeaderEpoch(1)).expect("follows");
            log.set_high_watermark(good.bounds().high_watermark);
            for _ in 0..3 {
                let _ = log.repair(NOW);
                flush(&mut log);
            }
            log.close().expect("closed");
            drop(log);
            node = node.restarted();
            log = opened(&node, config());
        }
        log.begin_epoch(LeaderEpoch(9)).expect("leads");
        log.set_high_watermark(good.bounds().high_watermark);
        for claimed in [1, 2] {
            let refused = log.append_in_shard(&ours, epoch(claimed), NOW);
            assert!(
                matches!(refused, Err(AppendError::FenceDamaged { .. })),
                "{refused:?}"
            );
            let refused = log.append_fence(epoch(claimed), NOW);
            assert!(matches!(refused, Err(AppendError::FenceDamaged { .. })));
        }
        repair_all(&mut log, &good.reader());
        assert_eq!(log.fence(), good.fence());
        let stale = log.append_in_shard(&numbered(8, 0, 0, &[rec("old")]), epoch(1), NOW);
        assert!(
            matches!(stale, Err(AppendError::ShardFenced { .. })),
            "{stale:?}"
        );
        let again = log.append_in_shard(&ours, epoch(2), NOW).expect("known");
        assert!(again.duplicate, "{again:?}");
    }
}

/// A bit of the last whole batch of a segment.
fn flip_last(node: &Node, base: i64) {
    let path = node.segment_path(base);
    let file = node.fs.open(&path, false).expect("there");
    let mut bytes = vec![0; file.len().expect("length") as usize];
    file.read_at(&mut bytes, 0).expect("read");
    let (mut position, mut last) = (0, 0);
    while let Ok(header) = talweg_batch::BatchHeader::parse(&bytes[position..]) {
        if position + header.total_bytes() > bytes.len() {
            break;
        }
        last = position;
        position += header.total_bytes();
    }
    node.fs
        .flip_bit(&path, last as u64 + 40, 1)
        .expect("flipped");
}
