//! The controller over a real socket, with the metastore in memory.

mod common;

use common::{Controller, SESSION_MS, Session, bytes, code, config, create, register};
use std::{collections::HashMap, sync::Arc, time::Instant};
use talweg_controller::{ControllerConfig, REVISION_HEADER};
use talweg_kit::errors::ErrorCode;
use talweg_metastore_mem::MemMetastore;
use talweg_proto::{
    controller::v1::{AllocateProducerIdsRequest, ConfirmReplicasDeletedRequest},
    v1::{self, cluster_service_client::ClusterServiceClient, error_detail::Details},
};
use uuid::Uuid;

async fn controller() -> Controller {
    Controller::start(Arc::new(MemMetastore::default())).await
}

/// From the first registration to the last confirmation of a deletion, seen by
/// a watcher that was there from the start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_lives_and_dies_before_a_watchers_eyes() {
    let controller = controller().await;
    let mut watch = controller.watch().await;
    let node = Session::fresh(&controller).await;
    let id = node.registered.node_id;
    assert_eq!(
        (
            id,
            node.registered.incarnation,
            node.registered.session_timeout_ms
        ),
        (1, 1, SESSION_MS)
    );

    let created = controller
        .topics()
        .create_topic(create("t", 3))
        .await
        .expect("created");
    let revision = created
        .metadata()
        .get(REVISION_HEADER)
        .expect("revision")
        .to_str()
        .expect("text");
    let revision: i64 = revision.parse().expect("a number");
    let topic = created.into_inner().topic.expect("topic");
    watch
        .until("the topic", |w| w.seen.revision >= revision)
        .await;
    assert_eq!(watch.seen.topics[&topic.topic_id], topic);
    assert_eq!(
        watch.seen.leaders(&topic.topic_id),
        [(id, 0), (id, 0), (id, 0)]
    );
    assert_eq!(watch.seen.cluster_id, node.registered.cluster_id);

    let altered = v1::AlterTopicRequest {
        name: "t".into(),
        partitions: Some(5),
        config: HashMap::from([("retention.ms".into(), "60000".into())]),
        ..Default::default()
    };
    let altered = controller
        .topics()
        .alter_topic(altered)
        .await
        .expect("altered")
        .into_inner();
    assert!(
        altered.warnings[0].contains("keys will move"),
        "{:?}",
        altered.warnings
    );
    watch
        .until("growth", |w| w.seen.leaders(&topic.topic_id).len() == 5)
        .await;
    assert_eq!(
        Some(&watch.seen.topics[&topic.topic_id]),
        altered.topic.as_ref()
    );

    let described = v1::DescribeTopicRequest {
        name: "t".into(),
        ..Default::default()
    };
    let described = controller
        .topics()
        .describe_topic(described)
        .await
        .expect("there")
        .into_inner();
    assert_eq!(
        (described.topic, described.partitions.len()),
        (altered.topic, 5)
    );
    assert_eq!(described.partitions[4].replicas, [id]);

    let deleted = v1::DeleteTopicRequest {
        name: "t".into(),
        ..Default::default()
    };
    controller
        .topics()
        .delete_topic(deleted)
        .await
        .expect("deleted");
    let again = controller.topic("t", 1).await;
    assert_ne!(
        again.topic_id, topic.topic_id,
        "the name is free, under another id"
    );
    watch
        .until("the deletion", |w| {
            !w.seen.topics.contains_key(&topic.topic_id)
        })
        .await;
    assert_eq!(watch.seen.tombstones[&topic.topic_id], [id]);
    let confirm = ConfirmReplicasDeletedRequest {
        node_id: id,
        incarnation: 1,
        topic_ids: vec![topic.topic_id.clone()],
        partitions: Vec::new(),
    };
    controller
        .client()
        .confirm_replicas_deleted(confirm)
        .await
        .expect("confirmed");
    watch
        .until("the confirmation", |w| w.seen.tombstones.is_empty())
        .await;

    let fresh = controller.watch().await;
    assert_eq!(
        fresh.seen, watch.seen,
        "a snapshot is what the deltas came to"
    );
    node.leave().await;
    controller.stop().await;
}

