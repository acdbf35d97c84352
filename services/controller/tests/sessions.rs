//! Nodes and standbys over a real socket, with the metastore in memory.

mod common;

use common::{
    Controller, SESSION_MS, Session, bytes, config, create, next, open, register, send, within,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use talweg_controller::ControllerConfig;
use talweg_kit::errors::ErrorCode;
use talweg_metastore_mem::MemMetastore;
use talweg_proto::{
    controller::v1::{
        NodeHeartbeat, RegisterNode, node_session_request::Frame as Ask,
        node_session_response::Frame as Answer,
    },
    v1::{self, cluster_service_client::ClusterServiceClient, error_detail::Details},
};
use uuid::Uuid;

async fn controller() -> Controller {
    Controller::start(Arc::new(MemMetastore::default())).await
}

/// Killed, its partitions have no leader within the session time-out; back as a
/// new process, it leads them in new epochs before it is told that it is in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_comes_back_as_a_new_incarnation() {
    let controller = controller().await;
    let folder = Uuid::new_v4();
    let node = Session::begin(&controller, register(Uuid::new_v4(), folder))
        .await
        .expect("in");
    let topic = controller.topic("t", 100).await;
    let mut watch = controller.watch().await;
    let killed = Instant::now();
    drop(node);
    watch
        .until("no leaders", |w| {
            w.seen
                .leaders(&topic.topic_id)
                .iter()
                .all(|leader| *leader == (0, 1))
        })
        .await;
    // The session time-out, and 2 s of slack for a busy machine.
    assert!(
        killed.elapsed() < Duration::from_millis(u64::from(SESSION_MS)) + Duration::from_secs(2)
    );
    assert!(watch.seen.nodes.is_empty());

    let node = Session::begin(&controller, register(Uuid::new_v4(), folder))
        .await
        .expect("in");
    assert_eq!(
        (node.registered.node_id, node.registered.incarnation),
        (1, 2)
    );
    let now = controller.watch().await;
    assert!(
        now.seen
            .leaders(&topic.topic_id)
            .iter()
            .all(|leader| *leader == (1, 2))
    );
    assert!(
        now.seen
            .partitions
            .values()
            .all(|p| p.leader_incarnation == 2)
    );
    controller.stop().await;
}

/// Two processes of one node: the older one is told to stop, and is turned away
/// when it tries again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_process_is_fenced() {
    let controller = controller().await;
    let (folder, first, second) = (Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4());
    let mut old = Session::begin(&controller, register(first, folder))
        .await
        .expect("in");
    let new = Session::begin(&controller, register(second, folder))
        .await
        .expect("in");
    assert_eq!(new.registered.incarnation, 2);
    assert!(matches!(old.next().await, Ok(Answer::Fenced(_))));
    let again = Session::begin(&controller, register(first, folder))
        .await
        .map(|_| ());
    assert_eq!(again.expect_err("stale").code, ErrorCode::StaleIncarnation);
    // The same process over another stream keeps its incarnation.
    let same = Session::begin(&controller, register(second, folder))
        .await
        .expect("in");
    assert_eq!(same.registered.incarnation, 2);
    controller.stop().await;
}

/// What a stream may not begin or go on with ends it, with the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_break_the_rules_end() {
    let controller = controller().await;
    let good = register(Uuid::new_v4(), Uuid::new_v4());
    let firsts = [
        (
            Ask::Heartbeat(NodeHeartbeat::default()),
            ErrorCode::ProtocolViolation,
        ),
        (
            Ask::Register(RegisterNode::default()),
            ErrorCode::InvalidArgument,
        ),
        (
            Ask::Register(RegisterNode {
                process_id: vec![1].into(),
                ..good.clone()
            }),
            ErrorCode::InvalidArgument,
        ),
        (
            Ask::Register(RegisterNode {
                grpc_address: String::new(),
                ..good.clone()
            }),
            ErrorCode::InvalidArgument,
        ),
        (
            Ask::Register(RegisterNode {
                cluster_id: bytes(Uuid::new_v4()),
                ..good.clone()
            }),
            ErrorCode::ClusterIdMismatch,
        ),
        (
            Ask::Register(RegisterNode {
                folders: Vec::new(),
                ..good.clone()
            }),
            ErrorCode::InvalidArgument,
        ),
    ];
    for (first, expected) in firsts {
        let (_frames, mut answers) = open(&controller, first.clone()).await;
        let refused = next(&mut answers).await.expect_err("refused");
        assert_eq!(refused.code, expected, "{first:?}");
    }
    let mut node = Session::begin(&controller, good.clone()).await.expect("in");
    common::send(&node.frames, Ask::Register(good)).await;
    let refused = node.next().await.expect_err("twice");
    assert_eq!(refused.code, ErrorCode::ProtocolViolation);
    controller.stop().await;
}

