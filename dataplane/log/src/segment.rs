//! A segment as readers see it: `<20-digit base offset>.log`, record batches
//! back to back from byte 0, nothing else.
//!
//! ```text
//! 0            position of a batch                     size
//! | batch base | batch | batch | … | batch (last bytes) |      append only
//! ```
//! The view is shared and only its owner moves its numbers: first the size and
//! then the end offset, after a write has returned, so that whoever sees an
//! offset also sees its bytes. Damage that was found stays listed here.

use crate::{
    fd_cache::OpenSegment,
    folder::LogFolder,
    fs::LogFs,
    names,
    sidecar::{
        self,
        seal::{Cleaned, SealFile, SealedDamage},
    },
};
use parking_lot::{Mutex, RwLock};
use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};
use talweg_types::{Offset, TimestampMs};

/// Not known without opening the file or its seal.
const UNKNOWN_SIZE: u64 = u64::MAX;
const UNKNOWN_TIME: i64 = i64::MIN;
/// Positions where sequential readers will go on.
const HINTS: usize = 8;

/// What times a segment covers; [`TimestampMs::NONE`] when it is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Times {
    pub first_append: TimestampMs,
    pub last_append: TimestampMs,
    pub max_timestamp: TimestampMs,
}

impl Times {
    pub(crate) const NONE: Self = Self {
        first_append: TimestampMs::NONE,
        last_append: TimestampMs::NONE,
        max_timestamp: TimestampMs::NONE,
    };
}

/// Damage known of a segment, in order.
#[derive(Default)]
pub(crate) struct Damage {
    pub ranges: Vec<SealedDamage>,
    /// Blocks whose checksum is known not to fit; their good batches serve.
    pub bad_blocks: Vec<usize>,
}

pub(crate) struct SegmentView {
    pub base: Offset,
    pub path: PathBuf,
    size: AtomicU64,
    end: AtomicI64,
    sealed: AtomicBool,
    /// Bytes from here on were written or fully checked by this process; for a
    /// sealed segment the seal decides instead.
    trusted_from: AtomicU64,
    first_append: AtomicI64,
    last_append: AtomicI64,
    max_timestamp: AtomicI64,
    pub damage: RwLock<Damage>,
    open: Mutex<Weak<OpenSegment>>,
    hints: Mutex<Hints>,
    /// What compaction made of it, once its seal was looked at.
    cleaned: OnceLock<Option<Cleaned>>,
    /// Set when other bytes take this segment's name: its own file, which readers
    /// that still hold the view go on reading.
    replaced: OnceLock<Arc<OpenSegment>>,
}

#[derive(Default)]
struct Hints {
    entries: [(i64, u64); HINTS],
    next: usize,
}

impl SegmentView {
    /// A segment that this process writes or has scanned up to `size`.
    pub(crate) fn open_ended(
        folder: &Path,
        base: Offset,
        end: Offset,
        size: u64,
        times: Times,
    ) -> Self {
        let view = Self::listed(folder, base, end);
        view.size.store(size, Ordering::Release);
        view.set_times(times);
        view
    }

    /// A sealed segment of which only the name is known.
    pub(crate) fn listed(folder: &Path, base: Offset, end: Offset) -> Self {
        Self {
            base,
            path: names::path(folder, base, names::SEGMENT),
            size: AtomicU64::new(UNKNOWN_SIZE),
            end: AtomicI64::new(end.0),
            sealed: AtomicBool::new(false),
            trusted_from: AtomicU64::new(u64::MAX),
            first_append: AtomicI64::new(UNKNOWN_TIME),
            last_append: AtomicI64::new(UNKNOWN_TIME),
            max_timestamp: AtomicI64::new(UNKNOWN_TIME),
            damage: RwLock::new(Damage::default()),
            open: Mutex::new(Weak::new()),
            hints: Mutex::new(Hints::default()),
            cleaned: OnceLock::new(),
            replaced: OnceLock::new(),
        }
    }

    /// A sealed segment with its seal.
    pub(crate) fn sealed_as(folder: &Path, seal: &SealFile) -> Self {
        let times = Times {
            first_append: seal.first_append,
            last_append: seal.last_append,
            max_timestamp: seal.max_timestamp,
        };
        let view = Self::open_ended(folder, seal.base, seal.end, seal.bytes, times);
        // Nobody else has it yet.
        let _ = view.cleaned.set(seal.cleaned);
        view.set_sealed();
        view
    }

