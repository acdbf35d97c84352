//! Files and folders, each with two places: where processes see it, and where a
//! power loss leaves it. The way from the first to the second is the journal: the
//! changes of names, oldest first, that no flush has reached yet.
//!
//! Over a real folder every node has a real path at all times: below the root
//! when its durable place hangs from the root, in the staging folder while it has
//! no durable place. Staging is emptied at start, and that is the loss.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use super::{content::Content, disk::DiskFile, journal::NameChange};

pub(super) type NodeId = u64;

/// The folder that all paths hang from.
pub(super) const ROOT: NodeId = 0;

/// Name, in the real root, of the folder for what has no durable place. Not listed.
const STAGING: &str = ".power-loss-staging";

/// Time in memory until a test sets it: 2026-01-01.
const FIRST_MS: i64 = 1_767_225_600_000;

pub(super) struct Node {
    pub(super) body: Body,
    /// Whether a path leads here.
    pub(super) linked: bool,
    /// Folder and name after a power loss.
    pub(super) durable_at: Option<(NodeId, String)>,
    /// Open handles.
    pub(super) handles: u32,
    /// Changes in the journal that name this node.
    pub(super) pending: u32,
}

pub(super) enum Body {
    File(Content),
    Dir(Dir),
}

#[derive(Default)]
pub(super) struct Dir {
    pub(super) entries: BTreeMap<String, NodeId>,
    pub(super) durable: BTreeMap<String, NodeId>,
    /// Over a real folder: not read in yet.
    unread: bool,
}

pub(super) enum Backing {
    Memory,
    Real { root: PathBuf },
}

pub(super) struct Tree {
    backing: Backing,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    next_id: NodeId,
    pub(super) journal: Vec<NameChange>,
    pub(super) now_ms: Option<i64>,
}

impl Tree {
    pub(super) fn in_memory() -> Self {
        Self::new(Backing::Memory, Dir::default(), Some(FIRST_MS))
    }

