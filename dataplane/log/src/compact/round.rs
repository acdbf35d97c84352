//! One round of compaction, on a thread that may wait for the disk.

use super::{
    filter::{Fate, Filter},
    keys::{Full, KeyMap},
    output::{Output, Written},
};
use crate::{
    config::CompactionConfig,
    error::is_full,
    names,
    reader::LogReader,
    segment::SegmentView,
    sidecar::{self, seal::Cleaned, sessions::SessionsFile},
    verify::bad_blocks,
    walk::{DATA_CHUNK, Step, Walker},
};
use bytes::Bytes;
use std::{
    collections::HashSet,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use talweg_batch::{BatchError, Encoders, Records};
use talweg_types::{Offset, TimestampMs, limits};
use thiserror::Error;

/// Index entries of one segment; a large one gets them further apart.
const INDEX_ENTRIES_MAX: u64 = 16 * 1024;

/// What a round works on.
pub(super) struct Plan {
    pub views: Vec<Arc<SegmentView>>,
    pub first_dirty: Offset,
    pub config: CompactionConfig,
    pub segment_bytes: u64,
    pub index_interval_bytes: u64,
    /// `None` while the clock is not trusted.
    pub now: Option<TimestampMs>,
}

/// A round that is out. `Send`; give it back with `compaction_done`, run or not.
pub struct Compaction {
    pub(super) shared: Arc<LogReader>,
    plan: Plan,
    cancelled: Arc<AtomicBool>,
    replaced: Vec<Replaced>,
}

/// On disk already; not yet seen by readers.
pub(super) struct Replaced {
    pub old: Vec<Arc<SegmentView>>,
    pub new: Arc<SegmentView>,
}

/// What a round did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CompactionReport {
    /// Bytes of the segments that were replaced, before and after.
    pub bytes_before: u64,
    pub bytes_after: u64,
    pub removed_records: u64,
    pub segments_before: u64,
    pub segments_after: u64,
    /// Exclusive: below it each key has one record now.
    pub cleaned_end: Offset,
    /// The map of keys was full before the end of what may be compacted.
    pub map_was_full: bool,
}

/// Why a round ended early. Segments replaced until then stay replaced, and the
/// log is whole; another round may be tried later.
#[derive(Debug, Error)]
pub enum CompactionError {
    #[error("cancelled")]
    Cancelled,
    #[error("no room for a rewritten segment")]
    DiskFull,
    /// Damage is left as it is, and nothing around it is compacted.
    #[error("segment {segment} is damaged at offset {offset}")]
    Damaged { segment: Offset, offset: Offset },
    #[error("batch at offset {offset}: {source}")]
    Batch { offset: Offset, source: BatchError },
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
}

impl Compaction {
    pub(super) fn new(shared: Arc<LogReader>, plan: Plan, cancelled: Arc<AtomicBool>) -> Self {
        Self {
            shared,
            plan,
            cancelled,
            replaced: Vec::new(),
        }
    }

    pub(super) fn into_replaced(self) -> Vec<Replaced> {
        self.replaced
    }

    /// Does the work; waits for the disk. Once. Ends early when `stop` says so.
    pub fn run(&mut self, stop: &dyn Fn() -> bool) -> Result<CompactionReport, CompactionError> {
        let filter = self.read_keys(stop)?;
        let mut report = CompactionReport {
            cleaned_end: filter.mapped_end,
            map_was_full: filter.mapped_end < self.end(),
            ..CompactionReport::default()
        };
        let mut left: Vec<_> = self.plan.views.clone();
        left.retain(|view| view.base < filter.mapped_end);
        while let Some(first) = left.first().cloned() {
            match self.replace(&left, &filter, stop, &mut report) {
                Ok(done) => drop(left.drain(..done)),
                Err(error) => {
                    self.clean_up(&first, &error);
                    return Err(error);
                }
            }
        }
        Ok(report)
    }

    fn end(&self) -> Offset {
        self.plan
            .views
            .last()
            .map_or(Offset::ZERO, |view| view.end())
    }

