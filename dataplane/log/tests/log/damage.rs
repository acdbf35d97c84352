//! A flipped bit in a sealed segment: that batch answers "damaged", with the
//! next good offset, and everything else serves.

use crate::common::*;
use std::sync::Arc;
use talweg_log::{
    LogConfig, PartitionLog, ReadError,
    fs::{LogFs, PowerLossFs},
};
use talweg_types::{LeaderEpoch, Offset, TimestampMs};

/// Three sealed segments of a few batches over two epochs, and an active one;
/// cleanly stopped and opened again, so that nothing is trusted.
fn sealed(seed: u64) -> (Node, PartitionLog) {
    let node = Node::new(seed);
    let mut log = node.log(config());
    fill(&mut log, 12, 300, NOW);
    log.begin_epoch(LeaderEpoch(5)).expect("epoch");
    fill(&mut log, 30, 300, NOW);
    log.close().expect("closed");
    let node = Node { epoch: 8, ..node }.restarted();
    let log = node.log(config());
    assert!(log.segment_count() >= 4);
    (node, log)
}

fn segment_bytes(fs: &PowerLossFs, node: &Node, base: i64) -> Vec<u8> {
    let file = fs.open(&node.segment_path(base), false).expect("there");
    let mut bytes = vec![0; file.len().expect("len") as usize];
    file.read_at(&mut bytes, 0).expect("read");
    bytes
}

fn batch_starts(bytes: &[u8]) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut position = 0;
    while position < bytes.len() {
        starts.push(position);
        position += talweg_batch::BatchHeader::parse(&bytes[position..])
            .expect("batch")
            .total_bytes();
    }
    starts
}

#[test]
fn a_flipped_bit_anywhere_in_a_sealed_segment_damages_its_batch_and_nothing_else() {
    let (node, log) = sealed(1);
    let truth = read_all(&log.reader(), 0);
    let base = node.segments()[1];
    let bytes = segment_bytes(&node.fs, &node, base);
    let starts = batch_starts(&bytes);
    drop(log);
    // Every header byte of the middle batches, and some payload bytes of all.
    let headers = starts[1..3].iter().flat_map(|start| *start..start + 61);
    let payloads = (0..bytes.len()).step_by(97);
    for position in headers.chain(payloads) {
        for bit in [0, 3, 7] {
            node.fs
                .flip_bit(&node.segment_path(base), position as u64, bit)
                .expect("flipped");
            let (log, _) =
                PartitionLog::recover(&node.folder, tp(), config(), NOW).expect("recovered");
            let (found, damaged) = read_around_damage(&log.reader(), 0);
            let index = starts
                .iter()
                .rposition(|start| *start <= position)
                .expect("within a batch") as i64;
            let hit = base + index;
            assert_eq!(
                damaged,
                [(hit, hit + 1)],
                "byte {position} bit {bit} of batch {index}"
            );
            let expected: Vec<_> = truth
                .iter()
                .filter(|(offset, ..)| *offset != hit)
                .cloned()
                .collect();
            assert!(
                found == expected,
                "byte {position} bit {bit}: everything else serves"
            );
            node.fs
                .flip_bit(&node.segment_path(base), position as u64, bit)
                .expect("flipped back");
        }
    }
}

#[test]
fn damage_found_by_one_reader_is_known_to_the_next_from_any_offset() {
    let (node, log) = sealed(2);
    let base = node.segments()[1];
    let starts = batch_starts(&segment_bytes(&node.fs, &node, base));
    node.fs
        .flip_bit(&node.segment_path(base), starts[4] as u64 + 80, 1)
        .expect("flipped");
    let reader = log.reader();
    for from in (base..base + starts.len() as i64).rev() {
        match reader.read(Offset(from), end(&reader), 1) {
            Ok(outcome) => assert_eq!(outcome.next_offset, Offset(from + 1)),
            Err(ReadError::Damaged {
                from: start,
                next_good,
            }) => {
                assert_eq!((from, start.0, next_good.0), (base + 4, base + 4, base + 5));
            }
            Err(error) => panic!("{from}: {error}"),
        }
    }
    // The fast path never serves from a segment with damage without looking.
    let fast = reader.try_read(Offset(base + 4), end(&reader), 1);
    assert!(matches!(fast, Err(ReadError::Damaged { .. })), "{fast:?}");
}

#[test]
fn several_damaged_batches_in_a_row_are_one_hop_each_at_most() {
    let (node, log) = sealed(3);
    let base = node.segments()[1];
    let starts = batch_starts(&segment_bytes(&node.fs, &node, base));
    for batch in [2, 3, 4, 7] {
        node.fs
            .flip_bit(&node.segment_path(base), starts[batch] as u64 + 20, 1)
            .expect("flipped");
    }
    let (found, damaged) = read_around_damage(&log.reader(), 0);
    let lost: i64 = damaged.iter().map(|(from, to)| to - from).sum();
    assert_eq!(lost, 4, "{damaged:?}");
    assert_eq!(found.len() as i64, end(&log.reader()).0 - 4);
}

