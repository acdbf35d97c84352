//! What log compaction makes of a batch: fewer records, or none.
//!
//! A batch keeps its range of offsets, its leader epoch and its producer's
//! numbers whatever is taken out of it, so that batches always follow one
//! another without a gap. Ranges of which nothing is left become a
//! *placeholder*: a batch without records and without a producer.

use crate::builder::{Plan, seal};
use crate::codec::Encoders;
use crate::error::BatchError;
use crate::header::{BatchHeader, HEADER_BYTES, bits};
use crate::record::Record;
use bytes::Bytes;
use std::borrow::Cow;
use talweg_types::{
    Compression, LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs, limits,
};

/// The level of the last attempt to make a batch fit; a producer may have packed
/// harder than we do.
const HARD_LEVEL: i32 = 9;
const TIMESTAMP: TimestampMs = TimestampMs::NONE;

/// The batch of `header` with only `kept` of its records, which keep their
/// offsets and timestamps. A delete horizon is the wall clock time from which
/// its tombstones may go. The codec stays, unless the batch would be larger
/// than any topic allows: then zstd.
///
/// # Errors
/// [`BatchError::TooLarge`] when it does not fit even so; a record that cannot
/// be encoded.
pub fn with_records(
    header: &BatchHeader,
    kept: &[Record],
    delete_horizon: Option<TimestampMs>,
    encoders: &mut Encoders,
) -> Result<Bytes, BatchError> {
    let limit = limits::MAX_MESSAGE_BYTES_RANGE.1;
    let first = delete_horizon.unwrap_or(header.first_timestamp);
    let mut plain = Vec::new();
    let mut max_timestamp = TIMESTAMP;
    for (index, record) in kept.iter().enumerate() {
        let plan = Plan {
            first,
            offset_delta: record.offset_delta,
            timestamp: record.timestamp,
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: record.header_refs(),
        };
        plan.put(&mut plain).map_err(|fault| fault.at(index))?;
        max_timestamp = max_timestamp.max(record.timestamp);
    }
    let (codec, body) = pack(header.compression()?, &plain, limit as usize, encoders)?;
    let actual = HEADER_BYTES + body.len();
    if actual > limit as usize {
        return Err(BatchError::TooLarge { limit, actual });
    }
    let horizon = match delete_horizon {
        Some(_) => bits::DELETE_HORIZON,
        None => 0,
    };
    let kept_bits = header.attributes & !bits::CODEC & !bits::DELETE_HORIZON;
    let mut batch = vec![0; HEADER_BYTES];
    batch.extend_from_slice(&body);
    seal(
        batch,
        BatchHeader {
            attributes: kept_bits | codec as i16 | horizon,
            first_timestamp: first,
            max_timestamp,
            record_count: i32::try_from(kept.len()).unwrap_or(i32::MAX),
            ..*header
        },
    )
}

fn pack<'a>(
    codec: Compression,
    plain: &'a [u8],
    limit: usize,
    encoders: &'a mut Encoders,
) -> Result<(Compression, Cow<'a, [u8]>), BatchError> {
    let fits = |bytes: &[u8]| HEADER_BYTES + bytes.len() <= limit;
    let packed = encoders.pack(codec, plain)?;
    if codec != Compression::None && packed.len() < plain.len() && fits(packed) {
        return Ok((codec, Cow::Borrowed(packed)));
    }
    if fits(plain) {
        return Ok((Compression::None, Cow::Borrowed(plain)));
    }
    match zstd::bulk::compress(plain, HARD_LEVEL) {
        Ok(packed) => Ok((Compression::Zstd, Cow::Owned(packed))),
        Err(error) => Err(BatchError::Pack {
            codec: Compression::Zstd,
            reason: error.to_string(),
        }),
    }
}

/// The batch of `header` with none of its records: it still says what its
/// producer has sent.
pub fn without_records(header: &BatchHeader) -> Result<Bytes, BatchError> {
    let kept_bits = header.attributes & !bits::CODEC & !bits::DELETE_HORIZON;
    seal(
        vec![0; HEADER_BYTES],
        BatchHeader {
            attributes: kept_bits,
            first_timestamp: TIMESTAMP,
            max_timestamp: TIMESTAMP,
            record_count: 0,
            ..*header
        },
    )
}

