//! The one door to files. Everything the log keeps goes through [`LogFs`], so
//! that the same code runs on a real folder and on the power-loss file system.
//!
//! What is durable after which call:
//! - bytes written with [`LogFile::write_at`] after [`LogFile::flush`] of that file, or [`LogFs::flush_all`];
//! - a file's existence, a rename or a removal after [`LogFs::flush_dir`] of its folder, or [`LogFs::flush_all`].
//!
//! A failed flush says nothing about what is on disk and is never retried: the
//! caller marks the folder failed.

use std::{
    io::{self, IoSlice},
    path::Path,
    sync::Arc,
};

pub mod power_loss;
pub mod real;

pub use power_loss::PowerLossFs;
pub use real::RealFs;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod script;

/// One entry of a folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// File name without path. Names that are not UTF-8 are not listed.
    pub name: String,
    pub is_dir: bool,
}

/// Free and total bytes of the file system that holds a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    pub free_bytes: u64,
    pub total_bytes: u64,
}

/// Folder-level operations. Paths are absolute, or relative to the working
/// folder; implementations do not interpret them further.
pub trait LogFs: Send + Sync + 'static {
    /// Creates the folder and its parents; existing is success.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Opens for reading and writing. With `create`, a missing file is made
    /// empty and an existing one is opened as it is; without, missing is `NotFound`.
    fn open(&self, path: &Path, create: bool) -> io::Result<Arc<dyn LogFile>>;
    /// Atomically puts `from` in the place of `to`, which may exist (files), or moves a folder.
    /// Between two folders it is durable once both are flushed, and never half done.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes the folder and all in it; missing is success.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Entries in name order; a missing folder is `NotFound`.
    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>>;
    /// Makes creations, renames and removals in this folder durable.
    fn flush_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes everything on the file system that holds `path` durable (`syncfs`).
    fn flush_all(&self, path: &Path) -> io::Result<()>;
    fn space(&self, path: &Path) -> io::Result<Space>;
    /// Identity of this boot of the machine: changes exactly when unflushed
    /// page cache may have been lost.
    fn boot_id(&self) -> io::Result<String>;
    /// Identity of the mount that holds `path`.
    fn mount_id(&self, path: &Path) -> io::Result<String>;
}

/// An open file. Reads may run on any thread beside one writer.
#[expect(
    clippy::len_without_is_empty,
    reason = "the length can fail, and nobody asks for emptiness"
)]
pub trait LogFile: Send + Sync {
    fn len(&self) -> io::Result<u64>;
    /// Fills `buf` from `position` (a byte position); short only at the end of the file.
    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize>;
    /// Like `read_at`, but `None` where it would wait for the disk. May return
    /// fewer bytes than asked for when only those are in memory.
    fn try_read_at(&self, buf: &mut [u8], position: u64) -> io::Result<Option<usize>>;
    /// Writes all slices, one after the other, from `position`. On error some
    /// of the bytes may have been written.
    fn write_at(&self, slices: &[IoSlice<'_>], position: u64) -> io::Result<()>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes the file's bytes and length durable (`fdatasync`).
    fn flush(&self) -> io::Result<()>;
    /// Time of the last change in milliseconds since 1970.
    fn modified_ms(&self) -> io::Result<i64>;
}