#[test]
fn a_missing_or_short_segment_file_is_damage_of_its_offsets_only() {
    for short in [false, true] {
        let (node, log) = sealed(4);
        let bases = node.segments();
        let path = node.segment_path(bases[1]);
        drop(log);
        if short {
            let starts = batch_starts(&segment_bytes(&node.fs, &node, bases[1]));
            node.fs
                .open(&path, false)
                .expect("there")
                .set_len(starts[3] as u64 + 10)
                .expect("cut");
        } else {
            node.fs.remove_file(&path).expect("removed");
        }
        let (log, _) = PartitionLog::recover(&node.folder, tp(), config(), NOW).expect("recovered");
        let (found, damaged) = read_around_damage(&log.reader(), 0);
        let first_lost = if short { bases[1] + 3 } else { bases[1] };
        assert_eq!(damaged, [(first_lost, bases[2])]);
        assert_eq!(
            found.len() as i64,
            end(&log.reader()).0 - (bases[2] - first_lost)
        );
    }
}

#[test]
fn without_a_seal_each_batch_is_still_checked_by_its_own_checksum() {
    // All of the header but the leader epoch, which no checksum covers; a claim to
    // offsets far beyond the segment is damage too, not something to wait for.
    let header = (0..12).chain(16..61);
    for position in header.chain([75]) {
        for bit in [0, 2, 7] {
            let (node, log) = sealed(5);
            let base = node.segments()[1];
            let starts = batch_starts(&segment_bytes(&node.fs, &node, base));
            drop(log);
            node.fs
                .remove_file(&node.segment_path(base).with_extension("seal"))
                .expect("removed");
            node.fs
                .flip_bit(&node.segment_path(base), (starts[2] + position) as u64, bit)
                .expect("flipped");
            let (log, _) =
                PartitionLog::recover(&node.folder, tp(), config(), NOW).expect("recovered");
            let (found, damaged) = read_around_damage(&log.reader(), 0);
            assert_eq!(damaged, [(base + 2, base + 3)], "bit {bit} of {position}");
            assert_eq!(found.len() as i64, end(&log.reader()).0 - 1);
        }
    }
}

#[test]
fn a_damaged_seal_costs_nothing_but_its_protection() {
    let (node, log) = sealed(6);
    let base = node.segments()[1];
    drop(log);
    node.fs
        .flip_bit(&node.segment_path(base).with_extension("seal"), 40, 2)
        .expect("flipped");
    let (log, _) = PartitionLog::recover(&node.folder, tp(), config(), NOW).expect("recovered");
    let (found, damaged) = read_around_damage(&log.reader(), 0);
    assert_eq!(damaged, []);
    assert_eq!(found.len() as i64, end(&log.reader()).0);
}

#[test]
fn damage_in_a_large_segment_of_many_blocks_leaves_the_other_blocks_alone() {
    // 1 MiB segments of 64 KiB blocks, batches that cross block boundaries.
    let node = Node::new(7);
    let large = LogConfig {
        segment_bytes: 1 << 20,
        index_interval_bytes: 4096,
        ..config()
    };
    let mut log = node.log(large.clone());
    fill(&mut log, 450, 5000, NOW);
    log.close().expect("closed");
    let node = node.restarted();
    let base = node.segments()[0];
    let starts = batch_starts(&segment_bytes(&node.fs, &node, base));
    for position in [
        starts[60] + 3,
        starts[61] + 2000,
        starts[150] + 14,
        starts[199] + 61,
    ] {
        node.fs
            .flip_bit(&node.segment_path(base), position as u64, 4)
            .expect("flipped");
        let (log, _) =
            PartitionLog::recover(&node.folder, tp(), large.clone(), NOW).expect("recovered");
        let (found, damaged) = read_around_damage(&log.reader(), 0);
        let index = starts
            .iter()
            .rposition(|start| *start <= position)
            .expect("within") as i64;
        assert_eq!(damaged, [(index, index + 1)], "byte {position}");
        assert_eq!(found.len(), 449);
        node.fs
            .flip_bit(&node.segment_path(base), position as u64, 4)
            .expect("flipped back");
    }
}

#[test]
fn a_look_up_by_time_that_meets_damage_says_so() {
    let node = Node::new(8);
    let mut log = node.log(config());
    for n in 0..30 {
        append(
            &mut log,
            batch(&[
                timed(n * 10),
                Rec {
                    value: Some(vec![b'x'; 300]),
                    ..timed(n * 10)
                },
            ]),
            NOW,
        );
    }
    commit(&mut log);
    log.close().expect("closed");
    let node = node.restarted();
    let starts = batch_starts(&segment_bytes(&node.fs, &node, 0));
    node.fs
        .flip_bit(&node.segment_path(0), starts[3] as u64 + 70, 2)
        .expect("flipped");
    let log = node.log(config());
    let reader = log.reader();
    let found = reader.offset_for_time(TimestampMs(30), end(&reader));
    assert!(
        matches!(
            found,
            Err(ReadError::Damaged {
                from: Offset(6),
                next_good: Offset(8)
            })
        ),
        "{found:?}"
    );
    assert_eq!(
        reader
            .offset_for_time(TimestampMs(40), end(&reader))
            .expect("found"),
        Some((Offset(8), TimestampMs(40)))
    );
    assert_eq!(
        reader
            .offset_for_time(TimestampMs(20), end(&reader))
            .expect("found"),
        Some((Offset(4), TimestampMs(20)))
    );
    drop(Arc::clone(&reader));
}
