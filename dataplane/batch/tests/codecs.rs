//! The codecs' own framings: what others write is read, and packed data that
//! is cut, damaged, followed by anything or too large is refused, each codec
//! alike. All batches have the right length and CRC.

mod support;

use bytes::Bytes;
use lz4_flex::frame::{BlockMode, BlockSize, FrameInfo};
use std::io::Write;
use support::packers::{gzip, lz4, pack, raw_snappy, xerial, zstd};
use support::{Raw, exercise, plain_header, seal, test_limits};
use talweg_batch::{
    BatchBuilder, BatchError, ValidationLimits, check_client_batch, decode_records,
};
use talweg_types::{
    Compression::{self, Gzip, Lz4, Snappy, Zstd},
    TimestampMs,
};

const PACKED: [Compression; 4] = [Gzip, Snappy, Lz4, Zstd];

/// Two records, unpacked.
fn plain() -> Vec<u8> {
    [Raw::at(0).bytes(), Raw::at(1).bytes()].concat()
}

fn batch(codec: Compression, body: &[u8]) -> Bytes {
    let mut header = plain_header(2);
    header.attributes = codec as i16;
    seal(header, body)
}

#[test]
fn every_framing_that_others_write_is_read() {
    // Clients differ in how they frame: blocks, checksums, sizes, members,
    // streams of unknown length. All of it is the same two records.
    let plain = plain();
    let (head, tail) = plain.split_at(9);
    let mut streamed = zstd::stream::write::Encoder::new(Vec::new(), 19).expect("a level");
    streamed.write_all(&plain).expect("to memory");
    let checks = FrameInfo::new()
        .block_checksums(true)
        .content_checksum(true)
        .content_size(Some(plain.len() as u64));
    let linked = FrameInfo::new()
        .block_mode(BlockMode::Linked)
        .block_size(BlockSize::Max4MB);
    let table = [
        ("gzip", Gzip, gzip(&plain)),
        ("gzip, two members", Gzip, [gzip(head), gzip(tail)].concat()),
        ("snappy, xerial", Snappy, xerial(&[raw_snappy(&plain)])),
        (
            "snappy, xerial, two blocks",
            Snappy,
            xerial(&[raw_snappy(head), raw_snappy(tail)]),
        ),
        ("snappy, raw", Snappy, raw_snappy(&plain)),
        ("lz4", Lz4, lz4(&plain, FrameInfo::new())),
        ("lz4 with checksums and size", Lz4, lz4(&plain, checks)),
        ("lz4 with linked blocks", Lz4, lz4(&plain, linked)),
        ("zstd", Zstd, zstd(&plain)),
        ("zstd, two frames", Zstd, [zstd(head), zstd(tail)].concat()),
        (
            "zstd, streamed, high level",
            Zstd,
            streamed.finish().expect("to memory"),
        ),
    ];
    for (name, codec, body) in table {
        let batch = batch(codec, &body);
        assert!(exercise(&batch, &test_limits()), "{name}");
    }
}

#[test]
fn packed_data_that_is_cut_or_followed_by_a_byte_is_refused() {
    // Every cut, not only lucky ones: also between two blocks or frames, and
    // inside a trailer that a careless reader would never look at.
    for codec in PACKED {
        let whole = pack(codec, &plain());
        assert!(exercise(&batch(codec, &whole), &test_limits()), "{codec}");
        for cut in 0..whole.len() {
            let cut_batch = batch(codec, &whole[..cut]);
            let refused = check_client_batch(cut_batch.clone(), &test_limits());
            // A xerial stream ends where its bytes end: cut after its header
            // it is an empty one.
            let fits = match refused {
                Err(BatchError::Unpack { codec: named, .. }) => named == codec,
                Err(BatchError::RecordsMissing { found: 0, .. }) => codec == Snappy && cut == 16,
                _ => false,
            };
            assert!(fits, "{codec} cut to {cut}: {refused:?}");
            assert!(decode_records(&cut_batch, 1 << 20).is_err());
        }
        let longer = [&whole[..], &[0]].concat();
        let refused = check_client_batch(batch(codec, &longer), &test_limits());
        assert!(
            matches!(refused, Err(BatchError::Unpack { .. })),
            "{codec}: {refused:?}"
        );
    }
}