/// Each refusal arrives as its code with its facts, and nothing was made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_carry_their_codes_and_facts() {
    let controller = controller().await;
    let refused = controller
        .create(create("t", 1))
        .await
        .expect_err("no node");
    assert_eq!(refused.code, ErrorCode::NotEnoughNodes);
    assert!(refused.is_retriable() && refused.retry_after_ms > 0);
    let _node = Session::fresh(&controller).await;
    let taken = controller.topic("taken", 1).await;
    let with = |change: fn(&mut v1::CreateTopicRequest)| {
        let mut request = create("t", 1);
        change(&mut request);
        request
    };
    let cases = [
        (with(|r| r.name = String::new()), ErrorCode::InvalidName),
        (with(|r| r.name = "a/b".into()), ErrorCode::InvalidName),
        (with(|r| r.name = "n".repeat(250)), ErrorCode::InvalidName),
        (
            with(|r| r.name = "__offsets".into()),
            ErrorCode::InternalTopic,
        ),
        (with(|r| r.name = "taken".into()), ErrorCode::TopicExists),
        (
            with(|r| r.partitions = Some(0)),
            ErrorCode::InvalidPartitions,
        ),
        (
            with(|r| r.partitions = Some(-3)),
            ErrorCode::InvalidPartitions,
        ),
        (
            with(|r| r.partitions = Some(10_001)),
            ErrorCode::LimitExceeded,
        ),
        (
            with(|r| r.replication_factor = Some(3)),
            ErrorCode::NotEnoughNodes,
        ),
        (
            with(|r| r.replication_factor = Some(8)),
            ErrorCode::InvalidReplicationFactor,
        ),
        (
            with(|r| r.replication_factor = Some(0)),
            ErrorCode::InvalidReplicationFactor,
        ),
        (
            with(|r| drop(r.config.insert("nope".into(), "1".into()))),
            ErrorCode::InvalidConfig,
        ),
        (
            with(|r| drop(r.config.insert("segment.bytes".into(), "1".into()))),
            ErrorCode::InvalidConfig,
        ),
        (
            with(|r| {
                drop(
                    r.config
                        .insert("message.timestamp.type".into(), "CreateTime".into()),
                )
            }),
            ErrorCode::NotBuilt,
        ),
        (
            with(|r| r.idempotency_key = "k".repeat(129)),
            ErrorCode::InvalidArgument,
        ),
    ];
    for (request, expected) in cases {
        let refused = controller
            .create(request.clone())
            .await
            .expect_err("refused");
        assert_eq!(refused.code, expected, "{request:?}: {refused}");
        match (expected, refused.details) {
            (ErrorCode::TopicExists, Some(Details::ExistingTopic(it))) => {
                assert_eq!(it.topic_id, taken.topic_id);
            }
            (ErrorCode::LimitExceeded, Some(Details::Limit(it))) => {
                assert_eq!((it.limit, it.actual), (10_000, 10_001));
            }
            (ErrorCode::InvalidConfig | ErrorCode::NotBuilt, Some(Details::Config(it))) => {
                assert!(request.config.contains_key(&it.key));
            }
            (ErrorCode::TopicExists | ErrorCode::LimitExceeded, other) => panic!("{other:?}"),
            _ => {}
        }
    }
    let unknown = v1::DeleteTopicRequest {
        name: "t".into(),
        ..Default::default()
    };
    assert_eq!(
        code(controller.topics().delete_topic(unknown).await),
        Some(ErrorCode::UnknownTopic)
    );
    let bad_id = v1::DescribeTopicRequest {
        topic_id: vec![1, 2].into(),
        ..Default::default()
    };
    assert_eq!(
        code(controller.topics().describe_topic(bad_id).await),
        Some(ErrorCode::InvalidArgument)
    );
    let changed = v1::DescribeTopicRequest {
        name: "taken".into(),
        topic_id: bytes(Uuid::nil()),
    };
    assert_eq!(
        code(controller.topics().describe_topic(changed).await),
        Some(ErrorCode::TopicIdChanged)
    );

    let list = controller
        .topics()
        .list_topics(v1::ListTopicsRequest {})
        .await
        .expect("list");
    assert_eq!(list.into_inner().topics, [taken], "nothing else was made");
    let keys = controller
        .topics()
        .list_config_keys(v1::ListConfigKeysRequest {})
        .await;
    assert_eq!(
        keys.expect("keys").into_inner().keys.len(),
        talweg_types::topic_config::KEYS.len()
    );
    let mut cluster = ClusterServiceClient::new(controller.channel.clone());
    let unknown = cluster
        .drain_node(v1::DrainNodeRequest { node_id: 9 })
        .await;
    assert_eq!(code(unknown), Some(ErrorCode::UnknownNode));
    let balance = cluster
        .balance_cluster(v1::BalanceClusterRequest::default())
        .await;
    let mut plan = balance.expect("planned").into_inner();
    let plan = plan.message().await.expect("an answer");
    assert!(plan.expect("a plan").moves.is_empty(), "there are no nodes");
    controller.stop().await;
}

