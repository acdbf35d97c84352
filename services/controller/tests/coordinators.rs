//! Coordinators: the first brings `__consumer_offsets`, shards are told to all watchers,
//! and go elsewhere when a coordinator does. Topics derived for groups.

mod common;

use common::*;
use std::{collections::BTreeMap, sync::Arc};
use talweg_kit::errors::ErrorCode;
use talweg_metastore_mem::MemMetastore;
use talweg_proto::{
    controller::v1::{EnsureDerivedTopicRequest, RegisterNode},
    v1::{self, Plane, cluster_service_client::ClusterServiceClient},
};
use uuid::Uuid;

fn coordinator(process: Uuid) -> RegisterNode {
    RegisterNode {
        plane: Plane::Coordinator.into(),
        folders: Vec::new(),
        ..register(process, Uuid::nil())
    }
}

async fn begin(controller: &Controller) -> Session {
    Session::begin(controller, coordinator(Uuid::new_v4()))
        .await
        .expect("registered")
}

/// Shards by coordinator, as a watcher knows them.
fn held(watch: &Watch) -> BTreeMap<u32, usize> {
    let mut held = BTreeMap::new();
    for shard in watch.seen.shards.values() {
        *held.entry(shard.coordinator).or_default() += 1;
    }
    held
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_follow_the_coordinators_that_are_there() {
    let mut config = config();
    config.coordinator.shards = 12;
    let controller = Controller::with(config, Arc::new(MemMetastore::new(1_000))).await;
    let _storage = Session::fresh(&controller).await;
    let mut watch = controller.watch().await;
    let one = begin(&controller).await;
    let first = one.registered.node_id;
    assert!(first >= 1_000_001);
    watch
        .until("the shards are given out", |watch| {
            held(watch) == BTreeMap::from([(first, 12)])
        })
        .await;
    let topic = watch
        .seen
        .topics
        .values()
        .next()
        .expect("the topic")
        .clone();
    assert_eq!(topic.name, "__consumer_offsets");
    assert_eq!((topic.partitions, topic.replication_factor), (12, 1));
    let two = begin(&controller).await;
    let second = two.registered.node_id;
    watch
        .until("an even share", |watch| {
            held(watch) == BTreeMap::from([(first, 6), (second, 6)])
        })
        .await;
    let of_second = watch.seen.shards.values().find(|s| s.coordinator == second);
    let of_second = of_second.expect("a shard").clone();
    assert_eq!(of_second.shard_epoch, 2);
    assert_eq!(
        of_second.coordinator_incarnation,
        two.registered.incarnation
    );
    two.leave().await;
    watch
        .until("all are the first one's again", |watch| {
            held(watch) == BTreeMap::from([(first, 12)])
        })
        .await;
    // A watcher that comes later is told the same by its snapshot.
    assert_eq!(held(&controller.watch().await), held(&watch));
    let described = ClusterServiceClient::new(controller.channel.clone())
        .describe_cluster(v1::DescribeClusterRequest {})
        .await;
    let nodes = described.expect("described").into_inner().nodes;
    let node = nodes.iter().filter_map(|node| node.node.as_ref());
    let planes: Vec<_> = node.map(|node| (node.node_id, node.plane())).collect();
    assert!(planes.contains(&(first, Plane::Coordinator)), "{planes:?}");

    let shape = v1::AlterTopicRequest {
        name: topic.name.clone(),
        partitions: Some(13),
        ..Default::default()
    };
    let grown = controller.topics().alter_topic(shape).await;
    assert_eq!(code(grown), Some(ErrorCode::InternalTopic));
    let delete = v1::DeleteTopicRequest {
        name: topic.name,
        ..Default::default()
    };
    let deleted = controller.topics().delete_topic(delete).await;
    assert_eq!(code(deleted), Some(ErrorCode::InternalTopic));
    drop(one);
    controller.stop().await;
}

/// Story: the controller goes and another comes; the coordinator registers there and
/// keeps its shards, in the same epochs.
#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_keeps_its_shards_across_controllers() {
    let store = Arc::new(MemMetastore::new(1_000));
    let controller = Controller::start(store.clone()).await;
    let _storage = Session::fresh(&controller).await;
    let mut watch = controller.watch().await;
    let process = Uuid::new_v4();
    let one = Session::begin(&controller, coordinator(process))
        .await
        .expect("registered");
    let id = one.registered.node_id;
    watch
        .until("the shards are given out", |watch| {
            held(watch) == BTreeMap::from([(id, 48)])
        })
        .await;
    let before = watch.seen.shards.clone();
    drop(watch);
    controller.stop().await;

    let next = Controller::start(store).await;
    let watch = next.watch().await;
    assert_eq!(watch.seen.shards, before);
    assert!(
        watch.seen.nodes.contains_key(&id),
        "gateways find it before it has come back"
    );
    let asking = RegisterNode {
        node_id: id,
        ..coordinator(process)
    };
    let again = Session::begin(&next, asking).await.expect("registered");
    assert_eq!(again.registered.node_id, id);
    assert_eq!(again.registered.incarnation, one.registered.incarnation);
    assert_eq!(next.watch().await.seen.shards, before);
    next.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_derived_topic_is_as_its_source_and_made_once() {
    let controller = Controller::start(Arc::new(MemMetastore::new(1_000))).await;
    let _storage = Session::fresh(&controller).await;
    let source = controller.topic("orders", 5).await;
    let ask = |name: &str, group: &str| EnsureDerivedTopicRequest {
        name: name.into(),
        source_topic_id: source.topic_id.clone(),
        group: group.into(),
    };
    let mut client = controller.client();
    let made = client.ensure_derived_topic(ask("orders.g.dlq", "g")).await;
    let made = made.expect("made").into_inner().topic.expect("a topic");
    assert_eq!((made.name.as_str(), made.partitions), ("orders.g.dlq", 5));
    assert_eq!(made.derived_from_topic_id, source.topic_id);
    assert_eq!(made.derived_for_group, "g");
    let again = client.ensure_derived_topic(ask("orders.g.dlq", "g")).await;
    let again = again.expect("found").into_inner().topic.expect("a topic");
    assert_eq!(again, made);
    let other = client.ensure_derived_topic(ask("orders.g.dlq", "h")).await;
    assert_eq!(code(other), Some(ErrorCode::NameConflict));
    let bad = client.ensure_derived_topic(ask("a b", "g")).await;
    assert_eq!(code(bad), Some(ErrorCode::InvalidName));
    let internal = client.ensure_derived_topic(ask("__x", "g")).await;
    assert_eq!(code(internal), Some(ErrorCode::InternalTopic));
    controller.stop().await;
}
