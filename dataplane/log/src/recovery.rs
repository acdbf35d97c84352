//! Opening a partition's log.
//!
//! The checksummed log is the only truth. `partition` says from where it must
//! be read: below the flushed end nothing is read except what sessions need
//! (from the newest `sessions` file on). From the flushed end every good batch
//! is kept, and then:
//!
//! | where a bad batch is found              | after another boot | in the same boot |
//! |-----------------------------------------|--------------------|------------------|
//! | below the flushed end                   | damage, not cut    | damage, not cut  |
//! | at or above it, good batches follow     | cut from there on  | damage, not cut  |
//! | at or above it, nothing good follows    | cut: a torn tail   | cut: a torn tail |
//!
//! A log that carries the file `suspect` was not recovered since the machine went
//! down, whatever the folder's marker says by now: it counts as after another boot.
//!
//! What is kept is flushed before the log serves, so that no offset changes its
//! value after it has been read.

mod files;
mod index;
mod scan;

use crate::{
    config::LogConfig,
    epochs::Epochs,
    error::LogError,
    fault::{Fault, planted},
    flush::write_record,
    folder::LogFolder,
    marker::Boot,
    names,
    partition::PartitionLog,
    replay::Replayed,
    segment::SegmentView,
    sidecar::{self, partition::PartitionFile, sessions::SessionsFile},
};
use files::Found;
use scan::{Scan, Scanned};
use std::{
    collections::VecDeque,
    io,
    path::Path,
    sync::{Arc, atomic::Ordering},
};
use talweg_types::{Offset, TimestampMs, TopicPartition};

/// Offsets whose records cannot be believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DamagedRange {
    pub from: Offset,
    /// Exclusive.
    pub next_good: Offset,
}

/// How the index store compared with the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexFound {
    Complete,
    /// Caught up from the log while serving.
    Behind,
    /// Dropped, and rebuilt while serving.
    Ahead,
    Missing,
    Unreadable,
}

/// What recovery found and did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecoveryReport {
    pub boot: Boot,
    /// The log end.
    pub kept_to: Offset,
    /// Bytes of a torn tail that were removed, later segments included.
    pub cut_bytes: u64,
    /// Found in what was read; sealed segments are checked when they are read.
    pub damaged: Vec<DamagedRange>,
    /// Bytes of segment files that were read and checked.
    pub scanned_bytes: u64,
    pub index: IndexFound,
    /// The stored high watermark, if the log no longer reaches it.
    pub watermark_lost: Option<Offset>,
    /// `partition` was there and could not be read.
    pub record_lost: bool,
}

