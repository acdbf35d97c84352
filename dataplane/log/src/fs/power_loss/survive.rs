//! What reaches the disk although nobody flushed it: pages in any order, whole,
//! torn or with a flipped bit; the length without the bytes; names in their order.
//! Only bytes that were never flushed are ever torn or flipped.

use std::io;

use super::{
    content::PAGE_BYTES,
    state::State,
    tree::{Body, NodeId},
};

impl State {
    /// Lets a random part of everything unflushed reach the disk.
    pub(super) fn leak_everywhere(&mut self) -> io::Result<()> {
        self.tree.flush_some_names(&mut self.chance)?;
        for id in self.dirty_files() {
            self.leak_some(id)?;
            self.tree.release(id);
        }
        Ok(())
    }

    /// Lets a random part of one file reach the disk.
    pub(super) fn leak_some(&mut self, id: NodeId) -> io::Result<()> {
        match self.chance.below(6) {
            0 => Ok(()),
            1 => self.leak_prefix(id),
            2 => self.leak_pages(id, 2, false),
            3 => self.leak_pages(id, 1, true),
            4 => self.leak_pages(id, 1, false),
            _ => {
                self.leak_pages(id, 3, true)?;
                self.tree.content_mut(id)?.leak_len()
            }
        }
    }

    /// The oldest bytes, up to any byte.
    fn leak_prefix(&mut self, id: NodeId) -> io::Result<()> {
        let content = self.tree.content_mut(id)?;
        let pages = content.dirty_pages();
        let last = self.chance.below(pages.len() as u64) as usize;
        for (i, &page) in pages.iter().enumerate().take(last + 1) {
            let end = match i == last {
                true => self.chance.below(PAGE_BYTES + 1),
                false => PAGE_BYTES,
            };
            content.leak(page, 0, end as usize, None)?;
        }
        Ok(())
    }

    /// Each page with a chance of one in `one_in`.
    fn leak_pages(&mut self, id: NodeId, one_in: u64, harmed: bool) -> io::Result<()> {
        let content = self.tree.content_mut(id)?;
        for page in content.dirty_pages() {
            if !self.chance.one_in(one_in) {
                continue;
            }
            let (mut from, mut to, mut flip) = (0, PAGE_BYTES, None);
            match self.chance.below(if harmed { 4 } else { 1 }) {
                1 => to = self.chance.below(PAGE_BYTES),
                2 => from = self.chance.below(PAGE_BYTES),
                3 => flip = Some(self.chance.next()),
                _ => {}
            }
            content.leak(page, from as usize, to as usize, flip)?;
        }
        Ok(())
    }

    /// Now and then a kernel writes something back by itself.
    pub(super) fn maybe_write_back(&mut self) -> io::Result<()> {
        let Some(one_in) = self.faults.writeback_one_in else {
            return Ok(());
        };
        if !self.chance.one_in(one_in) {
            return Ok(());
        }
        if self.chance.one_in(2) {
            let some = self.chance.below(4) as usize;
            return self.tree.flush_all_names(some);
        }
        let start = self.chance.below(self.tree.nodes.len() as u64) as usize;
        let order = self
            .tree
            .nodes
            .iter()
            .skip(start)
            .chain(self.tree.nodes.iter().take(start));
        let dirty = |body: &Body| matches!(body, Body::File(content) if content.is_dirty());
        let found = order
            .into_iter()
            .find(|(_, node)| dirty(&node.body))
            .map(|(id, _)| *id);
        if let Some(id) = found {
            self.leak_some(id)?;
            self.tree.release(id);
        }
        Ok(())
    }
}
