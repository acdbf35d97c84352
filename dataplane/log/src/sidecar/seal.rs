//! `<base offset>.seal`: beside a segment that will never change again.
//!
//! A checksum per 64 KiB over all bytes of the segment, batch headers included,
//! so that any flipped bit is found, and what retention, compaction and time
//! look-ups need without opening the segment.
//!
//! Version 2 adds what compaction made of the segment. Under the name
//! `<base offset>.swap` the same file is the decision to replace segments: see
//! `docs/formats/compaction.md`.

use super::{
    Sidecar, SidecarError,
    wire::{Input, Output},
};
use talweg_types::{Offset, TimestampMs};

/// Bytes under one checksum; the last block of a segment may be shorter.
pub const BLOCK_BYTES: u64 = 64 * 1024;

/// Bytes of the segment that were already unbelievable when it was sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SealedDamage {
    /// Byte range in the segment; the end is exclusive.
    pub start_position: u64,
    pub end_position: u64,
    /// Offset range; the end is the next good offset.
    pub start: Offset,
    pub end: Offset,
}

impl SealedDamage {
    /// Whether a walk that stands there must step over this range. A range may
    /// take bytes and no offset: good batches follow with the offset expected.
    pub fn begins_at(&self, position: u64, expected: Offset) -> bool {
        let goes_on = self.end_position > position || self.end > expected;
        self.start_position == position && self.start == expected && goes_on
    }
}

/// What compaction has done to a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cleaned {
    /// Counts the times that bytes under this base offset were replaced; index
    /// entries of another revision are not this file's.
    pub revision: u32,
    /// Below this offset (exclusive) every record is the newest of its key, or has
    /// none, as of the round.
    pub end: Offset,
    /// From when on, by wall clock, compacting again removes a tombstone;
    /// [`Cleaned::NO_TOMBSTONE`] without one.
    pub next_horizon: TimestampMs,
}

impl Cleaned {
    pub const NO_TOMBSTONE: TimestampMs = TimestampMs(i64::MAX);
}

/// The body of a `seal` file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SealFile {
    /// First offset, and one past the last.
    pub base: Offset,
    pub end: Offset,
    pub bytes: u64,
    /// Append times of the first and the last batch; retention reads the last.
    pub first_append: TimestampMs,
    pub last_append: TimestampMs,
    /// Largest record timestamp.
    pub max_timestamp: TimestampMs,
    pub damage: Vec<SealedDamage>,
    /// `None`: as it was written.
    pub cleaned: Option<Cleaned>,
    /// CRC-32C of each block.
    pub blocks: Vec<u32>,
}

impl SealFile {
    /// How many blocks so many bytes have.
    pub fn blocks_of(bytes: u64) -> usize {
        usize::try_from(bytes.div_ceil(BLOCK_BYTES)).unwrap_or(usize::MAX)
    }
}

impl Sidecar for SealFile {
    const KIND: u8 = 4;
    const VERSION: u8 = 2;

    fn encode_body(&self, out: &mut Vec<u8>) {
        out.put_i64(self.base.0);
        out.put_i64(self.end.0);
        out.put_u64(self.bytes);
        out.put_i64(self.first_append.0);
        out.put_i64(self.last_append.0);
        out.put_i64(self.max_timestamp.0);
        out.put_count(self.damage.len());
        for range in &self.damage {
            out.put_u64(range.start_position);
            out.put_u64(range.end_position);
            out.put_i64(range.start.0);
            out.put_i64(range.end.0);
        }
        out.put_count(self.blocks.len());
        for block in &self.blocks {
            out.put_u32(*block);
        }
        out.put(&[u8::from(self.cleaned.is_some())]);
        if let Some(cleaned) = &self.cleaned {
            out.put_u32(cleaned.revision);
            out.put_i64(cleaned.end.0);
            out.put_i64(cleaned.next_horizon.0);
        }
    }

    fn decode_body(version: u8, body: &[u8]) -> Result<Self, SidecarError> {
        let mut input = Input(body);
        let mut seal = Self {
            base: Offset(input.i64()?),
            end: Offset(input.i64()?),
            bytes: input.u64()?,
            first_append: TimestampMs(input.i64()?),
            last_append: TimestampMs(input.i64()?),
            max_timestamp: TimestampMs(input.i64()?),
            damage: Vec::new(),
            cleaned: None,
            blocks: Vec::new(),
        };
        for _ in 0..input.count(32)? {
            seal.damage.push(SealedDamage {
                start_position: input.u64()?,
                end_position: input.u64()?,
                start: Offset(input.i64()?),
                end: Offset(input.i64()?),
            });
        }
        for _ in 0..input.count(4)? {
            seal.blocks.push(input.u32()?);
        }
        if version >= 2 {
            seal.cleaned = decode_cleaned(&mut input)?;
        }
        input.end()?;
        if seal.base.0 < 0 || seal.end < seal.base {
            return Err(SidecarError::Malformed("end is below the base offset"));
        }
        if seal.blocks.len() != Self::blocks_of(seal.bytes) {
            return Err(SidecarError::Malformed(
                "block count does not fit the bytes",
            ));
        }
        let ordered = |r: &SealedDamage| r.start_position <= r.end_position && r.start <= r.end;
        if !seal.damage.iter().all(ordered) {
            return Err(SidecarError::Malformed(
                "damaged range ends before it starts",
            ));
        }
        Ok(seal)
    }
}

fn decode_cleaned(input: &mut Input<'_>) -> Result<Option<Cleaned>, SidecarError> {
    match input.u8()? {
        0 => Ok(None),
        1 => Ok(Some(Cleaned {
            revision: input.u32()?,
            end: Offset(input.i64()?),
            next_horizon: TimestampMs(input.i64()?),
        })),
        _ => Err(SidecarError::Malformed("compaction flag")),
    }
}
