//! Who is alive. Sessions are in memory only: a new controller awaits every
//! registered node for one session time-out before it decides anything.
//!
//! ```text
//! (registered) ─ new controller ─▶ Awaited ──┐
//! Register ─▶ Registering ─ epochs raised ─▶ Live ─ leaving, refused, silent ─▶ gone
//!                 ▲                           │
//!                 └──────── Register ─────────┘
//! ```
//!
//! A broken stream is silence, unless nobody listens at the node's address any
//! more: the session lives on until its time-out, so that a process that
//! reconnects in time keeps what it leads. Time that the
//! controller itself slept through is not held against anybody.

use super::{Health, Node, Shard};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use talweg_types::{FolderId, Incarnation, NodeId};
use uuid::Uuid;

/// Names one stream of one node, for as long as this controller lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StreamId(pub u64);

/// Planes whose processes have sessions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Plane {
    Storage,
    Coordinator,
    Gateway,
}

/// Storage nodes' ids are below it, those of other planes from it on: an id is
/// unique in the whole cluster.
pub const FIRST_MEMORY_ID: NodeId = NodeId(1_000_001);

/// What stands for a coordinator's process where it is stored: coordinators have no
/// record of their own that could count their starts. Fits a JSON number.
pub fn coordinator_incarnation(process: Uuid) -> Incarnation {
    Incarnation((process.as_u64_pair().0 >> 11) | 1)
}

/// A node's first frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registration {
    pub plane: Plane,
    /// [`NodeId::NONE`]: asks for one.
    pub node: NodeId,
    /// `None`: belongs to no cluster yet.
    pub cluster: Option<Uuid>,
    /// Random per start of the process.
    pub process: Uuid,
    pub grpc_address: String,
    pub http_address: String,
    pub rack: String,
    pub folders: BTreeSet<FolderId>,
    /// Those of them that are empty.
    pub fresh: BTreeSet<FolderId>,
    /// No folder may have lost unflushed bytes before this start.
    pub clean: bool,
    pub version: String,
}

/// A log folder as last reported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FolderStatus {
    pub id: FolderId,
    pub free_bytes: u64,
    pub total_bytes: u64,
    /// Empty while it works.
    pub failure: String,
    /// Below its reserve.
    pub full: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionState {
    /// Registered with an earlier controller, not heard by this one.
    Awaited,
    /// Its epochs are being raised.
    Registering,
    Live,
}

#[derive(Clone, Debug)]
pub struct Session {
    pub plane: Plane,
    pub state: SessionState,
    /// `None`: broken, or awaited.
    pub stream: Option<StreamId>,
    pub process: Uuid,
    pub incarnation: Incarnation,
    pub grpc_address: String,
    pub http_address: String,
    pub rack: String,
    pub version: String,
    /// Ids from the registration; space and health from the last heartbeat.
    pub folder_ids: BTreeSet<FolderId>,
    pub folders: Vec<FolderStatus>,
    /// Replicas that fail or have no room, as last said.
    pub health: Health,
    heard: Duration,
}

impl Session {
    pub fn of_node(node: &Node, heard: Duration) -> Self {
        Self {
            plane: Plane::Storage,
            state: SessionState::Awaited,
            stream: None,
            process: node.process,
            incarnation: node.incarnation,
            grpc_address: node.grpc_address.clone(),
            http_address: node.http_address.clone(),
            rack: node.rack.clone(),
            version: node.version.clone(),
            folder_ids: node.folders.clone(),
            folders: Vec::new(),
            health: Health::default(),
            heard,
        }
    }

    /// A coordinator that held shards under the controller before.
    pub(super) fn of_shard(shard: &Shard, heard: Duration) -> Self {
        Self {
            plane: Plane::Coordinator,
            state: SessionState::Awaited,
            stream: None,
            process: Uuid::nil(),
            incarnation: shard.incarnation,
            grpc_address: shard.grpc_address.clone(),
            http_address: String::new(),
            rack: String::new(),
            version: String::new(),
            folder_ids: BTreeSet::new(),
            folders: Vec::new(),
            health: Health::default(),
            heard,
        }
    }

