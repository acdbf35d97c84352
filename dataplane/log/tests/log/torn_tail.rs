//! What recovery keeps, cuts and reports when the end of the log is torn.

use crate::common::*;
use std::sync::Arc;
use talweg_log::{
    Boot, PartitionLog, RecoveryReport,
    fs::{LogFs, PowerLossFs},
};
use talweg_types::{LeaderEpoch, Offset};

/// A log of 20 flushed batches and 5 unflushed ones in the same segment;
/// the unflushed bytes are put on disk by hand, as a crash may do.
struct Prepared {
    node: Node,
    flushed_bytes: u64,
    file: Vec<u8>,
    base: i64,
}

fn prepared(seed: u64) -> Prepared {
    let node = Node::new(seed);
    let mut log = node.log(talweg_log::LogConfig {
        segment_bytes: 1 << 20,
        ..config()
    });
    fill(&mut log, 20, 40, NOW);
    let flushed_bytes = len(&node.fs, &node, 0);
    for n in 20..25 {
        append(&mut log, batch(&[sized(n, 40)]), NOW);
    }
    let size = len(&node.fs, &node, 0);
    let mut file = vec![0; size as usize];
    node.fs
        .open(&node.segment_path(0), false)
        .expect("there")
        .read_at(&mut file, 0)
        .expect("read");
    Prepared {
        node,
        flushed_bytes,
        file,
        base: 0,
    }
}

fn len(fs: &PowerLossFs, node: &Node, base: i64) -> u64 {
    fs.open(&node.segment_path(base), false)
        .expect("there")
        .len()
        .expect("len")
}

impl Prepared {
    /// The next process finds `bytes` in the segment, after that kind of end.
    fn start_with(self, bytes: &[u8], other_boot: bool) -> (Node, PartitionLog, RecoveryReport) {
        let path = self.node.segment_path(self.base);
        let (fs, kv) = (self.node.fs.clone(), Arc::clone(&self.node.kv));
        if other_boot {
            fs.power_loss().expect("power loss");
        } else {
            fs.process_crash();
        }
        let file = fs.open(&path, true).expect("opened");
        file.set_len(0).expect("emptied");
        file.write_at(&[std::io::IoSlice::new(bytes)], 0)
            .expect("written");
        let node = Node::on(fs, kv, 2);
        let (log, report) = node.recover(talweg_log::LogConfig {
            segment_bytes: 1 << 20,
            ..config()
        });
        assert_eq!(
            report.boot,
            if other_boot {
                Boot::Unclean
            } else {
                Boot::SameBoot
            }
        );
        (node, log, report)
    }
}

#[test]
fn the_tail_torn_at_every_byte_keeps_every_whole_batch_and_goes_on() {
    let whole = prepared(0).file;
    let flushed = prepared(0).flushed_bytes as usize;
    let ends = batch_ends(&whole);
    for other_boot in [false, true] {
        for torn_at in flushed..=whole.len() {
            let (node, mut log, report) =
                prepared(torn_at as u64).start_with(&whole[..torn_at], other_boot);
            let kept = ends.iter().filter(|end| **end <= torn_at).count() as i64;
            assert_eq!(report.kept_to, Offset(kept), "torn at {torn_at}");
            let good_bytes = ends
                .iter()
                .copied()
                .filter(|end| *end <= torn_at)
                .max()
                .unwrap_or(0);
            assert_eq!(report.cut_bytes, (torn_at - good_bytes) as u64);
            assert_eq!(report.damaged, []);
            assert_eq!(
                len(&node.fs, &node, 0),
                good_bytes as u64,
                "the torn bytes are gone from the file"
            );
            // The offset is used again, and everything reads.
            assert_eq!(
                append(&mut log, batch(&[rec("after")]), NOW).base_offset,
                Offset(kept)
            );
            let found = values(&read_all(&log.reader(), 0));
            assert_eq!(found.len() as i64, kept + 1);
            assert_eq!(found[kept as usize].1, "after");
        }
    }
}

fn batch_ends(file: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut position = 0;
    while position < file.len() {
        position += talweg_batch::BatchHeader::parse(&file[position..])
            .expect("batch")
            .total_bytes();
        ends.push(position);
    }
    ends
}

