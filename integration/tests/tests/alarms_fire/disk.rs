//! A small real disk: ext4 on a loop device, which can be filled, frozen and
//! broken. Needs root.

use std::{
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

pub struct Disk {
    folder: TempDir,
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(
        output.status.success(),
        "{program} {args:?} (loop mounts need root): {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

impl Disk {
    /// Mounts a new one of `mib` MiB.
    pub fn new(mib: u64) -> Self {
        let folder = TempDir::with_prefix("talweg-disk-").expect("temp folder");
        let image = folder.path().join("image");
        let file = std::fs::File::create(&image).expect("image");
        file.set_len(mib << 20).expect("image");
        let disk = Self { folder };
        let (image, mount) = (image.display().to_string(), disk.text());
        std::fs::create_dir(disk.path()).expect("mount point");
        run("mkfs.ext4", &["-q", "-F", "-m", "0", &image]);
        run("mount", &["-o", "loop", &image, &mount]);
        disk
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("mount")
    }

    fn text(&self) -> String {
        self.path().display().to_string()
    }

    fn free(&self) -> u64 {
        let found = rustix::fs::statvfs(self.path()).expect("statvfs");
        found.f_bavail * found.f_frsize
    }

    /// A file that leaves `left` bytes free; taken away when dropped.
    pub fn fill(&self, name: &str, left: u64) -> Filler {
        let path = self.path().join(name);
        let size = self.free().saturating_sub(left).to_string();
        run("fallocate", &["-l", &size, &path.display().to_string()]);
        Filler(path)
    }

    /// No write comes back until it is dropped, which must be before whoever writes is waited for.
    pub fn freeze(&self) -> Frozen {
        run("fsfreeze", &["-f", &self.text()]);
        Frozen(self.text())
    }

    /// From now on every access is an input/output error, as if the device had gone.
    pub fn break_down(&self) {
        // EXT4_IOC_SHUTDOWN, without writing the journal.
        let program = "import fcntl, os, struct, sys\n\
            fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";
        run("python3", &["-c", program, &self.text()]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a process that is being killed may still hold it.
        let unmounted = Command::new("umount").args(["-l", &self.text()]).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} is still mounted", self.text());
        }
    }
}

pub struct Filler(PathBuf);

impl Drop for Filler {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

fn remove(path: &Path) {
    std::fs::remove_file(path).expect("the filler is ours");
}

pub struct Frozen(String);

impl Drop for Frozen {
    fn drop(&mut self) {
        run("fsfreeze", &["-u", &self.0]);
    }
}