    /// The process that registers is the one whose session this is.
    fn is_of(&self, plane: Plane, process: Uuid) -> bool {
        let awaited = self.state == SessionState::Awaited
            && self.plane == plane
            && plane == Plane::Coordinator
            && self.incarnation == coordinator_incarnation(process);
        self.process == process || awaited
    }

    pub(super) fn of_registration(
        registration: &Registration,
        stream: StreamId,
        incarnation: Incarnation,
        heard: Duration,
    ) -> Self {
        Self {
            plane: registration.plane,
            state: SessionState::Registering,
            stream: Some(stream),
            process: registration.process,
            incarnation,
            grpc_address: registration.grpc_address.clone(),
            http_address: registration.http_address.clone(),
            rack: registration.rack.clone(),
            version: registration.version.clone(),
            folder_ids: registration.folders.clone(),
            folders: Vec::new(),
            health: Health::default(),
            heard,
        }
    }

    /// All its folders are below their reserves.
    pub fn is_full(&self) -> bool {
        !self.folders.is_empty() && self.folders.iter().all(|f| f.full)
    }

    /// It can take replicas: heard by this controller, a folder that works.
    pub fn can_host(&self) -> bool {
        let all_failed =
            !self.folders.is_empty() && self.folders.iter().all(|f| !f.failure.is_empty());
        self.plane == Plane::Storage && self.state != SessionState::Awaited && !all_failed
    }
}

#[derive(Debug)]
pub(super) struct Sessions {
    timeout: Duration,
    /// When time was last told.
    last: Duration,
    by_node: BTreeMap<NodeId, Session>,
    /// Open streams; the node once it has a session.
    streams: BTreeMap<StreamId, Option<NodeId>>,
    next_memory_id: NodeId,
}

