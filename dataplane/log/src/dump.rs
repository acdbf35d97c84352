//! Looking into a log's files without the server: for `talweg log dump` and
//! `talweg log lookup`. Reads only; the server may be running (then the end of
//! the active segment is as of the look).

mod digest;
mod lookup;
mod walk;

pub use digest::Digest;
pub use lookup::{Lookup, SparseEntry};
pub use walk::{BatchView, Event};

use crate::{
    names,
    sidecar::{
        Sidecar, SidecarError,
        partition::{EpochStart, PartitionFile},
        seal::SealFile,
        sessions::SessionsFile,
    },
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};
use talweg_types::Offset;
use thiserror::Error;

/// Why a path could not be looked into.
#[derive(Clone, Debug, Error)]
pub enum DumpError {
    #[error("{path}: {source}")]
    Io {
        path: String,
        source: Arc<io::Error>,
    },
    #[error("{0}: neither a segment file (<20 digits>.log) nor a partition folder")]
    NotALog(String),
    #[error("offset {offset} is not in the log ({first}..{end})")]
    NotThere {
        offset: Offset,
        first: Offset,
        end: Offset,
    },
    #[error("offset {offset} lies in a damaged range; the next good one is {next_good}")]
    Damaged { offset: Offset, next_good: Offset },
    #[error("batch at offset {offset} cannot be decoded: {reason}")]
    Undecodable { offset: Offset, reason: String },
}

impl DumpError {
    fn io(path: &Path, source: io::Error) -> Self {
        Self::Io {
            path: path.display().to_string(),
            source: Arc::new(source),
        }
    }
}

/// A sidecar file beside the segments.
#[derive(Debug)]
pub enum SidecarView {
    Partition(Box<PartitionFile>),
    Seal(SealFile),
    Sessions(SessionsFile),
}

/// A file and what it holds, or why it cannot be read.
#[derive(Debug)]
pub struct SidecarFound {
    pub name: String,
    pub content: Result<SidecarView, SidecarError>,
}

/// One segment file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentFile {
    pub path: PathBuf,
    pub base: Offset,
    pub bytes: u64,
}

/// A segment, or a partition's folder, opened for looking.
pub struct LogFiles {
    pub segments: Vec<SegmentFile>,
    /// Of a folder; in name order.
    pub sidecars: Vec<SidecarFound>,
}

impl LogFiles {
    /// A segment file or a partition folder.
    pub fn open(path: &Path) -> Result<Self, DumpError> {
        let meta = fs::metadata(path).map_err(|e| DumpError::io(path, e))?;
        if meta.is_dir() {
            return Self::open_folder(path);
        }
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let base = names::parse(name, names::SEGMENT)
            .ok_or_else(|| DumpError::NotALog(path.display().to_string()))?;
        let segment = SegmentFile {
            path: path.to_owned(),
            base,
            bytes: meta.len(),
        };
        let seal = path.with_extension(names::SEAL);
        let sidecars = if seal.exists() {
            vec![read_sidecar(&seal)?]
        } else {
            Vec::new()
        };
        Ok(Self {
            segments: vec![segment],
            sidecars,
        })
    }

    fn open_folder(path: &Path) -> Result<Self, DumpError> {
        let io = |e| DumpError::io(path, e);
        let mut found = Self {
            segments: Vec::new(),
            sidecars: Vec::new(),
        };
        let mut entries: Vec<_> = fs::read_dir(path)
            .map_err(io)?
            .collect::<Result<_, _>>()
            .map_err(io)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(base) = names::parse(&name, names::SEGMENT) {
                let bytes = entry.metadata().map_err(io)?.len();
                found.segments.push(SegmentFile {
                    path: entry.path(),
                    base,
                    bytes,
                });
            } else if kind_of(&name).is_some() {
                found.sidecars.push(read_sidecar(&entry.path())?);
            }
        }
        if found.segments.is_empty() && found.sidecars.is_empty() {
            return Err(DumpError::NotALog(path.display().to_string()));
        }
        Ok(found)
    }

    /// The `partition` file, if it is there and readable.
    pub fn record(&self) -> Option<&PartitionFile> {
        self.sidecars.iter().find_map(|found| match &found.content {
            Ok(SidecarView::Partition(record)) => Some(&**record),
            _ => None,
        })
    }

    /// The seal of a segment, if it is there and readable.
    pub fn seal(&self, base: Offset) -> Option<&SealFile> {
        self.sidecars.iter().find_map(|found| match &found.content {
            Ok(SidecarView::Seal(seal)) if seal.base == base => Some(seal),
            _ => None,
        })
    }

    /// Where leader epochs begin, from the batch headers.
    pub fn epochs(&self) -> Result<Vec<EpochStart>, DumpError> {
        let mut epochs = crate::epochs::Epochs::default();
        self.for_each(false, &mut |event| {
            if let Event::Batch(batch) = event {
                epochs.observe(batch.header.leader_epoch, batch.header.base_offset);
            }
            Ok(true)
        })?;
        Ok(epochs.entries().to_vec())
    }
}

fn kind_of(name: &str) -> Option<&'static str> {
    if name == names::PARTITION {
        return Some(names::PARTITION);
    }
    [names::SEAL, names::SESSIONS]
        .into_iter()
        .find(|kind| names::parse(name, kind).is_some())
}

fn read_sidecar(path: &Path) -> Result<SidecarFound, DumpError> {
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let bytes = fs::read(path).map_err(|e| DumpError::io(path, e))?;
    let content = match kind_of(&name) {
        Some(names::PARTITION) => {
            PartitionFile::decode(&bytes).map(|file| SidecarView::Partition(Box::new(file)))
        }
        Some(names::SEAL) => SealFile::decode(&bytes).map(SidecarView::Seal),
        _ => SessionsFile::decode(&bytes).map(SidecarView::Sessions),
    };
    Ok(SidecarFound { name, content })
}
