//! Small batches that unpack to a great deal. Alone in its file, because it
//! watches the memory of the whole process.

mod support;

use bytes::Bytes;
use flate2::write::GzEncoder;
use lz4_flex::frame::FrameEncoder;
use std::io::Write;
use support::{plain_header, seal, test_limits};
use talweg_batch::{BatchError, check_client_batch, decode_records};
use talweg_types::Compression;

const MIB: usize = 1 << 20;
const LIMIT: usize = 16 * MIB;

/// `mebibytes` of zeros through an encoder.
fn zeros<W: Write>(mut encoder: W, mebibytes: usize) -> W {
    let block = vec![0; MIB];
    for _ in 0..mebibytes {
        encoder.write_all(&block).expect("to memory");
    }
    encoder
}

/// Raw snappy of `mebibytes` of zeros, by hand: one literal zero, then copies
/// of 64 from one byte back.
fn raw_snappy_zeros(mebibytes: usize) -> Vec<u8> {
    let total = mebibytes * MIB;
    let copies = (total - 1) / 64;
    let rest = total - 1 - copies * 64;
    let mut out = Vec::new();
    let mut size = total;
    while size >= 0x80 {
        out.push(size as u8 | 0x80);
        size >>= 7;
    }
    out.extend([size as u8, 0, 0]);
    out.extend([0xfe, 1, 0].repeat(copies));
    out.extend([((rest as u8 - 1) << 2) | 2, 1, 0]);
    out
}

fn bombs() -> Vec<(&'static str, Compression, Vec<u8>)> {
    let gzip = zeros(GzEncoder::new(Vec::new(), flate2::Compression::fast()), 200);
    let zstd = zstd::stream::write::Encoder::new(Vec::new(), 1).expect("level 1");
    let zstd = zeros(zstd, 1024).finish().expect("to memory");
    let lz4 = zeros(FrameEncoder::new(Vec::new()), 240)
        .finish()
        .expect("to memory");
    let block = snap::raw::Encoder::new()
        .compress_vec(&[0; 32 * 1024])
        .expect("to memory");
    let mut xerial = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
    for _ in 0..600 {
        xerial.extend((block.len() as u32).to_be_bytes());
        xerial.extend(&block);
    }
    // A frame that says: window 2 GiB, then a block of 128 KiB of one byte.
    let window = [&b"\x28\xb5\x2f\xfd\x00\xa8"[..], &[0x03, 0, 0x10, b'x']].concat();
    assert!(zstd::bulk::decompress(&window, MIB).is_ok_and(|out| out.len() == 128 * 1024));
    vec![
        (
            "gzip, 200 MiB",
            Compression::Gzip,
            gzip.finish().expect("to memory"),
        ),
        ("zstd, 1 GiB", Compression::Zstd, zstd),
        (
            "zstd, window of 2 GiB and 17 MiB",
            Compression::Zstd,
            window.repeat(136),
        ),
        ("lz4, 240 MiB", Compression::Lz4, lz4),
        ("snappy xerial, 19 MiB", Compression::Snappy, xerial),
        (
            "snappy raw, 20 MiB",
            Compression::Snappy,
            raw_snappy_zeros(20),
        ),
    ]
}

/// Peak resident and peak virtual memory of this process, in bytes.
fn peaks() -> (usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let field = |name: &str| {
        let line = status
            .lines()
            .find(|line| line.starts_with(name))
            .expect(name);
        let kib: usize = line
            .split_whitespace()
            .nth(1)
            .expect(name)
            .parse()
            .expect(name);
        kib * 1024
    };
    (field("VmHWM:"), field("VmPeak:"))
}

#[test]
fn bombs_stop_at_the_limit_and_memory_stays_within_a_few_of_it() {
    // A few hundred kilobytes that claim, and would give, hundreds of
    // megabytes: the unpacking stops at 16 MiB, whatever the bytes claim.
    let bombs: Vec<(&str, Bytes)> = bombs()
        .into_iter()
        .map(|(name, codec, body)| {
            let mut header = plain_header(2);
            header.attributes = codec as i16;
            let batch = seal(header, &body);
            assert!(
                batch.len() <= MIB,
                "{name} is a small batch: {}",
                batch.len()
            );
            (name, batch)
        })
        .collect();
    let before = peaks();
    let too_large = BatchError::UnpacksTooLarge { limit: LIMIT };
    for (name, batch) in bombs {
        let refused = check_client_batch(batch.clone(), &test_limits());
        assert_eq!(refused.as_ref(), Err(&too_large), "{name}");
        assert_eq!(
            decode_records(&batch, LIMIT).as_ref(),
            Err(&too_large),
            "{name}"
        );
        let after = peaks();
        // Output that grows by doubling is twice there while it moves.
        assert!(
            after.0 - before.0 < 4 * LIMIT,
            "{name}: resident {before:?} to {after:?}"
        );
        assert!(
            after.1 - before.1 < 6 * LIMIT,
            "{name}: virtual {before:?} to {after:?}"
        );
    }
}