    pub(super) fn over_folder(root: PathBuf) -> io::Result<Self> {
        let staging = root.join(STAGING);
        match std::fs::remove_dir_all(&staging) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => std::fs::create_dir_all(&staging)?,
        }
        let unread = Dir {
            unread: true,
            ..Dir::default()
        };
        Ok(Self::new(Backing::Real { root }, unread, None))
    }

    fn new(backing: Backing, root: Dir, now_ms: Option<i64>) -> Self {
        let root = Node::new(Body::Dir(root), true, None);
        Self {
            backing,
            nodes: BTreeMap::from([(ROOT, root)]),
            next_id: ROOT + 1,
            journal: Vec::new(),
            now_ms,
        }
    }

    pub(super) fn is_real(&self) -> bool {
        matches!(self.backing, Backing::Real { .. })
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.now_ms.unwrap_or_else(|| system_ms(SystemTime::now()))
    }

    /// Above the folder that loses power: nothing there is forgotten.
    pub(super) fn is_above_root(&self, path: &Path) -> bool {
        match &self.backing {
            Backing::Memory => false,
            Backing::Real { root } => std::path::absolute(path)
                .is_ok_and(|absolute| absolute != *root && root.starts_with(&absolute)),
        }
    }

    /// Names from the root to `path`, which may be absolute or not.
    pub(super) fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        let path = match &self.backing {
            Backing::Memory => path.to_owned(),
            Backing::Real { root } => {
                let absolute = std::path::absolute(path)?;
                let below = absolute.strip_prefix(root).map_err(|_| {
                    invalid(format!(
                        "{} is not below {}",
                        path.display(),
                        root.display()
                    ))
                })?;
                below.to_owned()
            }
        };
        let mut names = Vec::new();
        for component in path.components() {
            match component {
                std::path::Component::Normal(name) => {
                    let name = name
                        .to_str()
                        .ok_or_else(|| invalid("a name that is not UTF-8"))?;
                    names.push(name.to_owned());
                }
                std::path::Component::RootDir | std::path::Component::CurDir => {}
                _ => return Err(invalid(format!("{} goes up", path.display()))),
            }
        }
        Ok(names)
    }

    pub(super) fn find(&mut self, path: &Path) -> io::Result<NodeId> {
        let mut node = ROOT;
        for name in self.names(path)? {
            node = self.child(node, &name)?.ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(node)
    }

    /// The folder that holds `path`, and the name in it.
    pub(super) fn find_place(&mut self, path: &Path) -> io::Result<(NodeId, String)> {
        let mut names = self.names(path)?;
        let last = names.pop().ok_or_else(|| invalid("the root itself"))?;
        let mut node = ROOT;
        for name in names {
            node = self.child(node, &name)?.ok_or(io::ErrorKind::NotFound)?;
        }
        self.dir_mut(node)?;
        Ok((node, last))
    }

    pub(super) fn child(&mut self, dir: NodeId, name: &str) -> io::Result<Option<NodeId>> {
        Ok(self.dir_mut(dir)?.entries.get(name).copied())
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> io::Result<&mut Node> {
        self.nodes
            .get_mut(&id)
            .ok_or_else(|| io::Error::other("the model lost a node"))
    }

    /// The folder, read in when it was not.
    pub(super) fn dir_mut(&mut self, id: NodeId) -> io::Result<&mut Dir> {
        let Body::Dir(dir) = &self.node_mut(id)?.body else {
            return Err(io::ErrorKind::NotADirectory.into());
        };
        if dir.unread {
            self.read_in(id)?;
        }
        match &mut self.node_mut(id)?.body {
            Body::Dir(dir) => Ok(dir),
            Body::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    pub(super) fn is_dir(&self, id: NodeId) -> bool {
        matches!(
            self.nodes.get(&id),
            Some(Node {
                body: Body::Dir(_),
                ..
            })
        )
    }

    fn read_in(&mut self, id: NodeId) -> io::Result<()> {
        let mut found = BTreeMap::new();
        for entry in std::fs::read_dir(self.real_path(id)?)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let kind = entry.file_type()?;
            if name == STAGING && id == ROOT {
                continue;
            }
            let body = if kind.is_dir() {
                Body::Dir(Dir {
                    unread: true,
                    ..Dir::default()
                })
            } else if kind.is_file() {
                let metadata = entry.metadata()?;
                let modified_ms = metadata.modified().map(system_ms)?;
                Body::File(Content::new(DiskFile::real(metadata.len()), modified_ms))
            } else {
                continue;
            };
            let child = self.add(Node::new(body, true, Some((id, name.clone()))));
            found.insert(name, child);
        }
        if let Body::Dir(dir) = &mut self.node_mut(id)?.body {
            *dir = Dir {
                entries: found.clone(),
                durable: found,
                unread: false,
            };
        }
        Ok(())
    }

    fn add(&mut self, node: Node) -> NodeId {
        let id = self.next_id;
        self.next_id += 1;
        self.nodes.insert(id, node);
        id
    }

    /// Makes an empty file or folder that only processes see.
    pub(super) fn create(&mut self, dir: NodeId, name: &str, is_dir: bool) -> io::Result<NodeId> {
        let now_ms = self.now_ms();
        let real = self.is_real();
        let body = match (is_dir, real) {
            (true, _) => Body::Dir(Dir::default()),
            (false, true) => Body::File(Content::new(DiskFile::real(0), now_ms)),
            (false, false) => Body::File(Content::new(DiskFile::in_memory(), now_ms)),
        };
        let id = self.add(Node::new(body, true, None));
        if real {
            let path = self.real_path(id)?;
            match is_dir {
                true => std::fs::create_dir(path)?,
                false => drop(std::fs::File::create_new(path)?),
            }
        }
        self.dir_mut(dir)?.entries.insert(name.to_owned(), id);
        self.record(NameChange::Link {
            dir,
            name: name.to_owned(),
            node: id,
        });
        Ok(id)
    }

    /// Takes a file or an empty folder out of processes' sight.
    pub(super) fn unlink(&mut self, dir: NodeId, name: &str, node: NodeId) -> io::Result<()> {
        self.dir_mut(dir)?.entries.remove(name);
        self.node_mut(node)?.linked = false;
        let is_dir = self.is_dir(node);
        self.record(NameChange::Unlink {
            dir,
            name: name.to_owned(),
            node,
            is_dir,
        });
        Ok(())
    }

    /// The file's bytes, with the real file open when there is one. Whoever calls
    /// this ends with [`Tree::release`].
    pub(super) fn content_mut(&mut self, id: NodeId) -> io::Result<&mut Content> {
        if self.file_mut(id)?.disk_mut().needs_open() {
            let path = self.real_path(id)?;
            self.file_mut(id)?.disk_mut().open(&path)?;
        }
        self.file_mut(id)
    }

    fn file_mut(&mut self, id: NodeId) -> io::Result<&mut Content> {
        match &mut self.node_mut(id)?.body {
            Body::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
            Body::File(content) => Ok(content),
        }
    }

    /// Gives up what only open handles need: the descriptor, or the whole node
    /// when nothing leads to it any more.
    pub(super) fn release(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.handles == 0) else {
            return;
        };
        if let Body::File(content) = &mut node.body {
            content.disk_mut().close();
        }
        if id == ROOT || node.linked || node.pending > 0 {
            return;
        }
        if let (Ok(path), true) = (self.real_path(id), self.is_real()) {
            // Only staging is left to tidy; the next start does it anyway.
            let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path));
        }
        self.nodes.remove(&id);
    }

    pub(super) fn drop_caches(&mut self) {
        for node in self.nodes.values_mut() {
            if let Body::File(content) = &mut node.body {
                content.drop_clean_pages();
            }
        }
    }

    /// Where the node is in the real folder now.
    pub(super) fn real_path(&self, id: NodeId) -> io::Result<PathBuf> {
        let Backing::Real { root } = &self.backing else {
            return Err(io::Error::other("a model in memory has no real paths"));
        };
        let mut names = Vec::new();
        let mut at = id;
        while at != ROOT {
            let node = self.nodes.get(&at).ok_or(io::ErrorKind::NotFound)?;
            match &node.durable_at {
                Some((dir, name)) => {
                    names.push(name.clone());
                    at = *dir;
                }
                None => {
                    names.push(at.to_string());
                    names.push(STAGING.to_owned());
                    at = ROOT;
                }
            }
        }
        let mut path = root.clone();
        path.extend(names.iter().rev());
        Ok(path)
    }
}

impl Node {
    fn new(body: Body, linked: bool, durable_at: Option<(NodeId, String)>) -> Self {
        Self {
            body,
            linked,
            durable_at,
            handles: 0,
            pending: 0,
        }
    }
}

pub(super) fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text.into())
}

fn system_ms(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
