//! How much lies between two offsets, and how old its first record is, to the grain of
//! the sparse index: for lag. Nothing is scanned.

use crate::{error::ReadError, reader::LogReader, segment::SegmentView};
use std::io;
use talweg_types::{Offset, TimestampMs};

/// What lies from one offset (inclusive) to another (exclusive).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Backlog {
    /// Bytes of log.
    pub bytes: u64,
    /// When the leader appended the first of it, or a little earlier; `None` of nothing.
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
            if found.oldest_append.is_none() {
                (found.oldest_append, found.approximate) =
                    self.append_time(&view, from).map_err(failed)?;
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

    /// The append time of the batch at or just below an offset of the segment.
    fn append_time(
        &self,
        view: &SegmentView,
        offset: Offset,
    ) -> io::Result<(Option<TimestampMs>, bool)> {
        let times = view.times(&*self.folder.fs)?;
        let kv = &*self.folder.index;
        let entry = match self.index.append_time(kv, view.base, offset) {
            Ok(entry) => entry,
            Err(error) => {
                tracing::warn!(partition = %self.tp, %error, "index not readable; the segment's time counts");
                None
            }
        };
        Ok(match entry {
            // A rebuild gives every entry the segment's last append time.
            Some(time) => {
                let of_segment = time == times.last_append && view.is_sealed();
                (Some(time), of_segment && times.first_append < time)
            }
            None => (Some(times.first_append), self.index_incomplete()),
        })
    }
}
