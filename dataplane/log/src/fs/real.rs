//! [`LogFs`] over a real file system. Keeps nothing of its own: every call is
//! one or a few system calls, and an error is the kernel's, passed on as it is.

use std::{
    fs::{File, OpenOptions},
    io::{self, IoSlice, IoSliceMut, Read as _},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::Path,
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, CWD, StatxFlags},
    io::{Errno, ReadWriteFlags},
};

use super::{DirEntry, LogFile, LogFs, Space};

/// Where Linux tells the identity of this boot.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// The boot id of a test that plays a restart of the machine.
#[cfg(feature = "test-boot-id")]
const TEST_BOOT_ID_VARIABLE: &str = "TALWEG_TEST_BOOT_ID";

/// The real file system.
#[derive(Clone, Copy, Default, Debug)]
pub struct RealFs;

impl LogFs for RealFs {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        std::fs::create_dir_all(path)
    }

    fn open(&self, path: &Path, create: bool) -> io::Result<Arc<dyn LogFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create);
        Ok(Arc::new(RealFile(options.open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string() {
                let is_dir = entry.file_type()?.is_dir();
                entries.push(DirEntry { name, is_dir });
            }
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn flush_dir(&self, path: &Path) -> io::Result<()> {
        let folder = File::open(path)?;
        if !folder.metadata()?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        folder.sync_all()
    }

    fn flush_all(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(path)?)?)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(Space {
            // What an ordinary user may still take, not what root keeps back.
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        })
    }

    fn boot_id(&self) -> io::Result<String> {
        #[cfg(feature = "test-boot-id")]
        if let Ok(id) = std::env::var(TEST_BOOT_ID_VARIABLE) {
            return Ok(id);
        }
        let mut id = String::new();
        File::open(BOOT_ID_FILE)?.read_to_string(&mut id)?;
        let id = id.trim();
        if id.is_empty() {
            return Err(io::Error::other(format!("{BOOT_ID_FILE} is empty")));
        }
        Ok(id.to_owned())
    }

    fn mount_id(&self, path: &Path) -> io::Result<String> {
        let device = std::fs::metadata(path)?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let mount = match rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID) {
            Ok(stat)
                if StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID) =>
            {
                Some(stat.stx_mnt_id)
            }
            // Before Linux 5.8 the device number alone has to do.
            Ok(_) | Err(Errno::NOSYS | Errno::INVAL) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(match mount {
            Some(mount) => format!("{major}:{minor}/{mount}"),
            None => format!("{major}:{minor}"),
        })
    }
}

/// A file opened by [`RealFs`].
struct RealFile(File);

impl LogFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.0.read_at(&mut buf[done..], position + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn try_read_at(&self, buf: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        if buf.is_empty() {
            return Ok(Some(0));
        }
        let mut slices = [IoSliceMut::new(buf)];
        match rustix::io::preadv2(&self.0, &mut slices, position, ReadWriteFlags::NOWAIT) {
            Ok(n) => Ok(Some(n)),
            // Would wait; or this kernel or file system cannot tell, and then
            // the caller has to assume that it would.
            Err(Errno::AGAIN | Errno::INTR | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn write_at(&self, slices: &[IoSlice<'_>], position: u64) -> io::Result<()> {
        write_all_at(&self.0, slices, position)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn modified_ms(&self) -> io::Result<i64> {
        let metadata = self.0.metadata()?;
        Ok(metadata
            .mtime()
            .saturating_mul(1000)
            .saturating_add(metadata.mtime_nsec() / 1_000_000))
    }
}

/// Writes all slices one after the other, through as many partial writes as it
/// takes: the kernel makes them, and of more than `IOV_MAX` slices only the first
/// are handed to it.
pub(super) fn write_all_at(file: &File, slices: &[IoSlice<'_>], position: u64) -> io::Result<()> {
    let mut left = slices.to_vec();
    let mut left = left.as_mut_slice();
    let mut position = position;
    // Empty slices at the front would make a finished write look like a stuck one.
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match rustix::io::pwritev(file, left, position) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                position += n as u64;
                IoSlice::advance_slices(&mut left, n);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
