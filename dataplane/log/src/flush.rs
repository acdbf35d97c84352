//! Making durable, on another thread.
//!
//! A ticket holds all that is unflushed when it is taken, and the sidecars that
//! become true by its flush. `run` works in this order, and what is on disk is
//! right after a crash between any two steps:
//!
//! 1. the segment files' bytes, then their folder's entries: the data is durable;
//! 2. `seal` and `sessions` of rolled segments, the loose `sessions`;
//! 3. the index store, which so never leads the flushed log;
//! 4. `partition`, whose flushed end so never claims more than was flushed;
//! 5. files that nothing needs any more are removed.
//!
//! Want of space in 2, 4 or 5 is no failure: the data is durable, the sidecars
//! are tried again with a later ticket. Any error of a flush is one, for good.

use crate::{
    active::BlockSums,
    config::RECORD_LAG_BYTES,
    error::{LogError, is_full},
    fault::{Fault, planted},
    fd_cache::OpenSegment,
    folder::LogFolder,
    index::IndexEntry,
    names,
    partition::PartitionLog,
    reader::LogReader,
    segment::{SegmentView, Times},
    sidecar::{
        self, Sidecar, Staged, partition::PartitionFile, seal::SealFile, sessions::SessionsFile,
    },
};
use parking_lot::Mutex;
use std::{io, path::PathBuf, sync::Arc};
use talweg_types::{Offset, TimestampMs};

/// What is unflushed of one partition at one moment. `Send`; at most one per
/// partition is out at a time. Give it back with `flush_done`, run or not.
pub struct FlushTicket {
    shared: Arc<LogReader>,
    recorded: Arc<Mutex<Option<PartitionFile>>>,
    files: Vec<Arc<OpenSegment>>,
    new_folder: bool,
    entries_dirty: bool,
    seals: Vec<SealJob>,
    snapshot: Option<SessionsFile>,
    record: Option<PartitionFile>,
    entries: Vec<IndexEntry>,
    trim_below: Option<Offset>,
    removals: Vec<PathBuf>,
    generation: u64,
    end: Offset,
    size: u64,
    active_base: Option<Offset>,
    /// Nothing is promised unless the record is written: it names a new epoch.
    must_record: bool,
    appended_bytes: u64,
    outcome: Mutex<Outcome>,
}

struct SealJob {
    view: Arc<SegmentView>,
    times: Times,
    sums: BlockSums,
    /// `None`: not known well enough to be kept.
    sessions: Option<Arc<SessionsFile>>,
}

#[derive(Clone, Copy, Default)]
struct Outcome {
    indexed: bool,
    sealed: bool,
    /// Size of the loose `sessions` file that was written.
    snapshot: Option<u64>,
    recorded: bool,
    removed: bool,
}

impl PartitionLog {
    /// All that is unflushed now; `None` when there is nothing to do, or while
    /// a ticket is out.
    pub fn flush_ticket(&mut self) -> Option<FlushTicket> {
        self.ticket(false)
    }

    /// Like `flush_ticket`, with `partition` and `sessions` as of the log end:
    /// for a clean stop of many partitions at once (see [`run_together`]).
    pub fn close_ticket(&mut self) -> Option<FlushTicket> {
        self.ticket(true)
    }