/// Ten thousand partitions: created, lost and led again; no message above the
/// limit of default stubs, and a limit that holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_partitions() {
    let controller = controller().await;
    let folder = Uuid::new_v4();
    let node = Session::begin(&controller, register(Uuid::new_v4(), folder))
        .await
        .expect("in");
    let mut watch = controller.watch().await;
    let began = Instant::now();
    let topic = controller.topic("large", 10_000).await;
    println!("created in {:?}", began.elapsed());
    watch
        .until("all", |w| w.seen.leaders(&topic.topic_id).len() == 10_000)
        .await;
    let refused = controller
        .create(create("more", 1))
        .await
        .expect_err("full");
    let Some(Details::Limit(limit)) = refused.details else {
        panic!("{refused}")
    };
    assert_eq!((limit.limit, limit.actual), (10_000, 10_001));

    let restarted = Instant::now();
    drop(node);
    let node = Session::begin(&controller, register(Uuid::new_v4(), folder))
        .await
        .expect("in");
    println!("led again after {:?}", restarted.elapsed());
    watch
        .until("raised", |w| {
            w.seen
                .partitions
                .values()
                .all(|p| p.leader_incarnation == node.registered.incarnation)
        })
        .await;
    // Default stubs take 4 MiB; this client is one.
    let fresh = controller.watch().await;
    assert_eq!(fresh.seen, watch.seen);
    controller.stop().await;
}

/// A watcher that reads nothing costs nobody anything, and when it reads again
/// it gets a whole new picture.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_stalls_begins_again_with_a_snapshot() {
    let controller = controller().await;
    let _node = Session::fresh(&controller).await;
    controller.topic("t", 3_000).await;
    let mut stalled = controller.watch().await;
    // Each change of a setting tells the whole topic again: the queues fill.
    for i in 0..300 {
        let alter = v1::AlterTopicRequest {
            name: "t".into(),
            config: HashMap::from([("retention.ms".into(), format!("{}", 1_000 + i))]),
            ..Default::default()
        };
        controller
            .topics()
            .alter_topic(alter)
            .await
            .expect("altered");
    }
    let now = controller.watch().await;
    stalled
        .until("the present", |w| w.seen.revision >= now.seen.revision)
        .await;
    assert_eq!(stalled.seen, now.seen);
    assert!(stalled.snapshots > 1, "it was not told every change");
    controller.stop().await;
}

/// Blocks of producer ids from many callers at once never overlap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producer_ids_are_given_out_once() {
    let controller = controller().await;
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let mut client = controller.client();
            tokio::spawn(async move {
                let request = AllocateProducerIdsRequest { count: 1_000 };
                client
                    .allocate_producer_ids(request)
                    .await
                    .expect("a block")
                    .into_inner()
            })
        })
        .collect();
    let mut firsts = Vec::new();
    for call in calls {
        let block = call.await.expect("join");
        assert_eq!(block.count, 1_000);
        firsts.push(block.first);
    }
    firsts.sort_unstable();
    assert!(
        firsts.windows(2).all(|pair| pair[1] - pair[0] >= 1_000),
        "{firsts:?}"
    );
    let mut client = controller.client();
    let none = client.allocate_producer_ids(AllocateProducerIdsRequest { count: 0 });
    assert_eq!(code(none.await), Some(ErrorCode::InvalidArgument));
    controller.stop().await;
}

/// A setting that cannot work is refused at start, by name.
#[tokio::test]
async fn bad_settings_are_refused_at_start() {
    let bad = ControllerConfig {
        session_timeout_ms: 1,
        ..config()
    };
    let refused = talweg_controller::start(bad, Arc::new(MemMetastore::default())).await;
    let error = refused.map(|_| ()).expect_err("refused").to_string();
    assert!(error.contains("session_timeout_ms"), "{error}");
}
