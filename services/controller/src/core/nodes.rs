//! Taking nodes in, and making partitions agree with who is alive.
//!
//! A process never continues an epoch: each start is a new incarnation, written
//! first; then the leader epoch of every partition that the node led, or leads
//! again, is raised in that incarnation's name; only then is it told that it is
//! in.

use super::{
    CHANGES_PER_WRITE, Change, Cluster, Core, EARLIER_PROCESSES, Effect, Node, Now, Partition,
    Refusal, Registration, Session, SessionState, StreamId, Value,
    jobs::Job,
    sessions::{FIRST_MEMORY_ID, Plane},
};
use talweg_metastore::keys::Key;
use talweg_types::{Incarnation, NodeId, TopicPartition};
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
                    if let Some(record) = self.record_to_write(id, registration) {
                        return Some(vec![Change::put(Key::Node(id), Value::Node(record))]);
                    }
                    self.install(now, stream, id, registration, effects);
                    *node.insert(id)
                }
            },
        };
        let raised = self.plan_reconcile(id);
        if raised.is_none() && self.sessions.go_live(now.monotonic, id, stream) {
            let incarnation = self.session(id).map_or(Incarnation(0), |s| s.incarnation);
            effects.push(Effect::Registered {
                stream,
                node: id,
                cluster,
                incarnation,
            });
            self.jobs.urgent(Job::Tidy);
        }
        raised
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
            return Ok(self.sessions.memory_id(asking.node, asking.process));
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
        match (alive, self.view.hosted_count(id)) {
            (true, _) => Err(Refusal::NodeIdInUse { id }),
            (false, 0) => Ok(()),
            (false, _) => Err(Refusal::FoldersLost { id }),
        }
    }

    /// The node's record, unless it names this process already.
    fn record_to_write(&self, id: NodeId, asking: &Registration) -> Option<Node> {
        let before = self.view.nodes.get(&id).map(|stored| &stored.value);
        let stored = asking.plane != Plane::Storage
            || before.is_some_and(|node| node.process == asking.process);
        let incarnation = before
            .map_or(0, |node| node.incarnation.0)
            .saturating_add(1);
        let earlier = before
            .into_iter()
            .flat_map(|node| [node.process].into_iter().chain(node.earlier.clone()));
        (!stored).then(|| Node {
            incarnation: Incarnation(incarnation),
            process: asking.process,
            earlier: earlier.take(EARLIER_PROCESSES).collect(),
            grpc_address: asking.grpc_address.clone(),
            http_address: asking.http_address.clone(),
            rack: asking.rack.clone(),
            folders: asking.folders.clone(),
            clean: asking.clean,
            version: asking.version.clone(),
        })
    }

    fn install(
        &mut self,
        now: Now,
        stream: StreamId,
        id: NodeId,
        registration: &Registration,
        effects: &mut Vec<Effect>,
    ) {
        let incarnation = self
            .view
            .nodes
            .get(&id)
            .map_or(Incarnation(1), |n| n.value.incarnation);
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

    /// The next partitions whose leader does not agree with the node's session.
    pub(super) fn plan_reconcile(&self, node: NodeId) -> Option<Vec<Change>> {
        // Nothing is decided about a node that has not been heard yet.
        if self
            .session(node)
            .is_some_and(|s| s.state == SessionState::Awaited)
        {
            return None;
        }
        let moves = self.view.hosted_by(node).filter_map(|tp| self.moved(tp));
        let moves: Vec<_> = moves.take(CHANGES_PER_WRITE).collect();
        (!moves.is_empty()).then_some(moves)
    }

    fn moved(&self, tp: TopicPartition) -> Option<Change> {
        let partition = &self.view.partitions.get(&tp)?.value;
        let next = self.elected(partition)?;
        Some(Change::put(Key::Partition(tp), Value::Partition(next)))
    }

    /// The partition under its next leader; `None` if nothing is to change.
    pub(super) fn elected(&self, partition: &Partition) -> Option<Partition> {
        let incarnation = |node| self.session(node).map(|session| session.incarnation);
        let in_place = (!partition.leader.is_none()).then_some(partition.leader);
        if let Some(leader) = in_place
            && incarnation(leader) == Some(partition.leader_incarnation)
        {
            return None;
        }
        let candidates = partition
            .replicas
            .iter()
            .filter(|node| partition.in_sync.contains(node));
        let elected = candidates
            .copied()
            .find_map(|node| Some((node, incarnation(node)?)));
        // A leaderless partition without a candidate stays as it is.
        (in_place.is_some() || elected.is_some()).then(|| partition.led_by(elected))
    }
}
