//! Snappy, in the two framings that Kafka clients write.
//!
//! Xerial (written here, as Java does): a magic, two versions, then blocks of
//! at most 32 KiB, each behind its packed length. Raw: one Snappy block and
//! nothing else. All integers of the framing are big-endian.

use super::{Stop, UnpackFault};
use std::io;

const XERIAL_MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
/// Magic, version and the least version that can read it.
const XERIAL_HEADER_BYTES: usize = 16;
const BLOCK_BYTES: usize = 32 * 1024;
/// Three packed bytes (a copy) make at most 64: no block grows further.
const MOST_GROWTH: usize = 22;

pub(super) fn unpack(packed: &[u8], limit: usize) -> Result<Vec<u8>, Stop> {
    let mut out = Vec::new();
    if !packed.starts_with(&XERIAL_MAGIC) {
        unpack_block(packed, limit, &mut out)?;
        return Ok(out);
    }
    let mut rest = packed.get(XERIAL_HEADER_BYTES..).ok_or(UnpackFault::Cut)?;
    while !rest.is_empty() {
        let (length, after) = rest.split_first_chunk::<4>().ok_or(UnpackFault::Cut)?;
        let length = usize::try_from(i32::from_be_bytes(*length))
            .map_err(|_| UnpackFault::Framing("a block's length is negative"))?;
        let (block, after) = after.split_at_checked(length).ok_or(UnpackFault::Cut)?;
        unpack_block(block, limit, &mut out)?;
        rest = after;
    }
    Ok(out)
}

fn unpack_block(block: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), Stop> {
    let claimed = snap::raw::decompress_len(block).map_err(fault)?;
    if claimed > block.len().saturating_mul(MOST_GROWTH) {
        return Err(UnpackFault::Impossible {
            packed: block.len(),
            claimed,
        }
        .into());
    }
    let from = out.len();
    if claimed > limit.saturating_sub(from) {
        return Err(Stop::OverLimit);
    }
    out.resize(from + claimed, 0);
    snap::raw::Decoder::new()
        .decompress(block, &mut out[from..])
        .map_err(fault)?;
    Ok(())
}

fn fault(error: snap::Error) -> UnpackFault {
    UnpackFault::Codec(error.to_string())
}

pub(super) fn pack(
    encoder: &mut Option<snap::raw::Encoder>,
    plain: &[u8],
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let encoder = encoder.get_or_insert_with(snap::raw::Encoder::new);
    out.extend(XERIAL_MAGIC);
    out.extend(1_i32.to_be_bytes());
    out.extend(1_i32.to_be_bytes());
    for block in plain.chunks(BLOCK_BYTES) {
        let length_at = out.len();
        let from = length_at + 4;
        out.resize(from + snap::raw::max_compress_len(block.len()), 0);
        let length = encoder
            .compress(block, &mut out[from..])
            .map_err(io::Error::other)?;
        out.truncate(from + length);
        let length = i32::try_from(length).map_err(io::Error::other)?;
        out[length_at..from].copy_from_slice(&length.to_be_bytes());
    }
    Ok(())
}
