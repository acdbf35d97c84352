//! Replicated partitions over real sockets: in-sync sets, deaths, ends of logs,
//! drained nodes, moves.

mod common;

use common::{Controller, Session, config, create, register, send, within};
use std::{
    net::TcpListener,
    sync::Arc,
    time::{Duration, Instant},
};
use talweg_controller::ControllerConfig;
use talweg_kit::errors::ErrorCode;
use talweg_metastore_mem::MemMetastore;
use talweg_proto::{
    controller::v1::{
        AlterInSyncRequest, ConfirmReplicasDeletedRequest, FolderBoot, InSyncMember,
        InSyncProposal, PartitionState, RegisterNode, RemovedReplica, ReplicaEnd, ReplicaEnds,
        node_session_request::Frame as Ask, node_session_response::Frame as Answer,
    },
    v1::{self, cluster_service_client::ClusterServiceClient},
};
use tonic::transport::Channel;
use uuid::Uuid;

/// A storage node: a session, and a socket that is closed when it dies.
struct Node {
    session: Session,
    asking: RegisterNode,
    listener: Option<TcpListener>,
}

impl Node {
    async fn start(controller: &Controller) -> Self {
        Self::again(controller, register(Uuid::new_v4(), Uuid::new_v4())).await
    }

    async fn again(controller: &Controller, asking: RegisterNode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let asking = RegisterNode {
            grpc_address: format!("http://{}", listener.local_addr().expect("address")),
            ..asking
        };
        let session = Session::begin(controller, asking.clone())
            .await
            .expect("in");
        Self {
            session,
            asking,
            listener: Some(listener),
        }
    }

    fn id(&self) -> u32 {
        self.session.registered.node_id
    }

    fn member(&self) -> InSyncMember {
        InSyncMember {
            node_id: self.id(),
            incarnation: self.session.registered.incarnation,
        }
    }

    /// As kill -9 does it: all sockets are closed.
    fn kill(mut self) -> RegisterNode {
        drop(self.listener.take());
        RegisterNode {
            process_id: common::bytes(Uuid::new_v4()),
            ..self.asking.clone()
        }
    }
}

/// Sessions that end by silence would take longer than any of these tests.
async fn controller() -> Controller {
    let config = ControllerConfig {
        session_timeout_ms: 30_000,
        preferred_leader_ms: 300,
        ..config()
    };
    Controller::with(config, Arc::new(MemMetastore::default())).await
}

fn cluster(controller: &Controller) -> ClusterServiceClient<Channel> {
    ClusterServiceClient::new(controller.channel.clone())
}

async fn replicated(controller: &Controller, partitions: i32) -> v1::Topic {
    let request = v1::CreateTopicRequest {
        replication_factor: Some(3),
        ..create("t", partitions)
    };
    controller.create(request).await.expect("created")
}

fn proposal(state: &PartitionState, members: Vec<InSyncMember>) -> InSyncProposal {
    InSyncProposal {
        topic_id: state.topic_id.clone(),
        partition: state.partition,
        leader_epoch: state.leader_epoch,
        partition_epoch: state.partition_epoch,
        members,
        attempt: 0,
    }
}

/// Three nodes, those of the ids 1, 2 and 3.
async fn trio(controller: &Controller) -> [Node; 3] {
    let nodes = [
        Node::start(controller).await,
        Node::start(controller).await,
        Node::start(controller).await,
    ];
    for (node, id) in nodes.iter().zip(1..) {
        assert_eq!(node.id(), id);
    }
    nodes
}

async fn alter(
    controller: &Controller,
    leader: &Node,
    proposals: Vec<InSyncProposal>,
) -> Vec<talweg_proto::controller::v1::InSyncResult> {
    let request = AlterInSyncRequest {
        node_id: leader.id(),
        incarnation: leader.session.registered.incarnation,
        proposals,
    };
    let answer = controller.client().alter_in_sync(request).await;
    answer.expect("answered").into_inner().results
}

