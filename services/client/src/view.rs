//! What is known of a cluster: topics by name and id, leaders, nodes. Pure;
//! filled from a watch by its owner and read by everyone through [`SharedView`].
//!
//! A name always leads to the topic that has it now; everything else goes by id.

mod follower;
mod shards;

pub use follower::ClusterFollower;
pub use shards::{Coordinator, ShardView};

use crate::delivery::{Route, Routes, Target};
use parking_lot::RwLock;
use std::{collections::BTreeMap, sync::Arc};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1;
use talweg_types::{LeaderEpoch, NodeId, TopicConfig, TopicId, TopicPartition};
use tokio::sync::watch;

/// A partition as the controller decided it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PartitionView {
    /// `NodeId::NONE`: no leader.
    pub leader: NodeId,
    pub leader_epoch: LeaderEpoch,
    pub replicas: Vec<u32>,
    pub in_sync: Vec<u32>,
    /// The rest only controllers tell.
    pub eligible: Vec<u32>,
    pub last_in_sync: Vec<u32>,
    pub recovered: Option<v1::RecoveredDescription>,
}

/// A topic with its partitions.
#[derive(Clone, PartialEq, Debug)]
pub struct TopicView {
    pub id: TopicId,
    pub topic: v1::Topic,
    /// Settings in force.
    pub config: TopicConfig,
    /// In order.
    pub partitions: Vec<PartitionView>,
    /// Earlier partition counts, oldest first.
    pub earlier_counts: Vec<v1::PartitionCount>,
}

/// One state of what is known. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// 16 bytes; empty before the first snapshot.
    pub cluster_id: bytes::Bytes,
    /// Only grows.
    pub revision: i64,
    topics: BTreeMap<TopicId, Arc<TopicView>>,
    names: BTreeMap<String, TopicId>,
    nodes: BTreeMap<(i32, u32), Arc<v1::NodeMetadata>>,
    /// By topic and shard; only controllers tell.
    shards: BTreeMap<(TopicId, u32), ShardView>,
}

impl View {
    /// The topic that has this name.
    pub fn by_name(&self, name: &str) -> Option<&Arc<TopicView>> {
        self.topics.get(self.names.get(name)?)
    }

    /// The topic with this id.
    pub fn topic(&self, id: TopicId) -> Option<&Arc<TopicView>> {
        self.topics.get(&id)
    }

    /// Topics in name order.
    pub fn topics(&self) -> impl Iterator<Item = &Arc<TopicView>> {
        self.names.values().filter_map(|id| self.topics.get(id))
    }

