//! Putting a rewritten segment in the place of others, so that a crash at any
//! point leaves one whole log.
//!
//! ```text
//!                       on disk                                   after a crash
//! 1 write, flush        B.log.cleaned B.seal.cleaned              removed: the old log
//! 2 flush folder
//! 3 B.seal.cleaned → B.swap, flush folder     the decision        4 and 5 are done again
//! 4 remove the others' .log .seal .sessions,
//!   B.log.cleaned → B.log, flush folder
//! 5 B.swap → B.seal, flush folder                                 the new log
//! ```
//! `B.swap` is the new segment's seal: it says which offsets it covers, hence
//! which segments it replaces. Names of a folder may reach the disk one by one:
//! every step of 4 and 5 may be found done or not.

use super::output::paths;
use crate::{
    error::LogError,
    fs::LogFs,
    names,
    reader::LogReader,
    sidecar::{self, SidecarError, seal::SealFile},
    walk::{DATA_CHUNK, Step, Walker},
};
use std::{io, path::Path};
use talweg_types::Offset;

const GONE_WITH_A_SEGMENT: [&str; 3] = [names::SEAL, names::SESSIONS, names::SEGMENT];

/// Step 3, after the folder was flushed: from here on the new segment is the log. An
/// error leaves open whether it is decided: the next start finds out.
pub(super) fn decide(fs: &dyn LogFs, dir: &Path, base: Offset) -> io::Result<()> {
    fs.rename(&paths(dir, base).1, &names::path(dir, base, names::SWAP))?;
    fs.flush_dir(dir)
}

/// Step 4. An error leaves it to the next start.
pub(super) fn replace(
    fs: &dyn LogFs,
    dir: &Path,
    base: Offset,
    others: impl IntoIterator<Item = Offset>,
) -> io::Result<()> {
    for other in others {
        for kind in GONE_WITH_A_SEGMENT {
            remove(fs, &names::path(dir, other, kind))?;
        }
    }
    let (segment, _) = paths(dir, base);
    done_or_missing(fs.rename(&segment, &names::path(dir, base, names::SEGMENT)))?;
    fs.flush_dir(dir)
}

/// Step 5.
pub(super) fn finish(fs: &dyn LogFs, dir: &Path, base: Offset) -> io::Result<()> {
    let swap = names::path(dir, base, names::SWAP);
    fs.rename(&swap, &names::path(dir, base, names::SEAL))?;
    fs.flush_dir(dir)
}

/// What was decided is done, what was not is removed. False: there is no folder.
pub(crate) fn finish_all(shared: &LogReader, fs: &dyn LogFs) -> Result<bool, LogError> {
    let dir = &shared.dir;
    let io = |error| LogError::io(format!("finishing a rewrite in {}", dir.display()), error);
    let entries = match fs.list(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(io(error)),
    };
    let names: Vec<String> = entries
        .into_iter()
        .filter(|entry| !entry.is_dir)
        .map(|entry| entry.name)
        .collect();
    let swaps = names
        .iter()
        .filter_map(|name| names::parse(name, names::SWAP));
    for base in swaps {
        finish_one(fs, dir, base, &names)?;
    }
    for name in names.iter().filter(|name| name.ends_with(names::CLEANED)) {
        remove(fs, &dir.join(name)).map_err(io)?;
    }
    Ok(true)
}

fn finish_one(fs: &dyn LogFs, dir: &Path, base: Offset, names: &[String]) -> Result<(), LogError> {
    let swap = names::path(dir, base, names::SWAP);
    let io = |error| LogError::io(format!("finishing {}", swap.display()), error);
    let (end, believed) = match sidecar::read::<SealFile>(fs, &swap) {
        Ok(Some(seal)) => (seal.end, true),
        Ok(None) => return Ok(()),
        Err(source @ SidecarError::UnknownVersion { .. }) => {
            let file = swap.display().to_string();
            return Err(LogError::Sidecar { file, source });
        }
        Err(error) => {
            tracing::error!(path = %swap.display(), %error, "seal of a rewritten segment is damaged; its batches say what it replaces");
            (end_of(fs, dir, base).map_err(io)?, false)
        }
    };
    if believed && !is_there(fs, dir, base, &swap).map_err(io)? {
        tracing::error!(path = %swap.display(), "the segment that was to replace others is not there; they stay");
        return remove(fs, &swap).map_err(io);
    }
    let replaced = names
        .iter()
        .filter_map(|name| names::parse(name, names::SEGMENT))
        .filter(|other| *other > base && *other < end);
    replace(fs, dir, base, replaced).map_err(io)?;
    if !believed {
        // Neither this one nor the old one is of the new file.
        remove(fs, &names::path(dir, base, names::SEAL)).map_err(io)?;
        return remove(fs, &swap).map_err(io);
    }
    finish(fs, dir, base).map_err(io)
}

/// Whether the rewritten segment is there, in its place or not: only then do those
/// that it replaces go.
fn is_there(fs: &dyn LogFs, dir: &Path, base: Offset, swap: &Path) -> io::Result<bool> {
    let Ok(Some(seal)) = sidecar::read::<SealFile>(fs, swap) else {
        return Ok(false);
    };
    for path in [paths(dir, base).0, names::path(dir, base, names::SEGMENT)] {
        match fs.open(&path, false) {
            Ok(file) if file.len()? == seal.bytes => return Ok(true),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(false)
}

/// Where the rewritten segment ends, from its batches.
fn end_of(fs: &dyn LogFs, dir: &Path, base: Offset) -> io::Result<Offset> {
    let placed = names::path(dir, base, names::SEGMENT);
    let file = match fs.open(&paths(dir, base).0, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs.open(&placed, false)?,
        opened => opened?,
    };
    let mut walk = Walker::new(&*file, 0, file.len()?, base, DATA_CHUNK);
    while let Step::Batch(header, position) = walk.step()? {
        if !walk.crc_fits(&header, position)? {
            return Ok(header.base_offset);
        }
    }
    Ok(walk.expected)
}

fn remove(fs: &dyn LogFs, path: &Path) -> io::Result<()> {
    done_or_missing(fs.remove_file(path))
}

fn done_or_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
