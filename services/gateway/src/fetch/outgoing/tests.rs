//! Frames as they are cut: nothing lost, nothing twice, credit kept.

use super::super::thin::unpack;
use super::*;
use proptest::prelude::*;
use talweg_batch::{BatchBuilder, stamp_prefix};
use talweg_proto::v1::Credit;
use talweg_types::{Compression, LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicId};

fn partition(number: u32) -> TopicPartition {
    let topic_id = TopicId::from_slice(&[1; 16]).expect("16 bytes");
    TopicPartition {
        topic_id,
        partition: PartitionIndex(number),
    }
}

/// Batches of these record counts from `base` on, values of `size` bytes.
fn batches(base: i64, counts: &[u8], size: usize) -> (Bytes, i64) {
    let (mut bytes, mut next) = (Vec::new(), base);
    for count in counts {
        let mut builder = BatchBuilder::new(Compression::None);
        for _ in 0..*count {
            builder
                .push(TimestampMs(1), None, Some(&vec![7; size]), [])
                .expect("a record");
        }
        let batch = builder.build().expect("a batch");
        let header = BatchHeader::parse(&batch).expect("a header");
        bytes.extend_from_slice(&stamp_prefix(&header, Offset(next), LeaderEpoch(4)));
        bytes.extend_from_slice(&batch[16..]);
        next += i64::from(*count);
    }
    (bytes.into(), next)
}

fn data(number: u32, due: i64, bytes: Bytes, next_offset: i64) -> FetchData {
    let payload_bytes = bytes.len() as i64;
    FetchData {
        partition: partition(number),
        position: PartitionPosition {
            next_offset,
            high_watermark: next_offset,
            ..Default::default()
        },
        data: Data::Batches {
            first_offset: due,
            bytes,
        },
        payload_bytes,
        records: 0,
        last_epoch: Some(4),
    }
}

/// Takes everything; grants back what was sent whenever it waits. Returns the
/// frames and how often it had to wait.
fn drain(outgoing: &mut Outgoing, credit: &mut FetchCredit) -> (Vec<Frame>, usize) {
    let (mut frames, mut waits, mut sent) = (Vec::new(), 0, (0, 0));
    loop {
        match outgoing.next(credit) {
            Next::Frame(frame) => {
                let within = credit
                    .room()
                    .is_some_and(|room| frame.payload_bytes <= room.0 && frame.records <= room.1);
                assert!(within || credit.allows_any(), "more than the credit");
                credit.spend(frame.payload_bytes, frame.records as u64);
                sent = (
                    sent.0 + frame.payload_bytes as i64,
                    sent.1 + frame.records as i64,
                );
                frames.push(frame);
            }
            Next::Unpack {
                partition,
                batch,
                due,
            } => {
                let records = unpack(&batch, due, 1 << 20).expect("unpacks");
                assert!(outgoing.on_unpacked(partition, due, records));
            }
            Next::Passed { .. } => {}
            Next::Stopped { refusal, .. } => panic!("{refusal}"),
            Next::Wait if outgoing.is_empty() => return (frames, waits),
            Next::Wait => {
                assert_ne!(sent, (0, 0), "it waits although nothing is outstanding");
                credit
                    .grant(Credit {
                        bytes: sent.0,
                        records: sent.1,
                    })
                    .expect("a grant");
                sent = (0, 0);
                waits += 1;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_record_goes_once_in_order_within_the_credit(
        frames in prop::collection::vec(prop::collection::vec(1_u8..20, 1..6), 1..6),
        size in 0_usize..300,
        bytes in 1_i64..5_000,
        records in 1_i64..40,
        skip in 0_i64..3,
        thin: bool,
    ) {
        let mut outgoing = Outgoing::default();
        let mut next = 0;
        for (nth, counts) in frames.iter().enumerate() {
            let (payload, end) = batches(next, counts, size);
            // The first batch may begin before the offset that is due.
            let due = if nth == 0 { skip.min(i64::from(counts[0]) - 1) } else { next };
            outgoing.push(data(0, due, payload, end), thin);
            next = end;
        }
        let due = skip.min(i64::from(frames[0][0]) - 1);
        let mut credit = FetchCredit::open(Some(&Credit { bytes, records }), 0).expect("a credit");
        let (sent, _) = drain(&mut outgoing, &mut credit);
        let mut at = due;
        for frame in &sent {
            let offsets: Vec<i64> = match &frame.payload {
                Payload::Records(records) => records.iter().map(|it| it.offset).collect(),
                Payload::Batches { first_offset, bytes } => {
                    prop_assert_eq!(*first_offset, at);
                    split_batches(bytes.clone())
                        .flat_map(|batch| unpack(&batch.expect("whole"), at, 1 << 20).expect("unpacks"))
                        .map(|it| it.offset)
                        .collect()
                }
            };
            for offset in offsets {
                prop_assert_eq!(offset, at);
                at += 1;
            }
            prop_assert_eq!(frame.next_offset, at);
            prop_assert_eq!(frame.last_epoch, 4);
        }
        prop_assert_eq!(at, next);
        prop_assert_eq!(outgoing.bytes(), 0);
    }
}

#[test]
fn a_partition_that_is_moved_leaves_nothing_behind() {
    let mut outgoing = Outgoing::default();
    let (one, end) = batches(0, &[3], 10);
    outgoing.push(data(0, 0, one.clone(), end), true);
    outgoing.push(data(1, 0, one, end), true);
    let credit = FetchCredit::open(
        Some(&Credit {
            bytes: 1_000,
            records: 10,
        }),
        0,
    )
    .expect("a credit");
    let Next::Unpack {
        partition: unpacking,
        due,
        ..
    } = outgoing.next(&credit)
    else {
        panic!("thin")
    };
    outgoing.forget(unpacking);
    assert!(
        !outgoing.on_unpacked(unpacking, due, Vec::new()),
        "unpacked too late"
    );
    assert!(
        matches!(outgoing.next(&credit), Next::Unpack { partition: other, .. } if other == partition(1))
    );
}

#[test]
fn bytes_that_are_no_batch_stop_their_partition_only() {
    let mut outgoing = Outgoing::default();
    for thin in [false, true] {
        outgoing.push(data(0, 5, Bytes::from_static(&[9; 80]), 8), thin);
        outgoing.push_stop(partition(1), Refusal::unavailable("gone"));
        let credit = FetchCredit::open(
            Some(&Credit {
                bytes: 1_000,
                records: 10,
            }),
            0,
        )
        .expect("a credit");
        let Next::Stopped { refusal, .. } = outgoing.next(&credit) else {
            panic!("not damaged")
        };
        assert_eq!(refusal.code, talweg_kit::errors::ErrorCode::DataDamaged);
        assert!(
            matches!(outgoing.next(&credit), Next::Stopped { partition: other, .. } if other == partition(1))
        );
        assert_eq!((outgoing.next(&credit), outgoing.bytes()), (Next::Wait, 0));
    }
}
