//! What a power loss leaves of one file: pages in memory, or a real file.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, IoSlice},
    os::unix::fs::FileExt as _,
    path::Path,
};

use super::content::{PAGE_BYTES, Page, empty_page};
use crate::fs::real::write_all_at;

/// Most pages that one write to a real file takes.
const PAGES_PER_WRITE: usize = 256;

pub(super) enum DiskFile {
    /// Pages below `len`; a missing one is all zeros, and so is what lies above
    /// `len` in the last.
    Memory {
        pages: BTreeMap<u64, Page>,
        len: u64,
    },
    /// A real file, open only while somebody uses it. Nobody else changes it.
    Real { file: Option<File>, len: u64 },
}

impl DiskFile {
    pub(super) fn in_memory() -> Self {
        Self::Memory {
            pages: BTreeMap::new(),
            len: 0,
        }
    }

    pub(super) fn real(len: u64) -> Self {
        Self::Real { file: None, len }
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Memory { len, .. } | Self::Real { len, .. } => *len,
        }
    }

    pub(super) fn needs_open(&self) -> bool {
        matches!(self, Self::Real { file: None, .. })
    }

    pub(super) fn open(&mut self, path: &Path) -> io::Result<()> {
        if let Self::Real { file, .. } = self {
            *file = Some(OpenOptions::new().read(true).write(true).open(path)?);
        }
        Ok(())
    }

    pub(super) fn close(&mut self) {
        if let Self::Real { file, .. } = self {
            *file = None;
        }
    }

    /// Fills `buf`; the caller asks only for what lies below `len`.
    pub(super) fn read(&self, buf: &mut [u8], position: u64) -> io::Result<()> {
        match self {
            Self::Real { file, .. } => opened(file)?.read_exact_at(buf, position),
            Self::Memory { pages, .. } => {
                let mut done = 0;
                while done < buf.len() {
                    let at = position + done as u64;
                    let start = (at % PAGE_BYTES) as usize;
                    let n = (PAGE_BYTES as usize - start).min(buf.len() - done);
                    let to = &mut buf[done..done + n];
                    match pages.get(&(at / PAGE_BYTES)) {
                        Some(page) => to.copy_from_slice(&page[start..start + n]),
                        None => to.fill(0),
                    }
                    done += n;
                }
                Ok(())
            }
        }
    }

    /// Writes some bytes, growing the file when they reach beyond it.
    pub(super) fn write(&mut self, data: &[u8], position: u64) -> io::Result<()> {
        match self {
            Self::Real { file, .. } => opened(file)?.write_all_at(data, position)?,
            Self::Memory { pages, .. } => {
                let mut done = 0;
                while done < data.len() {
                    let at = position + done as u64;
                    let start = (at % PAGE_BYTES) as usize;
                    let n = (PAGE_BYTES as usize - start).min(data.len() - done);
                    let page = pages.entry(at / PAGE_BYTES).or_insert_with(empty_page);
                    page[start..start + n].copy_from_slice(&data[done..done + n]);
                    done += n;
                }
            }
        }
        self.grow_to(position + data.len() as u64);
        Ok(())
    }

    /// Writes pages in rising order, of each as many bytes as are used.
    pub(super) fn write_pages(
        &mut self,
        dirty: impl Iterator<Item = (u64, Page, usize)>,
    ) -> io::Result<()> {
        let mut end = 0;
        match self {
            Self::Memory { pages, .. } => {
                for (index, page, used) in dirty {
                    end = index * PAGE_BYTES + used as u64;
                    pages.insert(index, page);
                }
            }
            Self::Real { file, .. } => {
                let file = opened(file)?;
                let mut run: Vec<(u64, Page, usize)> = Vec::new();
                for page in dirty {
                    end = page.0 * PAGE_BYTES + page.2 as u64;
                    let follows = run.last().is_none_or(|last| last.0 + 1 == page.0);
                    if !follows || run.len() == PAGES_PER_WRITE {
                        write_run(file, &run)?;
                        run.clear();
                    }
                    run.push(page);
                }
                write_run(file, &run)?;
            }
        }
        self.grow_to(end);
        Ok(())
    }

    pub(super) fn set_len(&mut self, new: u64) -> io::Result<()> {
        match self {
            Self::Real { len, .. } if *len == new => {}
            Self::Real { file, len } => {
                opened(file)?.set_len(new)?;
                *len = new;
            }
            Self::Memory { pages, len } => {
                pages.split_off(&new.div_ceil(PAGE_BYTES));
                if let Some(page) = pages.get_mut(&(new / PAGE_BYTES)) {
                    page[(new % PAGE_BYTES) as usize..].fill(0);
                }
                *len = new;
            }
        }
        Ok(())
    }

    fn grow_to(&mut self, end: u64) {
        match self {
            Self::Memory { len, .. } | Self::Real { len, .. } => *len = end.max(*len),
        }
    }
}

fn opened(file: &Option<File>) -> io::Result<&File> {
    file.as_ref()
        .ok_or_else(|| io::Error::other("the file behind the model is not open"))
}

fn write_run(file: &File, run: &[(u64, Page, usize)]) -> io::Result<()> {
    let Some(first) = run.first() else {
        return Ok(());
    };
    let slices: Vec<IoSlice<'_>> = run
        .iter()
        .map(|(_, page, used)| IoSlice::new(&page[..*used]))
        .collect();
    write_all_at(file, &slices, first.0 * PAGE_BYTES)
}
