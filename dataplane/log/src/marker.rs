//! How the last process that wrote into a folder ended.
//!
//! `running` is written and flushed before the first append of a process's
//! life; a clean stop, after flushing all data, puts `clean` in its place. If
//! both are found, the change was interrupted and `running` counts.

use crate::{
    error::FolderError,
    fs::LogFs,
    sidecar::{self, identity::MarkerFile},
};
use std::{io, path::Path};

const RUNNING: &str = "running";
const CLEAN: &str = "clean";

/// What a process finds when it opens a log folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Boot {
    /// The folder holds no data yet.
    New,
    /// The last process stopped cleanly: everything is flushed.
    Clean,
    /// The last process died, the machine did not: the page cache is whole.
    SameBoot,
    /// The machine went down, the disk was mounted again, or it answered with an
    /// error: everything above the recorded flushed ends is suspect.
    Unclean,
}

/// Reads the markers. An unreadable one counts as unclean, which is always safe.
pub(crate) fn read(fs: &dyn LogFs, root: &Path, is_new: bool) -> Result<Boot, FolderError> {
    let boot_id = fs.boot_id().map_err(|e| FolderError::io(root, e))?;
    let mount_id = fs.mount_id(root).map_err(|e| FolderError::io(root, e))?;
    Ok(match sidecar::read::<MarkerFile>(fs, &root.join(RUNNING)) {
        Ok(Some(marker)) if marker.boot_id == boot_id && marker.mount_id == mount_id => {
            Boot::SameBoot
        }
        Ok(Some(_)) | Err(_) => Boot::Unclean,
        Ok(None) => match sidecar::read::<MarkerFile>(fs, &root.join(CLEAN)) {
            Ok(Some(_)) => Boot::Clean,
            Ok(None) if is_new => Boot::New,
            Ok(None) | Err(_) => Boot::Unclean,
        },
    })
}

/// Durable on return.
pub(crate) fn write_running(fs: &dyn LogFs, root: &Path, marker: &MarkerFile) -> io::Result<()> {
    sidecar::replace(fs, &root.join(RUNNING), marker)?;
    remove(fs, root, CLEAN)
}

/// Durable on return; the caller has flushed all data before.
pub(crate) fn write_clean(fs: &dyn LogFs, root: &Path, marker: &MarkerFile) -> io::Result<()> {
    sidecar::replace(fs, &root.join(CLEAN), marker)?;
    remove(fs, root, RUNNING)
}

/// The folder is found unclean from now on. Not durable: a machine that goes
/// down leaves it unclean anyway.
pub(crate) fn forget_running(fs: &dyn LogFs, root: &Path) -> io::Result<()> {
    match fs.remove_file(&root.join(RUNNING)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn remove(fs: &dyn LogFs, root: &Path, name: &str) -> io::Result<()> {
    match fs.remove_file(&root.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => fs.flush_dir(root),
    }
}
