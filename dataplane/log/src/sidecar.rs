//! Sidecar files: what the log itself cannot give back.
//!
//! ```text
//! "TLWG" | kind u8 | version u8 | 0 u16 | body length u32 | body | CRC-32C u32 over all before it
//! ```
//! All integers are big-endian. The envelope is the same in every version, so
//! that a file of a later one is told apart from a damaged one. A file is
//! replaced as a whole: written beside itself, flushed, renamed; the caller
//! flushes the folder. Parsers return an error for any bytes; none panics.

use crate::{fs::LogFs, names};
use std::{
    io::{self, IoSlice},
    path::{Path, PathBuf},
};
use thiserror::Error;

pub mod identity;
pub mod partition;
pub mod seal;
pub mod sessions;
pub(crate) mod wire;

const MAGIC: &[u8; 4] = b"TLWG";
const HEADER_BYTES: usize = 12;
const CHECKSUM_BYTES: usize = 4;
/// Larger than any sidecar is; what claims more is refused unread.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Why the bytes of a sidecar were not taken.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SidecarError {
    #[error("not a sidecar file")]
    NotASidecar,
    #[error("length does not fit the contents")]
    BadLength,
    #[error("checksum does not fit the contents")]
    BadChecksum,
    #[error("a sidecar of kind {found}, not {expected}")]
    WrongKind { expected: u8, found: u8 },
    /// Written by a later version of this program.
    #[error("unknown version {version} (this program reads up to {newest})")]
    UnknownVersion { version: u8, newest: u8 },
    #[error("malformed: {0}")]
    Malformed(&'static str),
    #[error("cannot be read: {0}")]
    Unreadable(String),
}

/// A kind of sidecar: its number, its version, its body.
pub trait Sidecar: Sized {
    /// Never reused.
    const KIND: u8;
    /// The newest version; all up to it are read.
    const VERSION: u8;
    /// The oldest version that holds all of it, so that older programs read what they can.
    fn version(&self) -> u8 {
        Self::VERSION
    }
    fn encode_body(&self, out: &mut Vec<u8>);
    fn decode_body(version: u8, body: &[u8]) -> Result<Self, SidecarError>;

    /// The whole file.
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[Self::KIND, self.version(), 0, 0, 0, 0, 0, 0]);
        self.encode_body(&mut out);
        let body = u32::try_from(out.len() - HEADER_BYTES).unwrap_or(u32::MAX);
        out[8..12].copy_from_slice(&body.to_be_bytes());
        let checksum = crc32c::crc32c(&out);
        out.extend_from_slice(&checksum.to_be_bytes());
        out
    }

    /// From the whole file.
    fn decode(file: &[u8]) -> Result<Self, SidecarError> {
        if file.len() < HEADER_BYTES + CHECKSUM_BYTES || &file[..4] != MAGIC {
            return Err(SidecarError::NotASidecar);
        }
        let (content, checksum) = file.split_at(file.len() - CHECKSUM_BYTES);
        let body = &content[HEADER_BYTES..];
        if content[8..12] != u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes() {
            return Err(SidecarError::BadLength);
        }
        if checksum != crc32c::crc32c(content).to_be_bytes() {
            return Err(SidecarError::BadChecksum);
        }
        if content[4] != Self::KIND {
            return Err(SidecarError::WrongKind {
                expected: Self::KIND,
                found: content[4],
            });
        }
        let version = content[5];
        if version == 0 || version > Self::VERSION {
            return Err(SidecarError::UnknownVersion {
                version,
                newest: Self::VERSION,
            });
        }
        Self::decode_body(version, body)
    }
}

/// Reads a sidecar; `None` when the file is missing.
pub(crate) fn read<S: Sidecar>(fs: &dyn LogFs, path: &Path) -> Result<Option<S>, SidecarError> {
    let bytes = match read_file(fs, path) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(None),
        Err(error) => return Err(SidecarError::Unreadable(error.to_string())),
    };
    S::decode(&bytes).map(Some)
}

pub(crate) fn read_file(fs: &dyn LogFs, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match fs.open(path, false) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let len = file.len()?;
    if len > FILE_BYTES_MAX {
        return Err(io::Error::other(format!(
            "{len} bytes are more than a sidecar has"
        )));
    }
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(Some(bytes))
}

/// A sidecar written and flushed beside its place, not yet in it.
pub(crate) struct Staged {
    temporary: PathBuf,
    path: PathBuf,
}

/// Writes `bytes` beside `path`; with `flush` they are durable on return.
pub(crate) fn stage(fs: &dyn LogFs, path: &Path, bytes: &[u8], flush: bool) -> io::Result<Staged> {
    let mut name = path.as_os_str().to_owned();
    name.push(names::TEMPORARY);
    let temporary = PathBuf::from(name);
    let file = fs.open(&temporary, true)?;
    file.set_len(0)?;
    file.write_at(&[IoSlice::new(bytes)], 0)?;
    if flush {
        file.flush()?;
    }
    Ok(Staged {
        temporary,
        path: path.to_owned(),
    })
}

impl Staged {
    /// Puts the file in its place; durable after a flush of the folder.
    pub(crate) fn commit(self, fs: &dyn LogFs) -> io::Result<()> {
        fs.rename(&self.temporary, &self.path)
    }
}

/// Replaces `path` atomically and durably, its folder's entry included.
pub(crate) fn replace<S: Sidecar>(fs: &dyn LogFs, path: &Path, sidecar: &S) -> io::Result<()> {
    stage(fs, path, &sidecar.encode(), true)?.commit(fs)?;
    match path.parent() {
        Some(folder) => fs.flush_dir(folder),
        None => Ok(()),
    }
}
