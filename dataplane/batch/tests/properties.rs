//! What holds of every batch and of any bytes.

mod support;

use bytes::Bytes;
use proptest::{collection::vec, option, prelude::*};
use support::{exercise, repair, seal, test_limits};
use talweg_batch::{
    BatchBuilder, BatchHeader, HEADER_BYTES, Record, check_client_batch, decode_records,
    record_bytes, split_batches, verify_crc,
};
use talweg_types::{
    Compression, LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs,
    limits::IDEMPOTENCY_HEADER,
};

fn bytes(most: usize) -> impl Strategy<Value = Option<Bytes>> {
    // Repeated content too, so that the codecs have something to do.
    let noise = vec(any::<u8>(), 0..most);
    let repeated = (any::<u8>(), 0..most).prop_map(|(byte, length)| vec![byte; length]);
    option::weighted(0.9, prop_oneof![noise, repeated].prop_map(Bytes::from))
}

fn header() -> impl Strategy<Value = (Bytes, Option<Bytes>)> {
    let named = ("\\PC{0,8}", bytes(20)).prop_map(|(name, value)| (Bytes::from(name), value));
    let reserved = Just(Bytes::from_static(IDEMPOTENCY_HEADER.as_bytes()));
    let keyed = (reserved, vec(any::<u8>(), 1..129)).prop_map(|(n, v)| (n, Some(Bytes::from(v))));
    prop_oneof![20 => named, 1 => keyed]
}

/// Drops idempotency keys after a record's first.
fn keep_one_key(headers: Vec<(Bytes, Option<Bytes>)>) -> Vec<(Bytes, Option<Bytes>)> {
    let mut keyed = false;
    let keep = |(name, _): &(Bytes, _)| {
        let is_key = name == IDEMPOTENCY_HEADER;
        let first = !(is_key && keyed);
        keyed |= is_key;
        first
    };
    headers.into_iter().filter(keep).collect()
}

fn records() -> impl Strategy<Value = Vec<Record>> {
    let timestamp = prop_oneof![1 => Just(-1), 9 => support::T0 - 1000..support::T0 + 1000];
    let headers = vec(header(), 0..4).prop_map(keep_one_key);
    let record = (timestamp, bytes(40), bytes(400), headers);
    vec(record, 1..40).prop_map(|records| {
        let number = |(delta, (timestamp, key, value, headers))| Record {
            offset_delta: delta,
            timestamp: TimestampMs(timestamp),
            key,
            value,
            headers,
        };
        (0..).zip(records).map(number).collect()
    })
}

fn codec() -> impl Strategy<Value = Compression> {
    proptest::sample::select(Compression::ALL)
}

fn producer() -> impl Strategy<Value = (ProducerId, ProducerEpoch, Sequence)> {
    let numbered = (0..=i64::MAX, 0..=i16::MAX, 0..=i32::MAX)
        .prop_map(|(id, epoch, first)| (ProducerId(id), ProducerEpoch(epoch), Sequence(first)));
    prop_oneof![
        numbered,
        Just((ProducerId::NONE, ProducerEpoch::NONE, Sequence::NONE))
    ]
}

fn build(
    codec: Compression,
    (id, epoch, sequence): (ProducerId, ProducerEpoch, Sequence),
    records: &[Record],
) -> Bytes {
    let mut builder = BatchBuilder::new(codec).with_producer(id, epoch, sequence);
    for record in records {
        builder.push_record(record).expect("a valid record");
    }
    let most = HEADER_BYTES + builder.payload_bytes();
    let batch = builder.build().expect("at least one record");
    assert!(batch.len() <= most, "the bound that senders rely on");
    if codec == Compression::None {
        assert_eq!(batch.len(), most);
    }
    batch
}