/// Each proposal has its own answer, with the state as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_change_their_in_sync_sets() {
    let controller = controller().await;
    let nodes = trio(&controller).await;
    replicated(&controller, 3).await;
    let mut watch = controller.watch().await;
    let states: Vec<_> = watch.seen.partitions.values().cloned().collect();
    let mine: Vec<_> = states.iter().filter(|p| p.leader == 1).collect();
    let others: Vec<_> = states.iter().filter(|p| p.leader != 1).collect();
    let pair = vec![nodes[0].member(), nodes[1].member()];
    let proposals = vec![
        proposal(mine[0], pair.clone()),
        proposal(others[0], pair.clone()),
        InSyncProposal {
            partition: 77,
            ..proposal(mine[0], pair.clone())
        },
    ];
    let results = alter(&controller, &nodes[0], proposals).await;
    assert_eq!(results.len(), 3);
    assert_eq!(results[0].refused, "");
    let state = results[0].state.clone().expect("state");
    assert_eq!((&state.in_sync, state.partition_epoch), (&vec![1, 2], 1));
    assert!(
        results[1].refused.contains("the leader is node"),
        "{results:?}"
    );
    assert_eq!(results[1].state.as_ref(), Some(others[0]));
    assert!(results[2].refused.contains("no such partition") && results[2].state.is_none());
    watch
        .until("the new set", |w| {
            w.seen.partitions.values().any(|p| *p == state)
        })
        .await;
    let stale = AlterInSyncRequest {
        node_id: 1,
        incarnation: 9,
        proposals: Vec::new(),
    };
    let refused = common::code(controller.client().alter_in_sync(stale).await);
    assert_eq!(refused, Some(ErrorCode::StaleIncarnation));
    let many = AlterInSyncRequest {
        node_id: 1,
        incarnation: 1,
        proposals: vec![InSyncProposal::default(); 1_001],
    };
    let refused = common::code(controller.client().alter_in_sync(many).await);
    assert_eq!(refused, Some(ErrorCode::InvalidArgument));
    controller.stop().await;
}

/// Killed, a node's leaderships are elsewhere in well under a second, long
/// before its session would time out; restarted, it leads again by itself once
/// its leaders report it in sync.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_is_replaced_at_once() {
    let controller = controller().await;
    let [first, second, third] = trio(&controller).await;
    replicated(&controller, 30).await;
    let mut watch = controller.watch().await;
    let killed = Instant::now();
    let asking = first.kill();
    watch
        .until("leaders elsewhere", |w| {
            w.seen
                .partitions
                .values()
                .all(|p| p.leader > 1 && !p.in_sync.contains(&1))
        })
        .await;
    println!("30 partitions elsewhere after {:?}", killed.elapsed());
    assert!(
        killed.elapsed() < Duration::from_secs(1),
        "{:?}",
        killed.elapsed()
    );

    let again = Node::again(&controller, asking).await;
    assert_eq!((again.id(), again.session.registered.incarnation), (1, 2));
    for leader in [&second, &third] {
        let members = vec![again.member(), second.member(), third.member()];
        let led = watch
            .seen
            .partitions
            .values()
            .filter(|p| p.leader == leader.id());
        let proposals = led.map(|p| proposal(p, members.clone())).collect();
        let results = alter(&controller, leader, proposals).await;
        assert!(results.iter().all(|r| r.refused.is_empty()), "{results:?}");
    }
    within(
        "preferred leaders",
        watch.until("preferred leaders", |w| {
            w.seen
                .partitions
                .values()
                .all(|p| p.leader == p.replicas[0])
        }),
    )
    .await;
    controller.stop().await;
}

/// A broken stream of a node that still listens is no death.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_listens_is_not_dead() {
    let controller = controller().await;
    let [first, _second, _third] = trio(&controller).await;
    replicated(&controller, 3).await;
    let Node {
        session,
        asking,
        listener,
    } = first;
    drop(session);
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    let session = Session::begin(&controller, asking).await.expect("in");
    assert_eq!(session.registered.incarnation, 1);
    let watch = controller.watch().await;
    assert!(watch.seen.partitions.values().all(|p| p.leader_epoch == 0));
    drop(listener);
    controller.stop().await;
}

