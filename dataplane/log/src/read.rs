//! Reading whole batches.
//!
//! A read finds its segment by bisection, its nearest index entry, walks batch
//! headers to the wanted offset (at most one index interval) and takes whole
//! batches from there with one read. It never answers with a later position
//! than asked for, except across offsets that it names as damaged.

use crate::{
    compact,
    error::ReadError,
    fd_cache::OpenSegment,
    index::Floor,
    reader::{LogReader, ReadOutcome},
    segment::SegmentView,
    sidecar::seal::{BLOCK_BYTES, SealFile},
    walk::{BATCH_BYTES_MAX, HEADER_CHUNK, Step, Walker},
};
use bytes::Bytes;
use std::{io, sync::Arc};
use talweg_batch::{BatchHeader, HEADER_BYTES, verify_crc};
use talweg_types::{Offset, TimestampMs};

/// One look finds damage, the next reads around it; more is a bug or a race.
const ATTEMPTS: usize = 4;
/// A read takes no more than this at once, whatever is asked.
const READ_BYTES_MAX: usize = 8 << 20;

/// What an attempt came to.
enum Attempt {
    Done(ReadOutcome),
    /// Something did not fit; the segment was assessed, look again.
    Again,
}

/// Where a batch begins, or why it cannot be reached.
enum Sought {
    At(u64),
    Again,
}

impl LogReader {
    /// Whole batches that cover `from` and on, below `visible_end` (exclusive),
    /// up to `max_bytes` but at least one batch. The first may begin before
    /// `from`. May wait for the disk: for worker threads.
    pub fn read(
        &self,
        from: Offset,
        visible_end: Offset,
        max_bytes: usize,
    ) -> Result<ReadOutcome, ReadError> {
        self.read_above(self.bounds().log_start, from, visible_end, max_bytes)
    }

    /// As [`LogReader::read`], for a copy of the log: all that is written is
    /// visible, and the log begins where [`LogReader::copy_start`] says.
    pub fn read_for_copy(&self, from: Offset, max_bytes: usize) -> Result<ReadOutcome, ReadError> {
        let outcome = self.read_above(self.first_offset(), from, Offset::MAX, max_bytes)?;
        Ok(compact::from_offset(self.timed(outcome), from))
    }

    /// As [`LogReader::try_read`], for a copy of the log.
    pub fn try_read_for_copy(
        &self,
        from: Offset,
        max_bytes: usize,
    ) -> Result<Option<ReadOutcome>, ReadError> {
        // The rest needs the index: not read twice.
        if from < self.bounds().log_end && !self.recent.covers(from) {
            return Ok(None);
        }
        let outcome = self.try_read_above(self.first_offset(), from, Offset::MAX, max_bytes)?;
        let outcome = outcome.and_then(|outcome| self.try_timed(outcome));
        Ok(outcome.map(|outcome| compact::from_offset(outcome, from)))
    }

    pub(crate) fn read_above(
        &self,
        start: Offset,
        from: Offset,
        visible_end: Offset,
        max_bytes: usize,
    ) -> Result<ReadOutcome, ReadError> {
        self.check_readable()?;
        for attempt in 0..ATTEMPTS {
            if let Some(idle) = self.nothing_visible(start, from, visible_end)? {
                return Ok(idle);
            }
            if let Some(outcome) = self.tailing_read(from, visible_end, max_bytes) {
                return Ok(outcome);
            }
            let view = self.segment_for(from)?;
            let tried = self.attempt(&view, from, visible_end, max_bytes, attempt);
            match tried {
                Ok(Attempt::Done(outcome)) => return Ok(outcome),
                Ok(Attempt::Again) => {}
                Err(error) => self.explain(&view, from, error)?,
            }
        }
        let view = self.segment_for(from)?;
        Err(ReadError::Damaged {
            from,
            next_good: view.end().max(from.plus(1)),
        })
    }