#[test]
fn packed_data_that_is_not_what_it_says_is_refused() {
    // Claims of size, foreign formats, wrong inner checksums, unpacked data
    // under a codec's flag: a codec's error, never a panic or a guess.
    let plain = plain();
    let mut bad_gzip_sum = gzip(&plain);
    let sum_at = bad_gzip_sum.len() - 8;
    bad_gzip_sum[sum_at] ^= 1;
    let checks = FrameInfo::new().content_checksum(true);
    let mut bad_lz4_sum = lz4(&plain, checks);
    *bad_lz4_sum.last_mut().expect("a sum") ^= 1;
    let two_lz4 = lz4(&plain, FrameInfo::new()).repeat(2);
    let block = lz4_flex::block::compress(&plain);
    let old_lz4 = [
        &[2, 0x21, 0x4c, 0x18],
        &(block.len() as u32).to_le_bytes()[..],
        &block,
    ]
    .concat();
    // 4 GiB - 1 in a varint, then one literal.
    let huge_claim = b"\xff\xff\xff\xff\x0f\x00a".to_vec();
    let negative_block = [xerial(&[]), vec![0xff, 0xff, 0xff, 0xff, 0]].concat();
    let skippable = [&b"\x50\x2a\x4d\x18\xff\xff\xff\x7f"[..], b"x"].concat();
    let table = [
        ("gzip, nothing", Gzip, vec![]),
        ("gzip, not packed", Gzip, plain.clone()),
        ("gzip, wrong inner sum", Gzip, bad_gzip_sum),
        ("snappy, nothing", Snappy, vec![]),
        ("snappy, claims 4 GiB", Snappy, huge_claim.clone()),
        (
            "snappy, xerial block claims 4 GiB",
            Snappy,
            xerial(&[huge_claim]),
        ),
        (
            "snappy, xerial block of negative length",
            Snappy,
            negative_block,
        ),
        ("snappy, xerial block of nothing", Snappy, xerial(&[vec![]])),
        ("lz4, nothing", Lz4, vec![]),
        ("lz4, not packed", Lz4, plain.clone()),
        ("lz4, wrong inner sum", Lz4, bad_lz4_sum),
        ("lz4, two frames", Lz4, two_lz4),
        ("lz4, legacy frame", Lz4, old_lz4),
        ("zstd, nothing", Zstd, vec![]),
        ("zstd, not packed", Zstd, plain.clone()),
        ("zstd, skippable frame that claims 2 GiB", Zstd, skippable),
    ];
    for (name, codec, body) in table {
        let batch = batch(codec, &body);
        let refused = check_client_batch(batch, &test_limits());
        assert!(
            matches!(refused, Err(BatchError::Unpack { codec: named, .. }) if named == codec),
            "{name}: {refused:?}"
        );
    }
    // A legal zstd stream without content unpacks to nothing.
    let empty = check_client_batch(batch(Zstd, &zstd(&[])), &test_limits());
    assert_eq!(
        empty,
        Err(BatchError::RecordsMissing {
            stated: 2,
            found: 0
        })
    );
}

#[test]
fn wrong_records_inside_packed_data_are_told_as_if_they_were_not_packed() {
    // Compression is no hiding place.
    let swapped = [Raw::at(1).bytes(), Raw::at(0).bytes()].concat();
    let trailing = [plain(), vec![0]].concat();
    for codec in Compression::ALL {
        let refused = check_client_batch(batch(*codec, &pack(*codec, &swapped)), &test_limits());
        let fault = talweg_batch::RecordFault::OffsetDelta {
            expected: 0,
            actual: 1,
        };
        assert_eq!(refused, Err(support::at(0, fault)), "{codec}");
        let refused = check_client_batch(batch(*codec, &pack(*codec, &trailing)), &test_limits());
        assert_eq!(
            refused,
            Err(BatchError::TrailingBytes { bytes: 1 }),
            "{codec}"
        );
    }
}

#[test]
fn the_unpacked_limit_is_inclusive_for_every_codec() {
    // Exactly the limit passes, one byte less does not.
    let plain = plain();
    for codec in Compression::ALL {
        let batch = batch(*codec, &pack(*codec, &plain));
        let with = |max| ValidationLimits {
            max_unpacked_bytes: max,
            ..test_limits()
        };
        let exact = plain.len() as u32;
        assert!(exercise(&batch, &with(exact)), "{codec}");
        let refused = check_client_batch(batch, &with(exact - 1));
        let limit = plain.len() - 1;
        assert_eq!(
            refused,
            Err(BatchError::UnpacksTooLarge { limit }),
            "{codec}"
        );
    }
}

#[test]
fn data_that_shrinks_a_great_deal_is_accepted_within_the_limit() {
    // A batch of zeros is no attack while it unpacks to what is allowed; raw
    // size is not what `max.message.bytes` counts.
    let value = vec![0; 900_000];
    for codec in PACKED {
        let mut builder = BatchBuilder::new(codec);
        for _ in 0..4 {
            builder
                .push(TimestampMs(support::T0), None, Some(&value), [])
                .expect("under 1 MiB");
        }
        let batch = builder.build().expect("four records");
        assert!(batch.len() < 200_000, "{codec}: {}", batch.len());
        assert!(exercise(&batch, &test_limits()), "{codec}");
    }
}
