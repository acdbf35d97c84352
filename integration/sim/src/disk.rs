//! A machine's disk: the power-loss file system, and the index beside it, which
//! may come back older or newer than the log, or not at all.

use crate::rng::Rng;
use std::{path::PathBuf, sync::Arc};
use talweg_log::{
    FolderError, FolderOptions, FolderReport, LogFolder,
    fs::PowerLossFs,
    kv::{IndexKv, MemKv, mem::MemKvSnapshot},
};

const ROOT: &str = "/data";

pub struct Disk {
    pub fs: PowerLossFs,
    index: Arc<MemKv>,
    earlier: Option<MemKvSnapshot>,
    /// A flush takes so long.
    pub flush_ms: u64,
    /// The change at which it stops, if it is to.
    pub stops_at: Option<u64>,
}

impl Disk {
    pub fn new(seed: u64) -> Self {
        let fs = PowerLossFs::in_memory(seed);
        fs.set_time_ms(1_700_000_000_000);
        fs.set_writeback(Some(150));
        Self {
            fs,
            index: Arc::default(),
            earlier: None,
            flush_ms: 4,
            stops_at: None,
        }
    }

    /// As a process opens it.
    pub fn open(&self) -> Result<(Arc<LogFolder>, FolderReport), FolderError> {
        let options = FolderOptions {
            reserve_bytes: Some(0),
            open_files: 16,
            tail_bytes: 1 << 20,
        };
        let index: Arc<dyn IndexKv> = self.index.clone();
        LogFolder::open_with(
            Arc::new(self.fs.process()),
            PathBuf::from(ROOT),
            index,
            options,
        )
    }

    /// The index as it is now may come back later.
    pub fn remember_index(&mut self) {
        self.earlier = Some(self.index.snapshot());
    }

    /// After a crash; true if the index is not what it was.
    pub fn age_index(&mut self, rng: &mut Rng) -> bool {
        match rng.below(4) {
            0 => self.index.clear(),
            1 => match &self.earlier {
                Some(earlier) => self.index.restore(earlier),
                None => return false,
            },
            _ => return false,
        }
        true
    }

    /// It has stopped in the middle of a change.
    pub fn has_stopped(&self) -> bool {
        self.stops_at.is_some_and(|at| self.fs.operations() >= at)
    }
}
