//! The LZ4 frame format, one frame.
//!
//! Written as Java's client does: independent blocks of at most 64 KiB, no
//! checksums within. The decoder of the crate takes a frame without its end
//! mark for whole and reads on into a second frame, so the frame's blocks are
//! counted through first.

use super::{Stop, UnpackFault};
use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use std::io::{self, BufRead, Write};

const MAGIC: u32 = 0x184D_2204;
const BLOCK_CHECKSUMS: u8 = 0x10;
const CONTENT_SIZE: u8 = 0x08;
const CONTENT_CHECKSUM: u8 = 0x04;
const DICTIONARY_ID: u8 = 0x01;
/// Top bit of a block's length: stored, not compressed.
const STORED: u32 = 0x8000_0000;

pub(super) fn unpack(packed: &[u8], limit: usize) -> Result<Vec<u8>, Stop> {
    check_whole(packed)?;
    let mut out = Vec::new();
    let mut rest = packed;
    let mut decoder = FrameDecoder::new(&mut rest);
    loop {
        let block = decoder.fill_buf()?;
        if block.is_empty() {
            break;
        }
        if block.len() > limit - out.len() {
            return Err(Stop::OverLimit);
        }
        out.extend_from_slice(block);
        let taken = block.len();
        decoder.consume(taken);
    }
    drop(decoder);
    match rest.len() {
        0 => Ok(out),
        // A block that unpacks to nothing looks like the end to the decoder.
        bytes => Err(UnpackFault::Trailing(bytes).into()),
    }
}

/// Steps from block to block: one frame, with its end mark, and nothing after.
fn check_whole(frame: &[u8]) -> Result<(), UnpackFault> {
    let mut rest = frame;
    if u32::from_le_bytes(*take::<4>(&mut rest)?) != MAGIC {
        return Err(UnpackFault::Framing("not an LZ4 frame"));
    }
    let [flags, _block_size] = *take::<2>(&mut rest)?;
    let has = |flag: u8| flags & flag != 0;
    let optional = if has(CONTENT_SIZE) { 8 } else { 0 } + if has(DICTIONARY_ID) { 4 } else { 0 };
    skip(&mut rest, optional + 1)?;
    loop {
        let length = u32::from_le_bytes(*take::<4>(&mut rest)?);
        if length == 0 {
            break;
        }
        let checksum = if has(BLOCK_CHECKSUMS) { 4 } else { 0 };
        skip(&mut rest, (length & !STORED) as usize + checksum)?;
    }
    skip(&mut rest, if has(CONTENT_CHECKSUM) { 4 } else { 0 })?;
    match rest.len() {
        0 => Ok(()),
        bytes => Err(UnpackFault::Trailing(bytes)),
    }
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], UnpackFault> {
    let (field, after) = rest.split_first_chunk::<N>().ok_or(UnpackFault::Cut)?;
    *rest = after;
    Ok(field)
}

fn skip(rest: &mut &[u8], bytes: usize) -> Result<(), UnpackFault> {
    *rest = rest.get(bytes..).ok_or(UnpackFault::Cut)?;
    Ok(())
}

pub(super) fn pack(plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let info = FrameInfo::new()
        .block_size(BlockSize::Max64KB)
        .block_mode(BlockMode::Independent);
    let mut encoder = FrameEncoder::with_frame_info(info, out);
    encoder.write_all(plain)?;
    encoder.finish()?;
    Ok(())
}
