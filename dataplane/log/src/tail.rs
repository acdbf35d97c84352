//! The newest batches of a partition that is being tailed, kept as they were
//! written, so that any number of tailing readers share them without a call to
//! the system.
//!
//! Nothing is kept until a reader has waited at the log's end, and no longer
//! than readers do. What is kept is bounded per partition and per folder; when
//! there is no room the page cache serves, as it does for everything older.

use crate::{folder::LogFolder, segment::SegmentView};
use bytes::Bytes;
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};
use talweg_types::Offset;

/// Bytes kept per partition (more only for a single write).
const PARTITION_BYTES: usize = 4 << 20;
/// Writes that are kept after a reader was last seen at the end.
const KEEP_WRITES: u32 = 64;
/// A piece smaller than this is left to a larger read, unless it is the last.
const WORTH_BYTES: usize = 64 << 10;

#[derive(Default)]
pub(crate) struct Tail {
    /// Counts down with each write that is kept.
    wanted: AtomicU32,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    pieces: VecDeque<Piece>,
    bytes: usize,
}

/// What one write put behind the log's end.
#[derive(Clone)]
pub(crate) struct Piece {
    pub view: Arc<SegmentView>,
    /// The byte position of the first batch in its segment.
    pub position: u64,
    pub base: Offset,
    /// One past the last offset.
    pub end: Offset,
    pub batches: Bytes,
}

impl Tail {
    /// A reader waits at the log's end.
    pub(crate) fn want(&self) {
        self.wanted.store(KEEP_WRITES, Ordering::Relaxed);
    }

    /// Whether the write that follows should be kept.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kept.lock().pieces.is_empty()
    }

    /// Keeps what a write added; called before the log's end moves past it.
    pub(crate) fn push(&self, folder: &LogFolder, piece: Piece) {
        self.wanted.store(
            self.wanted.load(Ordering::Relaxed).saturating_sub(1),
            Ordering::Relaxed,
        );
        let size = piece.batches.len();
        let mut kept = self.kept.lock();
        if kept
            .pieces
            .back()
            .is_some_and(|last| last.end != piece.base)
        {
            kept.clear(folder);
        }
        while !kept.pieces.is_empty() && kept.bytes + size > PARTITION_BYTES {
            kept.drop_first(folder);
        }
        if folder.tail_used.fetch_add(size, Ordering::Relaxed) + size > folder.options.tail_bytes {
            folder.tail_used.fetch_sub(size, Ordering::Relaxed);
            kept.clear(folder);
            return;
        }
        kept.bytes += size;
        kept.pieces.push_back(piece);
    }

    /// The piece that holds `from`, if it is worth an answer of its own.
    pub(crate) fn get(&self, from: Offset, max_bytes: usize) -> Option<Piece> {
        let kept = self.kept.lock();
        if kept.pieces.front()?.base > from {
            return None;
        }
        let after = kept.pieces.partition_point(|piece| piece.base <= from);
        let piece = kept
            .pieces
            .get(after.checked_sub(1)?)
            .filter(|piece| from < piece.end)?;
        let worth = after == kept.pieces.len() || piece.batches.len() >= WORTH_BYTES.min(max_bytes);
        worth.then(|| piece.clone())
    }

    /// Nobody tails any more, or the log was cut.
    pub(crate) fn clear(&self, folder: &LogFolder) {
        self.kept.lock().clear(folder);
    }
}

impl Kept {
    fn drop_first(&mut self, folder: &LogFolder) {
        if let Some(piece) = self.pieces.pop_front() {
            self.bytes -= piece.batches.len();
            folder
                .tail_used
                .fetch_sub(piece.batches.len(), Ordering::Relaxed);
        }
    }

    fn clear(&mut self, folder: &LogFolder) {
        folder.tail_used.fetch_sub(self.bytes, Ordering::Relaxed);
        *self = Self::default();
    }
}
