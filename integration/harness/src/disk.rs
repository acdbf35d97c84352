//! A disk of its own for a storage node: an ext4 file system in a file, mounted
//! by loop, that can be filled, frozen and broken.

use crate::system::{require_root, run, try_run};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

const FILLER: &str = "filler";

/// Unmounted when dropped.
pub struct Disk {
    mount: PathBuf,
    frozen: AtomicBool,
}

impl Disk {
    /// A new one of `bytes` for `role` in `folder`.
    pub fn new(folder: &Path, role: &str, bytes: u64) -> Self {
        require_root();
        let image = folder.join(format!("{role}.img"));
        let file = File::create(&image).expect("an image");
        file.set_len(bytes).expect("a sparse image");
        // No blocks kept back for root: full is full.
        run("mkfs.ext4", &["-q", "-m", "0", &text(&image)]);
        // The name tells the next run whose it is.
        let mount = folder.join(format!("disk-{}-{role}", std::process::id()));
        std::fs::create_dir(&mount).expect("a mount point");
        run("mount", &["-o", "loop", &text(&image), &text(&mount)]);
        Self {
            mount,
            frozen: AtomicBool::new(false),
        }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// Takes all free space but `left` bytes; again: with another `left`.
    pub fn fill(&self, left: u64) {
        let filler = File::create(self.mount.join(FILLER)).expect("a filler");
        let free = statvfs(&self.mount).expect("statvfs");
        let free = free.f_bavail * free.f_frsize;
        let take = free.saturating_sub(left).max(1);
        if let Err(error) = fallocate(&filler, FallocateFlags::empty(), 0, take) {
            // Others wrote meanwhile: what was left was taken.
            assert_eq!(
                error,
                rustix::io::Errno::NOSPC,
                "filling {}",
                self.mount.display()
            );
        }
    }

    /// Undoes [`Disk::fill`].
    pub fn empty(&self) {
        std::fs::remove_file(self.mount.join(FILLER)).expect("the filler goes");
    }

    /// From now on every write waits. A process that waits so cannot be killed either: thaw first.
    pub fn freeze(&self) {
        run("fsfreeze", &["-f", &text(&self.mount)]);
        self.frozen.store(true, Ordering::Relaxed);
    }

    /// Undoes [`Disk::freeze`].
    pub fn thaw(&self) {
        if self.frozen.swap(false, Ordering::Relaxed) {
            run("fsfreeze", &["-u", &text(&self.mount)]);
        }
    }

    /// From now on every access is an input/output error, as if the device had gone.
    pub fn break_down(&self) {
        // EXT4_IOC_SHUTDOWN, without writing the journal.
        let program = "import fcntl, os, struct, sys\n\
            fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";
        run("python3", &["-c", program, &text(&self.mount)]);
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

impl Drop for Disk {
    fn drop(&mut self) {
        let mount = text(&self.mount);
        if self.frozen.load(Ordering::Relaxed) {
            let _ = try_run("fsfreeze", &["-u", &mount]);
        }
        if let Err(why) = try_run("umount", &["-l", &mount]) {
            eprintln!("{why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::ErrorKind, sync::mpsc, time::Duration};

    #[test]
    fn a_disk_is_full_frozen_and_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = Disk::new(folder.path(), "storage-0", 16 << 20);
        let file = disk.path().join("file");
        let written = std::fs::write(&file, [7; 100_000]);
        written.expect("room");

        disk.fill(0);
        let refused = std::fs::write(disk.path().join("more"), [7; 100_000]);
        let refused = refused.expect_err("full");
        assert_eq!(refused.kind(), ErrorKind::StorageFull);
        disk.empty();
        std::fs::write(disk.path().join("more"), [7; 100_000]).expect("room again");

        disk.freeze();
        let (done, writes) = mpsc::channel();
        let writer = std::thread::spawn(move || {
            std::fs::write(file, b"late").expect("written once thawed");
            done.send(()).expect("the test waits");
        });
        let early = writes.recv_timeout(Duration::from_millis(200));
        disk.thaw();
        assert!(early.is_err(), "a frozen disk lets nothing through");
        writes
            .recv_timeout(Duration::from_secs(10))
            .expect("written");
        writer.join().expect("ended");

        let mount = text(disk.path());
        drop(disk);
        let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
        assert!(!mounts.contains(&mount), "{mounts}");
    }
}
