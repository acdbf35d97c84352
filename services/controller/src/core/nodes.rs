//! Taking nodes in, and making partitions agree with who is alive.
//!
//! A process never continues an epoch. A new one is taken in so: the earlier
//! one's session ends; the node leaves the in-sync sets, and the eligible ones
//! where it has lost bytes; the new incarnation is written; it is elected where
//! it may be; only then is it told that it is in. What it has lost is in no
//! record: until it is told, the node says the same again.

use super::{
    Change, Cluster, Core, EARLIER_PROCESSES, Effect, Loss, Node, Now, Partition, Refusal,
    Registration, Session, SessionState, StreamId, Value,
    fault::{Fault, planted},
    jobs::Job,
    sessions::{FIRST_MEMORY_ID, Plane, coordinator_incarnation},
};
use talweg_metastore::keys::Key;
use talweg_types::{Incarnation, NodeId};
use uuid::Uuid;

impl Core {
    pub(super) fn plan_cluster(&self, now: Now) -> Option<Vec<Change>> {
        if self.view.cluster.is_some() {
            return None;
        }
        let cluster = Cluster {
            id: self.settings.new_cluster_id,
            created: now.wall,
        };
        Some(vec![Change::put(Key::Cluster, Value::Cluster(cluster))])
    }

    /// The next step of taking a node in.
    pub(super) fn plan_register(
        &mut self,
        now: Now,
        stream: StreamId,
        registration: &Registration,
        node: &mut Option<NodeId>,
        effects: &mut Vec<Effect>,
    ) -> Option<Vec<Change>> {
        if !self.sessions.is_open(stream) {
            return None;
        }
        let Some(cluster) = self.view.cluster.as_ref().map(|stored| stored.value.id) else {
            return self.plan_cluster(now);
        };
        let id = match *node {
            Some(id) => id,
            None => match self.admit(cluster, registration) {
                Err(refusal) => {
                    self.sessions.drop_stream(stream);
                    effects.push(Effect::Refuse { stream, refusal });
                    return None;
                }
                Ok(id) => {
                    if let Some(changes) = self.plan_new_process(id, registration, effects) {
                        return Some(changes);
                    }
                    self.install(now, stream, id, registration, effects);
                    *node.insert(id)
                }
            },
        };
        let raised = self.plan_reconcile(id, Loss::Nothing);
        if raised.is_none() && self.sessions.go_live(now.monotonic, id, stream) {
            let incarnation = self.session(id).map_or(Incarnation(0), |s| s.incarnation);
            effects.push(Effect::Registered {
                stream,
                node: id,
                cluster,
                incarnation,
            });
            self.jobs.urgent(Job::Tidy);
            self.jobs.urgent(Job::Shards);
            self.ask_ends(now, effects);
        }
        raised
    }

    /// The next step before a process that is new has its record; `None`: it has.
    fn plan_new_process(
        &mut self,
        id: NodeId,
        asking: &Registration,
        effects: &mut Vec<Effect>,
    ) -> Option<Vec<Change>> {
        let before = self.view.nodes.get(&id).map(|stored| &stored.value);
        let known = before.is_some_and(|n| n.process == asking.process && !n.removed);
        if asking.plane != Plane::Storage || known {
            return None;
        }
        let loss = before.map_or(Loss::Nothing, |node| loss(node, asking));
        if let Some(earlier) = self.sessions.end(id) {
            let stream = earlier.stream;
            effects.extend(stream.map(|stream| Effect::Fence { stream, node: id }));
            self.changed.note_node(id);
        }
        let record = || {
            vec![Change::put(
                Key::Node(id),
                Value::Node(self.record(id, asking, loss)),
            )]
        };
        let reconciled = match planted(Fault::NewProcessContinues) {
            true => None,
            false => self.plan_reconcile(id, loss),
        };
        Some(reconciled.unwrap_or_else(record))
    }

    /// The id under which a process may register.
    fn admit(&mut self, cluster: Uuid, asking: &Registration) -> Result<NodeId, Refusal> {
        if let Some(theirs) = asking.cluster.filter(|theirs| *theirs != cluster) {
            return Err(Refusal::ClusterIdMismatch {
                ours: cluster,
                theirs,
            });
        }
        if asking.plane != Plane::Storage {
            let plane = asking.plane;
            return Ok(self.sessions.memory_id(plane, asking.node, asking.process));
        }
        if asking.node >= FIRST_MEMORY_ID {
            let reason = format!("ids of storage nodes are below {FIRST_MEMORY_ID}");
            return Err(Refusal::InvalidArgument {
                field: "register.node_id",
                reason,
            });
        }
        if asking.folders.is_empty() {
            let reason = "a storage node has at least one log folder".to_owned();
            return Err(Refusal::InvalidArgument {
                field: "register.folders",
                reason,
            });
        }
        let id = self.storage_id(asking)?;
        self.check_takeover(id, asking)?;
        Ok(id)
    }