/// A batch that holds the place of the offsets `base..next` of one leader epoch.
///
/// # Errors
/// [`BatchError::LastOffsetDelta`] for an empty range or one of more than 2^31 offsets.
pub fn placeholder(base: Offset, next: Offset, epoch: LeaderEpoch) -> Result<Bytes, BatchError> {
    let delta = next.0.saturating_sub(base.0).saturating_sub(1);
    let last_offset_delta = i32::try_from(delta)
        .ok()
        .filter(|delta| *delta >= 0)
        .ok_or(BatchError::LastOffsetDelta {
            delta: i32::MAX,
            count: 0,
        })?;
    seal(
        vec![0; HEADER_BYTES],
        BatchHeader {
            base_offset: base,
            batch_length: 0,
            leader_epoch: epoch,
            crc: 0,
            attributes: 0,
            last_offset_delta,
            first_timestamp: TIMESTAMP,
            max_timestamp: TIMESTAMP,
            producer_id: ProducerId::NONE,
            producer_epoch: ProducerEpoch::NONE,
            base_sequence: Sequence::NONE,
            record_count: 0,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchBuilder, decode_records, split_batches, verify_crc};

    fn built(codec: Compression) -> (BatchHeader, Vec<Record>) {
        let mut builder =
            BatchBuilder::new(codec).with_producer(ProducerId(7), ProducerEpoch(2), Sequence(40));
        for n in 0..20_u8 {
            let value = [n; 50];
            let value = (n % 3 > 0).then_some(&value[..]);
            let header: crate::HeaderRef<'_> = (b"h", None);
            builder
                .push(
                    TimestampMs(1000 - i64::from(n)),
                    Some(&[n]),
                    value,
                    [header],
                )
                .expect("pushed");
        }
        let bytes = builder.build().expect("built");
        let header = BatchHeader::parse(&bytes).expect("header");
        (header, decode_records(&bytes, 1 << 20).expect("records"))
    }

    /// Story: half of a batch is superseded; what stays is what it was, and the
    /// numbers of the producer and the range of offsets do not change.
    #[test]
    fn records_that_stay_are_as_they_were() {
        for codec in Compression::ALL {
            for horizon in [None, Some(TimestampMs(1_700_000_000_000))] {
                let (header, records) = built(*codec);
                let header = BatchHeader {
                    base_offset: Offset(500),
                    leader_epoch: LeaderEpoch(4),
                    ..header
                };
                let kept: Vec<Record> = records
                    .into_iter()
                    .filter(|record| record.offset_delta % 4 == 1)
                    .collect();
                let bytes =
                    with_records(&header, &kept, horizon, &mut Encoders::new()).expect("rewritten");
                verify_crc(&bytes).expect("checksum");
                let now = BatchHeader::parse(&bytes).expect("header");
                assert_eq!(now.base_offset, header.base_offset);
                assert_eq!(now.next_offset(), header.next_offset());
                assert_eq!(now.leader_epoch, header.leader_epoch);
                assert_eq!(now.base_sequence, header.base_sequence);
                assert_eq!(now.delete_horizon(), horizon);
                assert_eq!(now.max_timestamp, TimestampMs(999));
                assert_eq!(decode_records(&bytes, 1 << 20).expect("records"), kept);
                // A second pass does not move the horizon's records.
                let again = with_records(&now, &kept, now.delete_horizon(), &mut Encoders::new());
                assert_eq!(again.expect("rewritten"), bytes);
            }
        }
    }

    #[test]
    fn an_emptied_batch_speaks_for_its_producer_and_a_placeholder_for_nobody() {
        let (header, _) = built(Compression::Zstd);
        let emptied = without_records(&header).expect("emptied");
        let now = BatchHeader::parse(&emptied).expect("header");
        assert_eq!(
            (now.producer_id, now.base_sequence),
            (ProducerId(7), Sequence(40))
        );
        assert_eq!(now.next_offset(), header.next_offset());
        assert!(!now.is_placeholder());
        assert_eq!(decode_records(&emptied, 10).expect("decodes"), []);
        let place = placeholder(Offset(5), Offset(9), LeaderEpoch(3)).expect("placeholder");
        let now = BatchHeader::parse(&place).expect("header");
        assert!(now.is_placeholder());
        assert_eq!((now.base_offset, now.next_offset()), (Offset(5), Offset(9)));
        verify_crc(&place).expect("checksum");
        assert_eq!(decode_records(&place, 10).expect("decodes"), []);
        assert_eq!(split_batches(place).count(), 1);
        let wide = placeholder(Offset(0), Offset(1 << 31), LeaderEpoch(3)).expect("widest");
        assert_eq!(
            BatchHeader::parse(&wide).expect("header").next_offset(),
            Offset(1 << 31)
        );
        assert!(placeholder(Offset(0), Offset((1 << 31) + 1), LeaderEpoch(3)).is_err());
        assert!(placeholder(Offset(4), Offset(4), LeaderEpoch(3)).is_err());
    }
}