impl Sessions {
    pub(super) fn new(timeout: Duration, now: Duration) -> Self {
        Self {
            timeout,
            last: now,
            by_node: BTreeMap::new(),
            streams: BTreeMap::new(),
            next_memory_id: FIRST_MEMORY_ID,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &Session)> {
        self.by_node.iter().map(|(id, session)| (*id, session))
    }

    pub(super) fn get(&self, node: NodeId) -> Option<&Session> {
        self.by_node.get(&node)
    }

    pub(super) fn await_node(&mut self, id: NodeId, node: &Node, now: Duration) {
        self.by_node.insert(id, Session::of_node(node, now));
    }

    /// Not if it is awaited already.
    pub(super) fn await_coordinator(&mut self, shard: &Shard, now: Duration) -> bool {
        let free = !self.by_node.contains_key(&shard.coordinator);
        if free {
            let session = Session::of_shard(shard, now);
            self.by_node.insert(shard.coordinator, session);
        }
        free
    }

    /// Ticks come every quarter of the time-out. A longer gap is our own sleep,
    /// and heartbeats wait unread: everybody gets the gap as extra time.
    pub(super) fn on_time(&mut self, now: Duration) {
        let gap = now.saturating_sub(self.last);
        if gap > self.timeout / 2 {
            self.by_node
                .values_mut()
                .for_each(|session| session.heard += gap);
        }
        self.last = self.last.max(now);
    }

    pub(super) fn on_register(&mut self, stream: StreamId) {
        self.streams.insert(stream, None);
    }

    pub(super) fn node_of(&self, stream: StreamId) -> Option<NodeId> {
        self.streams.get(&stream).copied().flatten()
    }

    /// The stream of a registration is still there.
    pub(super) fn is_open(&self, stream: StreamId) -> bool {
        self.streams.contains_key(&stream)
    }

    /// False if the stream holds no session.
    pub(super) fn on_heartbeat(
        &mut self,
        now: Duration,
        stream: StreamId,
        folders: Vec<FolderStatus>,
    ) -> bool {
        let node = self.streams.get(&stream).copied().flatten();
        let Some(session) = node.and_then(|node| self.by_node.get_mut(&node)) else {
            return false;
        };
        session.heard = session.heard.max(now);
        session.folders = folders;
        true
    }

    /// The node, and what was said before; `None` if the stream holds no session.
    pub(super) fn on_health(
        &mut self,
        stream: StreamId,
        health: Health,
    ) -> Option<(NodeId, Health)> {
        let node = self.node_of(stream)?;
        let session = self.by_node.get_mut(&node)?;
        Some((node, std::mem::replace(&mut session.health, health)))
    }

    /// Ends the stream's session at once; its node.
    pub(super) fn on_leaving(&mut self, stream: StreamId) -> Option<NodeId> {
        let node = self.streams.remove(&stream).flatten()?;
        self.by_node.remove(&node).map(|_| node)
    }

    /// The node, if it had a session.
    pub(super) fn on_broken(&mut self, stream: StreamId) -> Option<NodeId> {
        let node = self.streams.remove(&stream).flatten()?;
        self.by_node.get_mut(&node)?.stream = None;
        Some(node)
    }

    /// Nobody listens at the node's address. True if that ends its session: the
    /// process has not come back over another stream.
    pub(super) fn on_refused(&mut self, node: NodeId, incarnation: Incarnation) -> bool {
        let waits = |s: &Session| s.stream.is_none() && s.incarnation == incarnation;
        self.by_node.get(&node).is_some_and(waits) && self.end(node).is_some()
    }

    /// Ends the node's session, if it has one, and forgets its stream.
    pub(super) fn end(&mut self, node: NodeId) -> Option<Session> {
        let session = self.by_node.remove(&node)?;
        if let Some(stream) = session.stream {
            self.streams.remove(&stream);
        }
        Some(session)
    }

    /// Sessions that live.
    pub(super) fn live(&self) -> usize {
        let live = |s: &&Session| s.state == SessionState::Live;
        self.by_node.values().filter(live).count()
    }

    /// Forgets a stream that the controller ends.
    pub(super) fn drop_stream(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
    }

    /// Puts `session` in the place of the node's earlier one, if there was one.
    /// A process that is there over another stream is as well as it was.
    pub(super) fn install(&mut self, node: NodeId, mut session: Session) -> Option<Session> {
        if let Some(same) = self
            .by_node
            .get(&node)
            .filter(|s| s.process == session.process)
        {
            session.health = same.health.clone();
        }
        if let Some(stream) = session.stream {
            self.streams.insert(stream, Some(node));
        }
        let before = self.by_node.insert(node, session);
        if let Some(stream) = before.as_ref().and_then(|session| session.stream) {
            self.streams.remove(&stream);
        }
        before
    }

    /// The node's epochs are raised. False if its session has gone meanwhile.
    pub(super) fn go_live(&mut self, now: Duration, node: NodeId, stream: StreamId) -> bool {
        match self.by_node.get_mut(&node) {
            Some(session) if session.stream == Some(stream) => {
                session.state = SessionState::Live;
                session.heard = session.heard.max(now);
                true
            }
            _ => false,
        }
    }

    /// An id for a node that is kept in memory only.
    pub(super) fn memory_id(&mut self, plane: Plane, asked: NodeId, process: Uuid) -> NodeId {
        let free = |id| {
            self.by_node
                .get(&id)
                .is_none_or(|session| session.is_of(plane, process))
        };
        if asked >= FIRST_MEMORY_ID && free(asked) {
            return asked;
        }
        while self.by_node.contains_key(&self.next_memory_id) {
            self.next_memory_id.0 = self.next_memory_id.0.wrapping_add(1).max(FIRST_MEMORY_ID.0);
        }
        self.next_memory_id
    }

    /// Nodes whose time is over. A node whose epochs are being raised waits for
    /// us, not we for it.
    pub(super) fn silent(&self, now: Duration) -> Vec<NodeId> {
        let silent = |session: &Session| {
            let waits = session.state == SessionState::Registering && session.stream.is_some();
            !waits && now.saturating_sub(session.heard) > self.timeout
        };
        let gone = self.by_node.iter().filter(|(_, s)| silent(s));
        gone.map(|(id, _)| *id).collect()
    }

    /// Names the first broken invariant.
    pub(super) fn check(&self) -> Result<(), String> {
        for (stream, node) in &self.streams {
            let Some(node) = node else { continue };
            if self.by_node.get(node).and_then(|session| session.stream) != Some(*stream) {
                return Err(format!("stream {stream:?} is not that of node {node}"));
            }
        }
        let lost = self.by_node.iter().find(|(id, session)| {
            session
                .stream
                .is_some_and(|s| self.streams.get(&s) != Some(&Some(**id)))
        });
        lost.map_or(Ok(()), |(id, _)| {
            Err(format!("the stream of node {id} is not known"))
        })
    }
}
