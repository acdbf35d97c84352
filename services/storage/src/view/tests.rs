use super::{metadata::part_sizes, *};
use talweg_proto::controller::v1::{
    self as controller, ClusterDelta, ClusterSnapshot, Tombstone, WatchProgress,
    watch_cluster_response::Update,
};

fn id(n: u8) -> Bytes {
    Bytes::from(vec![n; 16])
}

fn topic(n: u8, name: &str) -> v1::Topic {
    v1::Topic {
        name: name.into(),
        topic_id: id(n),
        partitions: 1,
        replication_factor: 1,
        ..Default::default()
    }
}

fn state(n: u8, partition: u32, leader: u32) -> PartitionState {
    PartitionState {
        topic_id: id(n),
        partition,
        leader,
        leader_epoch: 1,
        replicas: vec![leader],
        ..Default::default()
    }
}

fn node(plane: Plane, node_id: u32) -> NodeMetadata {
    let grpc_address = format!("http://{}:{node_id}", plane as i32);
    NodeMetadata {
        node_id,
        plane: plane as i32,
        grpc_address,
        ..Default::default()
    }
}

fn snapshot_part(first: bool, last: bool, view: controller::ClusterView) -> Update {
    Update::Snapshot(ClusterSnapshot {
        first,
        last,
        view: Some(view),
    })
}

fn delta(previous_revision: i64, view: controller::ClusterView) -> Update {
    Update::Delta(ClusterDelta {
        previous_revision,
        view: Some(view),
        ..Default::default()
    })
}

fn started() -> (ViewUpdate, Arc<ClusterView>) {
    let mut update = ViewUpdate::new(Arc::new(ClusterView::empty()));
    let part = controller::ClusterView {
        revision: 5,
        cluster_id: id(9),
        // A part may bring a partition before its topic.
        partitions: vec![state(1, 0, 1), state(2, 0, 1)],
        nodes: vec![
            node(Plane::Storage, 1),
            node(Plane::Gateway, 1),
            node(Plane::Controller, 1),
        ],
        ..Default::default()
    };
    assert!(
        update
            .apply(snapshot_part(true, false, part))
            .expect("part")
            .is_none()
    );
    let part = controller::ClusterView {
        revision: 5,
        topics: vec![topic(1, "a"), topic(2, "b")],
        ..Default::default()
    };
    let view = update
        .apply(snapshot_part(false, true, part))
        .expect("part")
        .expect("whole");
    (update, view)
}

/// Story: nothing of a snapshot shows before its last part; deltas follow it.
#[test]
fn a_view_moves_by_whole_snapshots_and_deltas() {
    let (mut update, view) = started();
    assert_eq!(
        (view.revision, view.topics.len(), view.nodes.len()),
        (5, 2, 3)
    );
    assert_eq!(view.topic_by_name("b").expect("b").partitions.len(), 1);
    assert_eq!(view.addresses(Plane::Gateway), ["http://4:1"]);

    assert!(
        update
            .apply(Update::Progress(WatchProgress { revision: 5 }))
            .expect("progress")
            .is_none()
    );
    let part = controller::ClusterView {
        revision: 6,
        partitions: vec![state(1, 0, 2)],
        ..Default::default()
    };
    let next = update
        .apply(delta(5, part))
        .expect("follows")
        .expect("changed");
    assert_eq!(next.topic_by_name("a").expect("a").partitions[&0].leader, 2);
    assert_eq!(
        view.topic_by_name("a").expect("a").partitions[&0].leader,
        1,
        "the old view stays as it was"
    );
    let unchanged = |view: &ClusterView| Arc::clone(view.topic_by_name("b").expect("b"));
    assert!(Arc::ptr_eq(&unchanged(&view), &unchanged(&next)));
}

#[test]
fn gaps_ask_for_a_snapshot() {
    let (mut update, _) = started();
    let part = controller::ClusterView {
        revision: 9,
        ..Default::default()
    };
    assert_eq!(
        update.apply(delta(8, part.clone())).err(),
        Some(Gap::Revision { previous: 8, at: 5 })
    );
    let mut fresh = ViewUpdate::new(Arc::new(ClusterView::empty()));
    assert_eq!(
        fresh.apply(delta(-1, part.clone())).err(),
        Some(Gap::BeforeSnapshot)
    );
    assert_eq!(
        fresh.apply(snapshot_part(false, true, part.clone())).err(),
        Some(Gap::BeforeSnapshot)
    );
    let bad = controller::ClusterView {
        partitions: vec![PartitionState::default()],
        ..part
    };
    assert_eq!(update.apply(delta(5, bad)).err(), Some(Gap::Id(0)));
}

