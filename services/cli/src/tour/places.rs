//! The folder in which a story is played.

use crate::failure::Failure;
use std::{
    fs,
    path::{Path, PathBuf},
};
use talweg_kit::errors::Refusal;
use tempfile::TempDir;

/// A folder that was empty.
pub enum Place {
    Temporary(TempDir),
    Named(PathBuf),
}

impl Place {
    /// A temporary one, or the one that was named.
    ///
    /// # Errors
    /// It holds something, or cannot be made.
    pub fn take(named: Option<PathBuf>) -> Result<Self, Failure> {
        let Some(path) = named else {
            let made = TempDir::with_prefix("talweg-tour-");
            return made
                .map(Self::Temporary)
                .map_err(|error| Failure::local("a temporary folder", &error));
        };
        let failed = |error| Failure::file(&path, &error);
        fs::create_dir_all(&path).map_err(failed)?;
        if fs::read_dir(&path).map_err(failed)?.next().is_some() {
            let why = format!("{} is not empty", path.display());
            return Err(Refusal::invalid("--dir", why).into());
        }
        let path = std::path::absolute(&path).map_err(failed)?;
        Ok(Self::Named(path))
    }

    pub fn path(&self) -> &Path {
        match self {
            Self::Temporary(dir) => dir.path(),
            Self::Named(path) => path,
        }
    }

    /// Removes what the story wrote, or keeps it and says where it is.
    pub fn leave(self, keep: bool) -> Option<PathBuf> {
        match self {
            Self::Temporary(dir) if keep => Some(dir.keep()),
            Self::Named(path) if keep => Some(path),
            Self::Temporary(_) => None,
            Self::Named(path) => match fs::remove_dir_all(&path) {
                Ok(()) => None,
                // Whoever looks for it finds it.
                Err(_) => Some(path),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_holds_something_is_left_alone() {
        let parent = tempfile::tempdir().expect("a folder");
        fs::write(parent.path().join("mine"), "x").expect("written");
        let Err(Failure::Refused(refusal)) = Place::take(Some(parent.path().into())) else {
            panic!("taken");
        };
        assert!(refusal.message.contains("is not empty"), "{refusal}");
        let place = Place::take(Some(parent.path().join("new/one"))).expect("made");
        let path = place.path().to_owned();
        assert!(place.leave(false).is_none() && !path.exists());
        let place = Place::take(Some(path.clone())).expect("made again");
        assert_eq!(place.leave(true), Some(path.clone()));
        assert!(path.exists());
    }
}
