//! One log folder (disk): its identity, how the last process left it, whether
//! it is full or failed, and what all its partitions share.
//!
//! Failed is sticky: after an I/O error or a failed flush nothing in the folder
//! is written again by this process, because nobody can say what is on disk.
//! Full is not failed: it passes when space returns.

use crate::{
    buffers::Buffers,
    config::FolderOptions,
    error::FolderError,
    fd_cache::FdCache,
    fs::{LogFs, Space},
    kv::IndexKv,
    marker::{self, Boot},
    names,
    sidecar::{
        self,
        identity::{FolderFile, MarkerFile},
    },
};
use parking_lot::{Mutex, RwLock};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};
use talweg_types::{FolderId, Incarnation, TopicPartition};
use uuid::Uuid;

const IDENTITY: &str = "folder";
const SET_ASIDE: &str = "set-aside";
/// Folders in a log folder that are not partitions and are left alone.
const RESERVED: &[&str] = &[SET_ASIDE, "index", "lost+found"];
const GIB: u64 = 1 << 30;
const EIO: i32 = rustix::io::Errno::IO.raw_os_error();

/// One data directory. Shared by all its partitions and by their readers.
pub struct LogFolder {
    pub(crate) fs: Arc<dyn LogFs>,
    pub(crate) root: PathBuf,
    pub(crate) index: Arc<dyn IndexKv>,
    pub(crate) files: FdCache,
    pub(crate) tail_used: AtomicUsize,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) options: FolderOptions,
    id: FolderId,
    boot: Boot,
    full: AtomicBool,
    has_failed: AtomicBool,
    failed: RwLock<Option<String>>,
    marker: Mutex<Option<MarkerFile>>,
}

/// What was found when the folder was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FolderReport {
    pub boot: Boot,
    pub id: FolderId,
}

impl LogFolder {
    /// Opens a folder with default options; creates it, with a new id, when it
    /// is missing or empty.
    pub fn open(
        fs: Arc<dyn LogFs>,
        root: PathBuf,
        index: Arc<dyn IndexKv>,
    ) -> Result<(Arc<Self>, FolderReport), FolderError> {
        Self::open_with(fs, root, index, FolderOptions::default())
    }

    /// Opens a folder. An identity file that is there but unreadable is an
    /// error: a new id would disown the data.
    pub fn open_with(
        fs: Arc<dyn LogFs>,
        root: PathBuf,
        index: Arc<dyn IndexKv>,
        options: FolderOptions,
    ) -> Result<(Arc<Self>, FolderReport), FolderError> {
        let io = |e| FolderError::io(&root, e);
        fs.create_dir_all(&root).map_err(io)?;
        let is_new = fs
            .list(&root)
            .map_err(io)?
            .iter()
            .all(|entry| is_foreign(&entry.name));
        let identity = root.join(IDENTITY);
        let found = sidecar::read::<FolderFile>(&*fs, &identity).map_err(|source| {
            FolderError::Sidecar {
                path: identity.display().to_string(),
                source,
            }
        })?;
        let id = match found {
            Some(file) => file.id,
            None => {
                flush_ancestors(&*fs, &root)?;
                let id = FolderId(Uuid::new_v4());
                sidecar::replace(&*fs, &identity, &FolderFile { id }).map_err(io)?;
                id
            }
        };
        let boot = marker::read(&*fs, &root, is_new || is_unused(&*fs, &root))?;
        let folder = Arc::new(Self {
            files: FdCache::new(options.open_files),
            tail_used: AtomicUsize::new(0),
            buffers: Arc::default(),
            options,
            id,
            boot,
            full: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            failed: RwLock::new(None),
            marker: Mutex::new(None),
            fs,
            root,
            index,
        });
        folder.refresh_space();
        Ok((folder, FolderReport { boot, id }))
    }