fn any_header() -> impl Strategy<Value = BatchHeader> {
    let small = prop_oneof![Just(1), 0..5_i32, any::<i32>()];
    let bits = prop_oneof![4 => 0..5_i16, 1 => any::<i16>()];
    let times = (
        prop_oneof![Just(support::T0), any::<i64>()],
        prop_oneof![Just(support::T0), any::<i64>()],
    );
    (bits, small.clone(), small, times).prop_map(|(attributes, delta, count, times)| BatchHeader {
        attributes,
        last_offset_delta: delta,
        record_count: count,
        first_timestamp: TimestampMs(times.0),
        max_timestamp: TimestampMs(times.1),
        ..support::plain_header(1)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn records_come_back_from_every_codec(
        records in records(), codec in codec(), producer in producer(),
    ) {
        let batch = build(codec, producer, &records);
        prop_assert!(exercise(&batch, &test_limits()), "what we build, a leader accepts");
        prop_assert_eq!(decode_records(&batch, 1 << 24), Ok(records.clone()));
        prop_assert_eq!(build(codec, producer, &records), batch, "the same records, the same bytes");
    }

    #[test]
    fn record_sizes_count_what_the_limit_counts(records in records()) {
        let mut largest = 0;
        for record in &records {
            let (key, value) = (record.key.as_deref(), record.value.as_deref());
            largest = largest.max(record_bytes(key, value, record.header_refs()));
        }
        let none = (ProducerId::NONE, ProducerEpoch::NONE, Sequence::NONE);
        let batch = build(Compression::None, none, &records);
        let limits = |max| talweg_batch::ValidationLimits {
            max_record_bytes: max,
            ..test_limits()
        };
        prop_assert!(check_client_batch(batch.clone(), &limits(largest as u32)).is_ok());
        if largest > 0 {
            prop_assert!(check_client_batch(batch, &limits(largest as u32 - 1)).is_err());
        }
    }

    #[test]
    fn a_flipped_bit_is_refused_or_lies_in_the_stamp(
        records in records(), codec in codec(), producer in producer(), at: prop::sample::Index,
    ) {
        let batch = build(codec, producer, &records);
        let bit = at.index(batch.len() * 8);
        let mut flipped = batch.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let flipped = Bytes::from(flipped);
        let in_stamp = matches!(bit / 8, 0..8 | 12..16);
        prop_assert_eq!(verify_crc(&flipped).is_ok(), in_stamp);
        prop_assert_eq!(exercise(&flipped, &test_limits()), in_stamp);
    }

    #[test]
    fn a_batch_cut_anywhere_is_refused(
        records in records(), codec in codec(), producer in producer(), at: prop::sample::Index,
    ) {
        let batch = build(codec, producer, &records);
        let mut cut = batch.slice(..at.index(batch.len())).to_vec();
        prop_assert!(!exercise(&cut.clone().into(), &test_limits()));
        // And with its length and CRC made right again.
        repair(&mut cut, true);
        prop_assert!(!exercise(&cut.into(), &test_limits()));
    }

    #[test]
    fn batches_joined_come_apart_again(
        batches in vec((records(), codec(), producer()), 0..5),
    ) {
        let batches: Vec<_> =
            batches.iter().map(|(records, codec, producer)| build(*codec, *producer, records)).collect();
        let parts: Result<Vec<_>, _> = split_batches(batches.concat().into()).collect();
        prop_assert_eq!(parts, Ok(batches));
    }

    #[test]
    fn any_bytes_are_refused_quietly(mut bytes in vec(any::<u8>(), 0..300), magic: bool) {
        if magic && bytes.len() > 16 {
            bytes[16] = 2;
        }
        exercise(&bytes.clone().into(), &test_limits());
        repair(&mut bytes, true);
        exercise(&bytes.into(), &test_limits());
    }

    #[test]
    fn any_body_under_a_good_header_is_refused_quietly(
        header in any_header(), body in vec(prop_oneof![any::<u8>(), 0..8_u8], 0..120),
    ) {
        exercise(&seal(header, &body), &test_limits());
    }

    #[test]
    fn changed_bytes_under_a_repaired_crc_are_refused_or_decode(
        records in records(), codec in codec(), producer in producer(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), grow in vec(any::<u8>(), 0..3),
    ) {
        let mut bytes = build(codec, producer, &records).to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.extend(grow);
        repair(&mut bytes, true);
        exercise(&bytes.into(), &test_limits());
    }

    #[test]
    fn header_bytes_and_fields_are_one_to_one(
        bytes in proptest::array::uniform(any::<u8>()), offset: i64, epoch: i32,
    ) {
        let mut bytes: [u8; HEADER_BYTES] = bytes;
        bytes[8] &= 0x7f;
        bytes[16] = 2;
        bytes[23] &= 0x7f;
        bytes[57] &= 0x7f;
        prop_assume!(i32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) >= 49);
        let header = BatchHeader::parse(&bytes).expect("all counts are good");
        prop_assert_eq!(header.encode(), bytes);
        let prefix = talweg_batch::stamp_prefix(&header, Offset(offset), LeaderEpoch(epoch));
        bytes[..16].copy_from_slice(&prefix);
        let stamped =
            BatchHeader { base_offset: Offset(offset), leader_epoch: LeaderEpoch(epoch), ..header };
        prop_assert_eq!(BatchHeader::parse(&bytes), Ok(stamped));
    }
}
