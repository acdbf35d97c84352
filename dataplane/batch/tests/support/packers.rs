//! The codecs as others frame them, not through the crate.

use flate2::write::GzEncoder;
use lz4_flex::frame::{FrameEncoder, FrameInfo};
use std::io::Write;
use talweg_types::Compression::{self, Gzip, Lz4, Snappy, Zstd};

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("to memory");
    encoder.finish().expect("to memory")
}

pub fn lz4(bytes: &[u8], info: FrameInfo) -> Vec<u8> {
    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(bytes).expect("to memory");
    encoder.finish().expect("to memory")
}

pub fn raw_snappy(bytes: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new()
        .compress_vec(bytes)
        .expect("to memory")
}

pub fn xerial(blocks: &[Vec<u8>]) -> Vec<u8> {
    let mut out = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
    for block in blocks {
        out.extend((block.len() as u32).to_be_bytes());
        out.extend(block);
    }
    out
}

pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(bytes, 1).expect("to memory")
}

pub fn pack(codec: Compression, bytes: &[u8]) -> Vec<u8> {
    match codec {
        Compression::None => bytes.to_vec(),
        Gzip => gzip(bytes),
        Snappy => xerial(&[raw_snappy(bytes)]),
        Lz4 => lz4(bytes, FrameInfo::new()),
        Zstd => zstd(bytes),
    }
}