    /// The same without waiting; `None` where it would, or where something needs
    /// a closer look: then `read` on a worker knows.
    pub fn try_read(
        &self,
        from: Offset,
        visible_end: Offset,
        max_bytes: usize,
    ) -> Result<Option<ReadOutcome>, ReadError> {
        self.try_read_above(self.bounds().log_start, from, visible_end, max_bytes)
    }

    fn try_read_above(
        &self,
        start: Offset,
        from: Offset,
        visible_end: Offset,
        max_bytes: usize,
    ) -> Result<Option<ReadOutcome>, ReadError> {
        self.check_readable()?;
        if let Some(idle) = self.nothing_visible(start, from, visible_end)? {
            return Ok(Some(idle));
        }
        if let Some(outcome) = self.tailing_read(from, visible_end, max_bytes) {
            return Ok(Some(outcome));
        }
        let view = self.segment_for(from)?;
        match self.try_attempt(&view, from, visible_end, max_bytes) {
            Ok(outcome) => Ok(outcome),
            Err(error) => self.explain(&view, from, error).map(|()| None),
        }
    }

    /// What the last writes left in memory for tailing readers.
    fn tailing_read(
        &self,
        from: Offset,
        visible_end: Offset,
        max_bytes: usize,
    ) -> Option<ReadOutcome> {
        let piece = self.tail.get(from, max_bytes)?;
        let mut skip = 0;
        while let Ok(header) = BatchHeader::parse(&piece.batches[skip..]) {
            if header.next_offset() > from {
                break;
            }
            skip += header.total_bytes();
        }
        let chunk = piece.batches.slice(skip..);
        let ends = Ends {
            visible: visible_end.min(self.bounds().log_end),
            segment: piece.view.end(),
        };
        let Taken::Batches { bytes, next_offset } =
            take_batches(&chunk, from, ends, max_bytes, false)
        else {
            return None;
        };
        piece
            .view
            .hint(next_offset, piece.position + (skip + bytes) as u64);
        self.tail.want();
        Some(outcome(chunk.slice(..bytes), next_offset))
    }

    /// Bounds first: an answer with no data still says where to go on.
    fn nothing_visible(
        &self,
        start: Offset,
        from: Offset,
        visible_end: Offset,
    ) -> Result<Option<ReadOutcome>, ReadError> {
        let bounds = self.bounds();
        if from < start || from > bounds.log_end {
            return Err(ReadError::OutOfRange {
                offset: from,
                bounds,
            });
        }
        let nothing = from >= visible_end.min(bounds.log_end);
        if nothing {
            self.tail.want();
        }
        Ok(nothing.then(|| ReadOutcome::nothing(from)))
    }

    /// The segment that must hold `from`; an error when those offsets are gone.
    fn segment_for(&self, from: Offset) -> Result<Arc<SegmentView>, ReadError> {
        let bounds = self.bounds();
        let Some(view) = self.segment_of(from) else {
            return Err(ReadError::Damaged {
                from,
                next_good: bounds.log_end,
            });
        };
        if from < view.base {
            return Err(self.unless_deleted(
                from,
                ReadError::Damaged {
                    from,
                    next_good: view.base,
                },
            ));
        }
        if from >= view.end() {
            // Between two segments, or behind the last: a file is missing.
            let next = self
                .segments()
                .iter()
                .map(|v| v.base)
                .find(|base| *base > from);
            return Err(ReadError::Damaged {
                from,
                next_good: next.unwrap_or(bounds.log_end),
            });
        }
        match view.damage_at(from) {
            Some(range) => {
                // However it became known, it is to be repaired.
                self.note_damage(&view, &[range]);
                Err(ReadError::Damaged {
                    from,
                    next_good: range.end,
                })
            }
            None => Ok(view),
        }
    }

    /// An I/O error in a segment that went away meanwhile is "out of range".
    fn explain(&self, view: &SegmentView, from: Offset, error: io::Error) -> Result<(), ReadError> {
        let gone = error.kind() == io::ErrorKind::NotFound;
        let bounds = self.bounds();
        if from < bounds.log_start {
            return Err(ReadError::OutOfRange {
                offset: from,
                bounds,
            });
        }
        if gone {
            self.note_missing(view);
            return Err(ReadError::Damaged {
                from,
                next_good: view.end(),
            });
        }
        self.folder.fail_on_io(&error);
        Err(ReadError::io(
            format!("reading {}", view.path.display()),
            error,
        ))
    }

