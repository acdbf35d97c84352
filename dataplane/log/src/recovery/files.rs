//! What lies in a partition's folder.

use crate::{
    epochs::Epochs,
    error::LogError,
    fs::LogFs,
    names,
    reader::LogReader,
    rewrite::swap,
    segment::SegmentView,
    sidecar::{self, SidecarError, partition::PartitionFile, sessions::SessionsFile},
    walk::{HEADER_CHUNK, Step, Walker},
};
use std::{collections::BTreeSet, sync::Arc};
use talweg_types::Offset;

pub(crate) struct Found {
    /// As read, or the best guess when it was lost or never written.
    pub record: PartitionFile,
    /// There was one, or must have been, and it cannot be read.
    pub record_lost: bool,
    /// There was none yet.
    pub record_missing: bool,
    /// Base offsets of segment files that belong to the log, in order.
    pub segments: Vec<Offset>,
    pub seals: BTreeSet<Offset>,
    /// Offsets of `sessions` files, in order.
    pub sessions: Vec<Offset>,
}

impl Found {
    /// `None`: there is no folder. Left-overs of interrupted work are removed.
    pub(crate) fn list(shared: &LogReader, fs: &dyn LogFs) -> Result<Option<Self>, LogError> {
        let io = |error| LogError::io(format!("listing {}", shared.dir.display()), error);
        if !swap::finish_all(shared, fs)? {
            return Ok(None);
        }
        let entries = fs.list(&shared.dir).map_err(io)?;
        let mut segments = Vec::new();
        let mut seals = BTreeSet::new();
        let mut sessions = Vec::new();
        for entry in entries.iter().filter(|entry| !entry.is_dir) {
            if entry.name.ends_with(names::TEMPORARY) {
                fs.remove_file(&shared.dir.join(&entry.name)).map_err(io)?;
            }
            segments.extend(names::parse(&entry.name, names::SEGMENT));
            seals.extend(names::parse(&entry.name, names::SEAL));
            sessions.extend(names::parse(&entry.name, names::SESSIONS));
        }
        segments.sort_unstable();
        sessions.sort_unstable();
        let record = read_record(shared, fs)?;
        // Before the first flush there is no sidecar at all.
        let fresh = seals.is_empty()
            && sessions.is_empty()
            && segments.first().is_none_or(|base| *base == Offset::ZERO);
        let missing = matches!(record, Ok(None));
        let record_lost = record.is_err() || (missing && !fresh);
        let mut found = Self {
            record: record
                .ok()
                .flatten()
                .unwrap_or_else(|| PartitionFile::new(shared.tp)),
            record_lost,
            record_missing: missing && fresh,
            segments,
            seals,
            sessions,
        };
        if record_lost {
            found.guess_record();
        }
        found.drop_below_start(shared, fs);
        Ok(Some(found))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.record_missing && self.segments.is_empty()
    }

    /// Without `partition`: what is sealed was flushed before; the rest is read.
    fn guess_record(&mut self) {
        let unsealed = self
            .segments
            .iter()
            .copied()
            .find(|base| !self.seals.contains(base));
        let last = self.segments.last().copied();
        let end = unsealed
            .or(last)
            .or(self.sessions.last().copied())
            .unwrap_or_default();
        self.record.log_start = self.segments.first().copied().unwrap_or(end);
        self.record.flushed_end = end;
        self.record.flushed_segment = end;
        self.record.flushed_position = 0;
        self.record.high_watermark = self.record.log_start;
    }

