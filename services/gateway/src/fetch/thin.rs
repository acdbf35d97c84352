//! From batches to thin records.

use bytes::Bytes;
use talweg_batch::{BatchError, BatchHeader, decode_records, verify_crc};
use talweg_proto::v1::{self, FetchedRecord};

/// Headers of ours begin with this and are not shown.
const OWN_HEADERS: &[u8] = b"__talweg-";

/// The records of one whole batch from `due` on, as clients see them: none of
/// a control batch, none below `due`, none of our own headers. Unpacks at most
/// `max_unpacked` bytes; slow for large or compressed batches.
pub fn unpack(
    batch: &Bytes,
    due: i64,
    max_unpacked: usize,
) -> Result<Vec<FetchedRecord>, BatchError> {
    let header = BatchHeader::parse(batch)?;
    if header.is_control() || header.next_offset().0 <= due {
        return Ok(Vec::new());
    }
    verify_crc(batch)?;
    let records = decode_records(batch, max_unpacked)?;
    let thin = records.into_iter().filter_map(|record| {
        let offset = header.base_offset.plus(record.offset_delta.into()).0;
        (offset >= due).then(|| FetchedRecord {
            offset,
            timestamp_ms: record.timestamp.0,
            key: record.key,
            value: record.value,
            headers: record.headers.into_iter().filter_map(shown).collect(),
            leader_epoch: header.leader_epoch.0,
        })
    });
    Ok(thin.collect())
}

fn shown((name, value): (Bytes, Option<Bytes>)) -> Option<v1::Header> {
    if name.starts_with(OWN_HEADERS) {
        return None;
    }
    // The codec lets only UTF-8 names through.
    let name = String::from_utf8(name.to_vec()).ok()?;
    Some(v1::Header { name, value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_batch::{BatchBuilder, stamp_prefix};
    use talweg_types::{Compression, LeaderEpoch, Offset, TimestampMs};

    fn stored(codec: Compression) -> Bytes {
        let mut builder = BatchBuilder::new(codec);
        for n in 0..5_u8 {
            let headers: [(&[u8], Option<&[u8]>); 3] = [
                (b"a", None),
                (b"__talweg-idempotency-key", Some(b"k")),
                (b"a", Some(b"")),
            ];
            let name = [n];
            let key = (n > 0).then_some(&name[..]);
            builder
                .push(TimestampMs(100 + i64::from(n)), key, Some(&[]), headers)
                .expect("a record");
        }
        let batch = builder.build().expect("a batch");
        let header = BatchHeader::parse(&batch).expect("a header");
        let prefix = stamp_prefix(&header, Offset(40), LeaderEpoch(3));
        [&prefix[..], &batch[prefix.len()..]].concat().into()
    }

    #[test]
    fn records_below_the_due_offset_and_our_headers_are_left_out() {
        for codec in Compression::ALL {
            let records = unpack(&stored(*codec), 42, 1 << 20).expect("unpacks");
            assert_eq!(
                records.iter().map(|it| it.offset).collect::<Vec<_>>(),
                [42, 43, 44],
                "{codec}"
            );
            let names: Vec<(&str, Option<&[u8]>)> = records[0]
                .headers
                .iter()
                .map(|it| (it.name.as_str(), it.value.as_deref()))
                .collect();
            assert_eq!(
                names,
                [("a", None), ("a", Some(&b""[..]))],
                "order, repeats, null and empty stay"
            );
            assert_eq!(records[0].value.as_deref(), Some(&b""[..]));
            assert_eq!((records[0].timestamp_ms, records[0].leader_epoch), (102, 3));
        }
        assert_eq!(
            unpack(&stored(Compression::None), 0, 1 << 20).expect("unpacks")[0].key,
            None
        );
        assert!(
            unpack(&stored(Compression::None), 45, 1 << 20)
                .expect("unpacks")
                .is_empty()
        );
    }

    #[test]
    fn a_flipped_bit_is_not_passed_on() {
        let mut bytes = stored(Compression::None).to_vec();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        assert!(unpack(&bytes.into(), 40, 1 << 20).is_err());
    }
}