    /// The id asked for, or the one these folders were registered under, or a
    /// new one.
    fn storage_id(&self, asking: &Registration) -> Result<NodeId, Refusal> {
        let owner_of = |folder| {
            let owns = |node: &Node| node.folders.contains(folder);
            self.view
                .nodes
                .iter()
                .find(|(_, node)| owns(&node.value))
                .map(|(id, _)| *id)
        };
        let owners = || {
            asking
                .folders
                .iter()
                .filter_map(|f| owner_of(f).map(|owner| (*f, owner)))
        };
        let id = match (asking.node.is_none(), owners().next()) {
            (false, _) => asking.node,
            (true, Some((_, owner))) => owner,
            (true, None) => NodeId(self.view.nodes.keys().next_back().map_or(1, |id| id.0 + 1)),
        };
        match owners().find(|(_, owner)| *owner != id) {
            Some((folder, owner)) => Err(Refusal::FolderOfAnother { folder, owner, id }),
            None if id >= FIRST_MEMORY_ID => Err(Refusal::LimitExceeded {
                name: "storage nodes",
                limit: u64::from(FIRST_MEMORY_ID.0) - 1,
                actual: u64::from(id.0),
                unit: "nodes",
                reason: "there are no node ids left".into(),
            }),
            None => Ok(id),
        }
    }

    /// Whether this process may be what the node is from now on.
    fn check_takeover(&self, id: NodeId, asking: &Registration) -> Result<(), Refusal> {
        let Some(node) = self.view.nodes.get(&id).map(|stored| &stored.value) else {
            return Ok(());
        };
        let same = node.process == asking.process;
        if node.earlier.contains(&asking.process) {
            return Err(Refusal::StaleIncarnation { id });
        }
        if same || !node.folders.is_disjoint(&asking.folders) {
            return Ok(());
        }
        let alive = self
            .session(id)
            .is_some_and(|s| s.state != SessionState::Awaited);
        match alive {
            true => Err(Refusal::NodeIdInUse { id }),
            false if self.may_begin_empty(id, asking) => Ok(()),
            false => Err(Refusal::FoldersLost { id }),
        }
    }

    /// Its disks were replaced: allowed if others hold all that it held.
    fn may_begin_empty(&self, id: NodeId, asking: &Registration) -> bool {
        let elsewhere = |tp| {
            let partition = self.view.partitions.get(&tp).map(|stored| &stored.value);
            partition.is_none_or(|p| p.in_sync.iter().chain(&p.eligible).any(|node| *node != id))
        };
        self.view.hosted_count(id) == 0
            || asking.fresh.is_superset(&asking.folders) && self.view.hosted_by(id).all(elsewhere)
    }

    fn record(&self, id: NodeId, asking: &Registration, loss: Loss) -> Node {
        let before = self.view.nodes.get(&id).map(|stored| &stored.value);
        let incarnation = before
            .map_or(0, |node| node.incarnation.0)
            .saturating_add(1);
        let earlier = before
            .into_iter()
            .flat_map(|node| [node.process].into_iter().chain(node.earlier.clone()));
        let waits = |p: &Partition| p.is_stuck() && p.last_in_sync.contains(&id);
        let waited_for = || {
            self.view
                .leaderless()
                .any(|(_, partition)| waits(partition))
        };
        Node {
            incarnation: Incarnation(incarnation),
            process: asking.process,
            earlier: earlier.take(EARLIER_PROCESSES).collect(),
            grpc_address: asking.grpc_address.clone(),
            http_address: asking.http_address.clone(),
            rack: asking.rack.clone(),
            folders: asking.folders.clone(),
            clean: asking.clean,
            version: asking.version.clone(),
            draining: before.is_some_and(|node| node.draining && !node.removed),
            removed: false,
            lost: loss == Loss::All || before.is_some_and(|node| node.lost) && waited_for(),
        }
    }

    fn install(
        &mut self,
        now: Now,
        stream: StreamId,
        id: NodeId,
        registration: &Registration,
        effects: &mut Vec<Effect>,
    ) {
        let incarnation = match (registration.plane, self.view.nodes.get(&id)) {
            (Plane::Coordinator, _) => coordinator_incarnation(registration.process),
            (_, Some(node)) => node.value.incarnation,
            (_, None) => Incarnation(1),
        };
        let session = Session::of_registration(registration, stream, incarnation, now.monotonic);
        let process = session.process;
        if let Some(before) = self.sessions.install(id, session)
            && let Some(stream) = before.stream
        {
            effects.push(match before.process == process {
                true => Effect::Close { stream },
                false => Effect::Fence { stream, node: id },
            });
        }
        self.changed.note_node(id);
    }
}

/// Which partition is in which folder is not known here, so the worst folder
/// speaks for all. More folders than before cost nothing.
fn loss(before: &Node, asking: &Registration) -> Loss {
    let there = |folder| asking.folders.contains(folder) && !asking.fresh.contains(folder);
    match (before.folders.iter().all(there), asking.clean) {
        (false, _) if !planted(Fault::EmptyFolderIgnored) => Loss::All,
        (_, false) if !planted(Fault::UncleanBootIgnored) => Loss::Unflushed,
        _ => Loss::Nothing,
    }
}
