//! A file system that forgets what was never flushed. Processes see every change
//! at once, through a page cache; the disk sees bytes and lengths when the file is
//! flushed, names (new, moved, removed) when their folder is, and everything at
//! [`LogFs::flush_all`]. [`PowerLossFs::power_loss`] leaves what the disk saw.
//!
//! What the model promises, and nothing more:
//! - flushed bytes and lengths survive, also under a new name;
//! - the names of one folder reach the disk in the order they were changed; a
//!   rename is never half done, also between folders;
//! - a file whose folder was not flushed since it was made may be gone, flushed or
//!   not; a new folder's own name belongs to its parent;
//! - by default nothing else survives; [`PowerLossFs::power_loss_keeping_some`] and
//!   [`PowerLossFs::set_writeback`] let a random part through: pages of 4 KiB in any
//!   order, torn, or with a bit flipped in what was never flushed, a length before
//!   its bytes, the oldest names of a folder;
//! - a failed file flush loses the dirty pages as Linux does: reads show them, later
//!   flushes succeed without them. A failed folder flush leaves its names pending.
//!
//! Two backings, one implementation. In memory, for unit tests and the simulator:
//! the same seed and calls give the same outcome. Over a real folder, where the page
//! cache is this process's memory: killing the process is the power loss.

use std::{io, path::Path, sync::Arc};

use parking_lot::{Mutex, MutexGuard};

use super::{DirEntry, LogFile, LogFs, RealFs, Space};

mod chance;
mod content;
mod disk;
mod faults;
mod file;
mod journal;
mod state;
mod survive;
#[cfg(test)]
mod tests;
mod tree;

pub use faults::{Hook, OpKind, Operation};

use chance::Chance;
use faults::{Faults, Pass, dead};
use file::PowerLossFile;
use state::State;
use tree::Tree;

/// Size of a disk in memory, free unless a test limits it.
const MEMORY_DISK_BYTES: u64 = 1 << 40;

/// The file system and its controls. Clones share one state.
#[derive(Clone)]
pub struct PowerLossFs {
    shared: Arc<Shared>,
    /// Set in what [`PowerLossFs::process`] hands out: crashes before it did.
    crashes: Option<u64>,
}

struct Shared {
    state: Mutex<State>,
}

/// A call that may run, and the state it runs on.
struct Admitted<'a> {
    state: MutexGuard<'a, State>,
    pass: Pass,
}

impl Shared {
    /// Counts the call, asks the hook and locks the state. `crashes` is what the
    /// handle has seen, when it dies in a crash.
    fn admit(
        &self,
        kind: OpKind,
        path: &Path,
        to: Option<&Path>,
        crashes: Option<u64>,
    ) -> io::Result<Admitted<'_>> {
        let alive = |state: &State| match crashes {
            Some(seen) if seen != state.crashes => Err(dead()),
            _ => Ok(()),
        };
        let mut state = self.state.lock();
        alive(&state)?;
        let hook = state.faults.hook.clone();
        if let Some(hook) = hook {
            state.faults.check_frozen()?;
            let number = state.faults.operations + u64::from(kind.is_change());
            drop(state);
            hook(&Operation {
                kind,
                path,
                to,
                number,
            })?;
            state = self.state.lock();
            // The world may have ended while the hook waited.
            alive(&state)?;
        }
        let pass = state.faults.admit(kind)?;
        state.maybe_write_back()?;
        Ok(Admitted { state, pass })
    }
}

impl PowerLossFs {
    /// An empty disk in memory.
    pub fn in_memory(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let boot_id = new_boot_id(&mut chance);
        Self::new(Tree::in_memory(), chance, boot_id)
    }

    /// Over a real folder, made when missing: what is in it is durable. Every path
    /// given later lies below it. Nobody else may change what is used through here.
    pub fn over_folder(root: &Path) -> io::Result<Self> {
        let root = std::path::absolute(root)?;
        std::fs::create_dir_all(&root)?;
        let boot_id = uuid::Uuid::new_v4();
        let chance = Chance::new(boot_id.as_u64_pair().0);
        Ok(Self::new(
            Tree::over_folder(root)?,
            chance,
            boot_id.to_string(),
        ))
    }