    /// The map, and all else that the filter asks.
    fn read_keys(&self, stop: &dyn Fn() -> bool) -> Result<Filter, CompactionError> {
        let (first, end) = (self.plan.first_dirty, self.end());
        let offsets = u64::try_from(end.0 - first.0).unwrap_or(0);
        let mut keys = KeyMap::new(self.plan.config.map_bytes, offsets);
        let mut mapped_end = end;
        for view in self.plan.views.iter().filter(|view| view.end() > first) {
            let full = self.batches(view, stop, &mut |header, batch| {
                if header.is_control() || header.next_offset() <= first {
                    return Ok(None);
                }
                let failed = |source| CompactionError::Batch {
                    offset: header.base_offset,
                    source,
                };
                let most = limits::UNPACKED_BATCH_BYTES_MAX as usize;
                for record in Records::new(&batch, most).map_err(failed)? {
                    let record = record.map_err(failed)?;
                    let offset = header.base_offset.plus(i64::from(record.offset_delta));
                    let Some(key) = record.key.filter(|_| offset >= first) else {
                        continue;
                    };
                    if keys.insert(&key, offset) == Err(Full) {
                        return Ok(Some(offset));
                    }
                }
                Ok(None)
            })?;
            if let Some(offset) = full {
                mapped_end = offset;
                break;
            }
        }
        Ok(Filter {
            keys,
            first_dirty: first,
            mapped_end,
            remembered: self.remembered(end),
            now: self.plan.now,
            delete_retention_ms: self.plan.config.delete_retention_ms,
        })
    }

