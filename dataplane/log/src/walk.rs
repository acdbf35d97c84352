//! Walking the batches of a segment file from a known boundary.
//!
//! The walk checks what costs nothing: the header parses, the batch lies within
//! the file, its base offset is the one expected, epochs do not fall. Checking
//! the bytes under the checksum is the caller's choice. Ranges known as damaged
//! are stepped over.

use crate::{fs::LogFile, sidecar::seal::SealedDamage};
use std::io;
use talweg_batch::{BatchHeader, HEADER_BYTES, verify_crc};
use talweg_types::{LeaderEpoch, Offset, limits};

/// No batch is larger, whatever a topic allows (`max.message.bytes` and a margin).
pub(crate) const BATCH_BYTES_MAX: usize = limits::GRPC_MESSAGE_BYTES as usize;
/// Enough for a few small batches; a large batch costs one such read.
pub(crate) const HEADER_CHUNK: usize = 16 * 1024;
pub(crate) const DATA_CHUNK: usize = 1 << 20;

/// What the walk met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// A batch, and the byte position where it begins.
    Batch(BatchHeader, u64),
    /// Something that is no batch, or not the one that must follow, begins here.
    Bad(u64),
    End,
}

pub(crate) struct Walker<'a> {
    file: &'a dyn LogFile,
    end: u64,
    chunk: usize,
    buffer: Vec<u8>,
    buffer_at: u64,
    damage: Vec<SealedDamage>,
    pub position: u64,
    /// The base offset that the next batch must have.
    pub expected: Offset,
    pub epoch: LeaderEpoch,
    /// Bytes read from the file.
    pub read_bytes: u64,
}

impl<'a> Walker<'a> {
    pub(crate) fn new(
        file: &'a dyn LogFile,
        position: u64,
        end: u64,
        expected: Offset,
        chunk: usize,
    ) -> Self {
        Self {
            file,
            end,
            chunk,
            buffer: Vec::new(),
            buffer_at: 0,
            damage: Vec::new(),
            position,
            expected,
            epoch: LeaderEpoch::NONE,
            read_bytes: 0,
        }
    }

    pub(crate) fn stepping_over(mut self, damage: Vec<SealedDamage>) -> Self {
        self.damage = damage;
        self
    }

    pub(crate) fn above_epoch(mut self, epoch: LeaderEpoch) -> Self {
        self.epoch = epoch;
        self
    }

    /// The next batch; moves on past it.
    pub(crate) fn step(&mut self) -> io::Result<Step> {
        self.step_over_damage();
        if self.position >= self.end {
            return Ok(Step::End);
        }
        let position = self.position;
        let Some(header) = self.header_at(position)? else {
            return Ok(Step::Bad(position));
        };
        if header.base_offset != self.expected || header.leader_epoch < self.epoch {
            return Ok(Step::Bad(position));
        }
        self.pass(&header, position);
        Ok(Step::Batch(header, position))
    }

    /// Goes on behind a batch.
    pub(crate) fn pass(&mut self, header: &BatchHeader, position: u64) {
        self.position = position + header.total_bytes() as u64;
        self.expected = header.next_offset();
        self.epoch = header.leader_epoch;
    }

    /// Goes on elsewhere.
    pub(crate) fn jump(&mut self, position: u64, expected: Offset) {
        self.position = position;
        self.expected = expected;
    }

    fn step_over_damage(&mut self) {
        while let Some(range) = self
            .damage
            .iter()
            .find(|range| range.begins_at(self.position, self.expected))
        {
            let (position, expected) = (range.end_position, range.end);
            self.jump(position, expected);
        }
    }

    /// A header that parses and whose batch lies within the file.
    pub(crate) fn header_at(&mut self, position: u64) -> io::Result<Option<BatchHeader>> {
        let end = self.end;
        let bytes = self.bytes(position, HEADER_BYTES)?;
        let Ok(header) = BatchHeader::parse(bytes) else {
            return Ok(None);
        };
        let total = header.total_bytes();
        let sane = total <= BATCH_BYTES_MAX
            && position + total as u64 <= end
            && header.base_offset.0 >= 0
            && header.last_offset_delta >= 0
            && header.next_offset() > header.base_offset;
        Ok(sane.then_some(header))
    }

    /// Whether the bytes of a batch fit its checksum.
    pub(crate) fn crc_fits(&mut self, header: &BatchHeader, position: u64) -> io::Result<bool> {
        let total = header.total_bytes();
        let bytes = self.bytes(position, total)?;
        Ok(bytes.len() == total && verify_crc(bytes).is_ok())
    }

    /// `count` bytes from `position`, fewer only at the end of the file.
    pub(crate) fn bytes(&mut self, position: u64, count: usize) -> io::Result<&[u8]> {
        let available = usize::try_from(self.end.saturating_sub(position)).unwrap_or(usize::MAX);
        let count = count.min(available);
        let held = position
            .checked_sub(self.buffer_at)
            .and_then(|skip| usize::try_from(skip).ok());
        if let Some(skip) = held
            && skip + count <= self.buffer.len()
        {
            return Ok(&self.buffer[skip..skip + count]);
        }
        let want = count.max(self.chunk).min(available);
        self.buffer.resize(want, 0);
        let read = self.file.read_at(&mut self.buffer, position)?;
        self.buffer.truncate(read);
        self.buffer_at = position;
        self.read_bytes += read as u64;
        Ok(&self.buffer[..count.min(read)])
    }

    /// The next believable batch behind a bad place: its header parses, its
    /// checksum fits, its offsets lie in `expected..limit`, and what follows it
    /// is a batch with the next offset, the end, or damage in its turn known.
    pub(crate) fn resync(
        &mut self,
        bad: u64,
        limit: Offset,
    ) -> io::Result<Option<(BatchHeader, u64)>> {
        let mut position = bad + 1;
        while position + HEADER_BYTES as u64 <= self.end {
            let window = self.bytes(position, self.chunk.max(HEADER_BYTES))?;
            // The magic byte is 16 bytes into a header.
            let Some(skip) = window.iter().skip(16).position(|byte| *byte == 2) else {
                position += window.len().saturating_sub(16).max(1) as u64;
                continue;
            };
            position += skip as u64;
            if let Some(header) = self.header_at(position)?
                && header.base_offset >= self.expected
                && header.next_offset() <= limit
                && self.crc_fits(&header, position)?
                && self.is_followed(&header, position)?
            {
                return Ok(Some((header, position)));
            }
            position += 1;
        }
        Ok(None)
    }

    fn is_followed(&mut self, header: &BatchHeader, position: u64) -> io::Result<bool> {
        let next = position + header.total_bytes() as u64;
        if next >= self.end {
            return Ok(true);
        }
        let known = self.damage.iter().any(|range| range.start_position == next);
        Ok(known
            || self
                .header_at(next)?
                .is_some_and(|follower| follower.base_offset == header.next_offset()))
    }
}