    fn unless_deleted(&self, from: Offset, error: ReadError) -> ReadError {
        let bounds = self.bounds();
        if from < bounds.log_start {
            return ReadError::OutOfRange {
                offset: from,
                bounds,
            };
        }
        error
    }

    fn attempt(
        &self,
        view: &SegmentView,
        from: Offset,
        visible_end: Offset,
        max_bytes: usize,
        attempt: usize,
    ) -> io::Result<Attempt> {
        let ends = Ends {
            visible: visible_end,
            segment: view.end(),
        };
        let open = view.open(&self.folder)?;
        let seal = self.seal_of(view, &open);
        let position = match self.seek(view, &open, from, attempt == 0)? {
            Sought::At(position) => position,
            Sought::Again => return Ok(Attempt::Again),
        };
        let limit = first_damage_after(view, position).unwrap_or(view.size());
        let mut want = max_bytes.clamp(HEADER_BYTES, READ_BYTES_MAX);
        loop {
            let Some(chunk) =
                self.read_checked(view, &open, seal.as_deref(), position, want, limit)?
            else {
                self.assess(view, &open)?;
                return Ok(Attempt::Again);
            };
            // Good batches in a block that does not fit are told by their own checksum.
            let check_crc = match seal {
                Some(_) => view.has_bad_blocks(),
                None => position < view.trusted_from(),
            };
            match take_batches(&chunk, from, ends, max_bytes, check_crc) {
                Taken::Batches { bytes, next_offset } => {
                    view.hint(next_offset, position + bytes as u64);
                    return Ok(Attempt::Done(outcome(chunk.slice(..bytes), next_offset)));
                }
                Taken::NotVisible => return Ok(Attempt::Done(ReadOutcome::nothing(from))),
                Taken::More(total) if total > want && position + total as u64 <= limit => {
                    want = total
                }
                Taken::More(_) | Taken::Bad => {
                    self.assess(view, &open)?;
                    return Ok(Attempt::Again);
                }
            }
        }
    }

    fn try_attempt(
        &self,
        view: &SegmentView,
        from: Offset,
        visible_end: Offset,
        max_bytes: usize,
    ) -> io::Result<Option<ReadOutcome>> {
        let ends = Ends {
            visible: visible_end,
            segment: view.end(),
        };
        let Some(open) = view.opened(&self.folder) else {
            return Ok(None);
        };
        if view.has_damage() {
            return Ok(None);
        }
        let pending = || {
            self.index
                .pending_floor(view.base, from)
                .filter(|floor| floor.offset == from)
        };
        let Some(position) = view
            .hinted(from)
            .or_else(|| pending().map(|floor| floor.position))
        else {
            return Ok(None);
        };
        let want = max_bytes.clamp(HEADER_BYTES, READ_BYTES_MAX);
        let limit = view.size().min(position + want as u64);
        if !self.is_checked(view, &open, position, limit) {
            return Ok(None);
        }
        let len = usize::try_from(limit.saturating_sub(position)).unwrap_or(0);
        let mut buffer = self.folder.buffers.take(len);
        let Some(read) = open.file.try_read_at(buffer.as_mut(), position)? else {
            return Ok(None);
        };
        let chunk = buffer.freeze(read);
        match take_batches(&chunk, from, ends, max_bytes, false) {
            Taken::Batches { bytes, next_offset } => {
                view.hint(next_offset, position + bytes as u64);
                Ok(Some(outcome(chunk.slice(..bytes), next_offset)))
            }
            Taken::NotVisible => Ok(Some(ReadOutcome::nothing(from))),
            Taken::More(_) | Taken::Bad => Ok(None),
        }
    }

