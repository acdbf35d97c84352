//! The segment that is written, and what becomes of it.
//!
//! ```text
//! ActiveSegment --roll--> ClosingSegment --flush and seal--> sealed (a view only)
//! ```
//! Three types, so that only the first can be written and only the last may be
//! deleted. `write` never flushes. The active segment keeps its file open while
//! bytes in it are unflushed: an error of write-back is then told to its flush.

use crate::{
    fd_cache::OpenSegment,
    folder::LogFolder,
    index::IndexBuilder,
    segment::{SegmentView, Times},
    sidecar::{
        seal::{BLOCK_BYTES, SealFile},
        sessions::{SegmentState, SessionsFile},
    },
};
use std::{
    io::{self, IoSlice},
    sync::Arc,
};
use talweg_types::{Offset, TimestampMs};

/// Checksums per block of a file that only grows.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct BlockSums {
    position: u64,
    blocks: Vec<u32>,
}

impl BlockSums {
    /// From saved state: all blocks up to `position`, the last maybe partial.
    /// `None` when it does not fit the position.
    pub(crate) fn resume(position: u64, blocks: Vec<u32>) -> Option<Self> {
        (blocks.len() == SealFile::blocks_of(position)).then_some(Self { position, blocks })
    }

    pub(crate) fn extend(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let within = self.position % BLOCK_BYTES;
            if within == 0 {
                self.blocks.push(0);
            }
            let room = usize::try_from(BLOCK_BYTES - within).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            if let Some(sum) = self.blocks.last_mut() {
                *sum = crc32c::crc32c_append(*sum, now);
            }
            self.position += now.len() as u64;
            bytes = later;
        }
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// One for each block; the last one may be partial.
    pub(crate) fn blocks(&self) -> &[u32] {
        &self.blocks
    }
}

/// The only segment that is written.
pub(crate) struct ActiveSegment {
    pub view: Arc<SegmentView>,
    pub size: u64,
    /// Bytes known to be flushed.
    pub flushed_size: u64,
    pub end: Offset,
    pub times: Times,
    pub sums: BlockSums,
    pub index: IndexBuilder,
    /// The file, held while bytes in it are unflushed.
    dirty: Option<Arc<OpenSegment>>,
}

/// What one write adds, besides its bytes.
pub(crate) struct Written {
    pub bytes: u64,
    pub end: Offset,
    pub append_time: TimestampMs,
    pub max_timestamp: TimestampMs,
}

impl ActiveSegment {
    /// An empty segment in a new file.
    pub(crate) fn create(folder: &LogFolder, view: Arc<SegmentView>) -> io::Result<Self> {
        let open = view.create(folder)?;
        view.set_trusted_from(0);
        Ok(Self {
            size: 0,
            flushed_size: 0,
            end: view.base,
            times: Times::NONE,
            sums: BlockSums::default(),
            index: IndexBuilder::new(view.base),
            dirty: Some(open),
            view,
        })
    }

    /// A segment found by recovery, flushed up to its end.
    pub(crate) fn recovered(
        view: Arc<SegmentView>,
        times: Times,
        sums: BlockSums,
        index: IndexBuilder,
    ) -> Self {
        Self {
            size: view.size(),
            flushed_size: view.size(),
            end: view.end(),
            times,
            sums,
            index,
            dirty: None,
            view,
        }
    }

    /// Appends the slices with one write. The view is not moved: see `publish`.
    /// After an error some of the bytes may be in the file; `cut_back` removes them.
    pub(crate) fn write(&mut self, folder: &LogFolder, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let open = match &self.dirty {
            Some(open) => Arc::clone(open),
            None => self.view.open(folder)?,
        };
        self.dirty = Some(Arc::clone(&open));
        open.file.write_at(slices, self.size)?;
        for slice in slices {
            self.sums.extend(slice);
        }
        Ok(())
    }

    /// Removes what a failed write left behind.
    pub(crate) fn cut_back(&mut self, folder: &LogFolder) -> io::Result<()> {
        self.view.open(folder)?.file.set_len(self.size)
    }

    /// After the write returned: readers may see it.
    pub(crate) fn publish(&mut self, written: &Written) {
        self.size += written.bytes;
        self.end = written.end;
        if self.times.first_append == TimestampMs::NONE {
            self.times.first_append = written.append_time;
        }
        self.times.last_append = self.times.last_append.max(written.append_time);
        self.times.max_timestamp = self.times.max_timestamp.max(written.max_timestamp);
        self.view.publish(self.size, self.end, self.times);
    }

    /// The file while bytes in it are unflushed.
    pub(crate) fn dirty(&self) -> Option<&Arc<OpenSegment>> {
        self.dirty.as_ref()
    }

    /// A flush up to `size` is done; later bytes keep the file dirty.
    pub(crate) fn flushed(&mut self, size: u64) {
        self.flushed_size = size;
        if self.size == size {
            self.dirty = None;
        }
    }

    /// State for a `sessions` file at the segment's end.
    pub(crate) fn state(&self) -> SegmentState {
        SegmentState {
            base: self.view.base,
            position: self.size,
            first_append: self.times.first_append,
            last_append: self.times.last_append,
            max_timestamp: self.times.max_timestamp,
            blocks: self.sums.blocks().to_vec(),
        }
    }

    /// Nothing is written to it any more; `sessions` is the state at its end.
    pub(crate) fn roll(self, sessions: SessionsFile) -> ClosingSegment {
        ClosingSegment {
            view: self.view,
            times: self.times,
            sums: self.sums,
            sessions: Arc::new(sessions),
            dirty: self.dirty,
        }
    }
}

/// Rolled, not yet flushed and sealed.
pub(crate) struct ClosingSegment {
    pub view: Arc<SegmentView>,
    pub times: Times,
    pub sums: BlockSums,
    pub sessions: Arc<SessionsFile>,
    pub dirty: Option<Arc<OpenSegment>>,
}

impl SegmentState {
    /// State of a segment that will begin at `base`.
    pub(crate) fn empty(base: Offset) -> Self {
        Self {
            base,
            position: 0,
            first_append: TimestampMs::NONE,
            last_append: TimestampMs::NONE,
            max_timestamp: TimestampMs::NONE,
            blocks: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sums_do_not_depend_on_how_the_bytes_arrive() {
        let bytes: Vec<u8> = (0..200_000u32).map(|n| (n * 31 % 251) as u8).collect();
        let expected: Vec<u32> = bytes
            .chunks(BLOCK_BYTES as usize)
            .map(crc32c::crc32c)
            .collect();
        for step in [1, 7, 4096, 65_535, 65_536, 65_537, 200_000] {
            let mut sums = BlockSums::default();
            bytes.chunks(step).for_each(|chunk| sums.extend(chunk));
            assert_eq!(sums.blocks(), expected, "step {step}");
        }
        // Saved in the middle of a block, and at its end, and resumed.
        for saved_at in [100_000, 131_072] {
            let mut sums = BlockSums::default();
            sums.extend(&bytes[..saved_at]);
            let mut resumed =
                BlockSums::resume(saved_at as u64, sums.blocks().to_vec()).expect("fits");
            resumed.extend(&bytes[saved_at..]);
            assert_eq!(resumed.blocks(), expected);
        }
        assert_eq!(
            BlockSums::resume(100_000, vec![0]),
            None,
            "one block cannot cover 100,000 bytes"
        );
    }
}
