//! The core's view as snapshots, deltas and descriptions.

use crate::core::{Changed, Core, Partition, Plane, Session, Shard, Topic};
use prost::{Message, bytes::Bytes};
use talweg_proto::{
    controller::v1::{
        self as wire, ClusterDelta, ClusterSnapshot, ClusterView, PartitionState,
        RecoveredElection, ShardState, TopicHistory, WatchClusterResponse,
        watch_cluster_response::Update,
    },
    v1,
};
use talweg_types::{NodeId, TopicId, TopicPartition};

/// A part of a snapshot is closed above this, so that no message comes near
/// the 4 MiB that default stubs take.
const PART_BYTES: usize = 1 << 20;
/// A larger delta is not sent; a snapshot takes its place.
const DELTA_BYTES_MAX: usize = 3 << 20;

fn id(topic: TopicId) -> Bytes {
    Bytes::copy_from_slice(topic.as_bytes())
}

/// What watchers have been told.
pub fn wire_revision(core: &Core) -> i64 {
    i64::try_from(core.changed().revision).unwrap_or(i64::MAX)
}

fn cluster_id(core: &Core) -> Bytes {
    let cluster = core.view().cluster.as_ref();
    cluster
        .map(|c| Bytes::copy_from_slice(c.value.id.as_bytes()))
        .unwrap_or_default()
}

pub fn topic(topic_id: TopicId, topic: &Topic) -> v1::Topic {
    v1::Topic {
        name: topic.name.clone(),
        topic_id: id(topic_id),
        partitions: topic.partitions,
        replication_factor: topic.replication_factor,
        config: topic.config.clone().into_iter().collect(),
        created_ms: topic.created.0,
        derived_from_topic_id: topic
            .derived
            .as_ref()
            .map_or_else(Bytes::new, |of| id(of.source)),
        derived_for_group: topic
            .derived
            .as_ref()
            .map_or_else(String::new, |of| of.group.clone()),
    }
}

fn history(topic_id: TopicId, topic: &Topic) -> TopicHistory {
    let counts = topic
        .earlier
        .iter()
        .map(|(partitions, until)| v1::PartitionCount {
            partitions: *partitions,
            until_ms: until.0,
        });
    TopicHistory {
        topic_id: id(topic_id),
        earlier_counts: counts.collect(),
    }
}

fn ids(nodes: &[NodeId]) -> Vec<u32> {
    nodes.iter().map(|node| node.0).collect()
}

pub fn partition(tp: TopicPartition, partition: &Partition) -> PartitionState {
    let moving = partition.moving.as_ref();
    let recovered = partition.recovered.map(|recovered| RecoveredElection {
        leader_epoch: recovered.epoch.0,
        unclean: recovered.unclean,
        time_ms: recovered.time.0,
        from_offset: recovered.from.map_or(-1, |from| from.0),
    });
    PartitionState {
        eligible: ids(&partition.eligible),
        last_in_sync: ids(&partition.last_in_sync),
        recovered,
        adding: moving.map_or_else(Vec::new, |m| m.adding().map(|node| node.0).collect()),
        removing: moving.map_or_else(Vec::new, |m| m.removing().map(|node| node.0).collect()),
        throttle_bytes_per_second: moving.map_or(0, |moving| moving.throttle),
        removed: ids(&partition.removed),
        topic_id: id(tp.topic_id),
        partition: tp.partition.0,
        leader: partition.leader.0,
        leader_incarnation: partition.leader_incarnation.0,
        leader_epoch: partition.leader_epoch.0,
        partition_epoch: partition.partition_epoch.0,
        replicas: ids(&partition.replicas),
        in_sync: ids(&partition.in_sync),
    }
}

fn shard(tp: TopicPartition, shard: &Shard) -> ShardState {
    ShardState {
        topic_id: id(tp.topic_id),
        shard: tp.partition.0,
        coordinator: shard.coordinator.0,
        coordinator_incarnation: shard.incarnation.0,
        shard_epoch: shard.epoch.0,
    }
}

fn plane(plane: Plane) -> v1::Plane {
    match plane {
        Plane::Storage => v1::Plane::Storage,
        Plane::Coordinator => v1::Plane::Coordinator,
        Plane::Gateway => v1::Plane::Gateway,
    }
}

fn node(node_id: NodeId, session: &Session) -> v1::NodeMetadata {
    v1::NodeMetadata {
        node_id: node_id.0,
        plane: plane(session.plane).into(),
        grpc_address: session.grpc_address.clone(),
        http_address: session.http_address.clone(),
        rack: session.rack.clone(),
    }
}

fn tombstone(core: &Core, topic: TopicId) -> wire::Tombstone {
    let pending = core
        .view()
        .tombstones
        .get(&topic)
        .map(|stored| &stored.value.pending);
    wire::Tombstone {
        topic_id: id(topic),
        pending_nodes: pending.into_iter().flatten().map(|node| node.0).collect(),
    }
}

/// A snapshot that is being cut into parts.
struct Parts {
    done: Vec<ClusterView>,
    open: ClusterView,
    bytes: usize,
}

