//! The node's log folders: which there are, and which partition lives where.
//!
//! A partition stays in the folder that holds it. A new one goes to the working
//! folder with the fewest. Nothing is removed because it is in no view.

use crate::{config::StorageConfig, metrics::Metrics};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use talweg_log::{
    Boot, FolderError, FolderOptions, LogFolder,
    fs::{LogFs, RealFs},
    kv::{KvError, RocksKv, rocks::RocksKvConfig},
};
use talweg_proto::{
    controller::v1::{FolderBoot, RegisteredFolder},
    v1::FolderDescription,
};
use talweg_types::{Incarnation, TopicPartition};
use thiserror::Error;

/// How long another process may go on holding the index.
const INDEX_WAIT: Duration = Duration::from_secs(2);

/// Why the folders could not be opened.
#[derive(Debug, Error)]
pub enum FoldersError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Index(#[from] KvError),
    #[error("{path}: {source}")]
    Io {
        path: String,
        source: std::io::Error,
    },
    #[error("partition {0} lies in two log folders; move one away")]
    Twice(TopicPartition),
}

/// All log folders, and the index store that they share.
pub struct Folders {
    pub list: Vec<Arc<LogFolder>>,
    pub index: Arc<RocksKv>,
    located: Mutex<BTreeMap<TopicPartition, usize>>,
}

impl Folders {
    /// Opens every folder of the configuration on the file system that `on`
    /// gives for it; waits for the disk.
    pub fn open(
        config: &StorageConfig,
        descriptor_limit: u64,
        on: FileSystem,
    ) -> Result<Self, FoldersError> {
        let first = &config.data_dirs[0];
        let io = |path: &Path| {
            let path = path.display().to_string();
            move |source| FoldersError::Io { path, source }
        };
        std::fs::create_dir_all(first).map_err(io(first))?;
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let kv = RocksKvConfig {
            block_cache_bytes: size(config.index_cache_bytes),
            write_buffer_bytes: size(config.index_buffer_bytes),
            ..RocksKvConfig::default()
        };
        let index = Arc::new(open_index(&first.join("index"), kv)?);
        let options = FolderOptions {
            reserve_bytes: config.disk_reserve_bytes,
            open_files: open_files(config, descriptor_limit),
            tail_bytes: size(config.tail_bytes),
        };
        let (mut list, mut located) = (Vec::new(), BTreeMap::new());
        for (number, path) in config.data_dirs.iter().enumerate() {
            let path = std::path::absolute(path).map_err(io(path))?;
            let fs = on(&path).map_err(io(&path))?;
            let (folder, report) =
                LogFolder::open_with(fs, path.clone(), index.clone(), options.clone())?;
            for tp in folder.partitions()? {
                if located.insert(tp, number).is_some() {
                    return Err(FoldersError::Twice(tp));
                }
            }
            tracing::info!(folder = %path.display(), id = %report.id, boot = ?report.boot, "log folder opened");
            list.push(folder);
        }
        Ok(Self {
            list,
            index,
            located: Mutex::new(located),
        })
    }

    /// The folder that holds a partition, if one does.
    pub fn holder(&self, tp: &TopicPartition) -> Option<usize> {
        self.located.lock().get(tp).copied()
    }

    /// The folder for a partition: the one that holds it, else the emptiest.
    pub fn place(&self, tp: TopicPartition) -> usize {
        let mut located = self.located.lock();
        if let Some(number) = located.get(&tp) {
            return *number;
        }
        let mut counts = vec![0usize; self.list.len()];
        located.values().for_each(|number| counts[*number] += 1);
        let usable =
            |number: &usize| self.list[*number].failed().is_none() && !self.list[*number].is_full();
        let all = 0..self.list.len();
        let best = all
            .clone()
            .filter(usable)
            .min_by_key(|number| counts[*number]);
        let number = best
            .or_else(|| all.min_by_key(|number| counts[*number]))
            .unwrap_or(0);
        located.insert(tp, number);
        number
    }

