//! Filling in the index where the store has less than the log, step by step,
//! while the partition serves.
//!
//! The store's meta entry says up to which offset its entries are complete.
//! Above that they may have a hole, up to where this process began to write
//! entries as it appended. A hole only makes look-ups scan further.

use crate::{
    index::{Floor, IndexBuilder, IndexState, RebuildCursor},
    kv::{KvError, KvOp},
    reader::LogReader,
    segment::SegmentView,
    walk::{HEADER_CHUNK, Step, Walker},
};
use std::{io, sync::atomic::Ordering};
use talweg_types::{Offset, TimestampMs};

impl LogReader {
    /// Whether [`Self::rebuild_index`] has work.
    pub fn index_incomplete(&self) -> bool {
        self.index.distrusted.load(Ordering::Acquire) || self.index.state.lock().hole_end.is_some()
    }

    /// Offsets below this are indexed in the store.
    pub fn index_valid_to(&self) -> Offset {
        self.index.state.lock().valid_to
    }

    /// Entries that are in memory only.
    pub fn index_pending(&self) -> usize {
        self.index.pending_len()
    }

    /// Indexes about `max_bytes` more of the log; for a worker thread. True
    /// while there is more to do now. An error leaves things as they were: the
    /// caller tries again a while later.
    pub fn rebuild_index(&self, interval_bytes: u32, max_bytes: u64) -> Result<bool, KvError> {
        // One rebuild at a time; a second caller has nothing to do.
        let Some(mut saved) = self.index.rebuild.try_lock() else {
            return Ok(false);
        };
        if self.index.distrusted.load(Ordering::Acquire) {
            self.drop_index()?;
            *saved = None;
        }
        let (valid_to, hole_end) = {
            let state = self.index.state.lock();
            match state.hole_end {
                Some(end) => (state.valid_to, end.min(self.bounds().flushed_end)),
                None => return Ok(false),
            }
        };
        let Some(mut cursor) = saved
            .take()
            .or_else(|| self.rebuild_start(valid_to.max(self.bounds().log_start)))
        else {
            return self.rebuilt_to(hole_end, Vec::new());
        };
        let mut ops = Vec::new();
        let mut left = max_bytes;
        while left > 0 && cursor.expected < hole_end {
            let Some(view) = self
                .segment_of(cursor.expected)
                .filter(|view| view.end() > cursor.expected)
            else {
                cursor.expected = hole_end;
                break;
            };
            if view.base != cursor.segment {
                cursor = self.rebuild_segment_start(&view);
            }
            if let Err(error) = self.rebuild_segment(
                &view,
                &mut cursor,
                hole_end,
                u64::from(interval_bytes),
                &mut left,
                &mut ops,
            ) {
                // Unreadable now: its part stays unindexed, reads will say why.
                tracing::warn!(partition = %self.tp, segment = %view.base, %error, "segment not indexed");
                cursor = RebuildCursor {
                    expected: view.end(),
                    ..self.rebuild_segment_start(&view)
                };
            }
        }
        if cursor.expected >= hole_end {
            return self.rebuilt_to(hole_end, ops);
        }
        let mut state = self.index.state.lock();
        ops.push(
            self.index
                .meta_op(self.generation.load(Ordering::Acquire), cursor.expected),
        );
        self.folder.index.write(ops)?;
        state.valid_to = cursor.expected;
        drop(state);
        *saved = Some(cursor);
        Ok(true)
    }

    /// Empties the store's part of this partition; all of the log is a hole then.
    fn drop_index(&self) -> Result<(), KvError> {
        let mut state = self.index.state.lock();
        self.folder.index.write(vec![self.index.drop_op()])?;
        let bounds = self.bounds();
        *state = IndexState {
            valid_to: bounds.log_start,
            hole_end: Some(bounds.log_end),
        };
        self.index.distrusted.store(false, Ordering::Release);
        Ok(())
    }