    /// Live nodes by plane and id.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<v1::NodeMetadata>> {
        self.nodes.values()
    }

    /// A live storage node.
    pub fn storage(&self, node: NodeId) -> Option<&v1::NodeMetadata> {
        self.nodes
            .get(&(v1::Plane::Storage as i32, node.0))
            .map(|node| &**node)
    }

    /// Finds the topic that a request names, by name, id or both.
    pub fn resolve(&self, name: &str, id: &[u8]) -> Result<&Arc<TopicView>, Refusal> {
        let by_id = match id.len() {
            0 => None,
            _ => Some(TopicId::from_slice(id).ok_or_else(|| {
                Refusal::invalid("topic_id", format!("has {} bytes, 16 are needed", id.len()))
            })?),
        };
        if self.cluster_id.is_empty() {
            return Err(Refusal::unavailable(
                "this process does not know the cluster's topics yet",
            ));
        }
        match (name, by_id) {
            ("", None) => Err(Refusal::invalid(
                "topic",
                "neither a name nor an id is given",
            )),
            ("", Some(id)) => self.topic(id).ok_or_else(|| unknown(&id)),
            (name, id) => {
                let topic = self.by_name(name).ok_or_else(|| unknown(&name))?;
                if id.is_some_and(|id| id != topic.id) {
                    return Err(Refusal::new(
                        ErrorCode::TopicIdChanged,
                        format!("topic {name:?} has another id now"),
                    ));
                }
                Ok(topic)
            }
        }
    }

    /// Sets a topic; its partitions stay, those new to it have no leader yet.
    pub fn set_topic(&mut self, topic: v1::Topic) {
        let Some(id) = TopicId::from_slice(&topic.topic_id) else {
            return;
        };
        let settings = topic.config.clone().into_iter().collect();
        let config = TopicConfig::resolve_stored(&settings);
        let old = self.topics.get(&id);
        let mut partitions = old.map(|old| old.partitions.clone()).unwrap_or_default();
        partitions.resize_with(topic.partitions as usize, PartitionView::default);
        let earlier_counts = old
            .map(|old| old.earlier_counts.clone())
            .unwrap_or_default();
        self.names.insert(topic.name.clone(), id);
        let view = TopicView {
            id,
            topic,
            config,
            partitions,
            earlier_counts,
        };
        self.topics.insert(id, Arc::new(view));
    }

    /// Sets one partition of a topic that is known.
    pub fn set_partition(&mut self, id: TopicId, partition: u32, state: PartitionView) {
        let Some(topic) = self.topics.get_mut(&id) else {
            return;
        };
        if let Some(place) = Arc::make_mut(topic).partitions.get_mut(partition as usize) {
            *place = state;
        }
    }

    /// Sets the earlier partition counts of a topic that is known.
    pub fn set_history(&mut self, id: TopicId, counts: Vec<v1::PartitionCount>) {
        if let Some(topic) = self.topics.get_mut(&id) {
            Arc::make_mut(topic).earlier_counts = counts;
        }
    }

    /// Sets a live node.
    pub fn set_node(&mut self, node: v1::NodeMetadata) {
        self.nodes
            .insert((node.plane, node.node_id), Arc::new(node));
    }

    /// Forgets a topic.
    pub fn remove_topic(&mut self, id: TopicId) {
        self.shards.retain(|(topic, _), _| *topic != id);
        if let Some(topic) = self.topics.remove(&id)
            && self.names.get(&topic.topic.name) == Some(&id)
        {
            self.names.remove(&topic.topic.name);
        }
    }

    /// Forgets nodes with this id, of every plane.
    pub fn remove_node(&mut self, node: u32) {
        self.nodes.retain(|(_, id), _| *id != node);
    }

    /// Applies client metadata (part of a snapshot or a delta).
    pub fn apply(&mut self, metadata: v1::Metadata) {
        self.cluster_id = metadata.cluster_id;
        self.revision = metadata.revision;
        for topic in metadata.topics {
            let Some(inner) = topic.topic else { continue };
            let id = TopicId::from_slice(&inner.topic_id);
            self.set_topic(inner);
            let Some(id) = id else { continue };
            for partition in topic.partitions {
                let state = PartitionView {
                    leader: NodeId(partition.leader),
                    leader_epoch: LeaderEpoch(partition.leader_epoch),
                    replicas: partition.replicas,
                    in_sync: partition.in_sync,
                    ..PartitionView::default()
                };
                self.set_partition(id, partition.partition, state);
            }
            self.set_history(id, topic.earlier_counts);
        }
        metadata
            .nodes
            .into_iter()
            .for_each(|node| self.set_node(node));
    }

    /// An in-sync follower in `rack`, if the leader is not there itself. Which of
    /// several is spread over the partitions.
    pub fn near(&self, partition: TopicPartition, rack: &str) -> Option<Target> {
        let topic = self.topic(partition.topic_id)?;
        let state = topic.partitions.get(partition.partition.0 as usize)?;
        let in_rack = |id: &u32| self.storage(NodeId(*id)).filter(|node| node.rack == rack);
        if in_rack(&state.leader.0).is_some() {
            return None;
        }
        let near: Vec<&v1::NodeMetadata> = state.in_sync.iter().filter_map(in_rack).collect();
        let node = near.get(partition.partition.0 as usize % near.len().max(1))?;
        Some(Target {
            node: NodeId(node.node_id),
            address: node.grpc_address.as_str().into(),
        })
    }

    /// The way to a partition's leader.
    pub fn leader(&self, partition: TopicPartition) -> Route {
        let Some(topic) = self.topic(partition.topic_id) else {
            return Route::Gone(unknown(&partition.topic_id));
        };
        let Some(state) = topic.partitions.get(partition.partition.0 as usize) else {
            return Route::Gone(no_partition(topic, partition.partition.0));
        };
        match self.storage(state.leader) {
            Some(node) => Route::To(Target {
                node: state.leader,
                address: node.grpc_address.as_str().into(),
            }),
            None => Route::Wait(Refusal::new(
                ErrorCode::NoLeader,
                format!(
                    "partition {} of {:?} has no leader now",
                    partition.partition, topic.topic.name
                ),
            )),
        }
    }
}

/// No topic has this name or id.
pub fn unknown(what: &dyn std::fmt::Debug) -> Refusal {
    Refusal::new(
        ErrorCode::UnknownTopic,
        format!("there is no topic {what:?}"),
    )
}

/// The topic has no such partition.
pub fn no_partition(topic: &TopicView, partition: u32) -> Refusal {
    Refusal::new(
        ErrorCode::UnknownPartition,
        format!(
            "topic {:?} has {} partitions; there is no partition {partition}",
            topic.topic.name,
            topic.partitions.len()
        ),
    )
}

/// The newest view, for many readers and one writer. Cheap to clone.
#[derive(Clone)]
pub struct SharedView {
    inner: Arc<Inner>,
}

struct Inner {
    view: RwLock<Arc<View>>,
    changed: watch::Sender<u64>,
}

impl Default for SharedView {
    fn default() -> Self {
        let (changed, _) = watch::channel(0);
        Self {
            inner: Arc::new(Inner {
                view: RwLock::default(),
                changed,
            }),
        }
    }
}

impl SharedView {
    /// The newest view.
    pub fn get(&self) -> Arc<View> {
        self.inner.view.read().clone()
    }

    /// Replaces the view and wakes those who wait for changes.
    pub fn set(&self, view: View) {
        *self.inner.view.write() = Arc::new(view);
        self.inner.changed.send_modify(|count| *count += 1);
    }

    /// Waits until the view satisfies `hope`. False: it did not in time.
    pub async fn wait(&self, deadline: std::time::Duration, hope: impl Fn(&View) -> bool) -> bool {
        let mut changes = self.inner.changed.subscribe();
        let waiting = async {
            while !hope(&self.get()) {
                // The sender lives as long as `self`.
                if changes.changed().await.is_err() {
                    break;
                }
            }
        };
        tokio::time::timeout(deadline, waiting).await.is_ok()
    }
}

/// Straight to the leaders.
impl Routes for SharedView {
    fn route(&self, partition: TopicPartition) -> Route {
        self.get().leader(partition)
    }

    fn near(&self, partition: TopicPartition, rack: &str) -> Option<Target> {
        self.get().near(partition, rack)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changed.subscribe()
    }

    fn to_leaders(&self) -> bool {
        true
    }
}