    /// Whether these bytes need no further check.
    fn is_checked(&self, view: &SegmentView, open: &OpenSegment, start: u64, end: u64) -> bool {
        if !view.is_sealed() {
            return start >= view.trusted_from();
        }
        let Some(Some(seal)) = open.seal.get() else {
            return false;
        };
        let count = seal.blocks.len();
        blocks_of(start, end).all(|block| open.is_verified(block, count))
    }

    /// The position of the batch that holds `from`, by index and header walk.
    fn seek(
        &self,
        view: &SegmentView,
        open: &OpenSegment,
        from: Offset,
        use_index: bool,
    ) -> io::Result<Sought> {
        if use_index && let Some(position) = view.hinted(from) {
            return Ok(Sought::At(position));
        }
        let floor = self.floor(view, from, use_index);
        let known = view.damage.read().ranges.clone();
        let mut walk = Walker::new(
            &*open.file,
            floor.position,
            view.size(),
            floor.offset,
            HEADER_CHUNK,
        )
        .stepping_over(known);
        loop {
            match walk.step()? {
                Step::Batch(header, position) if header.next_offset() > from => {
                    return Ok(Sought::At(position));
                }
                Step::Batch(..) => {}
                // A wrong index entry leads nowhere; from the segment's start
                // the next attempt tells it from damage.
                Step::Bad(position) if position == floor.position && floor.offset > view.base => {
                    self.distrust_index(view, floor);
                    return Ok(Sought::Again);
                }
                Step::Bad(_) | Step::End => {
                    self.assess(view, open)?;
                    return Ok(Sought::Again);
                }
            }
        }
    }

    /// The nearest known batch boundary at or below `from`.
    pub(crate) fn floor(&self, view: &SegmentView, from: Offset, use_index: bool) -> Floor {
        let start = Floor {
            offset: view.base,
            position: 0,
            max_before: TimestampMs(i64::MIN),
            revision: 0,
        };
        if !use_index || view.is_replaced() {
            return start;
        }
        if let Some(floor) = self.index.pending_floor(view.base, from) {
            return floor;
        }
        match self
            .index
            .stored_floor(&*self.folder.index, view.base, from)
        {
            Ok(Some(floor)) => self.floor_in(view, floor).unwrap_or(start),
            Ok(None) => start,
            Err(error) => {
                tracing::warn!(partition = %self.tp, %error, "index not readable; scanning the segment");
                start
            }
        }
    }

    /// A stored entry, if it was made for this file.
    pub(crate) fn floor_in(&self, view: &SegmentView, floor: Floor) -> Option<Floor> {
        if floor.revision == self.revision_of(view) {
            return (floor.position < view.size()).then_some(floor);
        }
        self.distrust_index(view, floor);
        None
    }

    /// Bytes from `position`, checked by block where there is a seal; `None`
    /// when a block does not fit. Never beyond `limit`.
    fn read_checked(
        &self,
        view: &SegmentView,
        open: &OpenSegment,
        seal: Option<&SealFile>,
        position: u64,
        want: usize,
        limit: u64,
    ) -> io::Result<Option<Bytes>> {
        let end = limit.min(position + want as u64);
        let unchecked = seal.filter(|_| !self.is_checked(view, open, position, end));
        let (start, stop) = match unchecked {
            Some(seal) => {
                let start = position / BLOCK_BYTES * BLOCK_BYTES;
                (
                    start,
                    end.next_multiple_of(BLOCK_BYTES).min(seal.bytes).max(end),
                )
            }
            None => (position, end),
        };
        let len = usize::try_from(stop.saturating_sub(start)).unwrap_or(0);
        let mut buffer = self.folder.buffers.take(len);
        let read = open.file.read_at(buffer.as_mut(), start)?;
        let buffer = buffer.freeze(read);
        if let Some(seal) = unchecked
            && !verify_blocks(view, open, seal, &buffer, start)
        {
            return Ok(None);
        }
        let skip = usize::try_from(position - start)
            .unwrap_or(0)
            .min(buffer.len());
        let length = usize::try_from(end.saturating_sub(position))
            .unwrap_or(0)
            .min(buffer.len() - skip);
        Ok(Some(buffer.slice(skip..skip + length)))
    }
}

