//! The model's whole state behind one lock, and the calls as they act on it.

use std::{
    io::{self, IoSlice},
    path::Path,
};

use super::{
    chance::Chance,
    content::Content,
    faults::{Faults, Pass, frozen, io_failure, no_space},
    journal::NameChange,
    tree::{Body, NodeId, Tree, invalid},
};
use crate::fs::DirEntry;

pub(super) struct State {
    pub(super) tree: Tree,
    pub(super) faults: Faults,
    pub(super) chance: Chance,
    /// Crashes so far: handles opened before the last one are dead.
    pub(super) crashes: u64,
    pub(super) boot_id: String,
    pub(super) mount_id: Option<String>,
}

impl State {
    /// A call that is cut short is done or not done, when it cannot be half done.
    fn all_or_nothing(
        &mut self,
        pass: Pass,
        act: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        match pass {
            Pass::Whole => act(self),
            Pass::CutShort => {
                if self.chance.one_in(2) {
                    act(self)?;
                }
                Err(frozen())
            }
        }
    }

    pub(super) fn create_dir_all(&mut self, path: &Path, pass: Pass) -> io::Result<()> {
        let names = self.tree.names(path)?;
        let cut = match pass {
            Pass::Whole => names.len(),
            Pass::CutShort => self.chance.below(names.len() as u64 + 1) as usize,
        };
        let mut at = super::tree::ROOT;
        for (i, name) in names[..cut].iter().enumerate() {
            at = match self.tree.child(at, name)? {
                Some(child) if self.tree.is_dir(child) => child,
                // As mkdir has it: the file is in the way, or is no folder to go through.
                Some(_) if i + 1 == names.len() => return Err(io::ErrorKind::AlreadyExists.into()),
                Some(_) => return Err(io::ErrorKind::NotADirectory.into()),
                None => self.tree.create(at, name, true)?,
            };
        }
        match pass {
            Pass::Whole => Ok(()),
            Pass::CutShort => Err(frozen()),
        }
    }

