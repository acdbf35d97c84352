//! One round of compaction, on a thread that may wait for the disk.

use super::{
    filter::{Fate, Filter},
    keys::{Full, KeyMap},
};
use crate::{
    config::CompactionConfig,
    names,
    rewrite::{
        Rewrite, RewriteError, index_interval,
        output::{Output, Written},
    },
    segment::SegmentView,
    sidecar::{self, seal::Cleaned, sessions::SessionsFile},
    verify::bad_blocks,
};
use std::{collections::HashSet, sync::Arc};
use talweg_batch::{Encoders, Records};
use talweg_types::{Offset, TimestampMs, limits};

/// What a round works on.
pub(super) struct Plan {
    pub views: Vec<Arc<SegmentView>>,
    pub first_dirty: Offset,
    pub config: CompactionConfig,
    pub segment_bytes: u64,
    pub index_interval_bytes: u32,
    /// `None` while the clock is not trusted.
    pub now: Option<TimestampMs>,
}

/// A round that is out. `Send`; give it back with `rewrite_done`, run or not.
pub struct Compaction {
    rewrite: Rewrite,
    plan: Plan,
}

impl From<Compaction> for Rewrite {
    fn from(round: Compaction) -> Self {
        round.rewrite
    }
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

impl Compaction {
    pub(super) fn new(rewrite: Rewrite, plan: Plan) -> Self {
        Self { rewrite, plan }
    }

    /// Does the work; waits for the disk. Once. Ends early when `stop` says so.
    pub fn run(&mut self, stop: &dyn Fn() -> bool) -> Result<CompactionReport, RewriteError> {
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
                    self.rewrite.clean_up(first.base, &error);
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
    fn read_keys(&self, stop: &dyn Fn() -> bool) -> Result<Filter, RewriteError> {
        let (first, end) = (self.plan.first_dirty, self.end());
        let offsets = u64::try_from(end.0 - first.0).unwrap_or(0);
        let mut keys = KeyMap::new(self.plan.config.map_bytes, offsets);
        let mut mapped_end = end;
        for view in self.plan.views.iter().filter(|view| view.end() > first) {
            let full = self
                .rewrite
                .batches(view, Vec::new(), stop, &mut |header, batch| {
                    if header.is_control() || header.next_offset() <= first {
                        return Ok(None);
                    }
                    let failed = |source| RewriteError::Batch {
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
        let path = names::path(&self.rewrite.shared.dir, end, names::SESSIONS);
        match sidecar::read::<SessionsFile>(&*self.rewrite.shared.folder.fs, &path) {
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

    /// Rewrites the first of `views` and as many more as fit into one segment, and
    /// puts that in their place. Returns how many they were.
    fn replace(
        &mut self,
        views: &[Arc<SegmentView>],
        filter: &Filter,
        stop: &dyn Fn() -> bool,
        report: &mut CompactionReport,
    ) -> Result<usize, RewriteError> {
        let first = views.first().map_or(0, |view| view.size());
        let all: u64 = views.iter().map(|view| view.size()).sum();
        let most = all.min(self.plan.segment_bytes.max(first));
        self.rewrite.check_room(most)?;
        let (written, removed, count) = self.write(views, filter, stop)?;
        let group = views.get(..count).unwrap_or(views);
        let new = self.rewrite.put_in_place(group, &written)?;
        report.bytes_before += group.iter().map(|view| view.size()).sum::<u64>();
        report.bytes_after += written.seal.bytes;
        report.removed_records += removed;
        report.segments_before += group.len() as u64;
        report.segments_after += 1;
        self.rewrite.replaced(group.to_vec(), new);
        Ok(count)
    }

    /// No flipped byte may get a new checksum: also those count that no batch's
    /// own checksum covers.
    fn check_source(&self, view: &SegmentView) -> Result<(), RewriteError> {
        let io = |error| self.rewrite.io("reading", view, error);
        let open = view.open(&self.rewrite.shared.folder).map_err(io)?;
        let bad = match self.rewrite.shared.seal_of(view, &open) {
            Some(seal) => !bad_blocks(&*open.file, &seal).map_err(io)?.is_empty(),
            None => false,
        };
        if !bad && !view.has_damage() {
            return Ok(());
        }
        self.rewrite.shared.assess(view, &open).map_err(io)?;
        let damage = view.damage.read();
        let offset = damage.ranges.first().map_or(view.base, |range| range.start);
        Err(RewriteError::Damaged {
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
    ) -> Result<(Written, u64, usize), RewriteError> {
        let fs = &*self.rewrite.shared.folder.fs;
        let dir = &self.rewrite.shared.dir;
        let Some(first) = views.first() else {
            return Err(RewriteError::Cancelled);
        };
        let io = |error| self.rewrite.io("rewriting", first, error);
        let segment_bytes = self.plan.segment_bytes;
        let configured = self.plan.index_interval_bytes;
        let interval = index_interval(configured, segment_bytes.max(first.size()));
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
            self.rewrite
                .batches(view, Vec::new(), stop, &mut |header, batch| {
                    let judged = filter.judge(&header, &batch, &mut encoders);
                    let judged = judged.map_err(|source| RewriteError::Batch {
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
            cleaned.revision = cleaned.revision.max(self.rewrite.shared.revision_of(view));
            (count, end) = (count + 1, view.end());
        }
        cleaned.revision = cleaned.revision.saturating_add(1);
        cleaned.end = cleaned.end.min(end);
        let written = output.finish(fs, dir, end, cleaned).map_err(io)?;
        Ok((written, removed, count))
    }
}