    /// Entries are complete up to `end`; the hole is closed if it ended there.
    fn rebuilt_to(&self, end: Offset, mut ops: Vec<KvOp>) -> Result<bool, KvError> {
        let mut state = self.index.state.lock();
        ops.push(
            self.index
                .meta_op(self.generation.load(Ordering::Acquire), end),
        );
        self.folder.index.write(ops)?;
        state.valid_to = end;
        if state.hole_end.is_some_and(|hole_end| hole_end <= end) {
            state.hole_end = None;
        }
        Ok(false)
    }

    /// Where to begin so that the running maximum of timestamps is right: the
    /// last time entry below, or the segment's start.
    fn rebuild_start(&self, from: Offset) -> Option<RebuildCursor> {
        let view = self.segment_of(from)?;
        let entry = self
            .index
            .stored_time_floor(&*self.folder.index, view.base, TimestampMs(i64::MAX))
            .ok()
            .flatten();
        let revision = self.revision_of(&view);
        let usable = |entry: &Floor| entry.offset <= from && entry.revision == revision;
        Some(match entry.filter(usable) {
            Some(Floor {
                offset,
                position,
                max_before,
                ..
            }) => RebuildCursor {
                position,
                expected: offset,
                builder: IndexBuilder::resume(view.base, position, max_before)
                    .of_revision(revision),
                segment: view.base,
            },
            None => self.rebuild_segment_start(&view),
        })
    }

    fn rebuild_segment_start(&self, view: &SegmentView) -> RebuildCursor {
        RebuildCursor {
            position: 0,
            expected: view.base,
            builder: IndexBuilder::new(view.base).of_revision(self.revision_of(view)),
            segment: view.base,
        }
    }

    /// Of the segment's file; 0 unless compaction has written it.
    pub(crate) fn revision_of(&self, view: &SegmentView) -> u32 {
        let cleaned = view.is_sealed().then(|| view.cleaned(&*self.folder.fs));
        cleaned.flatten().map_or(0, |cleaned| cleaned.revision)
    }

    fn rebuild_segment(
        &self,
        view: &SegmentView,
        cursor: &mut RebuildCursor,
        hole_end: Offset,
        interval: u64,
        left: &mut u64,
        ops: &mut Vec<KvOp>,
    ) -> io::Result<()> {
        let end = view.end();
        let append_time = view.times(&*self.folder.fs)?.last_append;
        let open = view.open(&self.folder)?;
        self.seal_of(view, &open);
        let known = view.damage.read().ranges.clone();
        let mut walk = Walker::new(
            &*open.file,
            cursor.position,
            view.size(),
            cursor.expected,
            HEADER_CHUNK,
        )
        .stepping_over(known);
        let mut assessed = false;
        while *left > 0 && walk.expected < hole_end {
            let before = walk.position;
            match walk.step()? {
                Step::Batch(header, position) => {
                    if let Some(entry) =
                        cursor
                            .builder
                            .observe(&header, position, append_time, interval)
                    {
                        self.index.put_ops(&[entry], ops);
                    }
                    *left = left.saturating_sub(walk.position - before);
                }
                Step::Bad(_) if !assessed => {
                    assessed = true;
                    self.assess(view, &open)?;
                    let known = view.damage.read().ranges.clone();
                    walk = Walker::new(
                        &*open.file,
                        walk.position,
                        view.size(),
                        walk.expected,
                        HEADER_CHUNK,
                    )
                    .stepping_over(known);
                }
                Step::Bad(_) | Step::End => {
                    walk.jump(view.size(), end.max(walk.expected));
                    break;
                }
            }
        }
        cursor.position = walk.position;
        cursor.expected = walk.expected;
        Ok(())
    }

    /// An entry of the store led to something that is not the batch it names:
    /// either the entry or the batch is wrong. The index is the cache, so it goes.
    pub(crate) fn distrust_index(&self, view: &SegmentView, floor: Floor) {
        if view.is_replaced() {
            // The entry may be for what took its place.
            return;
        }
        tracing::warn!(partition = %self.tp, segment = %view.base, offset = %floor.offset, "index entry does not fit the log; the index is rebuilt");
        self.index.distrusted.store(true, Ordering::Release);
    }
}