    /// Opens a file and counts the handle.
    pub(super) fn open(&mut self, path: &Path, create: bool, pass: Pass) -> io::Result<NodeId> {
        let (dir, name) = self.tree.find_place(path)?;
        let found = self.tree.child(dir, &name)?;
        if pass == Pass::CutShort {
            if found.is_none() && self.chance.one_in(2) {
                self.tree.create(dir, &name, false)?;
            }
            return Err(frozen());
        }
        let id = match found {
            Some(id) => id,
            None if create => self.tree.create(dir, &name, false)?,
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        self.tree.content_mut(id)?;
        self.tree.node_mut(id)?.handles += 1;
        Ok(id)
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path, pass: Pass) -> io::Result<()> {
        let (from_dir, from_name) = self.tree.find_place(from)?;
        let (to_dir, to_name) = self.tree.find_place(to)?;
        let node = self
            .tree
            .child(from_dir, &from_name)?
            .ok_or(io::ErrorKind::NotFound)?;
        let replaced = self.tree.child(to_dir, &to_name)?;
        if replaced == Some(node) {
            return self.all_or_nothing(pass, |_| Ok(()));
        }
        let is_dir = self.tree.is_dir(node);
        if is_dir && self.tree.names(to)?.starts_with(&self.tree.names(from)?) {
            return Err(invalid("a folder cannot move into itself"));
        }
        if let Some(replaced) = replaced {
            self.check_replaceable(is_dir, replaced)?;
        }
        self.all_or_nothing(pass, |state| {
            let tree = &mut state.tree;
            tree.dir_mut(from_dir)?.entries.remove(&from_name);
            tree.dir_mut(to_dir)?.entries.insert(to_name.clone(), node);
            if let Some(replaced) = replaced {
                tree.node_mut(replaced)?.linked = false;
                state.return_space(replaced);
            }
            let (from, to) = ((from_dir, from_name), (to_dir, to_name));
            state.tree.record(NameChange::Rename {
                from,
                to,
                node,
                replaced,
            });
            Ok(())
        })
    }

    fn check_replaceable(&mut self, by_dir: bool, replaced: NodeId) -> io::Result<()> {
        match (by_dir, self.tree.is_dir(replaced)) {
            (true, false) => Err(io::ErrorKind::NotADirectory.into()),
            (false, true) => Err(io::ErrorKind::IsADirectory.into()),
            (true, true) if !self.tree.dir_mut(replaced)?.entries.is_empty() => {
                Err(io::ErrorKind::DirectoryNotEmpty.into())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn remove_file(&mut self, path: &Path, pass: Pass) -> io::Result<()> {
        let (dir, name) = self.tree.find_place(path)?;
        let node = self
            .tree
            .child(dir, &name)?
            .ok_or(io::ErrorKind::NotFound)?;
        if self.tree.is_dir(node) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        self.all_or_nothing(pass, |state| {
            state.return_space(node);
            state.tree.unlink(dir, &name, node)
        })
    }

    pub(super) fn remove_dir_all(&mut self, path: &Path, pass: Pass) -> io::Result<()> {
        let found = self.tree.find_place(path).and_then(|(dir, name)| {
            let node = self
                .tree
                .child(dir, &name)?
                .ok_or(io::ErrorKind::NotFound)?;
            Ok((dir, name, node))
        });
        let (dir, name, node) = match found {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if !self.tree.is_dir(node) {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let mut steps = match pass {
            Pass::Whole => u64::MAX,
            Pass::CutShort => self.chance.below(8),
        };
        self.remove_tree(dir, &name, node, &mut steps)?;
        match pass {
            Pass::Whole => Ok(()),
            Pass::CutShort => Err(frozen()),
        }
    }

    /// Removes a folder, the deepest first, in at most so many steps.
    fn remove_tree(
        &mut self,
        dir: NodeId,
        name: &str,
        node: NodeId,
        steps: &mut u64,
    ) -> io::Result<()> {
        if self.tree.is_dir(node) {
            for (child_name, child) in self.tree.dir_mut(node)?.entries.clone() {
                self.remove_tree(node, &child_name, child, steps)?;
            }
        }
        if *steps > 0 {
            *steps -= 1;
            self.return_space(node);
            self.tree.unlink(dir, name, node)?;
        }
        Ok(())
    }

    pub(super) fn list(&mut self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let dir = self.tree.find(path)?;
        let entries = self.tree.dir_mut(dir)?.entries.clone();
        let entry = |(name, id)| DirEntry {
            name,
            is_dir: self.tree.is_dir(id),
        };
        Ok(entries.into_iter().map(entry).collect())
    }

    pub(super) fn flush_dir(&mut self, path: &Path, pass: Pass) -> io::Result<()> {
        if self.tree.is_above_root(path) {
            return Ok(());
        }
        let dir = self.tree.find(path)?;
        self.tree.dir_mut(dir)?;
        if self.faults.flush_fails() {
            return Err(io_failure());
        }
        let at_most = match pass {
            Pass::Whole => usize::MAX,
            Pass::CutShort => self.chance.below(self.tree.pending_names() as u64 + 1) as usize,
        };
        self.tree.flush_names(dir, at_most)?;
        match pass {
            Pass::Whole => Ok(()),
            Pass::CutShort => Err(frozen()),
        }
    }

    pub(super) fn flush_all(&mut self, path: &Path, pass: Pass) -> io::Result<()> {
        self.tree.find(path)?;
        let fails = self.faults.flush_fails();
        for id in self.dirty_files() {
            match (pass, fails) {
                (_, true) => self.tree.content_mut(id)?.lose_dirty_pages(),
                (Pass::Whole, false) => self.tree.content_mut(id)?.flush()?,
                (Pass::CutShort, false) => self.leak_some(id)?,
            }
            self.tree.release(id);
        }
        match (pass, fails) {
            (_, true) => Err(io_failure()),
            (Pass::Whole, false) => self.tree.flush_all_names(usize::MAX),
            (Pass::CutShort, false) => {
                self.tree.flush_some_names(&mut self.chance)?;
                Err(frozen())
            }
        }
    }

    pub(super) fn dirty_files(&self) -> Vec<NodeId> {
        let dirty = |node: &&Body| matches!(node, Body::File(content) if content.is_dirty());
        let nodes = self.tree.nodes.iter().map(|(id, node)| (*id, &node.body));
        nodes
            .filter(|(_, body)| dirty(body))
            .map(|(id, _)| id)
            .collect()
    }

    pub(super) fn write(
        &mut self,
        id: NodeId,
        slices: &[IoSlice<'_>],
        position: u64,
        pass: Pass,
    ) -> io::Result<()> {
        let wanted: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
        check_end(position.saturating_add(wanted))?;
        let reach = match pass {
            Pass::Whole => wanted,
            Pass::CutShort => self.chance.below(wanted + 1),
        };
        let len = self.tree.content_mut(id)?.len();
        let fits = self.take_space(len, position, reach);
        let now_ms = self.tree.now_ms();
        let content = self.tree.content_mut(id)?;
        content.modified_ms = now_ms;
        let mut done = 0;
        for slice in slices {
            let n = (slice.len() as u64).min(fits - done);
            content.write(&slice[..n as usize], position + done)?;
            done += n;
        }
        match pass {
            Pass::Whole if fits < wanted => Err(no_space()),
            Pass::Whole => Ok(()),
            Pass::CutShort => Err(frozen()),
        }
    }

    /// How many of `reach` bytes at `position` fit on the disk, now taken.
    fn take_space(&mut self, len: u64, position: u64, reach: u64) -> u64 {
        let wanted_end = len.max(position.saturating_add(reach));
        let granted_end = self.faults.grow(len, wanted_end);
        let fits = granted_end.saturating_sub(position).min(reach);
        let end = match fits {
            0 => len,
            _ => len.max(position + fits),
        };
        // Where not even the gap before `position` fits, nothing is taken.
        self.faults.grow(granted_end, end);
        fits
    }

    pub(super) fn set_len(&mut self, id: NodeId, len: u64, pass: Pass) -> io::Result<()> {
        self.all_or_nothing(pass, |state| {
            let old = state.tree.content_mut(id)?.len();
            check_end(len)?;
            let granted = state.faults.grow(old, len);
            if granted < len {
                state.faults.grow(granted, old);
                return Err(no_space());
            }
            let now_ms = state.tree.now_ms();
            let content = state.tree.content_mut(id)?;
            content.set_len(len);
            content.modified_ms = now_ms;
            Ok(())
        })
    }

    pub(super) fn flush(&mut self, id: NodeId, pass: Pass) -> io::Result<()> {
        if self.faults.flush_fails() {
            self.tree.content_mut(id)?.lose_dirty_pages();
            return Err(io_failure());
        }
        match pass {
            Pass::Whole => self.tree.content_mut(id)?.flush(),
            Pass::CutShort => {
                self.leak_some(id)?;
                Err(frozen())
            }
        }
    }

    /// A removed file's bytes are free again, though it may still be open.
    fn return_space(&mut self, id: NodeId) {
        if let Some(Body::File(content)) = self.tree.nodes.get(&id).map(|node| &node.body) {
            self.faults.grow(content.len(), 0);
        }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        let len = |body: &Body| match body {
            Body::File(content) => content.len(),
            Body::Dir(_) => 0,
        };
        let linked = self.tree.nodes.values().filter(|node| node.linked);
        linked.map(|node| len(&node.body)).sum()
    }

    /// What every crash does: handles die and a freeze ends.
    pub(super) fn crash(&mut self) {
        self.crashes += 1;
        self.faults.frozen = false;
        self.faults.freeze_at = None;
        self.faults.flushes_until_failure = None;
    }

    pub(super) fn content_at(&mut self, path: &Path) -> io::Result<(NodeId, &mut Content)> {
        let id = self.tree.find(path)?;
        Ok((id, self.tree.content_mut(id)?))
    }
}

/// Files end where the kernel's signed offsets do.
fn check_end(end: u64) -> io::Result<()> {
    match i64::try_from(end) {
        Ok(_) => Ok(()),
        Err(_) => Err(invalid("beyond the greatest file size")),
    }
}