#[test]
fn after_another_boot_the_log_is_cut_at_the_first_bad_batch_above_the_flushed_end() {
    // Pages reach the disk in any order: batch 21 is lost, 22 to 24 are there.
    let prepared = prepared(1);
    let ends = batch_ends(&prepared.file);
    let mut bytes = prepared.file.clone();
    bytes[ends[20] + 70] ^= 1;
    let (_, log, report) = prepared.start_with(&bytes, true);
    assert_eq!(report.kept_to, Offset(21));
    assert_eq!(report.cut_bytes, (bytes.len() - ends[20]) as u64);
    assert_eq!(report.damaged, []);
    assert_eq!(read_all(&log.reader(), 0).len(), 21);
}

#[test]
fn in_the_same_boot_a_bad_batch_before_good_ones_is_damage_and_is_not_cut() {
    let prepared = prepared(2);
    let ends = batch_ends(&prepared.file);
    let mut bytes = prepared.file.clone();
    bytes[ends[20] + 70] ^= 1;
    let (_, log, report) = prepared.start_with(&bytes, false);
    assert_eq!((report.kept_to, report.cut_bytes), (Offset(25), 0));
    assert_eq!(
        report
            .damaged
            .iter()
            .map(|d| (d.from.0, d.next_good.0))
            .collect::<Vec<_>>(),
        [(21, 22)]
    );
    let (found, damaged) = read_around_damage(&log.reader(), 0);
    assert_eq!(damaged, [(21, 22)]);
    assert_eq!(found.len(), 24);
}

#[test]
fn below_the_flushed_end_nothing_is_cut_whatever_the_boot() {
    for other_boot in [false, true] {
        let prepared = prepared(3);
        let ends = batch_ends(&prepared.file);
        let mut bytes = prepared.file.clone();
        bytes[ends[9] + 70] ^= 1;
        let (_, log, report) = prepared.start_with(&bytes, other_boot);
        assert_eq!(
            (report.kept_to, report.cut_bytes),
            (Offset(25), 0),
            "other boot: {other_boot}"
        );
        let (found, damaged) = read_around_damage(&log.reader(), 0);
        assert_eq!(damaged, [(10, 11)]);
        assert_eq!(found.len(), 24);
    }
}

#[test]
fn bytes_that_were_flushed_and_are_missing_are_damage_and_their_offsets_are_not_reused() {
    let prepared = prepared(4);
    let ends = batch_ends(&prepared.file);
    let bytes = prepared.file[..ends[9]].to_vec();
    let (node, mut log, report) = prepared.start_with(&bytes, true);
    assert_eq!(report.kept_to, Offset(20));
    assert_eq!(
        report
            .damaged
            .iter()
            .map(|d| (d.from.0, d.next_good.0))
            .collect::<Vec<_>>(),
        [(10, 20)]
    );
    assert_eq!(
        append(&mut log, batch(&[rec("after")]), NOW).base_offset,
        Offset(20)
    );
    commit(&mut log);
    let check = |log: &PartitionLog| {
        let (found, damaged) = read_around_damage(&log.reader(), 0);
        assert_eq!(damaged, [(10, 20)]);
        assert_eq!(found.len(), 11);
        assert_eq!(found[10].0, 20);
    };
    check(&log);
    drop(log);
    let node = node.power_lost();
    let (log, _) = node.recover(config());
    check(&log);
}

#[test]
fn what_recovery_keeps_survives_a_second_crash() {
    // kill -9 with unflushed data, start, read, power failure (KAFKA-10101).
    let node = Node::new(5);
    let mut log = node.log(config());
    fill(&mut log, 3, 100, NOW);
    for n in 3..30 {
        append(&mut log, batch(&[sized(n, 300)]), NOW);
    }
    let node = node.killed();
    let (log, report) = node.recover(config());
    assert_eq!(report.kept_to, Offset(30));
    let before = read_all(&log.reader(), 0);
    drop(log);
    let node = node.power_lost();
    let (mut log, report) = node.recover(config());
    assert_eq!(report.kept_to, Offset(30));
    append(&mut log, batch(&[rec("new")]), NOW);
    let after = read_all(&log.reader(), 0);
    assert_eq!(
        after[..30],
        before[..],
        "no offset changed its value after it was read"
    );
}