impl Parts {
    /// Counts an entry of the open part; begins another one when it is full.
    fn room(&mut self, entry: &impl Message) -> &mut ClusterView {
        // A tag and a length of at most four bytes go with it.
        let bytes = entry.encoded_len() + 5;
        if self.bytes + bytes > PART_BYTES {
            let head = ClusterView {
                cluster_id: self.open.cluster_id.clone(),
                revision: self.open.revision,
                ..ClusterView::default()
            };
            self.done.push(std::mem::replace(&mut self.open, head));
            self.bytes = 0;
        }
        self.bytes += bytes;
        &mut self.open
    }

    fn messages(mut self) -> Vec<WatchClusterResponse> {
        self.done.push(self.open);
        let last = self.done.len() - 1;
        let part = |(i, view)| WatchClusterResponse {
            update: Some(Update::Snapshot(ClusterSnapshot {
                first: i == 0,
                last: i == last,
                view: Some(view),
            })),
        };
        self.done.into_iter().enumerate().map(part).collect()
    }
}

/// The whole view in as many messages as it takes.
pub fn snapshot(core: &Core) -> Vec<WatchClusterResponse> {
    let open = ClusterView {
        cluster_id: cluster_id(core),
        revision: wire_revision(core),
        ..ClusterView::default()
    };
    let mut parts = Parts {
        done: Vec::new(),
        open,
        bytes: 0,
    };
    for (node_id, session) in core.sessions() {
        let entry = node(node_id, session);
        parts.room(&entry).nodes.push(entry);
    }
    for topic_id in core.view().topics.keys().copied() {
        let Some(visible) = core.view().visible_topic(topic_id) else {
            continue;
        };
        let entry = topic(topic_id, visible);
        parts.room(&entry).topics.push(entry);
        if !visible.earlier.is_empty() {
            let entry = history(topic_id, visible);
            parts.room(&entry).histories.push(entry);
        }
    }
    for tp in core.view().partitions.keys().copied() {
        let Some(visible) = core.view().visible_partition(tp) else {
            continue;
        };
        let entry = partition(tp, visible);
        parts.room(&entry).partitions.push(entry);
    }
    for (tp, stored) in &core.view().shards {
        let entry = shard(*tp, &stored.value);
        parts.room(&entry).shards.push(entry);
    }
    for (topic_id, stored) in &core.view().tombstones {
        if !stored.value.pending.is_empty() {
            let entry = tombstone(core, *topic_id);
            parts.room(&entry).tombstones.push(entry);
        }
    }
    parts.messages()
}

/// One change; `None` if it would be too large for one message.
pub fn delta(core: &Core, changed: &Changed) -> Option<WatchClusterResponse> {
    let view = core.view();
    let mut told = ClusterView {
        cluster_id: cluster_id(core),
        revision: i64::try_from(changed.revision).unwrap_or(i64::MAX),
        tombstones: changed
            .tombstones
            .iter()
            .map(|topic| tombstone(core, *topic))
            .collect(),
        ..ClusterView::default()
    };
    let (mut removed_topic_ids, mut removed_node_ids) = (Vec::new(), Vec::new());
    for topic_id in &changed.topics {
        match view.visible_topic(*topic_id) {
            None => removed_topic_ids.push(id(*topic_id)),
            Some(visible) => {
                told.topics.push(topic(*topic_id, visible));
                told.histories.push(history(*topic_id, visible));
            }
        }
    }
    let visible = |tp: &TopicPartition| Some(partition(*tp, view.visible_partition(*tp)?));
    told.partitions = changed.partitions.iter().filter_map(visible).collect();
    let held = |tp: &TopicPartition| Some(shard(*tp, &view.shards.get(tp)?.value));
    told.shards = changed.shards.iter().filter_map(held).collect();
    for node_id in &changed.nodes {
        match core.session(*node_id) {
            None => removed_node_ids.push(node_id.0),
            Some(session) => told.nodes.push(node(*node_id, session)),
        }
    }
    let delta = ClusterDelta {
        previous_revision: i64::try_from(changed.previous).unwrap_or(i64::MAX),
        view: Some(told),
        removed_topic_ids,
        removed_node_ids,
    };
    (delta.encoded_len() <= DELTA_BYTES_MAX).then_some(WatchClusterResponse {
        update: Some(Update::Delta(delta)),
    })
}

/// All topics that clients may see, in name order.
pub fn topics(core: &Core) -> Vec<v1::Topic> {
    let ids = core.view().names.values().map(|stored| stored.value);
    ids.filter_map(|id| Some(topic(id, core.view().visible_topic(id)?)))
        .collect()
}

