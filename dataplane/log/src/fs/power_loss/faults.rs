//! What a test may make go wrong, and the gate that every call passes.

use std::{io, path::Path, sync::Arc};

/// A call on the file system or on an open file, as the hook sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation<'a> {
    pub kind: OpKind,
    /// The path of the call; for an open file the path it was opened with.
    pub path: &'a Path,
    /// Where a rename goes.
    pub to: Option<&'a Path>,
    /// This is the n-th changing operation, from 1; the last one's number when
    /// this one only reads.
    pub number: u64,
}

/// The calls of [`LogFs`](crate::fs::LogFs) and [`LogFile`](crate::fs::LogFile).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OpKind {
    CreateDir,
    /// Opening without `create`.
    Open,
    /// Opening with `create`, whether or not the file is there.
    Create,
    Rename,
    RemoveFile,
    RemoveDir,
    List,
    FlushDir,
    FlushAll,
    Space,
    BootId,
    MountId,
    Len,
    Read,
    TryRead,
    Write,
    SetLen,
    Flush,
    Modified,
}

impl OpKind {
    /// Whether it counts as an operation at which a test can crash.
    pub fn is_change(self) -> bool {
        matches!(
            self,
            Self::CreateDir
                | Self::Create
                | Self::Rename
                | Self::RemoveFile
                | Self::RemoveDir
                | Self::FlushDir
                | Self::FlushAll
                | Self::Write
                | Self::SetLen
                | Self::Flush
        )
    }

    pub fn is_flush(self) -> bool {
        matches!(self, Self::Flush | Self::FlushDir | Self::FlushAll)
    }
}

/// Called before each operation without any lock held. It may wait, which plays a
/// stall, or answer an error, which the caller gets while nothing is done.
pub type Hook = Arc<dyn Fn(&Operation<'_>) -> io::Result<()> + Send + Sync>;

/// Whether an operation may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pass {
    Whole,
    /// The machine or process stops in the middle of it.
    CutShort,
}

#[derive(Default)]
pub(super) struct Faults {
    pub(super) hook: Option<Hook>,
    pub(super) operations: u64,
    pub(super) freeze_at: Option<u64>,
    pub(super) frozen: bool,
    /// Flushes that still succeed before one fails.
    pub(super) flushes_until_failure: Option<u64>,
    /// Bytes by which files may still grow.
    pub(super) free_bytes: Option<u64>,
    pub(super) writeback_one_in: Option<u64>,
    pub(super) cold: bool,
}

impl Faults {
    /// Counts an operation and says whether it may run. An error says that it may not.
    pub(super) fn admit(&mut self, kind: OpKind) -> io::Result<Pass> {
        self.check_frozen()?;
        if !kind.is_change() {
            return Ok(Pass::Whole);
        }
        self.operations += 1;
        if self.freeze_at.is_some_and(|at| self.operations >= at) {
            self.frozen = true;
            return Ok(Pass::CutShort);
        }
        Ok(Pass::Whole)
    }

    pub(super) fn check_frozen(&self) -> io::Result<()> {
        match self.frozen {
            true => Err(frozen()),
            false => Ok(()),
        }
    }

    /// Whether this flush is the one that fails.
    pub(super) fn flush_fails(&mut self) -> bool {
        match self.flushes_until_failure {
            Some(0) => {
                self.flushes_until_failure = None;
                true
            }
            Some(left) => {
                self.flushes_until_failure = Some(left - 1);
                false
            }
            None => false,
        }
    }

    /// Accounts for a file that went from one length to another; the answer is
    /// the length it may have.
    pub(super) fn grow(&mut self, from: u64, to: u64) -> u64 {
        let Some(free) = &mut self.free_bytes else {
            return to;
        };
        if to <= from {
            *free += from - to;
            return to;
        }
        let granted = (to - from).min(*free);
        *free -= granted;
        from + granted
    }
}

pub(super) fn frozen() -> io::Error {
    io::Error::other("the file system is frozen until the next crash")
}

pub(super) fn dead() -> io::Error {
    io::Error::other("this handle died in a crash")
}

pub(super) fn io_failure() -> io::Error {
    io::Error::from(rustix::io::Errno::IO)
}

pub(super) fn no_space() -> io::Error {
    io::Error::from(rustix::io::Errno::NOSPC)
}