/// Story: a controller that was deposed while it was paused wakes up and
/// offers what it knew; the node has heard its successor and keeps that.
#[test]
fn a_view_never_goes_back() {
    let (_, newer) = started();
    let mut again = ViewUpdate::new(Arc::clone(&newer));
    let at = |revision| controller::ClusterView {
        revision,
        topics: vec![topic(1, "a")],
        ..Default::default()
    };
    assert_eq!(
        again.apply(snapshot_part(true, true, at(4))).err(),
        Some(Gap::Back { offered: 4, at: 5 })
    );
    assert_eq!(
        again.apply(delta(4, at(6))).err(),
        Some(Gap::BeforeSnapshot),
        "nothing follows a snapshot that was refused"
    );
    let same = again.apply(snapshot_part(true, true, at(5)));
    assert_eq!(same.expect("as new").expect("whole").topics.len(), 1);
}

/// Story: a topic is deleted and made again under its name; the name follows
/// the new id, and the old one lives on as a tombstone until nobody holds it.
#[test]
fn a_recreated_topic_is_another_one() {
    let (mut update, _) = started();
    let removed = ClusterDelta {
        previous_revision: 5,
        removed_topic_ids: vec![id(1)],
        view: Some(controller::ClusterView {
            revision: 6,
            topics: vec![topic(3, "a")],
            tombstones: vec![Tombstone {
                topic_id: id(1),
                pending_nodes: vec![1],
            }],
            ..Default::default()
        }),
        removed_node_ids: vec![],
    };
    let view = update
        .apply(Update::Delta(removed))
        .expect("follows")
        .expect("changed");
    assert_eq!(
        view.topic_by_name("a").expect("a").id,
        TopicId::from_slice(&id(3)).expect("id")
    );
    assert_eq!(view.tombstones.len(), 1);
    let confirmed = controller::ClusterView {
        revision: 7,
        tombstones: vec![Tombstone {
            topic_id: id(1),
            pending_nodes: vec![],
        }],
        ..Default::default()
    };
    let view = update
        .apply(delta(6, confirmed))
        .expect("follows")
        .expect("changed");
    assert!(view.tombstones.is_empty());
}

/// Story: after a new snapshot, a client hears only what is different.
#[test]
fn changes_for_clients_are_only_changes() {
    let (_, old) = started();
    let mut again = ViewUpdate::new(Arc::clone(&old));
    let part = controller::ClusterView {
        revision: 8,
        topics: vec![topic(2, "b"), topic(4, "d")],
        partitions: vec![state(2, 0, 1)],
        nodes: vec![node(Plane::Storage, 1), node(Plane::Storage, 2)],
        ..Default::default()
    };
    let new = again
        .apply(snapshot_part(true, true, part))
        .expect("part")
        .expect("whole");
    let delta = changes(&old, &new);
    let metadata = delta.metadata.expect("metadata");
    assert_eq!((delta.previous_revision, metadata.revision), (5, 8));
    let names: Vec<_> = metadata
        .topics
        .iter()
        .map(|t| t.topic.as_ref().expect("topic").name.as_str())
        .collect();
    assert_eq!(names, ["d"]);
    assert_eq!(
        metadata
            .nodes
            .iter()
            .map(|node| node.node_id)
            .collect::<Vec<_>>(),
        [2]
    );
    assert_eq!(delta.removed_topic_ids, [id(1)]);
    assert_eq!(delta.removed_node_ids, [1], "the gateway");
}

#[test]
fn snapshots_are_cut_into_parts_that_fit() {
    let sizes = |partitions: &[usize]| {
        let ranges = part_sizes(partitions.iter().copied());
        ranges
            .iter()
            .map(|range| (range.start, range.end))
            .collect::<Vec<_>>()
    };
    assert_eq!(sizes(&[]), [(0, 0)]);
    assert_eq!(sizes(&[1, 2, 3]), [(0, 3)]);
    assert_eq!(
        sizes(&[5_000, 1, 4_999, 10_000, 1]),
        [(0, 1), (1, 3), (3, 4), (4, 5)]
    );
    let (_, view) = started();
    let parts = snapshot(&view, &[]);
    assert_eq!(
        (parts.len(), parts[0].first, parts[0].last),
        (1, true, true)
    );
    let metadata = parts[0].metadata.as_ref().expect("metadata");
    assert_eq!(
        (metadata.topics.len(), metadata.nodes.len()),
        (2, 2),
        "controllers are not for clients"
    );
    let one = snapshot(&view, &["b".into(), "zzz".into()]);
    assert_eq!(one[0].metadata.as_ref().expect("metadata").topics.len(), 1);
}
