//! The way of names to the disk. Changes in one folder become durable in the
//! order in which they were made. A rename between folders is one change of both,
//! never half of it, and a flush of either folder takes it along with what came
//! before it in the other.

use std::{collections::BTreeSet, io};

use super::{
    chance::Chance,
    tree::{Body, NodeId, Tree},
};

pub(super) enum NameChange {
    /// A new file or folder.
    Link {
        dir: NodeId,
        name: String,
        node: NodeId,
    },
    Unlink {
        dir: NodeId,
        name: String,
        node: NodeId,
        is_dir: bool,
    },
    Rename {
        from: (NodeId, String),
        to: (NodeId, String),
        node: NodeId,
        replaced: Option<NodeId>,
    },
}

impl NameChange {
    /// The folders within which this change keeps its turn.
    fn folders(&self) -> [NodeId; 3] {
        match self {
            Self::Link { dir, .. } => [*dir; 3],
            // What is removed or replaced goes after all that happened in it.
            Self::Unlink { dir, node, .. } => [*dir, *dir, *node],
            Self::Rename {
                from, to, replaced, ..
            } => [from.0, to.0, replaced.unwrap_or(to.0)],
        }
    }

    /// Every node that must live on until this change is durable.
    fn nodes(&self) -> Vec<NodeId> {
        let mut nodes = self.folders().to_vec();
        match self {
            Self::Link { node, .. } | Self::Unlink { node, .. } => nodes.push(*node),
            Self::Rename { node, replaced, .. } => nodes.extend([*node].iter().chain(replaced)),
        }
        nodes
    }
}

impl Tree {
    pub(super) fn record(&mut self, change: NameChange) {
        for id in change.nodes() {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.pending += 1;
            }
        }
        self.journal.push(change);
    }

    /// Makes the changes of one folder durable: only the first `at_most` of them
    /// and of those that have to come before them.
    pub(super) fn flush_names(&mut self, dir: NodeId, at_most: usize) -> io::Result<()> {
        let mut folders = BTreeSet::from([dir]);
        let mut chosen = BTreeSet::new();
        for (i, change) in self.journal.iter().enumerate().rev() {
            if change
                .folders()
                .iter()
                .any(|folder| folders.contains(folder))
            {
                folders.extend(change.folders());
                chosen.insert(i);
            }
        }
        self.persist(&chosen.into_iter().take(at_most).collect())
    }

    /// As [`Tree::flush_names`], for the oldest `at_most` changes of all.
    pub(super) fn flush_all_names(&mut self, at_most: usize) -> io::Result<()> {
        self.persist(&(0..self.journal.len().min(at_most)).collect())
    }

    /// How many changes [`Tree::flush_all_names`] would make durable.
    pub(super) fn pending_names(&self) -> usize {
        self.journal.len()
    }

    /// Makes a random part durable that keeps the order in every folder.
    pub(super) fn flush_some_names(&mut self, chance: &mut Chance) -> io::Result<()> {
        let stop_of_four = chance.below(5);
        let mut stopped = BTreeSet::new();
        let mut chosen = BTreeSet::new();
        for (i, change) in self.journal.iter().enumerate() {
            let held = change
                .folders()
                .iter()
                .any(|folder| stopped.contains(folder));
            if held || chance.below(4) < stop_of_four {
                stopped.extend(change.folders());
            } else {
                chosen.insert(i);
            }
        }
        self.persist(&chosen)
    }

    fn persist(&mut self, chosen: &BTreeSet<usize>) -> io::Result<()> {
        let journal = std::mem::take(&mut self.journal);
        let mut outcome = Ok(());
        for (i, change) in journal.into_iter().enumerate() {
            if outcome.is_ok() && chosen.contains(&i) {
                outcome = self.apply(&change);
                for id in change.nodes() {
                    if let Some(node) = self.nodes.get_mut(&id) {
                        node.pending -= 1;
                    }
                    self.release(id);
                }
            } else {
                self.journal.push(change);
            }
        }
        outcome
    }

    fn apply(&mut self, change: &NameChange) -> io::Result<()> {
        match change {
            NameChange::Link { dir, name, node } => {
                if self.is_real() {
                    let to = self.real_path(*dir)?.join(name);
                    std::fs::rename(self.real_path(*node)?, to)?;
                }
                self.place(*node, *dir, name)
            }
            NameChange::Unlink {
                dir,
                name,
                node,
                is_dir,
            } => {
                if self.is_real() {
                    let path = self.real_path(*node)?;
                    match is_dir {
                        // Nothing of ours is left in it, but strangers may be.
                        true => std::fs::remove_dir_all(path)?,
                        false => std::fs::remove_file(path)?,
                    }
                }
                self.take_out(*node, *dir, name)
            }
            NameChange::Rename {
                from,
                to,
                node,
                replaced,
            } => {
                if self.is_real() {
                    let target = self.real_path(to.0)?.join(&to.1);
                    std::fs::rename(self.real_path(*node)?, target)?;
                }
                if let Some(replaced) = replaced {
                    self.take_out(*replaced, to.0, &to.1)?;
                }
                self.take_out(*node, from.0, &from.1)?;
                self.place(*node, to.0, &to.1)
            }
        }
    }

    fn place(&mut self, node: NodeId, dir: NodeId, name: &str) -> io::Result<()> {
        self.dir_mut(dir)?.durable.insert(name.to_owned(), node);
        self.node_mut(node)?.durable_at = Some((dir, name.to_owned()));
        Ok(())
    }

    fn take_out(&mut self, node: NodeId, dir: NodeId, name: &str) -> io::Result<()> {
        self.dir_mut(dir)?.durable.remove(name);
        self.node_mut(node)?.durable_at = None;
        Ok(())
    }

    /// The power is gone (in memory): what processes see is what is durable.
    pub(super) fn lose_power(&mut self) {
        self.journal.clear();
        for node in self.nodes.values_mut() {
            node.pending = 0;
            node.handles = 0;
            node.linked = node.durable_at.is_some();
            match &mut node.body {
                Body::File(content) => content.lose_power(),
                Body::Dir(dir) => dir.entries = dir.durable.clone(),
            }
        }
        self.sweep();
    }

    /// All handles are gone: drops what nothing leads to any more.
    pub(super) fn close_all(&mut self) {
        for node in self.nodes.values_mut() {
            node.handles = 0;
        }
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.release(id);
        }
    }

    /// Drops what hangs from no root.
    fn sweep(&mut self) {
        let mut reached = BTreeSet::from([super::tree::ROOT]);
        let mut next = vec![super::tree::ROOT];
        while let Some(id) = next.pop() {
            if let Some(Body::Dir(dir)) = self.nodes.get(&id).map(|node| &node.body) {
                next.extend(dir.entries.values().filter(|child| reached.insert(**child)));
            }
        }
        self.nodes.retain(|id, _| reached.contains(id));
    }
}
