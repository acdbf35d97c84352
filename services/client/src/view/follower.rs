//! From the controller's watch to views: a snapshot in parts, then changes that
//! name their predecessor. Pure; whoever holds the stream begins it anew when a
//! message does not follow.

use super::{PartitionView, ShardView, View};
use talweg_kit::errors::Refusal;
use talweg_proto::{
    controller::v1::{
        ClusterView, PartitionState, WatchClusterResponse, watch_cluster_response::Update,
    },
    v1,
};
use talweg_types::{LeaderEpoch, NodeId, TopicId};

/// From messages of the watch to views.
#[derive(Default)]
pub struct ClusterFollower {
    view: View,
    /// What is known already: a view never goes back.
    at_least: i64,
    /// A snapshot that is not whole yet: partitions may come before their topics.
    building: Option<(View, Vec<PartitionState>)>,
    whole: bool,
}

impl ClusterFollower {
    /// Begins with a snapshot that is at least of this revision.
    pub fn not_before(revision: i64) -> Self {
        Self {
            at_least: revision,
            ..Self::default()
        }
    }

    /// The new view, if the message made one; an error if it does not follow.
    pub fn apply(&mut self, response: WatchClusterResponse) -> Result<Option<View>, Refusal> {
        match response.update {
            Some(Update::Snapshot(part)) => {
                if part.first {
                    self.building = Some(Default::default());
                }
                let Some((view, partitions)) = &mut self.building else {
                    return Err(Refusal::internal(
                        "a part of a snapshot without a first one",
                    ));
                };
                let mut part_view = part.view.unwrap_or_default();
                partitions.append(&mut part_view.partitions);
                merge(view, part_view);
                if !part.last {
                    return Ok(None);
                }
                let (mut view, partitions) = self.building.take().unwrap_or_default();
                partitions
                    .into_iter()
                    .for_each(|state| set_partition(&mut view, state));
                if view.revision < self.at_least {
                    // Of a controller that has been deposed, say; another one knows more.
                    return Err(Refusal::unavailable(format!(
                        "a snapshot of revision {}, revision {} is known already",
                        view.revision, self.at_least
                    )));
                }
                (self.view, self.whole) = (view, true);
            }
            Some(Update::Delta(delta)) => {
                if !self.whole || delta.previous_revision != self.view.revision {
                    return Err(Refusal::internal(
                        "a change that does not follow what is known",
                    ));
                }
                for id in delta
                    .removed_topic_ids
                    .iter()
                    .filter_map(|id| TopicId::from_slice(id))
                {
                    self.view.remove_topic(id);
                }
                delta
                    .removed_node_ids
                    .iter()
                    .for_each(|id| self.view.remove_node(*id));
                let mut changed = delta.view.unwrap_or_default();
                let partitions = std::mem::take(&mut changed.partitions);
                merge(&mut self.view, changed);
                partitions
                    .into_iter()
                    .for_each(|state| set_partition(&mut self.view, state));
            }
            Some(Update::Progress(_)) | None => return Ok(None),
        }
        Ok(Some(self.view.clone()))
    }
}

fn merge(view: &mut View, part: ClusterView) {
    if !part.cluster_id.is_empty() {
        view.cluster_id = part.cluster_id;
    }
    view.revision = view.revision.max(part.revision);
    part.topics
        .into_iter()
        .for_each(|topic| view.set_topic(topic));
    for history in part.histories {
        if let Some(id) = TopicId::from_slice(&history.topic_id) {
            view.set_history(id, history.earlier_counts);
        }
    }
    part.nodes.into_iter().for_each(|node| view.set_node(node));
    for shard in part.shards {
        if let Some(id) = TopicId::from_slice(&shard.topic_id) {
            view.set_shard(id, shard.shard, ShardView::of(&shard));
        }
    }
}

