//! Putting rewritten segments in the place of sealed ones, for compaction and repair.
//!
//! The owner of the log hands a [`Rewrite`] out inside a round of one or the other,
//! another thread does the work, the owner takes it back with
//! [`PartitionLog::rewrite_done`]. One is out at a time; meanwhile no segment leaves
//! the log, and cutting or deleting the log is refused. Readers of a replaced segment
//! keep its file.

pub(crate) mod output;
mod place;
pub(crate) mod swap;

use crate::{
    error::is_full,
    partition::PartitionLog,
    reader::LogReader,
    segment::SegmentView,
    sidecar::seal::SealedDamage,
    walk::{DATA_CHUNK, Step, Walker},
};
use bytes::Bytes;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use talweg_batch::{BatchError, BatchHeader};
use talweg_types::{LeaderEpoch, Offset};
use thiserror::Error;

/// Index entries of one segment; a large one gets them further apart.
const INDEX_ENTRIES_MAX: u64 = 16 * 1024;

/// Bytes of log between two index entries of a segment of so many bytes.
pub(crate) fn index_interval(configured: u32, segment_bytes: u64) -> u64 {
    u64::from(configured).max(segment_bytes / INDEX_ENTRIES_MAX)
}

/// Segments being rewritten. `Send`; goes back with `rewrite_done`, run or not.
pub struct Rewrite {
    pub(crate) shared: Arc<LogReader>,
    cancelled: Arc<AtomicBool>,
    replaced: Vec<Replaced>,
    /// Where leader epochs begin, as far as rewriting has shown it.
    epochs: Vec<(LeaderEpoch, Offset)>,
}

/// On disk already; not yet seen by readers.
struct Replaced {
    old: Vec<Arc<SegmentView>>,
    new: Arc<SegmentView>,
}

/// Why a rewrite ended early. Segments replaced until then stay replaced, and the
/// log is whole; another one may be tried later.
#[derive(Debug, Error)]
pub enum RewriteError {
    #[error("cancelled")]
    Cancelled,
    #[error("no room for a rewritten segment")]
    DiskFull,
    /// Nothing around damage is compacted.
    #[error("segment {segment} is damaged at offset {offset}")]
    Damaged { segment: Offset, offset: Offset },
    #[error("batch at offset {offset}: {source}")]
    Batch { offset: Offset, source: BatchError },
    /// The other replica did not give what a repair needs.
    #[error("offset {offset} from another replica: {reason}")]
    Source { offset: Offset, reason: String },
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
}

impl PartitionLog {
    /// Below this offset segments may be rewritten: committed, flushed, and so
    /// recorded that no recovery scans what will be replaced.
    pub(crate) fn rewritable_end(&self) -> Offset {
        let bounds = self.bounds();
        let recorded = self.disk.recorded.lock();
        let recorded = recorded
            .as_ref()
            .map_or(Offset::ZERO, |record| record.flushed_segment);
        let limits = [
            Some(bounds.last_stable),
            Some(bounds.flushed_end),
            Some(recorded),
            self.shared.index.first_pending(),
        ];
        limits.into_iter().flatten().min().unwrap_or_default()
    }

    /// From here on a rewrite is out.
    pub(crate) fn begin_rewrite(&mut self) -> Rewrite {
        let cancelled = Arc::new(AtomicBool::new(false));
        self.rewrite = Some(Arc::clone(&cancelled));
        Rewrite {
            shared: Arc::clone(&self.shared),
            cancelled,
            replaced: Vec::new(),
            epochs: Vec::new(),
        }
    }

    /// The rewrite that is out ends as soon as it can; it still has to come back.
    pub fn cancel_rewrite(&self) {
        if let Some(cancelled) = &self.rewrite {
            cancelled.store(true, Ordering::Release);
        }
    }

    /// Whether a rewrite is out.
    pub fn is_rewriting(&self) -> bool {
        self.rewrite.is_some()
    }