    pub(crate) fn ticket(&mut self, closing: bool) -> Option<FlushTicket> {
        if self.flush_in_flight || !self.disk.folder_exists || self.check_alive().is_err() {
            return None;
        }
        let active_dirty = self
            .active
            .as_ref()
            .and_then(|active| active.dirty().cloned());
        let has_data = active_dirty.is_some() || !self.closing.is_empty();
        let first = self.disk.recorded.lock().is_none();
        let epoch_is_new = self.has_unrecorded_epoch();
        let lagging = self.disk.appended_bytes - self.disk.recorded_bytes >= RECORD_LAG_BYTES;
        let whole = self.holes_from.is_none();
        let snapshot_wanted = whole && (self.snapshot_due() || (closing && self.snapshot_is_old()));
        let record_wanted =
            self.disk.record_due || first || epoch_is_new || lagging || snapshot_wanted || closing;
        let record = record_wanted
            .then(|| self.record_at_end())
            .filter(|record| !self.is_recorded(record));
        let now = self
            .active
            .as_ref()
            .map_or(TimestampMs::NONE, |active| active.times.last_append);
        let snapshot = if snapshot_wanted {
            self.sessions_now(now)
        } else {
            None
        };
        let sidecars = record.is_some() || snapshot.is_some();
        let rest = self.disk.entries_dirty || self.disk.index_due || !self.disk.removals.is_empty();
        self.disk.index_due = false;
        if !has_data && !sidecars && !rest {
            self.disk.record_due = false;
            return None;
        }
        let end = self.bounds().log_end;
        let files = self
            .closing
            .iter()
            .filter_map(|c| c.dirty.clone())
            .chain(active_dirty)
            .collect();
        let seals = self.closing.iter().map(|closing| SealJob {
            view: Arc::clone(&closing.view),
            times: closing.times,
            sums: closing.sums.clone(),
            sessions: whole.then(|| Arc::clone(&closing.sessions)),
        });
        let ticket = FlushTicket {
            seals: seals.collect(),
            files,
            shared: Arc::clone(&self.shared),
            recorded: Arc::clone(&self.disk.recorded),
            new_folder: !self.disk.folder_durable,
            entries_dirty: self.disk.entries_dirty,
            snapshot,
            record,
            entries: self.shared.index.pending_below(end),
            trim_below: (!self.disk.removals.is_empty())
                .then(|| self.shared.first_segment().map_or(end, |s| s.base)),
            removals: std::mem::take(&mut self.disk.removals),
            generation: self
                .shared
                .generation
                .load(std::sync::atomic::Ordering::Acquire),
            end,
            size: self.active.as_ref().map_or(0, |active| active.size),
            active_base: self.active.as_ref().map(|active| active.view.base),
            must_record: epoch_is_new,
            appended_bytes: self.disk.appended_bytes,
            outcome: Mutex::new(Outcome::default()),
        };
        self.disk.entries_dirty = false;
        self.flush_in_flight = true;
        Some(ticket)
    }

    /// No `sessions` file is as new as the log.
    fn snapshot_is_old(&self) -> bool {
        self.active.is_some() && self.disk.appended_bytes > self.disk.snapshot_bytes
    }

    /// Writing it would change nothing that matters.
    fn is_recorded(&self, record: &PartitionFile) -> bool {
        self.disk.recorded.lock().as_ref() == Some(record)
    }

    /// Takes a ticket back, with what its run returned. On success the flushed
    /// end moves to the ticket's end; on failure the folder has failed.
    pub fn flush_done(
        &mut self,
        ticket: FlushTicket,
        result: io::Result<()>,
    ) -> Result<Offset, LogError> {
        self.flush_in_flight = false;
        if let Err(error) = result {
            self.folder.fail(&format!("flush of {}: {error}", self.tp));
            return Err(LogError::FolderFailed(
                self.folder.failed().unwrap_or_default(),
            ));
        }
        let outcome = *ticket.outcome.lock();
        self.disk.folder_durable = true;
        let flushed = match ticket.must_record && !outcome.recorded {
            // No room for the record: tried again, and nothing is promised yet.
            true => self.bounds().flushed_end,
            false => self.bounds().flushed_end.max(ticket.end),
        };
        self.shared.set_flushed_end(flushed);
        self.closing_flushed(&ticket, outcome.sealed);
        if let Some(active) = self
            .active
            .as_mut()
            .filter(|active| Some(active.view.base) == ticket.active_base)
        {
            active.flushed(ticket.size);
        }
        if outcome.indexed {
            self.shared.index.forget_below(ticket.end);
        }
        if !outcome.removed {
            self.disk.removals.extend(ticket.removals);
        }
        if let Some(size) = outcome.snapshot {
            self.snapshot_written(ticket.end, ticket.appended_bytes, size, ticket.active_base);
        }
        if let Some(record) = ticket.record.filter(|_| outcome.recorded) {
            self.disk.recorded_bytes = ticket.appended_bytes;
            if record.log_start > self.bounds().log_start {
                self.move_log_start(record.log_start);
            }
            self.disk.record_due = !self.closing.is_empty();
        }
        Ok(flushed)
    }

    fn closing_flushed(&mut self, ticket: &FlushTicket, sealed: bool) {
        for job in &ticket.seals {
            let Some(front) = self
                .closing
                .iter_mut()
                .find(|closing| closing.view.base == job.view.base)
            else {
                continue;
            };
            front.dirty = None;
            if sealed {
                front.view.set_sealed();
            }
        }
        if sealed {
            self.closing.retain(|closing| !closing.view.is_sealed());
        }
    }