fn set_partition(view: &mut View, state: PartitionState) {
    let Some(id) = TopicId::from_slice(&state.topic_id) else {
        return;
    };
    let partition = PartitionView {
        leader: NodeId(state.leader),
        leader_epoch: LeaderEpoch(state.leader_epoch),
        replicas: state.replicas,
        in_sync: state.in_sync,
        eligible: state.eligible,
        last_in_sync: state.last_in_sync,
        recovered: state.recovered.map(|recovered| v1::RecoveredDescription {
            leader_epoch: recovered.leader_epoch,
            unclean: recovered.unclean,
            time_ms: recovered.time_ms,
            from_offset: recovered.from_offset,
        }),
    };
    view.set_partition(id, state.partition, partition);
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_kit::errors::ErrorCode;
    use talweg_proto::{
        controller::v1::{ClusterDelta, ClusterSnapshot, ShardState},
        v1::Topic,
    };
    use talweg_types::{CONSUMER_OFFSETS, ShardEpoch};

    fn topic(name: &str, id: u8) -> Topic {
        Topic {
            name: name.into(),
            topic_id: vec![id; 16].into(),
            partitions: 2,
            ..Default::default()
        }
    }

    fn state(id: u8, partition: u32, leader: u32) -> PartitionState {
        PartitionState {
            topic_id: vec![id; 16].into(),
            partition,
            leader,
            ..Default::default()
        }
    }

    fn part(first: bool, last: bool, view: ClusterView) -> WatchClusterResponse {
        WatchClusterResponse {
            update: Some(Update::Snapshot(ClusterSnapshot {
                first,
                last,
                view: Some(view),
            })),
        }
    }

    /// Story: a controller that was deposed while it was paused wakes up and
    /// offers what it knew; the gateway has heard its successor and keeps that.
    #[test]
    fn a_view_never_goes_back() {
        let at = |revision| ClusterView {
            revision,
            ..Default::default()
        };
        let mut follower = ClusterFollower::not_before(5);
        let refusal = follower.apply(part(true, true, at(4))).expect_err("older");
        assert!(refusal.message.contains("revision 5 is known"), "{refusal}");
        let mut follower = ClusterFollower::not_before(5);
        let view = follower.apply(part(true, true, at(5))).expect("as new");
        assert_eq!(view.expect("whole").revision, 5);
    }

    #[test]
    fn a_snapshot_in_parts_is_whole_whatever_the_order_and_deltas_must_follow() {
        let mut follower = ClusterFollower::default();
        let partitions = ClusterView {
            revision: 5,
            partitions: vec![state(1, 1, 9)],
            ..Default::default()
        };
        assert!(
            follower
                .apply(part(true, false, partitions))
                .expect("first")
                .is_none()
        );
        let topics = ClusterView {
            revision: 5,
            topics: vec![topic("a", 1)],
            ..Default::default()
        };
        let view = follower
            .apply(part(false, true, topics))
            .expect("last")
            .expect("whole");
        let a = view.by_name("a").expect("topic a");
        assert_eq!(
            (a.partitions[0].leader, a.partitions[1].leader),
            (NodeId(0), NodeId(9))
        );

        let delta = |previous_revision, view| WatchClusterResponse {
            update: Some(Update::Delta(ClusterDelta {
                previous_revision,
                view: Some(view),
                removed_topic_ids: vec![vec![1; 16].into()],
                ..Default::default()
            })),
        };
        // Deleted and created again under its name, in one change.
        let anew = ClusterView {
            revision: 6,
            topics: vec![topic("a", 2)],
            ..Default::default()
        };
        let view = follower
            .apply(delta(5, anew))
            .expect("follows")
            .expect("a view");
        assert_eq!(view.by_name("a").expect("topic a").id.as_bytes(), &[2; 16]);
        let gap = ClusterView {
            revision: 9,
            ..Default::default()
        };
        assert!(
            follower.apply(delta(8, gap)).is_err(),
            "a gap asks for a snapshot"
        );
    }

    /// Story: a shard moves, then its topic goes; a gateway that follows finds the
    /// coordinator of each group, or nobody.
    #[test]
    fn the_coordinator_of_a_group_is_found_by_its_shard() {
        let shard = |shard, coordinator, shard_epoch| ShardState {
            topic_id: vec![7; 16].into(),
            shard,
            coordinator,
            coordinator_incarnation: 3,
            shard_epoch,
        };
        let coordinator = |node_id| v1::NodeMetadata {
            node_id,
            plane: v1::Plane::Coordinator.into(),
            grpc_address: format!("http://c{node_id}"),
            ..Default::default()
        };
        let mut follower = ClusterFollower::default();
        let whole = ClusterView {
            revision: 5,
            topics: vec![topic(CONSUMER_OFFSETS, 7)],
            nodes: vec![coordinator(1_000_001), coordinator(1_000_002)],
            shards: vec![shard(0, 1_000_001, 1), shard(1, 0, 4)],
            ..Default::default()
        };
        let view = follower
            .apply(part(true, true, whole))
            .expect("first")
            .expect("whole");
        let (even, odd) = two_groups();
        let found = view.coordinator(&even).expect("held");
        assert_eq!(found.node, NodeId(1_000_001));
        assert_eq!((found.shard, found.epoch), (0, ShardEpoch(1)));
        assert_eq!(&*found.address, "http://c1000001");
        let refusal = view.coordinator(&odd).expect_err("nobody");
        assert_eq!(refusal.code, ErrorCode::NotCoordinator);
        let delta = |previous_revision, removed: Vec<bytes::Bytes>, view| WatchClusterResponse {
            update: Some(Update::Delta(ClusterDelta {
                previous_revision,
                view: Some(view),
                removed_topic_ids: removed,
                ..Default::default()
            })),
        };
        let moved = ClusterView {
            revision: 6,
            shards: vec![shard(1, 1_000_002, 5)],
            ..Default::default()
        };
        let view = follower
            .apply(delta(5, Vec::new(), moved))
            .expect("follows")
            .expect("a view");
        assert_eq!(
            view.coordinator(&odd).expect("held").node,
            NodeId(1_000_002)
        );
        let gone = ClusterView {
            revision: 7,
            ..Default::default()
        };
        let view = follower
            .apply(delta(6, vec![vec![7; 16].into()], gone))
            .expect("follows")
            .expect("a view");
        assert_eq!(view.shards().count(), 0);
        assert!(view.coordinator(&odd).is_err());
    }

    /// A group of shard 0 and one of shard 1, of two shards.
    fn two_groups() -> (String, String) {
        let of = |shard| {
            (0..)
                .map(|n| format!("group-{n}"))
                .find(|group| talweg_batch::partition_for_key(group.as_bytes(), 2).0 == shard)
                .expect("one of many")
        };
        (of(0), of(1))
    }
}
