//! Who coordinates which group.

use super::View;
use std::sync::Arc;
use talweg_batch::partition_for_key;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    controller::v1::ShardState,
    v1::{NodeMetadata, Plane},
};
use talweg_types::{CONSUMER_OFFSETS, Incarnation, NodeId, ShardEpoch, TopicId};

/// A shard of an internal topic as the controller decided it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardView {
    /// `NodeId::NONE`: nobody holds it.
    pub coordinator: NodeId,
    /// Only this process of the coordinator may take the shard in this epoch.
    pub incarnation: Incarnation,
    /// Raised each time that the shard is given out.
    pub epoch: ShardEpoch,
}

impl ShardView {
    pub(super) fn of(state: &ShardState) -> Self {
        Self {
            coordinator: NodeId(state.coordinator),
            incarnation: Incarnation(state.coordinator_incarnation),
            epoch: ShardEpoch(state.shard_epoch),
        }
    }
}

/// The coordinator of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Coordinator {
    pub node: NodeId,
    pub incarnation: Incarnation,
    /// URL of its gRPC address.
    pub address: Arc<str>,
    /// Of `__consumer_offsets`.
    pub shard: u32,
    pub epoch: ShardEpoch,
}

impl View {
    /// Shards by topic and number.
    pub fn shards(&self) -> impl Iterator<Item = (TopicId, u32, &ShardView)> {
        self.shards
            .iter()
            .map(|((topic, shard), view)| (*topic, *shard, view))
    }

    /// One shard.
    pub fn shard(&self, topic: TopicId, shard: u32) -> Option<&ShardView> {
        self.shards.get(&(topic, shard))
    }

    /// Sets a shard.
    pub fn set_shard(&mut self, topic: TopicId, shard: u32, view: ShardView) {
        self.shards.insert((topic, shard), view);
    }

    /// The shard of a group: its topic and number. `None` before the first
    /// coordinator has come, when there is no `__consumer_offsets`.
    pub fn shard_of(&self, group: &str) -> Option<(TopicId, u32)> {
        let topic = self.by_name(CONSUMER_OFFSETS)?;
        let shards = u32::try_from(topic.partitions.len()).ok()?;
        let shard = (shards > 0).then(|| partition_for_key(group.as_bytes(), shards).0)?;
        Some((topic.id, shard))
    }

    /// A live coordinator.
    pub fn coordinator_node(&self, node: NodeId) -> Option<&NodeMetadata> {
        let key = (Plane::Coordinator as i32, node.0);
        self.nodes.get(&key).map(|node| &**node)
    }

    /// The coordinator that holds the group's shard.
    ///
    /// # Errors
    /// NOT_COORDINATOR, worth a retry with a newer view: nobody holds it now.
    pub fn coordinator(&self, group: &str) -> Result<Coordinator, Refusal> {
        let nobody = |why: String| Refusal::new(ErrorCode::NotCoordinator, why);
        let (topic, shard) = self
            .shard_of(group)
            .ok_or_else(|| nobody("no coordinator has come yet".into()))?;
        let held = self.shard(topic, shard).and_then(|view| {
            let node = self.coordinator_node(view.coordinator)?;
            Some(Coordinator {
                node: view.coordinator,
                incarnation: view.incarnation,
                address: node.grpc_address.as_str().into(),
                shard,
                epoch: view.epoch,
            })
        });
        held.ok_or_else(|| {
            nobody(format!(
                "no coordinator holds shard {shard}, that of group {group:?}, now"
            ))
        })
    }
}