/// Checks the whole blocks in `bytes`, which begin at the block boundary `start`.
fn verify_blocks(
    view: &SegmentView,
    open: &OpenSegment,
    seal: &SealFile,
    bytes: &[u8],
    start: u64,
) -> bool {
    let count = seal.blocks.len();
    let first = usize::try_from(start / BLOCK_BYTES).unwrap_or(usize::MAX);
    let whole = bytes.chunks(BLOCK_BYTES as usize).enumerate();
    for (block, chunk) in whole.map(|(n, chunk)| (first + n, chunk)) {
        if open.is_verified(block, count) {
            continue;
        }
        let full = (seal.bytes - block as u64 * BLOCK_BYTES).min(BLOCK_BYTES) == chunk.len() as u64;
        let fits = full
            && seal
                .blocks
                .get(block)
                .is_some_and(|sum| crc32c::crc32c(chunk) == *sum);
        if !fits && !view.damage.read().bad_blocks.contains(&block) {
            return false;
        }
        open.set_verified(block, count);
    }
    !bytes.is_empty()
}

fn blocks_of(start: u64, end: u64) -> std::ops::RangeInclusive<usize> {
    let block = |position: u64| usize::try_from(position / BLOCK_BYTES).unwrap_or(usize::MAX);
    block(start)..=block(end.max(start + 1) - 1)
}

fn first_damage_after(view: &SegmentView, position: u64) -> Option<u64> {
    let damage = view.damage.read();
    damage
        .ranges
        .iter()
        .map(|range| range.start_position)
        .find(|start| *start > position)
}

fn outcome(batches: Bytes, next_offset: Offset) -> ReadOutcome {
    ReadOutcome {
        batches,
        next_offset,
        append_times: Vec::new(),
    }
}

impl ReadOutcome {
    fn nothing(from: Offset) -> Self {
        Self {
            batches: Bytes::new(),
            next_offset: from,
            append_times: Vec::new(),
        }
    }
}

enum Taken {
    Batches {
        bytes: usize,
        next_offset: Offset,
    },
    /// The batch that holds the offset is not below the visible end as a whole.
    NotVisible,
    /// The first batch has this many bytes, more than there are here.
    More(usize),
    Bad,
}

/// How far a read may go, both exclusive.
#[derive(Clone, Copy)]
struct Ends {
    /// What readers may see; a batch beyond it comes later.
    visible: Offset,
    /// No batch of the segment goes beyond this: one that claims to is damaged.
    segment: Offset,
}

/// Whole batches from the front of `chunk`, whose first one holds `from`.
fn take_batches(
    chunk: &[u8],
    from: Offset,
    ends: Ends,
    max_bytes: usize,
    check_crc: bool,
) -> Taken {
    let mut taken = 0;
    let mut next_offset = from;
    // Why no further batch is taken, if it is the first.
    let mut refused = None;
    while let Ok(header) = BatchHeader::parse(&chunk[taken..]) {
        let total = header.total_bytes();
        let first = taken == 0;
        let follows = if first {
            header.base_offset <= from && from < header.next_offset()
        } else {
            header.base_offset == next_offset && header.next_offset() > next_offset
        };
        if !follows || header.next_offset() > ends.segment || total > BATCH_BYTES_MAX {
            refused = Some(Taken::Bad);
            break;
        }
        let whole = chunk.get(taken..taken + total);
        if check_crc && whole.is_some_and(|batch| verify_crc(batch).is_err()) {
            refused = Some(Taken::Bad);
            break;
        }
        if header.next_offset() > ends.visible {
            refused = Some(Taken::NotVisible);
            break;
        }
        if whole.is_none() {
            refused = Some(Taken::More(total));
            break;
        }
        if !first && taken + total > max_bytes {
            break;
        }
        taken += total;
        next_offset = header.next_offset();
    }
    match refused {
        _ if taken > 0 => Taken::Batches {
            bytes: taken,
            next_offset,
        },
        Some(refused) => refused,
        None if chunk.len() < HEADER_BYTES => Taken::More(HEADER_BYTES),
        None => Taken::Bad,
    }
}
