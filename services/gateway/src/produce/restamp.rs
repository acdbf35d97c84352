//! Writes another producer identity into a finished batch.

use bytes::Bytes;
use talweg_batch::{BatchHeader, HEADER_BYTES};
use talweg_types::{ProducerEpoch, ProducerId, Sequence};

/// The CRC covers everything from the attributes on.
const CRC_FROM: usize = 21;

/// The same records under another number; `None` if `batch` is not a batch.
pub fn restamp(
    batch: &Bytes,
    id: ProducerId,
    epoch: ProducerEpoch,
    sequence: Sequence,
) -> Option<Bytes> {
    let mut header = BatchHeader::parse(batch).ok()?;
    (
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    ) = (id, epoch, sequence);
    let mut bytes = batch.to_vec();
    bytes
        .get_mut(..HEADER_BYTES)?
        .copy_from_slice(&header.encode());
    header.crc = crc32c::crc32c(bytes.get(CRC_FROM..)?);
    bytes
        .get_mut(..HEADER_BYTES)?
        .copy_from_slice(&header.encode());
    Some(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_batch::{BatchBuilder, decode_records, verify_crc};
    use talweg_types::{Compression, TimestampMs};

    #[test]
    fn a_restamped_batch_is_valid_and_holds_the_same_records() {
        let mut builder = BatchBuilder::new(Compression::Zstd).with_producer(
            ProducerId(1),
            ProducerEpoch(0),
            Sequence(7),
        );
        for value in 0..100_u8 {
            builder
                .push(TimestampMs(5), Some(b"k"), Some(&[value; 50]), [])
                .expect("a record");
        }
        let batch = builder.build().expect("a batch");
        let again = restamp(&batch, ProducerId(1), ProducerEpoch(1), Sequence(0)).expect("a batch");
        verify_crc(&again).expect("the CRC is right");
        let header = BatchHeader::parse(&again).expect("a header");
        assert_eq!(
            (header.producer_epoch, header.base_sequence),
            (ProducerEpoch(1), Sequence(0))
        );
        let records = |bytes| decode_records(bytes, 1 << 20).expect("decodes");
        assert_eq!(records(&batch), records(&again));
        assert!(
            restamp(
                &Bytes::from_static(b"short"),
                ProducerId(1),
                ProducerEpoch(0),
                Sequence(0)
            )
            .is_none()
        );
    }
}