    /// Written when the folder was first used; never changes.
    pub fn id(&self) -> FolderId {
        self.id
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// As found at open.
    pub fn boot(&self) -> Boot {
        self.boot
    }

    /// Before the first append of this process. Durable on return.
    pub fn mark_running(&self, incarnation: Incarnation) -> Result<(), FolderError> {
        self.check_alive()?;
        let io = |e| FolderError::io(&self.root, e);
        if self.boot == Boot::Unclean {
            self.suspect_all()?;
        }
        let marker = MarkerFile {
            boot_id: self.fs.boot_id().map_err(io)?,
            mount_id: self.fs.mount_id(&self.root).map_err(io)?,
            incarnation,
        };
        self.guard(marker::write_running(&*self.fs, &self.root, &marker))?;
        *self.marker.lock() = Some(marker);
        Ok(())
    }

    /// `running` of this boot says that the page cache is whole, which is not yet
    /// true of logs that nobody has recovered since the machine went down. If
    /// this process dies before, the next one must know which they are. It needs
    /// no flush: after another boot the folder is unclean anyway.
    fn suspect_all(&self) -> Result<(), FolderError> {
        for tp in self.partitions()? {
            let path = self.root.join(tp.to_string()).join(names::SUSPECT);
            self.guard(self.fs.open(&path, true).map(drop))?;
        }
        Ok(())
    }

    /// The caller has closed every partition. Durable on return. A failed
    /// folder is never marked clean.
    pub fn mark_clean(&self) -> Result<(), FolderError> {
        self.check_alive()?;
        match &*self.marker.lock() {
            Some(marker) => self.guard(marker::write_clean(&*self.fs, &self.root, marker)),
            // Never marked running: nothing was appended and the marker found still holds.
            None => Ok(()),
        }
    }

    /// The partitions that have a replica here. Folders with other names are
    /// moved to `set-aside` and never removed; those that an explicit deletion
    /// has renamed are removed; an empty one holds no replica.
    pub fn partitions(&self) -> Result<Vec<TopicPartition>, FolderError> {
        let io = |e| FolderError::io(&self.root, e);
        let mut found = Vec::new();
        for entry in self.fs.list(&self.root).map_err(io)? {
            if !entry.is_dir || is_foreign(&entry.name) || RESERVED.contains(&entry.name.as_str()) {
                continue;
            }
            let deleted = entry
                .name
                .strip_suffix(names::DELETED)
                .map(str::parse::<TopicPartition>);
            if let Some(Ok(_)) = deleted {
                self.fs
                    .remove_dir_all(&self.root.join(&entry.name))
                    .map_err(io)?;
            } else if let Ok(tp) = entry.name.parse::<TopicPartition>() {
                if self.holds_replica(&entry.name)? {
                    found.push(tp);
                }
            } else {
                self.set_aside(&entry.name)?;
            }
        }
        Ok(found)
    }

    fn holds_replica(&self, name: &str) -> Result<bool, FolderError> {
        let path = self.root.join(name);
        let entries = self.fs.list(&path).map_err(|e| FolderError::io(&path, e))?;
        let ours =
            |name: &str| name == names::PARTITION || names::parse(name, names::SEGMENT).is_some();
        Ok(entries.iter().any(|entry| ours(&entry.name)))
    }

    /// Moves a folder that nobody knows out of the way, under a free name.
    pub fn set_aside(&self, name: &str) -> Result<PathBuf, FolderError> {
        let io = |e| FolderError::io(&self.root, e);
        let aside = self.root.join(SET_ASIDE);
        self.fs.create_dir_all(&aside).map_err(io)?;
        let taken = self.fs.list(&aside).map_err(io)?;
        let free = |candidate: &String| taken.iter().all(|entry| entry.name != *candidate);
        let numbered = (1..=taken.len() + 1).map(|n| format!("{name}.{n}"));
        let target = std::iter::once(name.to_owned()).chain(numbered).find(free);
        let target = aside.join(target.unwrap_or_else(|| name.to_owned()));
        self.fs.rename(&self.root.join(name), &target).map_err(io)?;
        self.fs.flush_dir(&aside).map_err(io)?;
        self.fs.flush_dir(&self.root).map_err(io)?;
        tracing::warn!(folder = %self.root.display(), name, "unknown folder set aside");
        Ok(target)
    }

    /// Why the folder failed, if it did. Sticky until the process starts again.
    pub fn failed(&self) -> Option<String> {
        if !self.has_failed.load(Ordering::Acquire) {
            return None;
        }
        self.failed.read().clone()
    }

    /// Marks the folder failed; the first reason stays. The next process finds it
    /// unclean although the machine did not go down: nobody knows what of the page
    /// cache reached the disk.
    pub fn fail(&self, why: &str) {
        let mut failed = self.failed.write();
        if failed.is_none() {
            tracing::error!(folder = %self.root.display(), why, "log folder failed");
            *failed = Some(why.to_owned());
            if let Err(error) = marker::forget_running(&*self.fs, &self.root) {
                tracing::error!(folder = %self.root.display(), %error, "a failed log folder cannot be marked so: before this process is started again, remove the file `running` there");
            }
        }
        self.has_failed.store(true, Ordering::Release);
    }

    /// An error of the device itself makes everything in the folder suspect.
    pub(crate) fn fail_on_io(&self, error: &std::io::Error) {
        if error.raw_os_error() == Some(EIO) {
            self.fail(&format!("input/output error: {error}"));
        }
    }

    /// Whether produce is refused for want of space.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    pub(crate) fn set_full(&self) {
        if !self.full.swap(true, Ordering::Relaxed) {
            tracing::warn!(folder = %self.root.display(), "log folder is full; produce is refused");
        }
    }

