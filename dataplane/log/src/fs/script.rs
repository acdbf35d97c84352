//! Random programs of file operations for the property tests: a small world of
//! names, so that they collide, and outcomes as text, so that they compare.

use std::{
    collections::BTreeMap,
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::Arc,
};

use proptest::prelude::*;

use super::{LogFile, LogFs};

/// Handles that a program keeps open at a time.
const SLOTS: usize = 3;

#[derive(Clone, Debug)]
pub(crate) enum Op {
    CreateDir(&'static str),
    Open {
        slot: usize,
        path: &'static str,
        create: bool,
    },
    Close(usize),
    Write {
        slot: usize,
        position: u64,
        parts: Vec<(u8, usize)>,
    },
    Append {
        slot: usize,
        fill: u8,
        len: usize,
    },
    SetLen {
        slot: usize,
        len: u64,
    },
    Read {
        slot: usize,
        position: u64,
        len: usize,
    },
    Flush(usize),
    Rename(&'static str, &'static str),
    RemoveFile(&'static str),
    RemoveDir(&'static str),
    List(&'static str),
    FlushDir(&'static str),
    FlushAll,
}

const FOLDERS: &[&str] = &["", "a", "b", "a/c"];
const NAMES: &[&str] = &["a", "b", "a/c", "x", "a/x", "a/y", "b/x", "a/c/x", "a/c/y"];
const FILES: &[&str] = &["x", "a/x", "a/y", "b/x", "a/c/x", "a/c/y"];

pub(crate) fn ops(count: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 1..count)
}

fn op() -> impl Strategy<Value = Op> {
    let folder = || prop::sample::select(FOLDERS);
    let name = || prop::sample::select(NAMES);
    let file = || prop::sample::select(FILES);
    let slot = || 0..SLOTS;
    let part = (1..=255_u8, 0..9000_usize);
    prop_oneof![
        4 => folder().prop_map(Op::CreateDir),
        8 => (slot(), file(), prop::bool::weighted(0.8))
            .prop_map(|(slot, path, create)| Op::Open { slot, path, create }),
        1 => slot().prop_map(Op::Close),
        6 => (slot(), 0..20_000_u64, prop::collection::vec(part, 1..4))
            .prop_map(|(slot, position, parts)| Op::Write { slot, position, parts }),
        6 => (slot(), 1..=255_u8, 1..9000_usize)
            .prop_map(|(slot, fill, len)| Op::Append { slot, fill, len }),
        2 => (slot(), 0..20_000_u64).prop_map(|(slot, len)| Op::SetLen { slot, len }),
        3 => (slot(), 0..20_000_u64, 0..9000_usize)
            .prop_map(|(slot, position, len)| Op::Read { slot, position, len }),
        3 => slot().prop_map(Op::Flush),
        4 => (name(), name()).prop_map(|(from, to)| Op::Rename(from, to)),
        2 => file().prop_map(Op::RemoveFile),
        1 => name().prop_map(Op::RemoveDir),
        2 => folder().prop_map(Op::List),
        4 => folder().prop_map(Op::FlushDir),
        1 => Just(Op::FlushAll),
    ]
}

/// Runs programs on one file system below one root.
pub(crate) struct Player {
    pub(crate) fs: Arc<dyn LogFs>,
    pub(crate) root: PathBuf,
    slots: [Option<Arc<dyn LogFile>>; SLOTS],
}

impl Player {
    pub(crate) fn new(fs: impl LogFs, root: &Path) -> Self {
        let slots = [const { None }; SLOTS];
        Self {
            fs: Arc::new(fs),
            root: root.to_owned(),
            slots,
        }
    }

    pub(crate) fn close_all(&mut self) {
        self.slots = [const { None }; SLOTS];
    }

    /// Runs one operation; the text says all that its caller learns.
    pub(crate) fn play(&mut self, op: &Op) -> String {
        match self.run(op) {
            Ok(text) => text,
            // The kernel and the model may find different reasons first.
            Err(_) if matches!(op, Op::Rename(..)) => "refused".to_owned(),
            Err(error) => format!("{:?}", error.kind()),
        }
    }

    fn run(&mut self, op: &Op) -> io::Result<String> {
        let fs = self.fs.clone();
        let path = |path: &str| self.root.join(path);
        let done = "done".to_owned();
        match op {
            Op::CreateDir(dir) => fs.create_dir_all(&path(dir)).map(|()| done),
            Op::Rename(from, to) => fs.rename(&path(from), &path(to)).map(|()| done),
            Op::RemoveFile(file) => fs.remove_file(&path(file)).map(|()| done),
            Op::RemoveDir(dir) => fs.remove_dir_all(&path(dir)).map(|()| done),
            Op::List(dir) => fs.list(&path(dir)).map(|found| format!("{found:?}")),
            Op::FlushDir(dir) => fs.flush_dir(&path(dir)).map(|()| done),
            Op::FlushAll => fs.flush_all(&self.root).map(|()| done),
            Op::Open {
                slot,
                path: file,
                create,
            } => {
                let opened = fs.open(&path(file), *create)?;
                self.slots[*slot] = Some(opened);
                Ok(done)
            }
            Op::Close(slot) => {
                self.slots[*slot] = None;
                Ok(done)
            }
            Op::Write { slot, .. }
            | Op::Append { slot, .. }
            | Op::SetLen { slot, .. }
            | Op::Read { slot, .. }
            | Op::Flush(slot) => match &self.slots[*slot] {
                None => Ok("no file".to_owned()),
                Some(file) => run_on_file(file.as_ref(), op),
            },
        }
    }
}

fn run_on_file(file: &dyn LogFile, op: &Op) -> io::Result<String> {
    match op {
        Op::Write {
            position, parts, ..
        } => {
            let parts: Vec<Vec<u8>> = parts.iter().map(|(fill, n)| vec![*fill; *n]).collect();
            let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
            file.write_at(&slices, *position)?;
        }
        Op::Append { fill, len, .. } => {
            let bytes = vec![*fill; *len];
            file.write_at(&[IoSlice::new(&bytes)], file.len()?)?;
        }
        Op::SetLen { len, .. } => file.set_len(*len)?,
        Op::Flush(_) => file.flush()?,
        Op::Read { position, len, .. } => {
            let mut buf = vec![0xEE; *len];
            let n = file.read_at(&mut buf, *position)?;
            return Ok(format!("{:?}", &buf[..n]));
        }
        _ => return Ok("not for a file".to_owned()),
    }
    Ok(format!("length {}", file.len()?))
}

/// Every path below `root` with its bytes, `None` for a folder.
pub(crate) fn dump(fs: &dyn LogFs, root: &Path) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs
            .list(&root.join(&folder))
            .expect("a folder that is listed")
        {
            let name = match folder.as_str() {
                "" => entry.name,
                folder => format!("{folder}/{}", entry.name),
            };
            let bytes = match entry.is_dir {
                true => None,
                false => Some(read_all(fs, &root.join(&name))),
            };
            if entry.is_dir {
                folders.push(name.clone());
            }
            found.insert(name, bytes);
        }
    }
    found
}

pub(crate) fn read_all(fs: &dyn LogFs, path: &Path) -> Vec<u8> {
    let file = fs.open(path, false).expect("a file that is listed");
    let mut bytes = vec![0; file.len().expect("its length") as usize];
    let n = file.read_at(&mut bytes, 0).expect("its bytes");
    assert_eq!(n, bytes.len(), "a read inside the file is whole");
    bytes
}

/// Makes or opens a file and puts `bytes` at `position`.
pub(crate) fn put(fs: &dyn LogFs, path: &Path, bytes: &[u8], position: u64) -> Arc<dyn LogFile> {
    let file = fs.open(path, true).expect("a file");
    file.write_at(&[IoSlice::new(bytes)], position)
        .expect("a write");
    file
}