    /// The partition is gone from disk.
    pub fn forget(&self, tp: &TopicPartition) {
        self.located.lock().remove(tp);
    }

    /// Partitions of a topic that lie on disk or were placed.
    pub fn of_topic(&self, topic_id: talweg_types::TopicId) -> Vec<TopicPartition> {
        self.located
            .lock()
            .keys()
            .filter(|tp| tp.topic_id == topic_id)
            .copied()
            .collect()
    }

    /// As the node registers them.
    pub fn registered(&self) -> Vec<RegisteredFolder> {
        let boot = |boot| match boot {
            Boot::New => FolderBoot::New,
            Boot::Clean => FolderBoot::Clean,
            Boot::SameBoot => FolderBoot::SameBoot,
            Boot::Unclean => FolderBoot::Unclean,
        };
        let folder = |folder: &Arc<LogFolder>| RegisteredFolder {
            folder_id: folder.id().as_bytes().to_vec().into(),
            boot: boot(folder.boot()) as i32,
        };
        self.list.iter().map(folder).collect()
    }

    /// Folders that may have lost unflushed bytes before this start.
    pub fn unclean(&self) -> usize {
        let unclean = |folder: &&Arc<LogFolder>| folder.boot() == Boot::Unclean;
        self.list.iter().filter(unclean).count()
    }

    /// Space and health; asks the disks.
    pub fn describe(&self, metrics: &Metrics) -> Vec<FolderDescription> {
        let describe = |folder: &Arc<LogFolder>| {
            let space = folder.refresh_space();
            metrics.folder(folder, space);
            FolderDescription {
                folder_id: folder.id().as_bytes().to_vec().into(),
                free_bytes: space.free_bytes,
                total_bytes: space.total_bytes,
                failure: folder.failed().unwrap_or_default(),
                full: folder.is_full(),
            }
        };
        self.list.iter().map(describe).collect()
    }

    /// Before the first append of this process; durable on return.
    pub fn mark_running(&self, incarnation: Incarnation) -> Result<(), FolderError> {
        self.list
            .iter()
            .try_for_each(|folder| folder.mark_running(incarnation))
    }

    /// After every partition was closed. A failed folder stays as it is.
    pub fn mark_clean(&self) -> Result<(), FolderError> {
        let mut healthy = self.list.iter().filter(|folder| folder.failed().is_none());
        healthy.try_for_each(|folder| folder.mark_clean())
    }
}

/// The process before this one may still be closing it.
fn open_index(path: &Path, config: RocksKvConfig) -> Result<RocksKv, KvError> {
    let deadline = Instant::now() + INDEX_WAIT;
    loop {
        match RocksKv::open(path, config) {
            Err(error) if Instant::now() < deadline => {
                tracing::debug!(%error, "the index cannot be opened yet");
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

fn open_files(config: &StorageConfig, descriptor_limit: u64) -> usize {
    if config.open_files > 0 {
        return config.open_files;
    }
    let folders = config.data_dirs.len().max(1) as u64;
    usize::try_from((descriptor_limit / 4 / folders).clamp(64, 8_192)).unwrap_or(2_048)
}

/// The file system under a log folder.
pub type FileSystem = fn(&Path) -> std::io::Result<Arc<dyn LogFs>>;

/// The machine's.
pub fn real(_root: &Path) -> std::io::Result<Arc<dyn LogFs>> {
    Ok(Arc::new(RealFs))
}

/// One that forgets what was never flushed when the process is killed, and
/// takes every start for one after another boot.
#[cfg(feature = "power-loss")]
pub fn losing_power(root: &Path) -> std::io::Result<Arc<dyn LogFs>> {
    // The folder's own name belongs to its parent, which must be nobody else's.
    let disk = root.parent().unwrap_or(root);
    Ok(Arc::new(talweg_log::fs::PowerLossFs::over_folder(disk)?))
}
