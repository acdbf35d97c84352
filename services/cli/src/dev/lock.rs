//! One process at a time in a data folder.
//!
//! The lock is the kernel's (`flock`) and goes with the process, however it
//! ends; the file stays and says for people who held it last.

use crate::failure::Failure;
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::Path,
};
use talweg_kit::errors::{ErrorCode, Refusal};

/// Holds the folder until it is dropped.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Makes the folder if it is missing and takes it.
    ///
    /// # Errors
    /// Another process has it; or it cannot be made or written to.
    pub fn take(folder: &Path) -> Result<Self, Failure> {
        let failed = |error: &io::Error| Failure::file(folder, error);
        fs::create_dir_all(folder).map_err(|error| failed(&error))?;
        let path = folder.join("lock");
        let open = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let mut file = open.map_err(|error| failed(&error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(in_use(folder, &mut file)),
            Err(error) => return Err(failed(&error.into())),
        }
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(|error| failed(&error))?;
        Ok(Self { _file: file })
    }
}

fn in_use(folder: &Path, file: &mut File) -> Failure {
    let mut holder = String::new();
    // Who holds it is a courtesy; without it the refusal says the rest.
    let who = match file.read_to_string(&mut holder) {
        Ok(_) if !holder.trim().is_empty() => format!(" (process {})", holder.trim()),
        _ => String::new(),
    };
    let message = format!(
        "{} is in use by another talweg{who}; stop that one, or choose another folder with --data-dir",
        folder.display()
    );
    Refusal::new(ErrorCode::Unavailable, message).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_held_by_one_and_free_when_that_one_has_gone() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let folder = parent.path().join("made/on/the/way");
        let held = FolderLock::take(&folder).expect("the first one gets it");
        let Err(Failure::Refused(refusal)) = FolderLock::take(&folder) else {
            panic!("the second one got it too");
        };
        assert_eq!(refusal.code, ErrorCode::Unavailable);
        assert!(
            refusal.message.contains(&std::process::id().to_string()),
            "{refusal}"
        );
        assert!(refusal.message.contains("--data-dir"), "{refusal}");
        drop(held);
        FolderLock::take(&folder).expect("free again");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let Err(Failure::Refused(refusal)) = FolderLock::take(&file.path().join("below")) else {
            panic!("a file is no folder");
        };
        assert!(refusal.message.contains("below"), "{refusal}");
    }
}
