//! Open segment files, a bounded number per folder.
//!
//! A segment remembers its open file weakly; the cache keeps it alive until it
//! is among the least recently used of too many. Whoever holds the handle (a
//! read under way, unflushed data) goes on using it: eviction only drops the
//! cache's own hold. What was verified about a file is forgotten with it.

use crate::{fs::LogFile, sidecar::seal::SealFile};
use parking_lot::Mutex;
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

/// An open segment file, and which of its blocks were found good since it was opened.
pub(crate) struct OpenSegment {
    pub file: Arc<dyn LogFile>,
    /// `None` inside: there is no seal that can be believed.
    pub seal: OnceLock<Option<Arc<SealFile>>>,
    verified: OnceLock<Box<[AtomicU64]>>,
    last_used: AtomicU64,
}

impl OpenSegment {
    pub(crate) fn new(file: Arc<dyn LogFile>) -> Self {
        Self {
            file,
            seal: OnceLock::new(),
            verified: OnceLock::new(),
            last_used: AtomicU64::new(0),
        }
    }

    fn bits(&self, blocks: usize) -> &[AtomicU64] {
        self.verified.get_or_init(|| {
            (0..blocks.div_ceil(64))
                .map(|_| AtomicU64::new(0))
                .collect()
        })
    }

    /// Whether block `index` of `blocks` was verified since the file was opened.
    pub(crate) fn is_verified(&self, index: usize, blocks: usize) -> bool {
        let word = self.bits(blocks).get(index / 64);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (index % 64) & 1 == 1)
    }

    pub(crate) fn set_verified(&self, index: usize, blocks: usize) {
        if let Some(word) = self.bits(blocks).get(index / 64) {
            word.fetch_or(1 << (index % 64), Ordering::Release);
        }
    }
}

/// The folder's holds on open segments.
pub(crate) struct FdCache {
    capacity: usize,
    clock: AtomicU64,
    held: Mutex<Vec<Arc<OpenSegment>>>,
}

impl FdCache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(16),
            clock: AtomicU64::new(1),
            held: Mutex::new(Vec::new()),
        }
    }

    /// Marks a use; cheap enough for every read.
    pub(crate) fn touch(&self, open: &OpenSegment) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        open.last_used.store(now, Ordering::Relaxed);
    }

    /// Takes a newly opened file into the cache; when it is full an eighth of
    /// the entries, the longest unused, are let go.
    pub(crate) fn insert(&self, open: &Arc<OpenSegment>) {
        self.touch(open);
        let mut evicted = Vec::new();
        let mut held = self.held.lock();
        if held.len() >= self.capacity {
            let keep = self.capacity - self.capacity / 8;
            held.sort_unstable_by_key(|entry| {
                std::cmp::Reverse(entry.last_used.load(Ordering::Relaxed))
            });
            evicted = held.split_off(keep);
        }
        held.push(Arc::clone(open));
        drop(held);
        // Files close here, outside the lock.
        drop(evicted);
    }

    /// Lets go of a file whose segment goes away.
    pub(crate) fn forget(&self, open: &Arc<OpenSegment>) {
        self.held.lock().retain(|entry| !Arc::ptr_eq(entry, open));
    }

    /// Open files held by the cache.
    pub(crate) fn len(&self) -> usize {
        self.held.lock().len()
    }
}
