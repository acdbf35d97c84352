//! Zstandard, one or more frames.
//!
//! Unpacked in one call straight into the output: the streaming decoder would
//! allocate the window that the frame claims (up to 128 MiB), or would have to
//! refuse frames of high levels.

use super::{Stop, UnpackFault};
use std::io;

/// Fast, and what the thin path is measured with.
const LEVEL: i32 = 1;
/// First guess of how far data grows; most batches stay below.
const USUAL_GROWTH: usize = 16;
const LEAST_GUESS_BYTES: usize = 64 * 1024;

pub(super) fn unpack(packed: &[u8], limit: usize) -> Result<Vec<u8>, Stop> {
    if packed.is_empty() {
        return Err(UnpackFault::Cut.into());
    }
    let mut decoder = zstd::bulk::Decompressor::new()?;
    let guess = packed
        .len()
        .saturating_mul(USUAL_GROWTH)
        .max(LEAST_GUESS_BYTES)
        .min(limit);
    for capacity in [guess, limit] {
        // Reserved, not touched: only what comes out costs memory.
        let mut out = Vec::with_capacity(capacity);
        match decoder.decompress_to_buffer(packed, &mut out) {
            Ok(_) => {
                if out.capacity() / 2 > out.len() {
                    out.shrink_to_fit();
                }
                return Ok(out);
            }
            Err(error) if is_too_small(&error) => {}
            Err(error) => return Err(UnpackFault::Codec(error.to_string()).into()),
        }
    }
    Err(Stop::OverLimit)
}

/// The crate hands out zstd's error as its name only; the tests with
/// decompression bombs fail if that name ever changes.
fn is_too_small(error: &io::Error) -> bool {
    error.to_string() == "Destination buffer is too small"
}

pub(super) fn pack(
    encoder: &mut Option<zstd::bulk::Compressor<'static>>,
    plain: &[u8],
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let encoder = match encoder {
        Some(encoder) => encoder,
        none => none.insert(zstd::bulk::Compressor::new(LEVEL)?),
    };
    out.reserve(zstd::zstd_safe::compress_bound(plain.len()));
    encoder.compress_to_buffer(plain, out)?;
    Ok(())
}