    fn new(tree: Tree, chance: Chance, boot_id: String) -> Self {
        let faults = Faults::default();
        let state = State {
            tree,
            faults,
            chance,
            crashes: 0,
            boot_id,
            mount_id: None,
        };
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
            }),
            crashes: None,
        }
    }

    /// A handle as one process has it: it dies in the next crash, as open files do.
    /// This value itself lives on, so that a test can start the next process.
    pub fn process(&self) -> Self {
        let crashes = Some(self.shared.state.lock().crashes);
        Self {
            shared: self.shared.clone(),
            crashes,
        }
    }

    /// Everything unflushed is gone, open files are dead, the boot id is another.
    /// Ends a freeze. Refused over a folder: there, kill the process.
    pub fn power_loss(&self) -> io::Result<()> {
        self.lose_power(false)
    }

    /// As [`PowerLossFs::power_loss`], but a random part of what was not flushed
    /// has reached the disk.
    pub fn power_loss_keeping_some(&self) -> io::Result<()> {
        self.lose_power(true)
    }

    fn lose_power(&self, keeping_some: bool) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        if state.tree.is_real() {
            return Err(tree::invalid(
                "over a real folder, killing the process is the power loss",
            ));
        }
        let used = state.used_bytes();
        if keeping_some {
            state.leak_everywhere()?;
        }
        state.tree.lose_power();
        let left = state.used_bytes();
        if let Some(free) = &mut state.faults.free_bytes {
            *free = free.saturating_add(used).saturating_sub(left);
        }
        state.boot_id = new_boot_id(&mut state.chance);
        state.crash();
        Ok(())
    }

    /// The process dies and the kernel lives: nothing is lost, open files are dead,
    /// the boot id stays. Ends a freeze.
    pub fn process_crash(&self) {
        let mut state = self.shared.state.lock();
        state.tree.close_all();
        state.crash();
    }

    /// Forgets cached pages that count as clean: after a failed flush, reads now
    /// show what the disk has.
    pub fn drop_caches(&self) {
        self.shared.state.lock().tree.drop_caches();
    }

    /// From now on every call fails and changes nothing, until the next crash.
    pub fn freeze(&self) {
        self.shared.state.lock().faults.frozen = true;
    }

    /// Freezes in the middle of the changing operation with this number (from 1,
    /// see [`PowerLossFs::operations`]): it fails and is not, partly or wholly done.
    pub fn freeze_at(&self, number: u64) {
        self.shared.state.lock().faults.freeze_at = Some(number);
    }

    /// Changing operations so far, failed ones included, also over crashes.
    pub fn operations(&self) -> u64 {
        self.shared.state.lock().faults.operations
    }

    /// Lets `succeed` more flushes (of files, folders or all) through; the one
    /// after them fails with EIO.
    pub fn fail_flush_after(&self, succeed: u64) {
        self.shared.state.lock().faults.flushes_until_failure = Some(succeed);
    }

    /// Lets files grow by so many bytes in all; a write beyond that is cut there and
    /// fails with ENOSPC. Shorter and removed files give their bytes back. `None`
    /// lifts the limit.
    pub fn limit_free_bytes(&self, free_bytes: Option<u64>) {
        self.shared.state.lock().faults.free_bytes = free_bytes;
    }

    /// Before one in so many calls, something unflushed reaches the disk, as a
    /// kernel writes back when it likes. `None`: never.
    pub fn set_writeback(&self, one_in: Option<u64>) {
        self.shared.state.lock().faults.writeback_one_in = one_in;
    }

    /// While set, [`LogFile::try_read_at`] answers that it would wait.
    pub fn set_cold(&self, cold: bool) {
        self.shared.state.lock().faults.cold = cold;
    }

    /// Called before each call on this file system and its files.
    pub fn set_hook(&self, hook: Option<Hook>) {
        let old = std::mem::replace(&mut self.shared.state.lock().faults.hook, hook);
        // Not under the lock: it may own open files, which lock when they close.
        drop(old);
    }

    /// The time that changed files get, in milliseconds since 1970. In memory it
    /// stands still until set.
    pub fn set_time_ms(&self, now_ms: i64) {
        self.shared.state.lock().tree.now_ms = Some(now_ms);
    }

    /// What [`LogFs::mount_id`] answers from now on.
    pub fn set_mount_id(&self, id: &str) {
        self.shared.state.lock().mount_id = Some(id.to_owned());
    }

    /// Flips bit `bit` (0 to 7) of the flushed byte at `position`.
    pub fn flip_bit(&self, path: &Path, position: u64, bit: u8) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        let (id, content) = state.content_at(path)?;
        let outcome = content.flip_flushed(position, bit);
        state.tree.release(id);
        outcome
    }

    /// Length of the file that a power loss leaves, if it leaves its name.
    pub fn durable_len(&self, path: &Path) -> io::Result<u64> {
        let mut state = self.shared.state.lock();
        let (id, content) = state.content_at(path)?;
        let len = content.disk_len();
        state.tree.release(id);
        Ok(len)
    }

    fn admit(&self, kind: OpKind, path: &Path) -> io::Result<Admitted<'_>> {
        self.shared.admit(kind, path, None, self.crashes)
    }
}