#[test]
fn a_restart_reads_only_what_lies_above_the_recorded_state() {
    // 64 MiB in one segment, killed: the flushed end and the saved sessions lag
    // by at most 16 MiB and 8 MiB.
    let node = Node::new(6);
    let big = talweg_log::LogConfig {
        segment_bytes: 1 << 30,
        index_interval_bytes: 4096,
        ..config()
    };
    let mut log = node.log(big.clone());
    let payload = batch(&(0..256).map(|n| sized(n, 1000)).collect::<Vec<_>>());
    let bytes = payload.bytes.len() as u64;
    for n in 0..(64 << 20) / bytes {
        append(&mut log, payload.clone(), NOW);
        if n % 8 == 0 {
            commit(&mut log);
        }
    }
    let end = log.bounds().log_end;
    drop(log);
    let node = node.killed();
    let (mut log, report) = node.recover(big);
    assert_eq!(report.kept_to, end);
    assert!(
        report.scanned_bytes <= 24 << 20,
        "{} bytes were read",
        report.scanned_bytes
    );
    // The saved block checksums go on: the segment can be sealed and verified.
    append(&mut log, batch(&[rec("last")]), NOW);
    log.check().expect("block sums cover the segment");
    assert_eq!(
        log.reader()
            .read(Offset(0), end, 1000)
            .expect("the beginning reads")
            .next_offset,
        Offset(256)
    );
}

#[test]
fn a_damaged_partition_file_costs_no_record() {
    // Its numbers are taken from the log, and nothing is cut on a guess.
    for boot in [false, true] {
        let node = Node::new(7);
        let mut log = node.log(config());
        fill(&mut log, 40, 300, NOW);
        drop(log);
        let (fs, kv) = (node.fs.clone(), Arc::clone(&node.kv));
        if boot {
            fs.power_loss().expect("power loss")
        } else {
            fs.process_crash()
        }
        fs.flip_bit(&node.dir().join("partition"), 30, 3)
            .expect("flipped");
        let node = Node::on(fs, kv, 2);
        let (mut log, report) = node.recover(config());
        assert!(report.record_lost);
        assert_eq!((report.kept_to, report.cut_bytes), (Offset(40), 0));
        assert_eq!(
            log.reader()
                .epoch_end_offset(talweg_types::LeaderEpoch(1))
                .1,
            Offset(40)
        );
        assert_eq!(read_all(&log.reader(), 0).len(), 40);
        fill(&mut log, 5, 300, NOW);
        drop(log);
        let node = node.power_lost();
        let (_, report) = node.recover(config());
        assert!(!report.record_lost, "it was written anew");
        assert_eq!(report.kept_to, Offset(45));
    }
}

#[test]
fn files_of_another_partition_or_a_later_version_are_not_touched() {
    let node = Node::new(8);
    let mut log = node.log(config());
    fill(&mut log, 3, 100, NOW);
    drop(log);
    let other = talweg_types::TopicPartition {
        partition: talweg_types::PartitionIndex(9),
        ..tp()
    };
    node.fs
        .rename(
            &node.dir(),
            &std::path::PathBuf::from(ROOT).join(other.to_string()),
        )
        .expect("moved");
    let error = PartitionLog::recover(&node.folder, other, config(), NOW)
        .err()
        .expect("refused");
    assert!(
        matches!(error, talweg_log::LogError::WrongIdentity { .. }),
        "{error}"
    );
}

#[test]
fn a_stale_file_after_the_log_end_is_not_taken_for_a_segment() {
    // A cut that lost its removal of a later segment.
    let node = Node::new(9);
    let mut log = node.log(config());
    fill(&mut log, 5, 100, NOW);
    drop(log);
    let (fs, kv) = (node.fs.clone(), Arc::clone(&node.kv));
    fs.power_loss().expect("power loss");
    let stale = fs.open(&node.segment_path(50), true).expect("made");
    stale
        .write_at(&[std::io::IoSlice::new(&[1; 500])], 0)
        .expect("written");
    let node = Node::on(fs, kv, 2);
    let (mut log, report) = node.recover(config());
    assert_eq!((report.kept_to, report.cut_bytes), (Offset(5), 500));
    assert_eq!(node.segments(), [0]);
    append(&mut log, batch(&[rec("x")]), NOW);
    assert_eq!(read_all(&log.reader(), 0).len(), 6);
}

