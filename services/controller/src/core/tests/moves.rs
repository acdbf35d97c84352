//! Probes, preferred leaders, drained and removed nodes, reassignments.

use super::{
    replicas::{Boot, Trio},
    *,
};

fn beat(trio: &mut Trio, ids: &[u32], time: Duration) {
    let until = trio.world.clock + time;
    while trio.world.clock < until {
        for id in ids {
            let stream = trio.stream(*id);
            trio.world.heartbeat(stream);
        }
        trio.world.pass(TIMEOUT / 4);
        trio.world.settle();
    }
}

/// A broken stream is looked into; a refusal ends the session at once, unless
/// the process has come back.
#[test]
fn a_refused_probe_is_a_death() {
    let mut trio = Trio::new(&[]);
    let stream = trio.stream(1);
    trio.world.event(Event::StreamBroken { stream });
    let probe = Effect::Probe {
        node: NodeId(1),
        incarnation: Incarnation(1),
        address: "http://node-1:7072".into(),
    };
    assert!(trio.world.seen.contains(&probe));
    assert_eq!(trio.shown().0, 1, "silence is no proof");
    let refused = |incarnation| Event::ProbeRefused {
        node: NodeId(1),
        incarnation: Incarnation(incarnation),
    };
    trio.world.event(refused(9));
    assert_eq!(trio.shown().0, 1, "another process");
    trio.world.event(refused(1));
    trio.world.settle();
    assert_eq!(trio.shown(), (2, 1, vec![2, 3], vec![], vec![2, 3]));
    // Back over another stream before the refusal arrives.
    let stream = trio.stream(2);
    trio.world.event(Event::StreamBroken { stream });
    trio.world.register(registration(2, 2, 2));
    trio.world.event(Event::ProbeRefused {
        node: NodeId(2),
        incarnation: Incarnation(1),
    });
    trio.world.settle();
    assert_eq!(trio.shown().0, 2);
}

/// A new controller looks for every registered node.
#[test]
fn a_new_controller_probes_registered_nodes() {
    let mut trio = Trio::new(&[]);
    trio.world.seen.clear();
    trio.world.crash(false);
    let probes = trio
        .world
        .seen
        .iter()
        .filter(|e| matches!(e, Effect::Probe { .. }));
    assert_eq!(probes.count(), 3);
    trio.world.event(Event::ProbeRefused {
        node: NodeId(1),
        incarnation: Incarnation(1),
    });
    trio.world.settle();
    assert_eq!(
        trio.shown(),
        (0, 1, vec![2, 3], vec![], vec![1, 2, 3]),
        "others are awaited"
    );
    trio.world.register(registration(3, 3, 3));
    trio.world.settle();
    assert_eq!(trio.shown().0, 3);
}

/// Most nodes silent at once: the controller gives up rather than act on it.
#[test]
fn a_controller_that_hears_nobody_resigns() {
    let mut trio = Trio::new(&[]);
    let before = trio.p().clone();
    beat(&mut trio, &[1], TIMEOUT);
    beat(&mut trio, &[1], TIMEOUT);
    assert!(trio.world.take_resigned());
    assert_eq!(*trio.p(), before, "nothing was decided");
    // Its successor, perhaps itself, gives them a time-out and then decides.
    trio.world.register(registration(1, 1, 1));
    trio.world.pass(TIMEOUT * 2);
    trio.world.settle();
    assert!(!trio.world.take_resigned());
    assert_ne!(*trio.p(), before);
}

/// Leadership goes back a while after the preferred replica is in sync again.
#[test]
fn the_preferred_replica_leads_again_after_a_while() {
    let mut trio = Trio::new(&[]);
    trio.start(1, Boot::Whole);
    assert_eq!(trio.shown().0, 2);
    let all = &[1, 2, 3][..];
    beat(&mut trio, all, PREFERRED_AFTER * 2);
    assert_eq!(trio.shown().0, 2, "it is not in sync");
    trio.sync(&[1, 2, 3]);
    beat(&mut trio, all, PREFERRED_AFTER - TIMEOUT);
    assert_eq!(trio.shown().0, 2, "not yet");
    beat(&mut trio, all, TIMEOUT * 2);
    assert_eq!(trio.shown(), (1, 2, vec![1, 2, 3], vec![], vec![1, 2, 3]));
}

/// An operator need not wait.
#[test]
fn an_operator_brings_the_preferred_leader_back() {
    let mut trio = Trio::new(&[]);
    trio.start(1, Boot::Whole);
    let elect = Request::Elect(ElectLeader {
        topic: "t".into(),
        partition: PartitionIndex(0),
        unclean: false,
    });
    let refused = trio.world.ask(elect.clone());
    assert!(
        matches!(refused, Err(Refusal::NoLeader { .. })),
        "not in sync"
    );
    trio.sync(&[1, 2, 3]);
    for _ in 0..2 {
        let elected = Reply::Elected {
            leader: NodeId(1),
            epoch: LeaderEpoch(2),
        };
        assert_eq!(trio.world.ask(elect.clone()), Ok(elected));
    }
}

