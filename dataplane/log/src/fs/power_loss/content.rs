//! The bytes of one file: what is on disk, and above it what is not.
//!
//! ```text
//!            0             base_len        disk.len()          len
//! on disk    |================|~~ cut, not yet durable ~~|
//! page cache |--- dirty and lost pages, anywhere below len ------|
//! ```
//!
//! A read finds the page cache first, then the disk below `base_len`, then zeros.
//! `base_len <= len`, and `base_len <= disk.len()`, hold after every call.

use std::{collections::BTreeMap, io};

use super::disk::DiskFile;

/// Bytes per page, the unit in which a disk gets unflushed data.
pub(super) const PAGE_BYTES: u64 = 4096;

pub(super) type Page = Box<[u8; PAGE_BYTES as usize]>;

/// A page of the page cache that differs, or may differ, from the disk.
struct CachedPage {
    bytes: Page,
    /// A flush of it failed: Linux then calls it clean, so that reads show it and
    /// no later flush writes it, until a write touches it again.
    lost: bool,
}

pub(super) struct Content {
    disk: DiskFile,
    cached: BTreeMap<u64, CachedPage>,
    len: u64,
    base_len: u64,
    /// The file was shortened and the disk does not know yet.
    cut_pending: bool,
    pub(super) modified_ms: i64,
    disk_modified_ms: i64,
}

impl Content {
    pub(super) fn new(disk: DiskFile, modified_ms: i64) -> Self {
        let len = disk.len();
        Self {
            disk,
            cached: BTreeMap::new(),
            len,
            base_len: len,
            cut_pending: false,
            modified_ms,
            disk_modified_ms: modified_ms,
        }
    }

    pub(super) fn disk_mut(&mut self) -> &mut DiskFile {
        &mut self.disk
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Length that a power loss leaves.
    pub(super) fn disk_len(&self) -> u64 {
        self.disk.len()
    }

    /// Whether a flush has anything to do.
    pub(super) fn is_dirty(&self) -> bool {
        self.cut_pending || self.len != self.disk.len() || self.cached.values().any(|p| !p.lost)
    }

    pub(super) fn read(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        let wanted = self.len.saturating_sub(position).min(buf.len() as u64) as usize;
        let buf = &mut buf[..wanted];
        let mut done = 0;
        while done < wanted {
            let at = position + done as u64;
            let rest = &mut buf[done..];
            done += match self.cached.range(at / PAGE_BYTES..).next() {
                Some((&index, page)) if index == at / PAGE_BYTES => copy_page(page, rest, at),
                Some((&index, _)) => {
                    let run = rest.len().min((index * PAGE_BYTES - at) as usize);
                    self.read_base(&mut rest[..run], at)?
                }
                None => self.read_base(rest, at)?,
            };
        }
        Ok(wanted)
    }

    /// Fills `buf` from the disk below `base_len`, and with zeros above.
    fn read_base(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        let on_disk = self.base_len.saturating_sub(position).min(buf.len() as u64) as usize;
        let (kept, gone) = buf.split_at_mut(on_disk);
        self.disk.read(kept, position)?;
        gone.fill(0);
        Ok(buf.len())
    }

    /// Puts `data` into the page cache.
    pub(super) fn write(&mut self, data: &[u8], position: u64) -> io::Result<()> {
        let mut done = 0;
        while done < data.len() {
            let at = position + done as u64;
            let start = (at % PAGE_BYTES) as usize;
            let n = (PAGE_BYTES as usize - start).min(data.len() - done);
            let page = self.page_mut(at / PAGE_BYTES, n == PAGE_BYTES as usize)?;
            page[start..start + n].copy_from_slice(&data[done..done + n]);
            done += n;
            self.len = self.len.max(at + n as u64);
        }
        Ok(())
    }

    /// The page in the cache, dirty, read in first unless all of it is to be replaced.
    fn page_mut(&mut self, index: u64, replaced: bool) -> io::Result<&mut Page> {
        if !self.cached.contains_key(&index) {
            let mut bytes = empty_page();
            if !replaced {
                self.read_base(bytes.as_mut_slice(), index * PAGE_BYTES)?;
            }
            self.cached.insert(index, CachedPage { bytes, lost: false });
        }
        let empty = || CachedPage {
            bytes: empty_page(),
            lost: false,
        };
        let page = self.cached.entry(index).or_insert_with(empty);
        page.lost = false;
        Ok(&mut page.bytes)
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.cached.split_off(&len.div_ceil(PAGE_BYTES));
            if let Some(page) = self.cached.get_mut(&(len / PAGE_BYTES)) {
                page.bytes[(len % PAGE_BYTES) as usize..].fill(0);
            }
            self.base_len = self.base_len.min(len);
            self.cut_pending |= self.disk.len() > len;
        }
        self.len = len;
    }