#[test]
fn many_segments_that_were_never_flushed_survive_a_kill_and_then_a_power_loss() {
    // The first process dies before its first flush: there is no `partition` file.
    let node = Node::new(10);
    let mut log = node.log(config());
    for n in 0..60 {
        append(&mut log, batch(&[sized(n, 400)]), NOW);
    }
    drop(log);
    let node = node.killed();
    let (log, report) = node.recover(config());
    assert_eq!(report.kept_to, Offset(60));
    assert_eq!(read_all(&log.reader(), 0).len(), 60);
    drop(log);
    let node = node.power_lost();
    let (log, report) = node.recover(config());
    assert_eq!(
        (report.kept_to, report.record_lost, report.damaged),
        (Offset(60), false, vec![])
    );
    assert_eq!(read_all(&log.reader(), 0).len(), 60);
}

#[test]
fn damaged_bytes_that_take_no_offset_are_stepped_over_however_a_reader_comes_there() {
    // A bad copy of batch 21 lies before the good one: no record is lost, and the
    // bad one is never served, not even to a reader that goes on right before it.
    let prepared = prepared(11);
    let ends = batch_ends(&prepared.file);
    let mut bytes = prepared.file[..ends[21]].to_vec();
    bytes[ends[20] + 70] ^= 1;
    bytes.extend_from_slice(&prepared.file[ends[20]..]);
    let (_, log, report) = prepared.start_with(&bytes, false);
    assert_eq!(
        (report.kept_to, report.cut_bytes, report.damaged),
        (Offset(25), 0, vec![])
    );
    let reader = log.reader();
    for _ in 0..2 {
        let mut next = Offset(0);
        while next < end(&reader) {
            let outcome = reader.read(next, end(&reader), 1).expect("readable");
            // `records` checks each batch's checksum.
            assert_eq!(records(&outcome.batches)[0].0, next.0);
            assert_eq!(outcome.next_offset, next.plus(1));
            next = outcome.next_offset;
        }
    }
}

#[test]
fn a_segment_that_lost_all_its_bytes_before_its_first_flush_fails_nobodys_flush() {
    // It ends where the one before it does, and both want their state kept there.
    let node = Node::new(12);
    let mut log = node.log(config());
    for n in 0..60 {
        append(&mut log, batch(&[sized(n, 400)]), NOW);
    }
    drop(log);
    let node = node.killed();
    let bases = node.segments();
    let (emptied, next) = (bases[2], bases[3]);
    let file = node.fs.open(&node.segment_path(emptied), false);
    file.expect("there").set_len(0).expect("emptied");
    let (mut log, report) = node.recover(config());
    assert_eq!(report.kept_to, Offset(60));
    let all = |log: &PartitionLog| {
        let (found, damaged) = read_around_damage(&log.reader(), 0);
        assert_eq!(damaged, [(emptied, next)]);
        assert_eq!(
            found.len() as i64,
            log.bounds().log_end.0 - (next - emptied)
        );
    };
    all(&log);
    append(&mut log, batch(&[rec("after")]), NOW);
    assert_eq!(flush(&mut log), Offset(61));
    log.check().expect("sound");
    all(&log);
    drop(log);
    let node = node.power_lost();
    let (log, report) = node.recover(config());
    assert_eq!(report.kept_to, Offset(61));
    all(&log);
}

#[test]
fn a_sealed_segment_at_the_end_that_lost_all_its_bytes_is_written_again() {
    let node = Node::new(13);
    let mut log = node.log(config());
    fill(&mut log, 60, 400, NOW);
    log.close().expect("closed");
    drop(log);
    let node = node.killed();
    let bases = node.segments();
    let [.., last, active] = bases[..] else {
        panic!("{bases:?}")
    };
    let fs = &node.fs;
    fs.remove_file(&node.segment_path(active)).expect("removed");
    fs.remove_file(&node.dir().join("partition"))
        .expect("removed");
    let file = fs.open(&node.segment_path(last), false).expect("there");
    file.set_len(0).expect("emptied");
    let (mut log, report) = node.recover(config());
    assert_eq!(report.kept_to, Offset(last));
    log.begin_epoch(LeaderEpoch(1000)).expect("epoch");
    append(&mut log, batch(&[rec("after")]), NOW);
    assert_eq!(flush(&mut log), Offset(last + 1));
    log.check().expect("sound");
    let found = read_all(&log.reader(), 0);
    assert_eq!(found.len() as i64, last + 1);
}

