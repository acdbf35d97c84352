//! The segment that takes the place of one or more others, as it is written.
//!
//! Its batches follow one another without a gap, as in every segment: runs of
//! offsets of which nothing is left become placeholders, one for each leader
//! epoch, so that epochs begin where they began.

use crate::{
    active::BlockSums,
    fs::{LogFile, LogFs},
    index::{IndexBuilder, IndexEntry},
    names,
    segment::Times,
    sidecar::{
        Sidecar,
        seal::{Cleaned, SealFile},
    },
};
use std::{
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::Arc,
};
use talweg_batch::{BatchHeader, compact};
use talweg_types::{LeaderEpoch, Offset, TimestampMs};

/// Written at a time.
const WRITE_BYTES: usize = 1 << 20;
/// The widest range of one batch.
const OFFSETS_MAX: i64 = 1 << 31;

pub(crate) struct Output {
    file: Arc<dyn LogFile>,
    base: Offset,
    next: Offset,
    position: u64,
    buffer: Vec<u8>,
    sums: BlockSums,
    index: IndexBuilder,
    interval: u64,
    entries: Vec<IndexEntry>,
    times: Times,
    /// Where a run of emptied offsets begins, and its epoch; it ends at `next`.
    gap: Option<(Offset, LeaderEpoch)>,
}

/// Both files are written and flushed, beside their places.
pub(crate) struct Written {
    pub seal: SealFile,
    pub entries: Vec<IndexEntry>,
}

/// Where the files are until they are put in their places.
pub(crate) fn paths(dir: &Path, base: Offset) -> (PathBuf, PathBuf) {
    (
        names::cleaned_path(dir, base, names::SEGMENT),
        names::cleaned_path(dir, base, names::SEAL),
    )
}

impl Output {
    /// An index entry every `interval` bytes.
    pub(crate) fn create(
        fs: &dyn LogFs,
        dir: &Path,
        base: Offset,
        interval: u64,
    ) -> io::Result<Self> {
        let file = fs.open(&paths(dir, base).0, true)?;
        // Of a round that was given up.
        file.set_len(0)?;
        Ok(Self {
            file,
            base,
            next: base,
            position: 0,
            buffer: Vec::with_capacity(WRITE_BYTES),
            sums: BlockSums::default(),
            index: IndexBuilder::new(base),
            interval,
            entries: Vec::new(),
            times: Times::NONE,
            gap: None,
        })
    }

    /// Bytes of it so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.position + self.buffer.len() as u64
    }

    /// A batch that stays, in the place of the one of `header`.
    pub(crate) fn batch(&mut self, bytes: &[u8], source: Times) -> io::Result<()> {
        self.close_gap()?;
        self.put(bytes, source.last_append)
    }

    /// Nothing stays of the batch of `header`.
    pub(crate) fn emptied(&mut self, header: &BatchHeader) -> io::Result<()> {
        let goes_on = self.gap.is_some_and(|(from, epoch)| {
            epoch == header.leader_epoch && header.next_offset().0 - from.0 <= OFFSETS_MAX
        });
        if !goes_on {
            self.close_gap()?;
            self.gap = Some((header.base_offset, header.leader_epoch));
        }
        self.next = header.next_offset();
        Ok(())
    }

    fn close_gap(&mut self) -> io::Result<()> {
        let Some((from, epoch)) = self.gap.take() else {
            return Ok(());
        };
        let end = std::mem::replace(&mut self.next, from);
        let place = compact::placeholder(from, end, epoch).map_err(io::Error::other)?;
        self.put(&place, self.times.last_append)
    }

    fn put(&mut self, bytes: &[u8], append_time: TimestampMs) -> io::Result<()> {
        let header = BatchHeader::parse(bytes).map_err(io::Error::other)?;
        if header.base_offset != self.next {
            let (found, due) = (header.base_offset, self.next);
            return Err(io::Error::other(format!(
                "batch {found} where {due} is due"
            )));
        }
        let position = self.bytes();
        let entry = self
            .index
            .observe(&header, position, append_time, self.interval);
        self.entries.extend(entry);
        self.times.max_timestamp = self.times.max_timestamp.max(header.max_timestamp);
        self.next = header.next_offset();
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= WRITE_BYTES {
            self.write_out()?;
        }
        Ok(())
    }

    fn write_out(&mut self) -> io::Result<()> {
        self.file
            .write_at(&[IoSlice::new(&self.buffer)], self.position)?;
        self.sums.extend(&self.buffer);
        self.position += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// The next source segment begins.
    pub(crate) fn covers(&mut self, source: Times) {
        if self.times.first_append == TimestampMs::NONE {
            self.times.first_append = source.first_append;
        }
        self.times.last_append = self.times.last_append.max(source.last_append);
    }

    /// Writes the rest and the seal; both files are durable on return, their names
    /// not yet.
    pub(crate) fn finish(
        mut self,
        fs: &dyn LogFs,
        dir: &Path,
        end: Offset,
        cleaned: Cleaned,
    ) -> io::Result<Written> {
        self.close_gap()?;
        self.write_out()?;
        if self.next != end {
            return Err(io::Error::other(format!(
                "written up to {} of {end}",
                self.next
            )));
        }
        self.file.flush()?;
        let seal = SealFile {
            base: self.base,
            end,
            bytes: self.position,
            first_append: self.times.first_append,
            last_append: self.times.last_append,
            max_timestamp: self.times.max_timestamp,
            damage: Vec::new(),
            cleaned: Some(cleaned),
            blocks: self.sums.blocks().to_vec(),
        };
        let file = fs.open(&paths(dir, self.base).1, true)?;
        file.set_len(0)?;
        file.write_at(&[IoSlice::new(&seal.encode())], 0)?;
        file.flush()?;
        for entry in &mut self.entries {
            entry.revision = cleaned.revision;
        }
        Ok(Written {
            seal,
            entries: self.entries,
        })
    }
}