    /// Takes a round back: readers see the segments that it has replaced.
    pub fn rewrite_done(&mut self, round: impl Into<Rewrite>) {
        let rewrite = round.into();
        self.rewrite = None;
        if !rewrite.epochs.is_empty() {
            let mut epochs = self.shared.epochs.write();
            for (epoch, start) in rewrite.epochs {
                epochs.observe(epoch, start);
            }
            self.disk.record_due = true;
        }
        for replaced in rewrite.replaced {
            if !self.shared.replace_segments(&replaced.old, &replaced.new) {
                // Nothing else takes segments off the list meanwhile.
                self.folder.fail(&format!(
                    "{}: a rewritten segment has no place in the log",
                    self.tp
                ));
            }
            for view in &replaced.old {
                view.release(&self.folder);
            }
        }
        self.replay_repaired();
        // Segments that had to wait for the round.
        self.move_log_start(self.bounds().log_start);
    }
}

impl Rewrite {
    /// `new` is on disk in the place of `old`.
    pub(crate) fn replaced(&mut self, old: Vec<Arc<SegmentView>>, new: Arc<SegmentView>) {
        self.replaced.push(Replaced { old, new });
    }

    /// Where epochs begin in bytes that this log did not have.
    pub(crate) fn learned(&mut self, epochs: Vec<(LeaderEpoch, Offset)>) {
        self.epochs.extend(epochs);
    }

    pub(crate) fn check_going(&self, stop: &dyn Fn() -> bool) -> Result<(), RewriteError> {
        match self.cancelled.load(Ordering::Acquire) || stop() {
            true => Err(RewriteError::Cancelled),
            false => Ok(()),
        }
    }

    /// Every batch of a segment outside the ranges `known` as damaged, its checksum
    /// checked, until `visit` has an answer.
    pub(crate) fn batches<T>(
        &self,
        view: &SegmentView,
        known: Vec<SealedDamage>,
        stop: &dyn Fn() -> bool,
        visit: &mut dyn FnMut(BatchHeader, Bytes) -> Result<Option<T>, RewriteError>,
    ) -> Result<Option<T>, RewriteError> {
        let io = |error| self.io("reading", view, error);
        let open = view.open(&self.shared.folder).map_err(io)?;
        let damaged = |offset| {
            // Met here first: found whole, and known from now on.
            if let Err(error) = self.shared.assess(view, &open) {
                tracing::warn!(segment = %view.path.display(), %error, "damage not assessed");
            }
            RewriteError::Damaged {
                segment: view.base,
                offset,
            }
        };
        // A file that was cut is shorter than its seal says.
        let size = view.size().min(open.file.len().map_err(io)?);
        let mut walk =
            Walker::new(&*open.file, 0, size, view.base, DATA_CHUNK).stepping_over(known);
        loop {
            self.check_going(stop)?;
            match walk.step().map_err(io)? {
                Step::End if walk.expected == view.end() => return Ok(None),
                Step::End | Step::Bad(_) => return Err(damaged(walk.expected)),
                Step::Batch(header, position) => {
                    if !walk.crc_fits(&header, position).map_err(io)? {
                        return Err(damaged(header.base_offset));
                    }
                    let bytes = walk.bytes(position, header.total_bytes()).map_err(io)?;
                    let bytes = Bytes::copy_from_slice(bytes);
                    if let Some(found) = visit(header, bytes)? {
                        return Ok(Some(found));
                    }
                }
            }
        }
    }

    /// DISK_FULL unless so many bytes fit above the reserve.
    pub(crate) fn check_room(&self, bytes: u64) -> Result<(), RewriteError> {
        let folder = &self.shared.folder;
        let full = match folder.fs.space(&folder.root) {
            Ok(space) => space.free_bytes < folder.reserve(space).saturating_add(bytes),
            // Unknown: the write will say.
            Err(_) => false,
        };
        if full || folder.is_full() {
            return Err(RewriteError::DiskFull);
        }
        Ok(())
    }

    pub(crate) fn io(&self, what: &str, view: &SegmentView, error: io::Error) -> RewriteError {
        if is_full(&error) {
            return RewriteError::DiskFull;
        }
        self.shared.folder.fail_on_io(&error);
        RewriteError::Io {
            what: format!("{what} {}", view.path.display()),
            source: error,
        }
    }
}