#[test]
fn a_segment_with_nothing_but_damaged_bytes_is_not_rolled_into_itself() {
    // A bad copy of its first batch, then one of an epoch that cannot be there: some
    // bytes stay as damage that takes no offset, and no record follows them.
    let node = Node::new(14);
    let mut log = node.log(config());
    fill(&mut log, 30, 400, NOW);
    flush(&mut log);
    let last = *node.segments().last().expect("segments");
    drop(log);
    let node = node.killed();
    let file = node.fs.open(&node.segment_path(last), false);
    let file = file.expect("there");
    let mut bytes = vec![0; 4096];
    file.read_at(&mut bytes, 0).expect("read");
    let first = talweg_batch::BatchHeader::parse(&bytes).expect("batch");
    let good = &bytes[..first.total_bytes()];
    let (mut bad, mut early) = (good.to_vec(), good.to_vec());
    bad[70] ^= 1;
    early[12..16].copy_from_slice(&0_i32.to_be_bytes());
    node.fs
        .remove_file(&node.dir().join("partition"))
        .expect("removed");
    file.set_len(0).expect("emptied");
    file.write_at(&[std::io::IoSlice::new(&[bad, early].concat())], 0)
        .expect("written");
    let (mut log, report) = node.recover(config());
    assert_eq!(report.kept_to, Offset(last));
    for n in 0..40 {
        append(&mut log, batch(&[sized(n, 400)]), NOW);
    }
    flush(&mut log);
    log.check().expect("sound");
    assert_eq!(read_all(&log.reader(), 0).len() as i64, last + 40);
}

/// Story: the machine goes down with a torn tail. The next process marks the
/// folder as running and dies before it has recovered the log; to the one after
/// it the boot is the same, and still nobody has vouched for the page cache.
#[test]
fn a_log_that_was_not_recovered_since_the_machine_went_down_stays_suspect() {
    let before = prepared(7);
    let (fs, kv) = (before.node.fs.clone(), Arc::clone(&before.node.kv));
    let mut torn = before.file.clone();
    // A bad batch, and good ones after it: damage in the same boot, a torn tail after another.
    torn[before.flushed_bytes as usize + 30] ^= 1;
    let path = before.node.segment_path(0);
    fs.power_loss().expect("power loss");
    let file = fs.open(&path, true).expect("opened");
    file.set_len(0).expect("emptied");
    file.write_at(&[std::io::IoSlice::new(&torn)], 0)
        .expect("written");
    let dies = Node::on(fs.clone(), Arc::clone(&kv), 2);
    assert_eq!(dies.folder.boot(), Boot::Unclean);
    let node = dies.killed();
    assert_eq!(node.folder.boot(), Boot::SameBoot);
    let (mut log, report) = node.recover(config());
    assert_eq!((report.boot, report.kept_to), (Boot::Unclean, Offset(20)));
    assert!(
        report.damaged.is_empty() && report.cut_bytes > 0,
        "{report:?}"
    );
    // From here on the page cache is whole, flushed or not.
    append(&mut log, batch(&[sized(20, 40)]), NOW);
    drop(log);
    let (_, report) = node.killed().recover(config());
    assert_eq!((report.boot, report.kept_to), (Boot::SameBoot, Offset(21)));
}

/// Story: the folder of a log survives a power loss and nothing in it does. It
/// holds no replica, so nobody recovers it, and what is appended then is whole
/// after the death of the process.
#[test]
fn a_log_of_which_nothing_survived_is_not_suspect_when_it_begins_again() {
    let node = Node::new(8);
    node.fs.create_dir_all(&node.dir()).expect("made");
    node.fs.flush_all(&node.dir()).expect("flushed");
    let node = node.power_lost();
    assert_eq!(node.folder.boot(), Boot::Unclean);
    assert!(node.folder.partitions().expect("listed").is_empty());
    let mut log = PartitionLog::create(&node.folder, tp(), config());
    log.begin_epoch(LeaderEpoch(node.epoch))
        .expect("newer epoch");
    append(&mut log, batch(&[sized(0, 40)]), NOW);
    drop(log);
    let (_, report) = node.killed().recover(config());
    assert_eq!((report.boot, report.kept_to), (Boot::SameBoot, Offset(1)));
}