impl PartitionLog {
    /// Opens the log found in the folder; a missing one is created (on paper).
    /// Reads, cuts and flushes as the table above says.
    pub fn recover(
        folder: &Arc<LogFolder>,
        tp: TopicPartition,
        config: LogConfig,
        now: TimestampMs,
    ) -> Result<(Self, RecoveryReport), LogError> {
        let mut log = Self::create(folder, tp, config);
        let suspect = log.shared.dir.join(names::SUSPECT);
        let boot = match folder.fs.open(&suspect, false) {
            Ok(_) if !planted(Fault::SuspectIgnored) => Boot::Unclean,
            Ok(_) => folder.boot(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => folder.boot(),
            Err(error) => return Err(log.recovery_failed(error)),
        };
        let report = log.recover_as(boot, now)?;
        if boot == Boot::Unclean {
            log.no_longer_suspect(&suspect)?;
        }
        Ok((log, report))
    }

    /// Rebuilds everything from what is on disk, into the same reader.
    pub(crate) fn recover_as(
        &mut self,
        boot: Boot,
        now: TimestampMs,
    ) -> Result<RecoveryReport, LogError> {
        self.check_alive()?;
        let mut report = RecoveryReport {
            boot,
            kept_to: Offset::ZERO,
            cut_bytes: 0,
            damaged: Vec::new(),
            scanned_bytes: 0,
            index: IndexFound::Complete,
            watermark_lost: None,
            record_lost: false,
        };
        let Some(found) = Found::list(&self.shared, &*self.folder.fs)? else {
            return Ok(report);
        };
        self.disk.folder_exists = true;
        if found.is_empty() {
            return Ok(report);
        }
        report.record_lost = found.record_lost;
        let mut state = Replayed {
            epochs: found.epochs(&self.shared, &*self.folder.fs)?,
            ..Replayed::default()
        };
        let saved = found.load_sessions(&self.shared, &*self.folder.fs);
        if let Some(saved) = &saved {
            state.load(saved);
        }
        let sealed = found.sealed_views(&self.shared);
        self.shared.epochs.write().clone_from(&state.epochs);
        let scanned = Scan::new(
            &self.shared,
            &found,
            boot,
            saved.as_ref(),
            &self.config,
            now,
        )
        .run(&sealed, &mut state, &mut report)
        .map_err(|error| self.recovery_failed(error))?;
        let guessed = found.record_lost || found.record_missing;
        let files = found.segments.clone();
        let ends_below_start = !files.is_empty() && scanned.end < found.record.log_start;
        self.install(found, sealed, scanned, state, saved.as_ref(), &mut report);
        if ends_below_start {
            self.drop_what_is_deleted(&files, now)
                .map_err(|error| self.recovery_failed(error))?;
        } else if guessed || self.has_unrecorded_epoch() {
            // What this recovery vouches for, the next one need not guess.
            write_record(&self.shared, &self.disk.recorded, &self.record_at_end())
                .map_err(|error| self.recovery_failed(error))?;
        }
        Ok(report)
    }

    /// All that is left lies below the log start, which outlived it, and is deleted
    /// already. The log goes on at the log start; with these files there, the gap
    /// before it would look like damage to the next recovery. The log start never
    /// leaves the folder on the way.
    fn drop_what_is_deleted(&mut self, files: &[Offset], now: TimestampMs) -> io::Result<()> {
        let start = self.bounds().log_start;
        let fs = Arc::clone(&self.folder.fs);
        sidecar::replace(
            &*fs,
            &self.snapshot_path(start),
            &self.sessions_at_roll(start, now),
        )?;
        self.forget_files();
        *self.shared.epochs.write() = Epochs::default();
        let mut record = self.record_at_end();
        record.generation += 1;
        write_record(&self.shared, &self.disk.recorded, &record)?;
        self.shared
            .generation
            .store(record.generation, Ordering::Release);
        for base in files {
            for kind in [names::SEAL, names::SEGMENT] {
                match fs.remove_file(&names::path(&self.shared.dir, *base, kind)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        fs.flush_dir(&self.shared.dir)
    }

    /// What was kept is flushed: from here on the page cache speaks for this log.
    fn no_longer_suspect(&self, path: &Path) -> Result<(), LogError> {
        match self.folder.fs.remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.recovery_failed(error))
            }
            _ => Ok(()),
        }
    }

    fn recovery_failed(&self, error: std::io::Error) -> LogError {
        self.folder.fail_on_io(&error);
        LogError::io(format!("recovering {}", self.tp), error)
    }

    /// Puts what was found in its place.
    fn install(
        &mut self,
        found: Found,
        sealed: Vec<Arc<SegmentView>>,
        scanned: Scanned,
        state: Replayed,
        saved: Option<&SessionsFile>,
        report: &mut RecoveryReport,
    ) {
        let record = found.record;
        let end = scanned.end.max(record.log_start);
        let mut views = sealed;
        self.closing = VecDeque::new();
        for segment in scanned.closing {
            views.push(Arc::clone(&segment.view));
            self.closing.push_back(segment);
        }
        views.extend(scanned.active.iter().map(|active| Arc::clone(&active.view)));
        self.active = scanned.active;
        self.sessions = state.sessions;
        self.keys = state.keys;
        self.fence = state.fence;
        self.shared.set_segments(views);
        *self.shared.epochs.write() = state.epochs;
        let first = self.shared.first_offset().min(record.log_start);
        self.shared.epochs.write().trim(first);
        self.shared
            .generation
            .store(record.generation, Ordering::Release);
        self.highest_epoch = self
            .highest_epoch
            .max(record.highest_epoch)
            .max(self.shared.last_epoch());
        self.set_recovered_bounds(&record, end, report);
        self.recover_index(record.generation, scanned.indexed_from, report);
        let guessed = found.record_lost || found.record_missing;
        self.recovered_disk(record, guessed, saved);
        self.remove_old_sessions(&found.sessions, saved);
        self.holes_from = report.damaged.iter().map(|range| range.from).min();
        report.kept_to = end;
    }

    /// `sessions` files older than the one in use and at no segment's base: left
    /// over when a process ended between writing one and removing the last.
    fn remove_old_sessions(&mut self, files: &[Offset], saved: Option<&SessionsFile>) {
        let Some(saved) = saved else { return };
        let bases: Vec<Offset> = self
            .shared
            .segments()
            .iter()
            .map(|view| view.base)
            .collect();
        let old = files
            .iter()
            .filter(|offset| **offset < saved.offset && !bases.contains(offset));
        let paths: Vec<_> = old.map(|offset| self.snapshot_path(*offset)).collect();
        self.disk.removals.extend(paths);
    }

    fn set_recovered_bounds(
        &mut self,
        record: &PartitionFile,
        end: Offset,
        report: &mut RecoveryReport,
    ) {
        self.shared.set_log_end(end);
        self.shared.set_flushed_end(end);
        self.shared
            .set_high_watermark(record.high_watermark.min(end).max(record.log_start));
        self.shared.set_log_start(record.log_start);
        report.watermark_lost = (record.high_watermark > end).then_some(record.high_watermark);
    }

    fn recovered_disk(
        &mut self,
        record: PartitionFile,
        guessed: bool,
        saved: Option<&SessionsFile>,
    ) {
        self.disk.loose_snapshot = saved
            .filter(|saved| saved.segment.position > 0)
            .map(|saved| saved.offset);
        self.disk.snapshot_size = saved.map_or(0, |saved| saved.encoded_size());
        self.disk.entries_dirty = false;
        self.disk.folder_durable = true;
        self.disk.record_due = guessed || !self.closing.is_empty();
        *self.disk.recorded.lock() = (!guessed).then_some(record);
        self.disk.snapshot_bytes = 0;
        self.disk.recorded_bytes = 0;
        // What lies between the saved state and the end counts as appended.
        self.disk.appended_bytes = self.active.as_ref().map_or(0, |active| {
            let here = saved.filter(|saved| saved.segment.base == active.view.base);
            active
                .size
                .saturating_sub(here.map_or(0, |saved| saved.segment.position))
        });
    }
}
