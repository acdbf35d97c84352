//! Cutting the log's end back, as a follower does when its leader's history
//! parts from its own.
//!
//! Crash-safe in this order: `partition` claims no more than will stay and gets
//! a new generation (an index written before is not believed after); state files
//! above the cut go; then the bytes. The sessions are those of the newest
//! `sessions` file at or below the cut, replayed up to it.

use crate::{
    error::{LogError, is_full},
    fault::{Fault, planted},
    flush::write_record,
    marker::Boot,
    names,
    partition::PartitionLog,
    segment::SegmentView,
    sidecar::partition::PartitionFile,
    walk::{HEADER_CHUNK, Step, Walker},
};
use std::{
    io,
    sync::{Arc, atomic::Ordering},
};
use talweg_types::{Offset, TimestampMs};

/// What a truncation did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Truncation {
    /// The log end now: the asked offset, or the start of the batch that holds it.
    pub log_end: Offset,
    pub cut_bytes: u64,
}

impl PartitionLog {
    /// Removes everything from `offset` on. Refused below the high watermark:
    /// what was promised stays. Without room nothing happens; it works again when
    /// space returns.
    pub fn truncate_to(&mut self, offset: Offset) -> Result<Truncation, LogError> {
        self.check_alive()?;
        let bounds = self.bounds();
        if offset >= bounds.log_end {
            return Ok(Truncation {
                log_end: bounds.log_end,
                cut_bytes: 0,
            });
        }
        if offset < bounds.high_watermark {
            return Err(LogError::OutOfRange { offset, bounds });
        }
        if self.flush_in_flight {
            return Err(LogError::FlushInFlight);
        }
        if self.rewrite.is_some() {
            return Err(LogError::RewriteInFlight);
        }
        if let Some(ticket) = self.ticket(false) {
            let result = ticket.run();
            self.flush_done(ticket, result)?;
        }
        let cut = self.plan_cut(offset).and_then(|planned| match planned {
            Some((view, position, record)) => {
                self.record_cut(&record)?;
                self.cut(&view, position, record.flushed_end)
            }
            None => Ok(0),
        });
        match cut {
            Ok(cut_bytes) => self.reopen(cut_bytes),
            Err(error) if is_full(&error) => {
                self.folder.set_full();
                Err(LogError::DiskFull)
            }
            Err(error) => {
                self.folder
                    .fail(&format!("truncating {}: {error}", self.tp));
                Err(LogError::io(format!("truncating {}", self.tp), error))
            }
        }
    }

    /// The segment to cut and where, and what `partition` says then.
    fn plan_cut(
        &self,
        offset: Offset,
    ) -> io::Result<Option<(Arc<SegmentView>, u64, PartitionFile)>> {
        let Some(view) = self
            .shared
            .segment_of(offset)
            .filter(|view| view.base <= offset)
        else {
            return Ok(None);
        };
        let (end, position) = self.boundary(&view, offset)?;
        let mut record = self.record_at_end();
        record.generation += 1;
        record.flushed_end = end;
        record.flushed_segment = view.base;
        record.flushed_position = position;
        record.epochs.retain(|entry| entry.start < end);
        Ok(Some((view, position, record)))
    }

    /// The one step that needs room; without it nothing has happened.
    fn record_cut(&self, record: &PartitionFile) -> io::Result<()> {
        write_record(&self.shared, &self.disk.recorded, record)?;
        self.shared
            .generation
            .store(record.generation, Ordering::Release);
        Ok(())
    }

    /// Bytes that were cut.
    fn cut(&self, view: &SegmentView, position: u64, end: Offset) -> io::Result<u64> {
        let fs = Arc::clone(&self.folder.fs);
        let segments = self.shared.segments();
        for entry in fs.list(&self.shared.dir)? {
            let state = names::parse(&entry.name, names::SESSIONS).is_some_and(|at| at > end);
            let seal = names::parse(&entry.name, names::SEAL).is_some_and(|base| base >= view.base);
            if state || seal {
                fs.remove_file(&self.shared.dir.join(&entry.name))?;
            }
        }
        let mut cut = 0;
        for later in segments.iter().filter(|later| later.base > view.base) {
            cut += later.size_or_ask(&*fs)?;
            later.release(&self.folder);
            fs.remove_file(&later.path)?;
        }
        let open = view.open(&self.folder)?;
        cut += open.file.len()? - position;
        open.file.set_len(position)?;
        open.file.flush()?;
        view.release(&self.folder);
        fs.flush_dir(&self.shared.dir)?;
        Ok(cut)
    }

    /// The start of the batch that holds `offset`, and its byte position.
    fn boundary(&self, view: &SegmentView, offset: Offset) -> io::Result<(Offset, u64)> {
        let open = view.open(&self.folder)?;
        let known = view.damage.read().ranges.clone();
        let mut walk =
            Walker::new(&*open.file, 0, view.size(), view.base, HEADER_CHUNK).stepping_over(known);
        loop {
            match walk.step()? {
                Step::Batch(header, _) if header.next_offset() <= offset => {}
                Step::Batch(header, position) => return Ok((header.base_offset, position)),
                // Damage above the watermark ends the common history as well.
                Step::Bad(position) => return Ok((walk.expected, position)),
                Step::End => return Ok((walk.expected, walk.position)),
            }
        }
    }

    /// Everything in memory anew, from what is on disk now.
    pub(crate) fn reopen(&mut self, cut_bytes: u64) -> Result<Truncation, LogError> {
        self.shared.index.forget_from(Offset(i64::MIN));
        self.shared.tail.clear(&self.folder);
        self.shared.recent.clear();
        self.active = None;
        self.closing.clear();
        self.disk.removals.clear();
        let now = TimestampMs(i64::MIN);
        let before = planted(Fault::SessionsOutliveCut).then(|| self.sessions.clone());
        let report = self.recover_as(Boot::SameBoot, now)?;
        if let Some(before) = before {
            self.sessions = before;
        }
        Ok(Truncation {
            log_end: report.kept_to,
            cut_bytes,
        })
    }
}