    /// Segments whose deletion was interrupted: the log start has passed them.
    /// What the saved state does not cover yet is kept, to be replayed, and goes
    /// with the next tick.
    fn drop_below_start(&mut self, shared: &LogReader, fs: &dyn LogFs) {
        let flushed = self.record.flushed_end;
        let saved = self
            .sessions
            .iter()
            .copied()
            .rfind(|offset| *offset <= flushed);
        let limit = self
            .record
            .log_start
            .min(self.record.flushed_segment)
            .min(saved.unwrap_or_default());
        let ends = self
            .segments
            .iter()
            .skip(1)
            .copied()
            .chain([self.record.flushed_segment]);
        let gone = self
            .segments
            .iter()
            .copied()
            .zip(ends)
            .take_while(|(base, end)| base < end && *end <= limit)
            .map(|(base, _)| base);
        let gone: Vec<Offset> = gone.collect();
        for base in &gone {
            for kind in [names::SEAL, names::SESSIONS, names::SEGMENT] {
                // Fails only if missing, or is tried again at the next start.
                let _ = fs.remove_file(&names::path(&shared.dir, *base, kind));
            }
        }
        self.segments.retain(|base| !gone.contains(base));
        self.sessions.retain(|offset| !gone.contains(offset));
    }

    /// Segments below the one of the flushed end: sealed, and not read now.
    pub(crate) fn sealed_views(&self, shared: &LogReader) -> Vec<Arc<SegmentView>> {
        let flushed = self.record.flushed_segment;
        let sealed: Vec<Offset> = self
            .segments
            .iter()
            .copied()
            .filter(|base| *base < flushed)
            .collect();
        let ends = sealed.iter().skip(1).copied().chain([flushed]);
        sealed
            .iter()
            .zip(ends)
            .map(|(base, end)| {
                let view = SegmentView::listed(&shared.dir, *base, end);
                view.set_sealed();
                Arc::new(view)
            })
            .collect()
    }

    /// Segments from the flushed end on.
    pub(crate) fn open_segments(&self) -> Vec<Offset> {
        self.segments
            .iter()
            .copied()
            .filter(|base| *base >= self.record.flushed_segment)
            .collect()
    }

    /// The newest `sessions` file at or below the flushed end that can be read.
    pub(crate) fn load_sessions(&self, shared: &LogReader, fs: &dyn LogFs) -> Option<SessionsFile> {
        let usable = self
            .sessions
            .iter()
            .rev()
            .filter(|offset| **offset <= self.record.flushed_end);
        for offset in usable {
            let path = names::path(&shared.dir, *offset, names::SESSIONS);
            match sidecar::read::<SessionsFile>(fs, &path) {
                Ok(Some(file)) if file.offset == *offset => return Some(file),
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "sessions file skipped")
                }
            }
        }
        None
    }

    /// From `partition`; when that was lost, from the headers of all segments.
    pub(crate) fn epochs(&self, shared: &LogReader, fs: &dyn LogFs) -> Result<Epochs, LogError> {
        if !self.record_lost {
            return Ok(Epochs::new(self.record.epochs.clone()));
        }
        let mut epochs = Epochs::default();
        for view in self.sealed_views(shared) {
            let io = |error| LogError::io(format!("reading {}", view.path.display()), error);
            let file = fs.open(&view.path, false).map_err(io)?;
            let size = file.len().map_err(io)?;
            let mut walk = Walker::new(&*file, 0, size, view.base, HEADER_CHUNK);
            while let Step::Batch(header, _) = walk.step().map_err(io)? {
                epochs.observe(header.leader_epoch, header.base_offset);
            }
        }
        Ok(epochs)
    }
}

/// Outer error: refuse to touch the folder. Inner: the file is damaged.
fn read_record(
    shared: &LogReader,
    fs: &dyn LogFs,
) -> Result<Result<Option<PartitionFile>, ()>, LogError> {
    let path = shared.dir.join(names::PARTITION);
    match sidecar::read::<PartitionFile>(fs, &path) {
        Ok(Some(record)) if record.tp != shared.tp => Err(LogError::WrongIdentity {
            expected: shared.tp.to_string(),
            found: record.tp.to_string(),
        }),
        Ok(record) => Ok(Ok(record)),
        Err(source @ SidecarError::UnknownVersion { .. }) => Err(LogError::Sidecar {
            file: path.display().to_string(),
            source,
        }),
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "partition file is damaged; its numbers are taken from the log");
            Ok(Err(()))
        }
    }
}