impl LogFs for PowerLossFs {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut call = self.admit(OpKind::CreateDir, path)?;
        call.state.create_dir_all(path, call.pass)
    }

    fn open(&self, path: &Path, create: bool) -> io::Result<Arc<dyn LogFile>> {
        let kind = if create { OpKind::Create } else { OpKind::Open };
        let mut call = self.admit(kind, path)?;
        let id = call.state.open(path, create, call.pass)?;
        let crashes = call.state.crashes;
        let (shared, path) = (self.shared.clone(), path.to_owned());
        Ok(Arc::new(PowerLossFile {
            shared,
            id,
            path,
            crashes,
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut call = self
            .shared
            .admit(OpKind::Rename, from, Some(to), self.crashes)?;
        call.state.rename(from, to, call.pass)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut call = self.admit(OpKind::RemoveFile, path)?;
        call.state.remove_file(path, call.pass)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut call = self.admit(OpKind::RemoveDir, path)?;
        call.state.remove_dir_all(path, call.pass)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.admit(OpKind::List, path)?.state.list(path)
    }

    fn flush_dir(&self, path: &Path) -> io::Result<()> {
        let mut call = self.admit(OpKind::FlushDir, path)?;
        call.state.flush_dir(path, call.pass)
    }

    fn flush_all(&self, path: &Path) -> io::Result<()> {
        let mut call = self.admit(OpKind::FlushAll, path)?;
        call.state.flush_all(path, call.pass)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let mut call = self.admit(OpKind::Space, path)?;
        let id = call.state.tree.find(path)?;
        let real = match call.state.tree.is_real() {
            true => RealFs.space(&call.state.tree.real_path(id)?)?,
            false => Space {
                free_bytes: MEMORY_DISK_BYTES,
                total_bytes: MEMORY_DISK_BYTES,
            },
        };
        let free_bytes = call.state.faults.free_bytes.unwrap_or(real.free_bytes);
        Ok(Space { free_bytes, ..real })
    }

    fn boot_id(&self) -> io::Result<String> {
        Ok(self
            .admit(OpKind::BootId, Path::new("/"))?
            .state
            .boot_id
            .clone())
    }

    fn mount_id(&self, path: &Path) -> io::Result<String> {
        let mut call = self.admit(OpKind::MountId, path)?;
        let id = call.state.tree.find(path)?;
        match (&call.state.mount_id, call.state.tree.is_real()) {
            (Some(id), _) => Ok(id.clone()),
            (None, true) => RealFs.mount_id(&call.state.tree.real_path(id)?),
            (None, false) => Ok("memory".to_owned()),
        }
    }
}

fn new_boot_id(chance: &mut Chance) -> String {
    uuid::Uuid::from_u64_pair(chance.next(), chance.next()).to_string()
}