    fn snapshot_written(&mut self, offset: Offset, bytes: u64, size: u64, base: Option<Offset>) {
        let still_active = self.active.as_ref().map(|active| active.view.base) == base;
        let old = self.disk.loose_snapshot.take().filter(|old| *old != offset);
        self.disk
            .removals
            .extend(old.map(|old| self.snapshot_path(old)));
        if still_active {
            self.disk.loose_snapshot = Some(offset);
            self.disk.snapshot_bytes = bytes;
            self.disk.snapshot_size = size;
        } else if self
            .closing
            .iter()
            .all(|closing| closing.view.end() != offset)
        {
            // The segment was rolled meanwhile, further on.
            self.disk.removals.push(self.snapshot_path(offset));
        }
    }
}

impl FlushTicket {
    /// One past the last offset that the ticket makes durable.
    pub fn end(&self) -> Offset {
        self.end
    }

    /// Unflushed files it holds.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Does the work; waits for the disk. Once.
    pub fn run(&self) -> io::Result<()> {
        self.flush_data()?;
        self.after_data()
    }

    fn flush_data(&self) -> io::Result<()> {
        let fs = &*self.shared.folder.fs;
        for open in self
            .files
            .iter()
            .filter(|_| !planted(Fault::FlushSkipsData))
        {
            open.file.flush()?;
        }
        if self.new_folder {
            fs.flush_dir(&self.shared.folder.root)?;
        }
        if self.entries_dirty {
            fs.flush_dir(&self.shared.dir)?;
        }
        Ok(())
    }

    /// The data is durable: sidecars, index, removals.
    fn after_data(&self) -> io::Result<()> {
        let fs = &*self.shared.folder.fs;
        let mut staged = Vec::new();
        let (sealed, snapshot) = self.stage_sidecars(true, &mut staged)?;
        if !staged.is_empty() {
            commit_all(fs, staged)?;
            fs.flush_dir(&self.shared.dir)?;
        }
        let indexed = self.store_index();
        let recorded = match &self.record {
            Some(record) => {
                tolerate_full(write_record(&self.shared, &self.recorded, record))?.is_some()
            }
            None => true,
        };
        let removed = (recorded || self.record.is_none()) && self.remove_files()?;
        *self.outcome.lock() = Outcome {
            indexed,
            sealed,
            snapshot,
            recorded,
            removed,
        };
        Ok(())
    }

    /// Seals, their sessions and the loose snapshot, beside their places.
    /// Returns whether all segments are sealed then, and the snapshot's size.
    fn stage_sidecars(
        &self,
        flush: bool,
        staged: &mut Vec<Staged>,
    ) -> io::Result<(bool, Option<u64>)> {
        let fs = &*self.shared.folder.fs;
        let dir = &self.shared.dir;
        let mut sealed = true;
        let mut written_at = None;
        for job in &self.seals {
            let seal = job.seal().encode();
            let path = job.view.path.with_extension(names::SEAL);
            // A segment that lost all its bytes ends where the one before it does:
            // their state is the same, and is one file.
            let first =
                |file: &&Arc<SessionsFile>| written_at.replace(file.offset) != Some(file.offset);
            let sessions = job.sessions.as_ref().filter(first);
            let written = sidecar::stage(fs, &path, &seal, flush).and_then(|seal| {
                let stage = |file: &Arc<SessionsFile>| {
                    let path = names::path(dir, file.offset, names::SESSIONS);
                    sidecar::stage(fs, &path, &file.encode(), flush)
                };
                Ok(std::iter::once(seal).chain(sessions.map(stage).transpose()?))
            });
            match tolerate_full(written)? {
                Some(files) => staged.extend(files),
                None => sealed = false,
            }
        }
        let mut size = None;
        if let Some(snapshot) = &self.snapshot {
            let bytes = snapshot.encode();
            let path = names::path(dir, snapshot.offset, names::SESSIONS);
            if let Some(file) = tolerate_full(sidecar::stage(fs, &path, &bytes, flush))? {
                staged.push(file);
                size = Some(bytes.len() as u64);
            }
        }
        Ok((sealed, size))
    }

    fn store_index(&self) -> bool {
        let index = &self.shared.index;
        let mut ops = Vec::new();
        if let Some(base) = self.trim_below {
            index.trim_ops(base, &mut ops);
        }
        match index.store(
            &*self.shared.folder.index,
            &self.entries,
            ops,
            self.generation,
            self.end,
        ) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(partition = %self.shared.tp, %error, "index not written; kept in memory");
                false
            }
        }
    }

    fn remove_files(&self) -> io::Result<bool> {
        let fs = &*self.shared.folder.fs;
        for path in &self.removals {
            match fs.remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    if is_full(&error) {
                        return Ok(false);
                    }
                    return Err(error);
                }
                _ => {}
            }
        }
        // A removal that is lost in a crash leaves a file that recovery knows to be old.
        Ok(true)
    }
}

