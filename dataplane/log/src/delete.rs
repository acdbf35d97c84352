//! Deleting records before an offset, closing, and deleting the whole log.

use crate::{
    error::{LogError, is_full},
    fault::{Fault, planted},
    flush::write_record,
    names,
    partition::PartitionLog,
    sidecar::partition::PartitionFile,
};
use std::path::PathBuf;
use talweg_types::{LogBounds, Offset, TimestampMs};

impl PartitionLog {
    /// Makes `offset` the log start and makes that durable before it returns.
    /// At or below the present start nothing changes; above the high watermark
    /// it is refused with the bounds. Returns the log start.
    pub fn delete_before(&mut self, offset: Offset, _now: TimestampMs) -> Result<Offset, LogError> {
        self.check_alive()?;
        let bounds = self.bounds();
        if offset > bounds.high_watermark || offset.0 < 0 {
            return Err(LogError::OutOfRange { offset, bounds });
        }
        if offset <= bounds.log_start {
            return Ok(bounds.log_start);
        }
        let record = match offset > bounds.flushed_end && !planted(Fault::StartAboveFlushed) {
            // A log start above what is durable would leave a hole after a power loss.
            true => {
                self.flush_data()?;
                PartitionFile {
                    log_start: offset,
                    ..self.record_at_end()
                }
            }
            false => self.record_with_start(offset, bounds),
        };
        if let Err(error) = write_record(&self.shared, &self.disk.recorded, &record) {
            if !is_full(&error) {
                self.folder
                    .fail(&format!("partition file of {}: {error}", self.tp));
            }
            return Err(LogError::io(
                format!("partition file of {}", self.tp),
                error,
            ));
        }
        self.move_log_start(offset);
        Ok(offset)
    }

    /// All that is written, beside a ticket that may be out; the next one counts it.
    fn flush_data(&self) -> Result<(), LogError> {
        let closing = self
            .closing
            .iter()
            .filter_map(|closing| closing.dirty.as_ref());
        let active = self.active.as_ref().and_then(|active| active.dirty());
        let flushed = closing.chain(active).try_for_each(|open| open.file.flush());
        let fs = &*self.folder.fs;
        flushed
            .and_then(|()| fs.flush_dir(&self.folder.root))
            .and_then(|()| fs.flush_dir(&self.shared.dir))
            .map_err(|error| {
                self.folder.fail(&format!("flush of {}: {error}", self.tp));
                LogError::io(format!("flush of {}", self.tp), error)
            })
    }

    /// What is durable already, with another log start.
    fn record_with_start(&self, offset: Offset, bounds: LogBounds) -> PartitionFile {
        let recorded = self.disk.recorded.lock().clone();
        let mut record = recorded.unwrap_or_else(|| PartitionFile::new(self.tp));
        record.log_start = offset;
        record.high_watermark = bounds.high_watermark;
        record
    }

    /// Flushes everything and writes `partition` and `sessions`, so that the
    /// next open reads no data. The log may still be used afterwards.
    pub fn close(&mut self) -> Result<(), LogError> {
        self.check_alive()?;
        if self.flush_in_flight {
            return Err(LogError::FlushInFlight);
        }
        if let Some(ticket) = self.ticket(true) {
            let result = ticket.run();
            self.flush_done(ticket, result)?;
        }
        Ok(())
    }

    /// Deletes the log: renames its folder, which decides it, and removes it.
    /// Readers are told that it is deleted.
    pub fn delete(mut self) -> Result<(), LogError> {
        if self.flush_in_flight {
            return Err(LogError::FlushInFlight);
        }
        if self.rewrite.is_some() {
            return Err(LogError::RewriteInFlight);
        }
        self.deleted = true;
        self.shared.set_deleted();
        self.shared.tail.clear(&self.folder);
        self.shared
            .segments()
            .iter()
            .for_each(|view| view.release(&self.folder));
        self.condemned
            .iter()
            .for_each(|condemned| condemned.view.release(&self.folder));
        if let Err(error) = self.folder.index.write(vec![self.shared.index.drop_op()]) {
            // Keys of an id that never comes back: garbage, not harm.
            tracing::warn!(partition = %self.tp, %error, "index entries of a deleted log stay");
        }
        if !self.disk.folder_exists {
            return Ok(());
        }
        let fs = &*self.folder.fs;
        let gone = self
            .folder
            .root
            .join(format!("{}{}", self.tp, names::DELETED));
        let renamed = fs
            .rename(&self.shared.dir, &gone)
            .and_then(|()| fs.flush_dir(&self.folder.root));
        renamed.map_err(|e| LogError::io(format!("renaming {}", self.shared.dir.display()), e))?;
        remove(fs, gone)
    }
}

fn remove(fs: &dyn crate::fs::LogFs, gone: PathBuf) -> Result<(), LogError> {
    fs.remove_dir_all(&gone)
        .map_err(|e| LogError::io(format!("removing {}", gone.display()), e))
}