/// A topic with its partitions; bounds are the leaders' to tell.
pub fn describe_topic(core: &Core, topic_id: TopicId) -> Option<v1::DescribeTopicResponse> {
    let visible = core.view().visible_topic(topic_id)?;
    let in_force = core
        .view()
        .partitions_of(topic_id)
        .take(visible.partitions as usize);
    let partitions = in_force.map(|(tp, partition)| v1::PartitionDescription {
        partition: tp.partition.0,
        leader: partition.leader.0,
        leader_epoch: partition.leader_epoch.0,
        replicas: ids(&partition.replicas),
        in_sync: ids(&partition.in_sync),
        bounds: None,
        eligible: ids(&partition.eligible),
        last_in_sync: ids(&partition.last_in_sync),
        recovered: partition
            .recovered
            .map(|recovered| v1::RecoveredDescription {
                leader_epoch: recovered.epoch.0,
                unclean: recovered.unclean,
                time_ms: recovered.time.0,
                from_offset: recovered.from.map_or(-1, |from| from.0),
            }),
        replicas_detail: Vec::new(),
    });
    Some(v1::DescribeTopicResponse {
        topic: Some(topic(topic_id, visible)),
        partitions: partitions.collect(),
    })
}

/// Every node that is registered or alive.
pub fn describe_cluster(core: &Core, controller_address: &str) -> v1::DescribeClusterResponse {
    let registered = core
        .view()
        .nodes
        .iter()
        .filter(|(id, node)| core.session(**id).is_none() && !node.value.removed);
    let dead = registered.filter_map(|(id, _)| {
        let session = Session::of_node(&core.view().nodes.get(id)?.value, Default::default());
        Some(describe_node(core, *id, &session, false))
    });
    let alive = core
        .sessions()
        .map(|(id, session)| describe_node(core, id, session, true));
    let mut nodes: Vec<_> = dead.chain(alive).collect();
    nodes.sort_by_key(|described| described.node.as_ref().map_or(0, |node| node.node_id));
    v1::DescribeClusterResponse {
        cluster_id: cluster_id(core),
        controller_address: controller_address.to_owned(),
        revision: wire_revision(core),
        nodes,
    }
}

fn describe_node(
    core: &Core,
    node_id: NodeId,
    session: &Session,
    alive: bool,
) -> v1::NodeDescription {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let folder = |folder_id: &talweg_types::FolderId| {
        let status = session
            .folders
            .iter()
            .find(|status| status.id == *folder_id);
        v1::FolderDescription {
            folder_id: Bytes::copy_from_slice(folder_id.as_bytes()),
            free_bytes: status.map_or(0, |status| status.free_bytes),
            total_bytes: status.map_or(0, |status| status.total_bytes),
            failure: status
                .map(|status| status.failure.clone())
                .unwrap_or_default(),
            full: status.is_some_and(|status| status.full),
        }
    };
    v1::NodeDescription {
        node: Some(node(node_id, session)),
        incarnation: session.incarnation.0,
        alive,
        folders: session.folder_ids.iter().map(folder).collect(),
        leaders: count(core.view().led_count(node_id)),
        replicas: count(core.view().hosted_count(node_id)),
        draining: core
            .view()
            .nodes
            .get(&node_id)
            .is_some_and(|node| node.value.draining),
        version: session.version.clone(),
    }
}

/// Moves under way, in the order of their start.
pub fn reassignments(core: &Core) -> Vec<v1::Reassignment> {
    let view = core.view();
    let moves = view.moving().filter_map(|tp| {
        let moving = view.partitions.get(&tp)?.value.moving.as_ref()?;
        let topic = &view.topics.get(&tp.topic_id)?.value;
        let shown = v1::Reassignment {
            reassignment_id: Bytes::copy_from_slice(moving.id.as_bytes()),
            topic: topic.name.clone(),
            partition: tp.partition.0,
            from: ids(&moving.from),
            to: ids(&moving.to),
            throttle_bytes_per_second: moving.throttle,
            ..v1::Reassignment::default()
        };
        Some((moving.started, shown))
    });
    let mut moves: Vec<_> = moves.collect();
    moves.sort_by_key(|(started, _)| *started);
    moves.into_iter().map(|(_, shown)| shown).collect()
}

/// What a caller has been told of a balancing so far.
#[derive(Clone, Copy, Default, Debug)]
pub struct BalanceTold {
    /// It only plans otherwise.
    pub execute: bool,
    /// It was seen going on.
    pub running: bool,
    /// Planned when it began, as far as was told.
    pub total: u32,
}

/// Moves under way, then those planned.
pub fn balance_progress(core: &Core, before: BalanceTold) -> v1::BalanceClusterResponse {
    let progress = core.balance_progress();
    let planned = progress.planned.iter().filter_map(|planned| {
        let topic = &core.view().topics.get(&planned.tp.topic_id)?.value;
        Some(v1::Reassignment {
            topic: topic.name.clone(),
            partition: planned.tp.partition.0,
            from: ids(&planned.from),
            to: ids(&planned.to),
            ..v1::Reassignment::default()
        })
    });
    let mut moves = reassignments(core);
    if !progress.running && !before.running {
        // What others move is not ours.
        moves.clear();
    }
    moves.extend(planned);
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let total = before.total.max(count(progress.moves_total));
    let left = count(moves.len());
    v1::BalanceClusterResponse {
        moves_total: total.max(left),
        moves_done: total.saturating_sub(left),
        done: !progress.running && moves.is_empty(),
        // It ends by itself only when nothing is planned and nothing moves.
        stopped: before.execute && !progress.running && !moves.is_empty(),
        moves,
    }
}