    /// Below this many free bytes produce is refused.
    pub fn reserve(&self, space: Space) -> u64 {
        let default = (space.total_bytes / 20).min(GIB);
        self.options.reserve_bytes.unwrap_or(default)
    }

    /// Looks at the disk again and decides whether the folder is full. The
    /// driver calls it about once a second, on a worker.
    pub fn refresh_space(&self) -> Space {
        let Ok(space) = self.fs.space(&self.root) else {
            // An unknown amount is no reason to refuse; a write that fails is.
            return Space {
                free_bytes: 0,
                total_bytes: 0,
            };
        };
        if space.free_bytes < self.reserve(space) {
            self.set_full();
        } else if self.full.swap(false, Ordering::Relaxed) {
            tracing::info!(folder = %self.root.display(), free_bytes = space.free_bytes, "log folder has space again");
        }
        space
    }

    /// Segment files held open by the cache (unflushed ones may be apart).
    pub fn open_files(&self) -> usize {
        self.files.len()
    }

    fn check_alive(&self) -> Result<(), FolderError> {
        self.failed()
            .map_or(Ok(()), |why| Err(FolderError::Failed(why)))
    }

    fn guard(&self, result: std::io::Result<()>) -> Result<(), FolderError> {
        result.map_err(|error| {
            if !crate::error::is_full(&error) {
                self.fail(&format!("marker: {error}"));
            }
            FolderError::io(&self.root, error)
        })
    }
}

/// The folder's own name must be as durable as what it will hold. Folders
/// above that this process may not open were not made by it.
fn flush_ancestors(fs: &dyn LogFs, root: &Path) -> Result<(), FolderError> {
    for folder in root.ancestors().skip(1) {
        let folder = if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        };
        match fs.flush_dir(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
            result => result.map_err(|e| FolderError::io(folder, e))?,
        }
    }
    Ok(())
}

/// Names that are never ours to judge.
fn is_foreign(name: &str) -> bool {
    name.starts_with('.') || name == "index" || name == "lost+found"
}

/// Only the identity file: opened before, never written into.
fn is_unused(fs: &dyn LogFs, root: &Path) -> bool {
    fs.list(root).is_ok_and(|entries| {
        entries
            .iter()
            .all(|entry| is_foreign(&entry.name) || entry.name.starts_with(IDENTITY))
    })
}