/// Power goes everywhere: the nodes are asked for the ends of their logs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_power_loss_the_greatest_log_leads() {
    let controller = controller().await;
    let nodes = trio(&controller).await;
    replicated(&controller, 2).await;
    let mut watch = controller.watch().await;
    let mut askings = Vec::new();
    for node in nodes {
        let id = node.id();
        let mut asking = node.kill();
        asking.folders[0].boot = FolderBoot::Unclean.into();
        askings.push(asking);
        watch
            .until("out of all sets", |w| {
                let mut all = w.seen.partitions.values();
                all.all(|p| p.leader != id && !p.in_sync.contains(&id))
            })
            .await;
    }
    let mut back = Vec::new();
    for asking in askings {
        back.push(Node::again(&controller, asking).await);
    }
    // Node 1 died when two others were in sync: nobody waits for it.
    for (node, end) in back[1..].iter_mut().zip([9, 7]) {
        let Ok(Answer::AskReplicaEnds(asked)) = node.session.next().await else {
            panic!("not asked")
        };
        assert!(!asked.replicas.is_empty() && asked.replicas.len() <= 2);
        let ends = asked.replicas.into_iter().map(|replica| ReplicaEnd {
            last_epoch: 0,
            log_end_offset: end,
            ..replica
        });
        let replicas = ends.collect();
        send(
            &node.session.frames,
            Ask::ReplicaEnds(ReplicaEnds { replicas }),
        )
        .await;
    }
    watch
        .until("recovered leaders", |w| {
            w.seen.partitions.values().all(|p| p.leader != 0)
        })
        .await;
    for p in watch.seen.partitions.values() {
        assert_eq!((p.leader, &p.in_sync), (2, &vec![2]));
        let recovered = p.recovered.expect("recorded");
        assert_eq!(
            (recovered.leader_epoch, recovered.unclean),
            (p.leader_epoch, false)
        );
    }
    controller.stop().await;
}

/// Drained, a node leads nothing; its replica is moved away, and it confirms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_drained_and_emptied() {
    let controller = controller().await;
    let nodes = trio(&controller).await;
    let topic = replicated(&controller, 1).await;
    let fourth = Node::start(&controller).await;
    let drained = cluster(&controller)
        .drain_node(v1::DrainNodeRequest { node_id: 1 })
        .await;
    assert_eq!(drained.expect("drained").into_inner().leaders_left, 0);
    let mut watch = controller.watch().await;
    assert!(watch.seen.partitions.values().all(|p| p.leader != 1));
    let described = cluster(&controller)
        .describe_cluster(v1::DescribeClusterRequest {})
        .await;
    assert!(described.expect("described").into_inner().nodes[0].draining);
    let to = vec![4, 2, 3];
    let moved = v1::ReassignPartitionRequest {
        topic: "t".into(),
        partition: 0,
        to: to.clone(),
        throttle_bytes_per_second: 0,
    };
    let moved = cluster(&controller).reassign_partition(moved).await;
    let id = moved.expect("begun").into_inner().reassignment_id;
    let list = cluster(&controller)
        .list_reassignments(v1::ListReassignmentsRequest {})
        .await
        .expect("listed")
        .into_inner();
    assert_eq!(list.reassignments[0].reassignment_id, id);
    watch
        .until("the new replica", |w| {
            w.seen.partitions.values().all(|p| p.adding == [4])
        })
        .await;
    let state = watch.seen.partitions.values().next().expect("one").clone();
    assert_eq!(
        (&state.removing, state.throttle_bytes_per_second),
        (&vec![1], 0)
    );
    let leader = &nodes[state.leader as usize - 1];
    let members = nodes.iter().map(Node::member).chain([fourth.member()]);
    let results = alter(
        &controller,
        leader,
        vec![proposal(&state, members.collect())],
    )
    .await;
    assert_eq!(results[0].refused, "");
    watch
        .until("the switch", |w| {
            w.seen
                .partitions
                .values()
                .all(|p| p.replicas == to && p.removed == [1])
        })
        .await;
    let confirm = ConfirmReplicasDeletedRequest {
        node_id: 1,
        incarnation: 1,
        topic_ids: Vec::new(),
        partitions: vec![RemovedReplica {
            topic_id: topic.topic_id.clone(),
            partition: 0,
        }],
    };
    let confirmed = controller.client().confirm_replicas_deleted(confirm).await;
    confirmed.expect("confirmed");
    watch
        .until("nothing left", |w| {
            w.seen.partitions.values().all(|p| p.removed.is_empty())
        })
        .await;
    let remove = || v1::RemoveNodeRequest { node_id: 1 };
    let alive = cluster(&controller).remove_node(remove()).await;
    assert_eq!(common::code(alive), Some(ErrorCode::InvalidArgument));
    let [first, ..] = nodes;
    first.kill();
    watch
        .until("its death", |w| !w.seen.nodes.contains_key(&1))
        .await;
    let removed = cluster(&controller).remove_node(remove()).await;
    removed.expect("removed");
    controller.stop().await;
}