    /// What compaction made of a sealed segment; may read its seal.
    pub(crate) fn cleaned(&self, fs: &dyn LogFs) -> Option<Cleaned> {
        *self
            .cleaned
            .get_or_init(|| self.read_seal(fs).and_then(|seal| seal.cleaned))
    }

    /// As its seal says, for whoever has just read it.
    pub(crate) fn note_cleaned(&self, cleaned: Option<Cleaned>) {
        // The seal of one file says one thing.
        let _ = self.cleaned.set(cleaned);
    }

    /// Other bytes are about to take its name: readers that hold the view keep
    /// its own file, and no index entry is for it any more.
    pub(crate) fn set_replaced(&self, open: Arc<OpenSegment>) {
        // The same segment is replaced once.
        let _ = self.replaced.set(open);
    }

    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.get().is_some()
    }

    /// One past the last offset that belongs to the segment.
    pub(crate) fn end(&self) -> Offset {
        Offset(self.end.load(Ordering::Acquire))
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    pub(crate) fn set_sealed(&self) {
        self.sealed.store(true, Ordering::Release);
    }

    pub(crate) fn trusted_from(&self) -> u64 {
        self.trusted_from.load(Ordering::Acquire)
    }

    pub(crate) fn set_trusted_from(&self, position: u64) {
        self.trusted_from.store(position, Ordering::Release);
    }

    /// After a write has returned: publishes its bytes, then its offsets.
    pub(crate) fn publish(&self, size: u64, end: Offset, times: Times) {
        self.set_times(times);
        self.size.store(size, Ordering::Release);
        self.end.store(end.0, Ordering::Release);
    }

    fn set_times(&self, times: Times) {
        self.first_append
            .store(times.first_append.0, Ordering::Relaxed);
        self.last_append
            .store(times.last_append.0, Ordering::Relaxed);
        self.max_timestamp
            .store(times.max_timestamp.0, Ordering::Release);
    }

    /// The times if they are known without reading a file.
    pub(crate) fn known_times(&self) -> Option<Times> {
        let max_timestamp = self.max_timestamp.load(Ordering::Acquire);
        (max_timestamp != UNKNOWN_TIME).then(|| Times {
            first_append: TimestampMs(self.first_append.load(Ordering::Relaxed)),
            last_append: TimestampMs(self.last_append.load(Ordering::Relaxed)),
            max_timestamp: TimestampMs(max_timestamp),
        })
    }

    /// The times, from the seal when they are not in memory. Without a seal
    /// that can be believed: the file's time of change, and a largest record
    /// timestamp that excludes nothing.
    pub(crate) fn times(&self, fs: &dyn LogFs) -> io::Result<Times> {
        if let Some(times) = self.known_times() {
            return Ok(times);
        }
        let times = match self.read_seal(fs) {
            Some(seal) => {
                self.add_damage(&seal.damage);
                self.size.store(seal.bytes, Ordering::Release);
                Times {
                    first_append: seal.first_append,
                    last_append: seal.last_append,
                    max_timestamp: seal.max_timestamp,
                }
            }
            None => {
                let changed = TimestampMs(fs.open(&self.path, false)?.modified_ms()?);
                Times {
                    first_append: changed,
                    last_append: changed,
                    max_timestamp: TimestampMs(i64::MAX),
                }
            }
        };
        self.set_times(times);
        Ok(times)
    }

    /// The seal, if it can be read and is this segment's.
    pub(crate) fn read_seal(&self, fs: &dyn LogFs) -> Option<Arc<SealFile>> {
        let path = self.path.with_extension(names::SEAL);
        match sidecar::read::<SealFile>(fs, &path) {
            Ok(Some(seal)) if seal.base == self.base && seal.end == self.end() => {
                Some(Arc::new(seal))
            }
            Ok(None) => None,
            Ok(Some(seal)) => {
                tracing::warn!(path = %path.display(), base = %seal.base, end = %seal.end, "seal does not fit its segment");
                None
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "seal cannot be read");
                None
            }
        }
    }

    /// The open file, opened if need be (waits for the disk).
    pub(crate) fn open(&self, folder: &LogFolder) -> io::Result<Arc<OpenSegment>> {
        let mut slot = self.open.lock();
        if let Some(open) = slot.upgrade() {
            folder.files.touch(&open);
            return Ok(open);
        }
        let open = Arc::new(OpenSegment::new(folder.fs.open(&self.path, false)?));
        if self.size.load(Ordering::Acquire) == UNKNOWN_SIZE {
            self.size.store(open.file.len()?, Ordering::Release);
        }
        *slot = Arc::downgrade(&open);
        drop(slot);
        folder.files.insert(&open);
        Ok(open)
    }

    /// The open file if it is open; never waits.
    pub(crate) fn opened(&self, folder: &LogFolder) -> Option<Arc<OpenSegment>> {
        let open = self.open.try_lock()?.upgrade()?;
        folder.files.touch(&open);
        Some(open)
    }

    /// Makes the file and opens it.
    pub(crate) fn create(&self, folder: &LogFolder) -> io::Result<Arc<OpenSegment>> {
        let file = folder.fs.open(&self.path, true)?;
        // Left-overs under this name were never part of the log.
        if file.len()? != 0 {
            file.set_len(0)?;
        }
        let open = Arc::new(OpenSegment::new(file));
        *self.open.lock() = Arc::downgrade(&open);
        folder.files.insert(&open);
        Ok(open)
    }

    /// Lets the cache go of the file.
    pub(crate) fn release(&self, folder: &LogFolder) {
        if let Some(open) = self.open.lock().upgrade() {
            folder.files.forget(&open);
        }
    }

    /// Bytes of the file; known once it is open.
    pub(crate) fn size(&self) -> u64 {
        match self.size.load(Ordering::Acquire) {
            UNKNOWN_SIZE => 0,
            size => size,
        }
    }

    /// Bytes of the file, asking the file system if nothing is known.
    pub(crate) fn size_or_ask(&self, fs: &dyn LogFs) -> io::Result<u64> {
        if self.size.load(Ordering::Acquire) == UNKNOWN_SIZE {
            let len = fs.open(&self.path, false)?.len()?;
            self.size.store(len, Ordering::Release);
        }
        Ok(self.size())
    }

    /// Remembers where `offset` begins, for the reader that goes on there.
    pub(crate) fn hint(&self, offset: Offset, position: u64) {
        let mut hints = self.hints.lock();
        if hints.entries.contains(&(offset.0, position)) {
            return;
        }
        let slot = hints.next % HINTS;
        hints.entries[slot] = (offset.0, position);
        hints.next = slot + 1;
    }

    pub(crate) fn hinted(&self, offset: Offset) -> Option<u64> {
        if offset == self.base {
            return Some(self.past_lost_bytes(0));
        }
        let hints = self.hints.lock();
        let known = hints
            .entries
            .iter()
            .find(|(known, position)| *known == offset.0 && *position > 0)
            .map(|entry| entry.1);
        drop(hints);
        known.map(|position| self.past_lost_bytes(position))
    }

    /// Damage may take bytes and no offset: what was at `position` follows
    /// behind it.
    fn past_lost_bytes(&self, mut position: u64) -> u64 {
        let damage = self.damage.read();
        let lost = |range: &&SealedDamage, at: u64| {
            range.start == range.end && range.start_position == at && range.end_position > at
        };
        while let Some(range) = damage.ranges.iter().find(|range| lost(range, position)) {
            position = range.end_position;
        }
        position
    }

    /// Lists damage, keeping order and dropping what is known.
    pub(crate) fn add_damage(&self, found: &[SealedDamage]) {
        if found.is_empty() {
            return;
        }
        let ranges = &mut self.damage.write().ranges;
        ranges.extend(
            found.iter().filter(|range| {
                range.start < range.end || range.start_position < range.end_position
            }),
        );
        ranges.sort_unstable_by_key(|range| (range.start_position, range.end_position));
        ranges.dedup();
    }

    /// The damaged range that holds `offset`.
    pub(crate) fn damage_at(&self, offset: Offset) -> Option<SealedDamage> {
        let damage = self.damage.read();
        damage
            .ranges
            .iter()
            .find(|range| range.start <= offset && offset < range.end)
            .copied()
    }

    /// Anything at all is known to be wrong with it.
    pub(crate) fn has_damage(&self) -> bool {
        let damage = self.damage.read();
        !damage.ranges.is_empty() || !damage.bad_blocks.is_empty()
    }

    pub(crate) fn has_bad_blocks(&self) -> bool {
        !self.damage.read().bad_blocks.is_empty()
    }
}