    /// Batches in the memory of producer sessions where the sealed head ends; `None`
    /// where no file says so, as after a crash between a roll and its seal.
    fn remembered(&self, end: Offset) -> Option<HashSet<i64>> {
        let path = names::path(&self.shared.dir, end, names::SESSIONS);
        match sidecar::read::<SessionsFile>(&*self.shared.folder.fs, &path) {
            Ok(file) => file.map(|file| {
                let batches = file.sessions.iter().flat_map(|session| &session.batches);
                batches.map(|batch| batch.base_offset.0).collect()
            }),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "producer state not readable; compaction keeps what every producer has sent");
                None
            }
        }
    }

    /// Every batch of a segment, its checksum checked, until `visit` has an answer.
    fn batches<T>(
        &self,
        view: &SegmentView,
        stop: &dyn Fn() -> bool,
        visit: &mut dyn FnMut(
            talweg_batch::BatchHeader,
            Bytes,
        ) -> Result<Option<T>, CompactionError>,
    ) -> Result<Option<T>, CompactionError> {
        let io = |error| self.io("reading", view, error);
        let damaged = |offset| CompactionError::Damaged {
            segment: view.base,
            offset,
        };
        let open = view.open(&self.shared.folder).map_err(io)?;
        let mut walk = Walker::new(&*open.file, 0, view.size(), view.base, DATA_CHUNK);
        loop {
            if self.cancelled.load(Ordering::Acquire) || stop() {
                return Err(CompactionError::Cancelled);
            }
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

    /// Rewrites the first of `views` and as many more as fit into one segment, and
    /// puts that in their place. Returns how many they were.
    fn replace(
        &mut self,
        views: &[Arc<SegmentView>],
        filter: &Filter,
        stop: &dyn Fn() -> bool,
        report: &mut CompactionReport,
    ) -> Result<usize, CompactionError> {
        self.check_room(views)?;
        let (written, removed, count) = self.write(views, filter, stop)?;
        let group = views.get(..count).unwrap_or(views);
        let new = self.put_in_place(group, &written)?;
        report.bytes_before += group.iter().map(|view| view.size()).sum::<u64>();
        report.bytes_after += written.seal.bytes;
        report.removed_records += removed;
        report.segments_before += group.len() as u64;
        report.segments_after += 1;
        self.replaced.push(Replaced {
            old: group.to_vec(),
            new,
        });
        Ok(count)
    }

    fn check_room(&self, views: &[Arc<SegmentView>]) -> Result<(), CompactionError> {
        let first = views.first().map_or(0, |view| view.size());
        let all: u64 = views.iter().map(|view| view.size()).sum();
        let most = all.min(self.plan.segment_bytes.max(first));
        let folder = &self.shared.folder;
        let full = match folder.fs.space(&folder.root) {
            Ok(space) => space.free_bytes < folder.reserve(space).saturating_add(most),
            // Unknown: the write will say.
            Err(_) => false,
        };
        if full || folder.is_full() {
            return Err(CompactionError::DiskFull);
        }
        Ok(())
    }

    /// No flipped byte may get a new checksum: also those count that no batch's
    /// own checksum covers.
    fn check_source(&self, view: &SegmentView) -> Result<(), CompactionError> {
        let io = |error| self.io("reading", view, error);
        let open = view.open(&self.shared.folder).map_err(io)?;
        let bad = match self.shared.seal_of(view, &open) {
            Some(seal) => !bad_blocks(&*open.file, &seal).map_err(io)?.is_empty(),
            None => false,
        };
        if !bad && !view.has_damage() {
            return Ok(());
        }
        let damage = view.damage.read();
        let offset = damage.ranges.first().map_or(view.base, |range| range.start);
        Err(CompactionError::Damaged {
            segment: view.base,
            offset,
        })
    }

    /// The new segment, the records that did not get into it, and how many of
    /// `views` it holds.
    fn write(
        &self,
        views: &[Arc<SegmentView>],
        filter: &Filter,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Written, u64, usize), CompactionError> {
        let fs = &*self.shared.folder.fs;
        let dir = &self.shared.dir;
        let Some(first) = views.first() else {
            return Err(CompactionError::Cancelled);
        };
        let io = |error| self.io("rewriting", first, error);
        let segment_bytes = self.plan.segment_bytes;
        let interval = self.plan.index_interval_bytes;
        let interval = interval.max(segment_bytes.max(first.size()) / INDEX_ENTRIES_MAX);
        let mut output = Output::create(fs, dir, first.base, interval).map_err(io)?;
        let mut encoders = Encoders::new();
        let (mut removed, mut count) = (0, 0);
        let mut cleaned = Cleaned {
            revision: 0,
            end: filter.mapped_end,
            next_horizon: Cleaned::NO_TOMBSTONE,
        };
        let mut end = first.base;
        for view in views {
            if count > 0 && output.bytes() + view.size() > segment_bytes {
                break;
            }
            self.check_source(view)?;
            let times = view.times(fs).map_err(io)?;
            output.covers(times);
            self.batches(view, stop, &mut |header, batch| {
                let judged = filter.judge(&header, &batch, &mut encoders);
                let judged = judged.map_err(|source| CompactionError::Batch {
                    offset: header.base_offset,
                    source,
                })?;
                removed += judged.removed;
                let horizon = judged.next_horizon.unwrap_or(Cleaned::NO_TOMBSTONE);
                cleaned.next_horizon = cleaned.next_horizon.min(horizon);
                match judged.fate {
                    Fate::AsItIs => output.batch(&batch, times),
                    Fate::Rewritten(bytes) => output.batch(&bytes, times),
                    Fate::Gone => output.emptied(&header),
                }
                .map_err(io)?;
                Ok(None::<()>)
            })?;
            cleaned.revision = cleaned.revision.max(self.shared.revision_of(view));
            (count, end) = (count + 1, view.end());
        }
        cleaned.revision = cleaned.revision.saturating_add(1);
        cleaned.end = cleaned.end.min(end);
        let written = output.finish(fs, dir, end, cleaned).map_err(io)?;
        Ok((written, removed, count))
    }

    fn io(&self, what: &str, view: &SegmentView, error: io::Error) -> CompactionError {
        if is_full(&error) {
            return CompactionError::DiskFull;
        }
        self.shared.folder.fail_on_io(&error);
        CompactionError::Io {
            what: format!("{what} {}", view.path.display()),
            source: error,
        }
    }
}