/// Runs many tickets of one folder with a few whole-disk flushes instead of
/// several per partition. Worth it above a dozen or two; the results are as if
/// each had been run.
pub fn run_together(folder: &LogFolder, tickets: &[FlushTicket]) -> io::Result<()> {
    let fs = &*folder.fs;
    if tickets.is_empty() {
        return Ok(());
    }
    fs.flush_all(&folder.root)?;
    let mut staged = Vec::new();
    for ticket in tickets {
        let (sealed, snapshot) = ticket.stage_sidecars(false, &mut staged)?;
        let mut outcome = ticket.outcome.lock();
        (outcome.sealed, outcome.snapshot) = (sealed, snapshot);
    }
    if !staged.is_empty() {
        fs.flush_all(&folder.root)?;
        commit_all(fs, staged)?;
        fs.flush_all(&folder.root)?;
    }
    let mut records = Vec::new();
    // Held until the files are in place, so that nobody stages over them.
    let mut held = Vec::with_capacity(tickets.len());
    for ticket in tickets {
        let mut recorded = ticket.recorded.lock();
        let staged = ticket
            .record
            .as_ref()
            .map(|record| stage_record(&ticket.shared, &recorded, record, false));
        let staged = match staged {
            Some(result) => tolerate_full(result)?,
            None => None,
        };
        if let Some((file, merged)) = staged {
            records.push(file);
            *recorded = Some(merged);
            ticket.outcome.lock().recorded = true;
        }
        held.push(recorded);
        ticket.outcome.lock().indexed = ticket.store_index();
    }
    if !records.is_empty() {
        fs.flush_all(&folder.root)?;
        commit_all(fs, records)?;
        fs.flush_all(&folder.root)?;
    }
    drop(held);
    for ticket in tickets {
        let recorded = ticket.record.is_none() || ticket.outcome.lock().recorded;
        let removed = recorded && ticket.remove_files()?;
        ticket.outcome.lock().removed = removed;
    }
    Ok(())
}

fn commit_all(fs: &dyn crate::fs::LogFs, staged: Vec<Staged>) -> io::Result<()> {
    staged.into_iter().try_for_each(|file| file.commit(fs))
}

/// `None` for want of space.
fn tolerate_full<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_full(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces `partition` durably. Whoever writes it, its numbers only rise
/// (truncation apart, which takes the lock and sets it).
pub(crate) fn write_record(
    shared: &LogReader,
    recorded: &Mutex<Option<PartitionFile>>,
    record: &PartitionFile,
) -> io::Result<()> {
    let fs = &*shared.folder.fs;
    let mut recorded = recorded.lock();
    let (file, merged) = stage_record(shared, &recorded, record, true)?;
    file.commit(fs)?;
    fs.flush_dir(&shared.dir)?;
    *recorded = Some(merged);
    Ok(())
}

fn stage_record(
    shared: &LogReader,
    recorded: &Option<PartitionFile>,
    record: &PartitionFile,
    flush: bool,
) -> io::Result<(Staged, PartitionFile)> {
    let merged = match recorded {
        Some(old) if old.generation == record.generation => merge(old, record),
        _ => record.clone(),
    };
    let path = shared.dir.join(names::PARTITION);
    Ok((
        sidecar::stage(&*shared.folder.fs, &path, &merged.encode(), flush)?,
        merged,
    ))
}

fn merge(old: &PartitionFile, new: &PartitionFile) -> PartitionFile {
    let base = if old.flushed_end > new.flushed_end {
        old
    } else {
        new
    };
    PartitionFile {
        log_start: old.log_start.max(new.log_start),
        high_watermark: old.high_watermark.max(new.high_watermark),
        highest_epoch: old.highest_epoch.max(new.highest_epoch),
        ..base.clone()
    }
}

impl SealJob {
    fn seal(&self) -> SealFile {
        SealFile {
            base: self.view.base,
            end: self.view.end(),
            bytes: self.view.size(),
            first_append: self.times.first_append,
            last_append: self.times.last_append,
            max_timestamp: self.times.max_timestamp,
            damage: self.view.damage.read().ranges.clone(),
            cleaned: None,
            blocks: self.sums.blocks().to_vec(),
        }
    }
}