/// A drained node leads only what nobody else can, over restarts too, and gets
/// no new replicas.
#[test]
fn a_drained_node_gives_its_leaderships_away() {
    let mut trio = Trio::new(&[]);
    let drain = |node, draining| Request::Drain {
        node: NodeId(node),
        draining,
    };
    let drained = |leaders_left| Ok(Reply::Drained { leaders_left });
    assert_eq!(trio.world.ask(drain(1, true)), drained(0));
    assert_eq!(trio.shown(), (2, 1, vec![1, 2, 3], vec![], vec![1, 2, 3]));
    trio.world.ask(create("u", Some(4), 2)).expect("created");
    assert_eq!(trio.world.store.hosted_count(NodeId(1)), 1);
    trio.world.crash(false);
    for id in [1, 2, 3] {
        trio.start(id, Boot::Whole);
    }
    assert!(trio.world.store.nodes[&NodeId(1)].value.draining);
    // Only node 1 is left: better than nobody; away as soon as there is another.
    let leader = trio.shown().0;
    trio.sync(&[1, leader]);
    let other = if leader == 2 { 3 } else { 2 };
    trio.die(other);
    trio.die(leader);
    assert_eq!(trio.shown().0, 1);
    trio.start(other, Boot::Whole);
    trio.sync(&[1, other]);
    beat(&mut trio, &[1, other], TIMEOUT);
    assert_eq!(trio.shown().0, other);
    assert!(matches!(
        trio.world.ask(drain(9, true)),
        Err(Refusal::UnknownNode { .. })
    ));
    trio.world.ask(drain(1, false)).expect("undrained");
    beat(&mut trio, &[1, other], PREFERRED_AFTER + TIMEOUT);
    assert_eq!(trio.shown().0, 1, "preferred again");
}

fn reassign(to: &[u32], id: u128) -> Request {
    Request::Reassign(Reassign {
        topic: "t".into(),
        partition: PartitionIndex(0),
        to: to.iter().map(|node| NodeId(*node)).collect(),
        throttle: 1_000,
        id: Uuid::from_u128(id),
    })
}

fn confirm(node: u32) -> Request {
    Request::ConfirmDeleted {
        node: NodeId(node),
        incarnation: Incarnation(1),
        topics: BTreeSet::new(),
        partitions: BTreeSet::from([TopicPartition {
            topic_id: topic_id(1),
            partition: PartitionIndex(0),
        }]),
    }
}

/// Add, catch up, switch, remove; over a controller's death; and then the node
/// that holds nothing any more can be removed.
#[test]
fn a_replica_moves_to_another_node() {
    let mut trio = Trio::new(&[]);
    let (four, ..) = trio.world.node(44, 4);
    assert_eq!(four, NodeId(4));
    for (to, field) in [(&[4, 2][..], "to"), (&[4, 4, 2], "to"), (&[9, 2, 3], "to")] {
        let refused = trio.world.ask(reassign(to, 1));
        assert!(
            matches!(refused, Err(Refusal::InvalidArgument { field: f, .. }) if f == field),
            "{refused:?}"
        );
    }
    let moving = Ok(Reply::Moving(Uuid::from_u128(1)));
    assert_eq!(trio.world.ask(reassign(&[4, 2, 3], 1)), moving);
    assert_eq!(trio.world.ask(reassign(&[4, 2, 3], 2)), moving, "a repeat");
    assert!(trio.world.ask(reassign(&[4, 1, 3], 3)).is_err(), "another");
    assert_eq!(trio.p().replicas, [4, 2, 3, 1].map(NodeId));
    assert_eq!(trio.shown(), (1, 0, vec![1, 2, 3], vec![], vec![1, 2, 3]));

    trio.world.crash(false);
    for id in [2, 3] {
        trio.world
            .register(registration(id, u128::from(id), u128::from(id)));
    }
    let first = trio.world.register(registration(1, 1, 1));
    trio.world.register(registration(4, 44, 4));
    trio.world.settle();
    trio.sync(&[1, 2, 3, 4]);
    trio.world.settle();
    let p = trio.p();
    assert_eq!(
        (&p.moving, &p.replicas),
        (&None, &[4, 2, 3].map(NodeId).to_vec())
    );
    assert_eq!((p.leader, p.leader_epoch), (NodeId(4), LeaderEpoch(1)));
    assert_eq!(p.removed, [NodeId(1)]);
    assert!(
        trio.world.ask(reassign(&[1, 2, 3], 5)).is_err(),
        "not deleted"
    );
    trio.world.ask(confirm(1)).expect("confirmed");
    assert!(trio.p().removed.is_empty());

    let remove = |node| Request::RemoveNode { node: NodeId(node) };
    let refused = trio.world.ask(remove(2)).expect_err("has replicas");
    assert!(
        refused.to_string().contains("holds 1 replicas"),
        "{refused}"
    );
    let refused = trio.world.ask(remove(1)).expect_err("alive");
    assert!(refused.to_string().contains("alive"), "{refused}");
    trio.world.event(Event::Leaving { stream: first });
    trio.world.settle();
    assert_eq!(trio.world.ask(remove(1)), Ok(Reply::Removed));
    assert_eq!(
        trio.world.ask(remove(1)),
        Err(Refusal::UnknownNode { id: NodeId(1) })
    );
    assert_ne!(trio.world.node(60, 60).0, NodeId(1));
}

/// A move is taken back: the replicas are those of before.
#[test]
fn a_move_is_cancelled() {
    let mut trio = Trio::new(&[]);
    trio.world.node(44, 4);
    trio.world.ask(reassign(&[4, 2, 3], 1)).expect("begun");
    let cancel = |id| Request::CancelMove {
        id: Uuid::from_u128(id),
    };
    assert!(trio.world.ask(cancel(9)).is_err());
    assert_eq!(trio.world.ask(cancel(1)), Ok(Reply::MoveCancelled));
    let p = trio.p();
    assert_eq!(p.replicas, [1, 2, 3].map(NodeId));
    assert_eq!((&p.removed, &p.moving), (&vec![NodeId(4)], &None));
    assert_eq!(trio.shown(), (1, 0, vec![1, 2, 3], vec![], vec![1, 2, 3]));
}