/// Gateways are seen while their session lives, and gone at their goodbye.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_come_and_go() {
    // So long that only the goodbye can be what ends the session within half of it.
    let session = Duration::from_secs(20);
    let config = ControllerConfig {
        session_timeout_ms: 20_000,
        ..config()
    };
    let controller = Controller::with(config, Arc::new(MemMetastore::default())).await;
    let mut watch = controller.watch().await;
    let asking = RegisterNode {
        plane: v1::Plane::Gateway.into(),
        folders: Vec::new(),
        ..register(Uuid::new_v4(), Uuid::nil())
    };
    let gateway = Session::begin(&controller, asking).await.expect("in");
    let id = gateway.registered.node_id;
    watch
        .until("the gateway", |w| w.seen.nodes.contains_key(&id))
        .await;
    assert_eq!(watch.seen.nodes[&id].plane(), v1::Plane::Gateway);
    let mut cluster = ClusterServiceClient::new(controller.channel.clone());
    let described = cluster
        .describe_cluster(v1::DescribeClusterRequest {})
        .await;
    let described = described.expect("described").into_inner();
    assert_eq!(
        described.controller_address,
        format!("http://{}", controller.handle.grpc_addr())
    );
    assert!(described.nodes[0].alive);
    let left = Instant::now();
    gateway.leave().await;
    watch
        .until("its goodbye", |w| w.seen.nodes.is_empty())
        .await;
    assert!(left.elapsed() < session / 2, "at once");
    controller.stop().await;
}

/// The second controller says where the first is, and takes over when it stops:
/// the topics are there, the revision goes on, nobody loses leadership.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_points_to_the_active_one_and_takes_over() {
    let store = Arc::new(MemMetastore::default());
    let first = Controller::start(store.clone()).await;
    let second = Controller::start(store).await;
    let asking = register(Uuid::new_v4(), Uuid::new_v4());
    let node = Session::begin(&first, asking.clone()).await.expect("in");
    let topic = first.topic("t", 20).await;
    let watch = first.watch().await;

    let refused = second.create(create("u", 1)).await.expect_err("standby");
    assert_eq!(refused.code, ErrorCode::NotController);
    let Some(Details::Leader(hint)) = refused.details else {
        panic!("no hint")
    };
    assert_eq!(
        hint.addresses,
        [format!("http://{}", first.handle.grpc_addr())]
    );

    first.stop().await;
    within("the takeover", second.handle.wait_active()).await;
    drop(node);
    let again = Session::begin(&second, asking).await.expect("in");
    assert_eq!(again.registered.incarnation, 1, "the same process");
    let now = second.watch().await;
    assert!(
        now.seen.revision > watch.seen.revision,
        "the revision goes on"
    );
    assert_eq!(
        now.seen.leaders(&topic.topic_id),
        watch.seen.leaders(&topic.topic_id)
    );
    second.topic("u", 1).await;
    second.stop().await;
}

/// The answer to a heartbeat names it, and what had been told by then: a node whose
/// view has that knows all that was decided about it before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_is_answered_by_name_with_what_had_been_told() {
    let controller = controller().await;
    let mut node = Session::fresh(&controller).await;
    let mut last = node.registered.revision;
    for beat in 41..44 {
        controller.topic(&format!("t{beat}"), 1).await;
        let told = controller.watch().await.seen.revision;
        let asked = NodeHeartbeat {
            beat,
            ..NodeHeartbeat::default()
        };
        send(&node.frames, Ask::Heartbeat(asked)).await;
        let ack = loop {
            match next(&mut node.answers).await.expect("the session lives") {
                Answer::HeartbeatAck(ack) if ack.beat == beat => break ack,
                Answer::HeartbeatAck(ack) => assert_eq!(ack.beat, 0, "another's"),
                other => panic!("{other:?}"),
            }
        };
        assert!(ack.revision >= told && ack.revision > last);
        last = ack.revision;
        // It is reached: nothing but what is told moves it.
        let mut watch = controller.watch().await;
        watch
            .until("what it names", |watch| watch.seen.revision >= last)
            .await;
    }
    controller.stop().await;
}