    /// Writes all that is dirty to the disk.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.cut_disk()?;
        let len = self.len;
        let cached = std::mem::take(&mut self.cached).into_iter();
        let (lost, dirty): (BTreeMap<_, _>, BTreeMap<_, _>) = cached.partition(|(_, p)| p.lost);
        self.cached = lost;
        let pages = dirty.into_iter().map(|(index, page)| {
            let used = (len - index * PAGE_BYTES).min(PAGE_BYTES) as usize;
            (index, page.bytes, used)
        });
        self.disk.write_pages(pages)?;
        self.disk.set_len(len)?;
        self.base_len = len;
        self.disk_modified_ms = self.modified_ms;
        Ok(())
    }

    fn cut_disk(&mut self) -> io::Result<()> {
        if self.cut_pending {
            self.disk.set_len(self.base_len)?;
            self.cut_pending = false;
        }
        Ok(())
    }

    /// A flush failed: what was dirty now counts as clean and is not on disk.
    pub(super) fn lose_dirty_pages(&mut self) {
        for page in self.cached.values_mut() {
            page.lost = true;
        }
    }

    /// Forgets the page cache where the kernel believes it clean, so that reads
    /// show what the disk has.
    pub(super) fn drop_clean_pages(&mut self) {
        self.cached.retain(|_, page| !page.lost);
    }

    /// The power is gone: only the disk is left.
    pub(super) fn lose_power(&mut self) {
        self.cached.clear();
        self.len = self.disk.len();
        self.base_len = self.len;
        self.cut_pending = false;
        self.modified_ms = self.disk_modified_ms;
    }

    /// Indexes of the pages that a kernel might write back at any moment.
    pub(super) fn dirty_pages(&self) -> Vec<u64> {
        self.cached
            .iter()
            .filter(|(_, p)| !p.lost)
            .map(|(&index, _)| index)
            .collect()
    }

    /// Writes part of a dirty page to the disk although nobody asked: bytes `from`
    /// (inclusive) to `to` (exclusive) within the page, one of them flipped when
    /// `flip` is given, which picks among the bytes that were never flushed. The
    /// page stays dirty. A cut that is not durable yet comes first, as in a
    /// journal, where freed blocks are not reused before.
    pub(super) fn leak(
        &mut self,
        index: u64,
        from: usize,
        to: usize,
        flip: Option<u64>,
    ) -> io::Result<()> {
        let start = index * PAGE_BYTES;
        let Some(page) = self.cached.get(&index).filter(|page| !page.lost) else {
            return Ok(());
        };
        let to = to.min(self.len.saturating_sub(start) as usize);
        if from >= to {
            return Ok(());
        }
        let mut new = page.bytes[from..to].to_vec();
        if start + PAGE_BYTES > self.base_len {
            self.cut_disk()?;
        }
        let at = start + from as u64;
        if let Some(flip) = flip {
            self.flip_unflushed(&mut new, at, flip)?;
        }
        self.disk.write(&new, at)
    }

    fn flip_unflushed(&self, new: &mut [u8], position: u64, flip: u64) -> io::Result<()> {
        let mut old = vec![0; new.len()];
        self.read_base(&mut old, position)?;
        let is_new = |i: &usize| position + *i as u64 >= self.base_len || new[*i] != old[*i];
        let candidates: Vec<usize> = (0..new.len()).filter(is_new).collect();
        if !candidates.is_empty() {
            let bits = candidates.len() as u64 * 8;
            new[candidates[(flip % bits / 8) as usize]] ^= 1 << (flip % 8);
        }
        Ok(())
    }

    /// Writes the length to the disk without the bytes, as a file system may
    /// that logs the one before it has written the other: zeros.
    pub(super) fn leak_len(&mut self) -> io::Result<()> {
        self.cut_disk()?;
        let len = self.len.max(self.disk.len());
        self.disk.set_len(len)
    }

    /// Flips a bit of a flushed byte, on disk and in what reads show.
    pub(super) fn flip_flushed(&mut self, position: u64, bit: u8) -> io::Result<()> {
        if position >= self.base_len || bit >= 8 {
            let text = format!(
                "no flushed bit {bit} at {position}, flushed is below {}",
                self.base_len
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut byte = [0];
        self.disk.read(&mut byte, position)?;
        self.disk.write(&[byte[0] ^ (1 << bit)], position)?;
        if let Some(page) = self.cached.get_mut(&(position / PAGE_BYTES)) {
            page.bytes[(position % PAGE_BYTES) as usize] ^= 1 << bit;
        }
        Ok(())
    }
}

pub(super) fn empty_page() -> Page {
    Box::new([0; PAGE_BYTES as usize])
}

fn copy_page(page: &CachedPage, buf: &mut [u8], position: u64) -> usize {
    let from = &page.bytes[(position % PAGE_BYTES) as usize..];
    let n = from.len().min(buf.len());
    buf[..n].copy_from_slice(&from[..n]);
    n
}
