//! Rows whose header, or whose length as a whole, is wrong.

use super::support::{self, Raw, T0};
use super::{Row, with_header};
use bytes::Bytes;
use talweg_batch::{BatchError, BatchHeader};
use talweg_types::{ProducerEpoch, ProducerId, Sequence, TimestampMs};

pub fn all() -> Vec<Row> {
    [header_rows(), envelope_rows()].concat()
}

fn attributes(bits: i16) -> Bytes {
    with_header(|h| h.attributes = bits)
}

fn producer(id: i64, epoch: i16, sequence: i32) -> Row {
    let batch = with_header(|h| {
        h.producer_id = ProducerId(id);
        h.producer_epoch = ProducerEpoch(epoch);
        h.base_sequence = Sequence(sequence);
    });
    (
        "producer fields apart",
        batch,
        BatchError::ProducerFields {
            id,
            epoch,
            sequence,
        },
    )
}

fn header_rows() -> Vec<Row> {
    let count = |count, delta| {
        with_header(|h| {
            h.record_count = count;
            h.last_offset_delta = delta;
        })
    };
    let one = Raw::at(1).bytes().len();
    vec![
        (
            "count above the records",
            count(3, 2),
            BatchError::RecordsMissing {
                stated: 3,
                found: 2,
            },
        ),
        (
            "count below the records",
            count(1, 0),
            BatchError::TrailingBytes { bytes: one },
        ),
        ("count zero", count(0, 0), BatchError::RecordCount(0)),
        ("count negative", count(-2, 1), BatchError::RecordCount(-2)),
        (
            "a million records and one",
            count(1_000_001, 1_000_000),
            BatchError::TooManyRecords {
                limit: 1_000_000,
                actual: 1_000_001,
            },
        ),
        (
            "last delta too large",
            count(2, 2),
            BatchError::LastOffsetDelta { delta: 2, count: 2 },
        ),
        (
            "last delta too small",
            count(2, 0),
            BatchError::LastOffsetDelta { delta: 0, count: 2 },
        ),
        (
            "last delta negative",
            count(2, -1),
            BatchError::LastOffsetDelta {
                delta: -1,
                count: 2,
            },
        ),
        (
            "max timestamp too small",
            with_header(|h| h.max_timestamp = TimestampMs(T0 - 1)),
            BatchError::MaxTimestamp {
                stated: T0 - 1,
                actual: T0,
            },
        ),
        (
            "max timestamp too large",
            with_header(|h| h.max_timestamp = TimestampMs(T0 + 1)),
            BatchError::MaxTimestamp {
                stated: T0 + 1,
                actual: T0,
            },
        ),
        (
            "first timestamp negative",
            with_header(|h| h.first_timestamp = TimestampMs(-2)),
            BatchError::FirstTimestamp(-2),
        ),
        ("codec 5", attributes(5), BatchError::Codec(5)),
        ("codec 6", attributes(6), BatchError::Codec(6)),
        ("codec 7", attributes(7), BatchError::Codec(7)),
        ("control bit", attributes(0x20), BatchError::ControlBatch),
        (
            "control batch of a coordinator",
            attributes(0x30),
            BatchError::ControlBatch,
        ),
        (
            "transactional bit",
            attributes(0x10),
            BatchError::Transactional,
        ),
        (
            "timestamp type of the log",
            attributes(0x08),
            BatchError::LogAppendTime,
        ),
        (
            "delete horizon",
            attributes(0x40),
            BatchError::AttributeBits(0x40),
        ),
        (
            "unused bit",
            attributes(0x80),
            BatchError::AttributeBits(0x80),
        ),
        (
            "the sign bit",
            attributes(i16::MIN),
            BatchError::AttributeBits(i16::MIN),
        ),
        producer(7, -1, -1),
        producer(-1, 0, -1),
        producer(-1, -1, 0),
        producer(7, 0, -1),
        producer(-2, -2, -2),
    ]
}

fn envelope_rows() -> Vec<Row> {
    let good = with_header(|_| {});
    let edit = |at: usize, byte: u8| {
        let mut bytes = good.to_vec();
        bytes[at] = byte;
        support::repair(&mut bytes, false);
        Bytes::from(bytes)
    };
    let mut longer = good.to_vec();
    longer.push(0);
    let stated = good.len();
    let mut two = good.to_vec();
    two.extend_from_slice(&good);
    vec![
        (
            "nothing",
            Bytes::new(),
            BatchError::TooShort {
                needed: 61,
                actual: 0,
            },
        ),
        (
            "half a header",
            good.slice(..40),
            BatchError::TooShort {
                needed: 61,
                actual: 40,
            },
        ),
        ("an old magic", edit(16, 1), BatchError::Magic(1)),
        (
            "an old magic in a short batch",
            edit(16, 0).slice(..30),
            BatchError::Magic(0),
        ),
        ("a later magic", edit(16, 3), BatchError::Magic(3)),
        (
            "length below a header",
            edit(11, 48),
            BatchError::LengthField(48),
        ),
        (
            "length negative",
            edit(8, 0xff),
            BatchError::LengthField((0xff00_0000_u32 | (stated as u32 - 12)).cast_signed()),
        ),
        (
            "one byte missing",
            good.slice(..stated - 1),
            BatchError::Length {
                stated,
                actual: stated - 1,
            },
        ),
        (
            "one byte more",
            longer.into(),
            BatchError::Length {
                stated,
                actual: stated + 1,
            },
        ),
        (
            "two batches",
            two.into(),
            BatchError::Length {
                stated,
                actual: 2 * stated,
            },
        ),
        (
            "wrong CRC",
            {
                let mut bytes = good.to_vec();
                bytes[17] ^= 1;
                bytes.into()
            },
            {
                let computed = BatchHeader::parse(&good).expect("good").crc;
                BatchError::Crc {
                    stated: computed ^ 0x0100_0000,
                    computed,
                }
            },
        ),
    ]
}
