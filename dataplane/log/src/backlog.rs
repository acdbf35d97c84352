//! How much lies between two offsets, and how old its first record is: for lag. Bytes
//! are to the grain of the sparse index; no more than one grain of headers is walked,
//! but for what compaction left.

use crate::{
    append_times::Around,
    error::ReadError,
    fs::LogFile,
    reader::LogReader,
    segment::SegmentView,
    walk::{HEADER_CHUNK, Step, Walker},
};
use bytes::Bytes;
use std::io;
use talweg_batch::{BatchHeader, Records};
use talweg_types::{Offset, TimestampMs, limits};

/// What lies from one offset (inclusive) to another (exclusive).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Backlog {
    /// Bytes of log.
    pub bytes: u64,
    /// When the leader appended the first record that is still there, or a little
    /// earlier; `None`: there is none.
    pub oldest_append: Option<TimestampMs>,
    /// `oldest_append` rests on an index that was rebuilt: it is the whole segment's.
    pub approximate: bool,
}

impl LogReader {
    /// Measures `from..to`. May wait for the disk.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn backlog(&self, from: Offset, to: Offset) -> Result<Backlog, ReadError> {
        self.check_readable()?;
        let mut found = Backlog::default();
        if from >= to {
            return Ok(found);
        }
        for view in self.segments() {
            if view.end() <= from || view.base >= to {
                continue;
            }
            let failed = |error| ReadError::io(format!("measuring {}", view.path.display()), error);
            found.bytes += self.bytes_between(&view, from, to).map_err(failed)?;
            if found.oldest_append.is_none()
                && let Some(unread) = self.first_unread(&view, from, to).map_err(failed)?
            {
                let (time, approximate) = self.append_time(&view, &unread).map_err(failed)?;
                (found.oldest_append, found.approximate) = (Some(time), approximate);
            }
        }
        Ok(found)
    }

    fn bytes_between(&self, view: &SegmentView, from: Offset, to: Offset) -> io::Result<u64> {
        let size = view.size_or_ask(&*self.folder.fs)?;
        let at = |offset| match offset {
            offset if offset <= view.base => 0,
            offset if offset >= view.end() => size,
            offset => self.floor(view, offset, true).position,
        };
        Ok(at(to).saturating_sub(at(from)))
    }

    /// The first batch of `from..to` in this segment that still holds a record at or
    /// above `from`: compaction may have taken those that were there. What cannot be
    /// read counts as unread.
    fn first_unread(
        &self,
        view: &SegmentView,
        from: Offset,
        to: Offset,
    ) -> io::Result<Option<Unread>> {
        let open = view.open(&self.folder)?;
        let floor = self.floor(view, from, true);
        let known = view.damage.read().ranges.clone();
        let mut walk = Walker::new(
            &*open.file,
            floor.position,
            view.size_or_ask(&*self.folder.fs)?,
            floor.offset,
            HEADER_CHUNK,
        )
        .stepping_over(known);
        loop {
            let (header, position) = match walk.step()? {
                Step::Batch(header, position) => (header, position),
                Step::Bad(_) => return Ok(Some(Unread::somewhere_at(from))),
                Step::End => return Ok(None),
            };
            if header.base_offset >= to {
                return Ok(None);
            }
            if header.next_offset() <= from || header.record_count == 0 {
                continue;
            }
            let partly = header.base_offset < from && has_holes(&header);
            if !partly || holds(&*open.file, &header, position, from)? {
                return Ok(Some(Unread {
                    offset: header.base_offset,
                    timestamp: Some(header.max_timestamp),
                }));
            }
        }
    }

    /// When the leader appended it, and whether that is approximate.
    fn append_time(&self, view: &SegmentView, unread: &Unread) -> io::Result<(TimestampMs, bool)> {
        let above = unread.offset.plus(1);
        if let Some(recent) = self.recent.between(unread.offset, above) {
            return Ok((recent[0].1, false));
        }
        let span = self.span(view)?;
        let kv = &*self.folder.index;
        let around = self.index.append_times(kv, view.base, unread.offset);
        let around = around.unwrap_or_else(|error| {
            self.warn_of_index(&error);
            Around::default()
        });
        let (time, approximate) = around.estimate(span, unread.timestamp, true);
        let unknown = around.entry.is_none() && self.index_incomplete();
        Ok((time, approximate || unknown))
    }
}

/// The first unread batch of a segment.
struct Unread {
    offset: Offset,
    /// What its producer says.
    timestamp: Option<TimestampMs>,
}

impl Unread {
    fn somewhere_at(offset: Offset) -> Self {
        Self {
            offset,
            timestamp: None,
        }
    }
}

/// Compaction took records out of it.
fn has_holes(header: &BatchHeader) -> bool {
    i64::from(header.record_count) < header.next_offset().0 - header.base_offset.0
}

/// Whether a record at or above `from` is in the batch; one that cannot be unpacked
/// may hold it.
fn holds(
    file: &dyn LogFile,
    header: &BatchHeader,
    position: u64,
    from: Offset,
) -> io::Result<bool> {
    let mut bytes = vec![0; header.total_bytes()];
    let read = file.read_at(&mut bytes, position)?;
    bytes.truncate(read);
    let unpacked = limits::UNPACKED_BATCH_BYTES_MAX as usize;
    let wanted = from.0 - header.base_offset.0;
    let Ok(mut records) = Records::new(&Bytes::from(bytes), unpacked) else {
        return Ok(true);
    };
    Ok(
        records
            .any(|record| record.map_or(true, |record| i64::from(record.offset_delta) >= wanted)),
    )
}
