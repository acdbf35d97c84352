//! The first record at or after a timestamp.
//!
//! Timestamps are the clients' and in no order. The answer is the smallest
//! offset whose timestamp is at least the one asked for: the first segment
//! whose largest timestamp reaches it holds it, and within the segment the scan
//! begins at the last index entry before which no timestamp reached it.

use crate::{
    error::ReadError,
    fd_cache::OpenSegment,
    index::Floor,
    reader::LogReader,
    segment::SegmentView,
    walk::{HEADER_CHUNK, Step, Walker},
};
use bytes::Bytes;
use std::io;
use talweg_batch::{BatchHeader, decode_records};
use talweg_types::{Offset, TimestampMs, limits};

enum Scan {
    Found(Offset, TimestampMs),
    NotHere,
    /// The batch that may hold the answer cannot be believed.
    Damaged(Offset, Offset),
    Again,
}

impl LogReader {
    /// The first record with a timestamp of at least `timestamp` in
    /// `log start .. visible_end`, with its timestamp. May wait for the disk.
    pub fn offset_for_time(
        &self,
        timestamp: TimestampMs,
        visible_end: Offset,
    ) -> Result<Option<(Offset, TimestampMs)>, ReadError> {
        self.check_readable()?;
        let start = self.bounds().log_start;
        for view in self.segments() {
            if view.end() <= start || view.base >= visible_end {
                continue;
            }
            let io_error = |error| ReadError::io(format!("reading {}", view.path.display()), error);
            if view
                .times(&*self.folder.fs)
                .map_err(io_error)?
                .max_timestamp
                < timestamp
            {
                continue;
            }
            for use_index in [true, false, false] {
                match self
                    .scan_for_time(&view, timestamp, visible_end, use_index)
                    .map_err(io_error)?
                {
                    Scan::Found(offset, at) => return Ok(Some((offset, at))),
                    Scan::Damaged(from, next_good) => {
                        return Err(ReadError::Damaged { from, next_good });
                    }
                    Scan::NotHere => break,
                    Scan::Again => {}
                }
            }
        }
        Ok(None)
    }

    fn scan_for_time(
        &self,
        view: &SegmentView,
        timestamp: TimestampMs,
        visible_end: Offset,
        use_index: bool,
    ) -> io::Result<Scan> {
        let end = view.end();
        let open = view.open(&self.folder)?;
        self.seal_of(view, &open);
        let floor = self.time_floor(view, timestamp, use_index);
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
                Step::Batch(header, _) if header.next_offset() > visible_end.min(end) => {
                    return Ok(Scan::NotHere);
                }
                Step::Batch(header, position) if header.max_timestamp >= timestamp => {
                    match self.record_in(view, &open, &header, position, timestamp)? {
                        Scan::NotHere => {}
                        scan => return Ok(scan),
                    }
                }
                Step::Batch(..) => {}
                Step::Bad(position) if position == floor.position && floor.offset > view.base => {
                    self.distrust_index(view, floor);
                    return Ok(Scan::Again);
                }
                Step::Bad(_) => {
                    self.assess(view, &open)?;
                    return Ok(Scan::Again);
                }
                Step::End => return Ok(Scan::NotHere),
            }
        }
    }

    /// The first record of one batch that is late enough and not below the log start.
    fn record_in(
        &self,
        view: &SegmentView,
        open: &OpenSegment,
        header: &BatchHeader,
        position: u64,
        timestamp: TimestampMs,
    ) -> io::Result<Scan> {
        let mut bytes = vec![0; header.total_bytes()];
        let read = open.file.read_at(&mut bytes, position)?;
        bytes.truncate(read);
        let batch = Bytes::from(bytes);
        let whole = batch.len() == header.total_bytes() && talweg_batch::verify_crc(&batch).is_ok();
        let records =
            whole.then(|| decode_records(&batch, limits::UNPACKED_BATCH_BYTES_MAX as usize));
        let Some(Ok(records)) = records else {
            self.assess(view, open)?;
            let range = view.damage_at(header.base_offset);
            return Ok(Scan::Damaged(
                header.base_offset,
                range.map_or(header.next_offset(), |range| range.end),
            ));
        };
        let start = self.bounds().log_start;
        let offset = |delta: i32| header.base_offset.plus(i64::from(delta));
        let found = records
            .iter()
            .find(|record| record.timestamp >= timestamp && offset(record.offset_delta) >= start);
        Ok(found.map_or(Scan::NotHere, |record| {
            Scan::Found(offset(record.offset_delta), record.timestamp)
        }))
    }

    /// The last known boundary before which no timestamp reaches `timestamp`.
    pub(crate) fn time_floor(
        &self,
        view: &SegmentView,
        timestamp: TimestampMs,
        use_index: bool,
    ) -> Floor {
        let start = Floor {
            offset: view.base,
            position: 0,
            max_before: TimestampMs(i64::MIN),
            revision: 0,
        };
        if !use_index || view.is_replaced() {
            return start;
        }
        if let Some(floor) = self.index.pending_time_floor(view.base, timestamp) {
            return floor;
        }
        match self
            .index
            .stored_time_floor(&*self.folder.index, view.base, timestamp)
        {
            Ok(Some(floor)) => self.floor_in(view, floor).unwrap_or(start),
            Ok(None) | Err(_) => start,
        }
    }
}
