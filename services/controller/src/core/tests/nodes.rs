//! Stories of nodes: registered, restarted, lost, mistaken for others.

use super::*;

/// Every start is a new incarnation with new epochs, before the node is in.
#[test]
fn a_restarted_node_gets_new_epochs_before_it_is_in() {
    let mut world = World::new();
    let (node, old, first) = world.node(1, 1);
    world.ask(create("t", Some(150), 1)).expect("created");
    let stream = world.register(registration(node.0, 2, 1));
    while world.registered(stream).is_none() {
        assert!(world.finish_write(Fate::Committed), "it is let in");
    }
    assert_eq!(
        world.registered(stream),
        Some((node, Incarnation(first.0 + 1)))
    );
    for (_, p) in world.store.partitions_of(topic_id(1)) {
        assert_eq!((p.leader, p.leader_incarnation), (node, Incarnation(2)));
        // Once when the old process ended, once when the new one was elected.
        assert_eq!(p.leader_epoch, LeaderEpoch(2));
    }
    assert!(
        world.seen.contains(&Effect::Fence { stream: old, node }),
        "the old one is told"
    );
}

/// The same process over a new stream: same incarnation, same epochs.
#[test]
fn a_reconnecting_process_keeps_what_it_leads() {
    let mut world = World::new();
    let (node, old, incarnation) = world.node(1, 1);
    world.ask(create("t", Some(3), 1)).expect("created");
    let before = world.store.clone();
    world.event(Event::StreamBroken { stream: old });
    world.pass(TIMEOUT / 2);
    let again = registration(node.0, 1, 1);
    let stream = world.register(again.clone());
    assert_eq!(world.registered(stream), Some((node, incarnation)));
    // And once more without the break having been noticed.
    let third = world.register(again);
    assert!(world.seen.contains(&Effect::Close { stream }));
    assert_eq!(world.registered(third), Some((node, incarnation)));
    assert_eq!(world.store, before);
}

/// Silence, a broken stream or a goodbye: no leader, in new epochs, and the
/// node stays eligible and leads again when it is back.
#[test]
fn a_lost_node_leads_nothing_and_leads_again_when_back() {
    type Loss = fn(&mut World, StreamId);
    let losses: [(Loss, bool); 3] = [
        (|world, _| world.pass(TIMEOUT + TIMEOUT / 4), true),
        (
            |world, stream| {
                world.event(Event::StreamBroken { stream });
                world.pass(TIMEOUT + TIMEOUT / 4);
            },
            false,
        ),
        (
            |world, stream| world.event(Event::Leaving { stream }),
            false,
        ),
    ];
    for (lose, told) in losses {
        let mut world = World::new();
        let (node, stream, incarnation) = world.node(1, 1);
        world.ask(create("t", Some(100), 1)).expect("created");
        lose(&mut world, stream);
        world.settle();
        assert_eq!(world.core.session(node).map(|_| ()), None);
        assert_eq!(world.seen.contains(&Effect::Close { stream }), told);
        for (_, p) in world.store.partitions_of(topic_id(1)) {
            assert_eq!(
                (p.leader, p.leader_incarnation),
                (NodeId::NONE, Incarnation(0))
            );
            assert_eq!(p.leader_epoch, LeaderEpoch(1));
            assert_eq!((&p.in_sync, &p.eligible), (&vec![], &vec![node]));
        }
        // The same process was only slow: it keeps its incarnation.
        world.register(registration(node.0, 1, 1));
        world.settle();
        let p = world.partition(1, 99);
        assert_eq!((p.leader, p.leader_incarnation), (node, incarnation));
        assert_eq!(p.leader_epoch, LeaderEpoch(2));
    }
}

/// Heartbeats keep a session; nothing else happens.
#[test]
fn heartbeats_keep_a_session() {
    let mut world = World::new();
    let (node, stream, _) = world.node(1, 1);
    let before = world.store.clone();
    for _ in 0..20 {
        world.pass(TIMEOUT / 3);
        world.heartbeat(stream);
    }
    assert!(world.core.session(node).is_some());
    assert_eq!(world.store, before);
    let acks = world
        .seen
        .iter()
        .filter(|e| matches!(e, Effect::HeartbeatAck { .. }))
        .count();
    assert_eq!(acks, 20);
}

/// The controller itself was stopped for an hour: nobody is judged by that.
#[test]
fn time_that_the_controller_slept_is_not_held_against_nodes() {
    let mut world = World::new();
    let (node, stream, _) = world.node(1, 1);
    world.clock += Duration::from_secs(3600);
    world.event(Event::Tick);
    assert!(world.core.session(node).is_some());
    world.heartbeat(stream);
    world.pass(TIMEOUT + TIMEOUT / 4);
    assert!(
        world.core.session(node).is_none(),
        "silence after it counts"
    );
}

/// A new controller decides nothing about a registered node before it is heard
/// or its time is over.
#[test]
fn a_new_controller_awaits_registered_nodes() {
    let mut world = World::new();
    let (one, ..) = world.node(1, 1);
    let (two, ..) = world.node(2, 2);
    world.ask(create("t", Some(2), 1)).expect("created");
    let before = world.store.partitions.clone();
    world.crash(false);
    world.settle();
    world.pass(TIMEOUT / 2);
    assert_eq!(world.store.partitions, before, "both still lead");
    assert_eq!(
        world.ask(create("u", Some(1), 2)),
        Err(Refusal::NotEnoughNodes {
            needed: 1,
            alive: 0
        })
    );

    let stream = world.register(registration(one.0, 1, 1));
    world.settle();
    for _ in 0..4 {
        world.pass(TIMEOUT / 4);
        world.heartbeat(stream);
    }
    world.settle();
    let leaders: Vec<_> = world
        .store
        .partitions_of(topic_id(1))
        .map(|(_, p)| p.leader)
        .collect();
    assert_eq!(leaders, [one, NodeId::NONE], "node {two} was not heard");
}

/// Each is turned away with its own reason, and the node that was there stays.
#[test]
fn impostors_are_refused() {
    let mut world = World::new();
    world.node(30, 1);
    let (one, ..) = world.node(1, 1);
    let (two, two_stream, _) = world.node(2, 2);
    world.ask(create("t", Some(2), 1)).expect("created");
    world.event(Event::Leaving { stream: two_stream });
    world.settle();
    let before = world.store.clone();
    type Expected = fn(&Refusal) -> bool;
    let other_cluster = Registration {
        cluster: Some(Uuid::from_u128(9)),
        ..registration(1, 3, 1)
    };
    let stale = registration(1, 30, 1);
    let no_folder = Registration {
        folders: BTreeSet::new(),
        ..registration(0, 3, 1)
    };
    let cases: [(Registration, Expected); 7] = [
        (other_cluster, |r| {
            matches!(r, Refusal::ClusterIdMismatch { .. })
        }),
        (stale, |r| matches!(r, Refusal::StaleIncarnation { .. })),
        (no_folder, |r| matches!(r, Refusal::InvalidArgument { .. })),
        (registration(1, 3, 9), |r| {
            matches!(r, Refusal::NodeIdInUse { .. })
        }),
        (registration(2, 3, 9), |r| {
            matches!(r, Refusal::FoldersLost { .. })
        }),
        (registration(9, 3, 1), |r| {
            matches!(r, Refusal::FolderOfAnother { .. })
        }),
        (registration(1_000_001, 3, 9), |r| {
            matches!(r, Refusal::InvalidArgument { .. })
        }),
    ];
    for (asking, expected) in cases {
        let asked = world.register(asking.clone());
        world.settle();
        let refusal = world.seen.iter().find_map(|effect| match effect {
            Effect::Refuse { stream, refusal } if *stream == asked => Some(refusal),
            _ => None,
        });
        assert!(refusal.is_some_and(expected), "{asking:?}: {refusal:?}");
        assert_eq!(world.store, before);
        assert!(world.core.session(one).is_some() && world.core.session(two).is_none());
    }
}

/// An id is asked for, kept, and found again by its folders.
#[test]
fn node_ids_are_given_out_and_remembered() {
    let mut world = World::new();
    assert_eq!(world.node(1, 1).0, NodeId(1));
    assert_eq!(world.node(2, 2).0, NodeId(2));
    // It died before it could write its id down.
    assert_eq!(world.node(3, 1).0, NodeId(1));
    // A chosen id leaves a gap.
    let stream = world.register(registration(7, 4, 4));
    world.settle();
    assert_eq!(world.registered(stream), Some((NodeId(7), Incarnation(1))));
    assert_eq!(world.node(5, 5).0, NodeId(8));
}

/// Gateways live in memory, under ids that no storage node has.
#[test]
fn gateways_are_kept_in_memory_only() {
    let mut world = World::new();
    world.settle();
    let before = world.store.clone();
    let gateway = |node, process| Registration {
        plane: Plane::Gateway,
        folders: BTreeSet::new(),
        ..registration(node, process, 0)
    };
    let first = world.register(gateway(0, 1));
    let second = world.register(gateway(0, 2));
    let (one, two) = (NodeId(1_000_001), NodeId(1_000_002));
    assert_eq!(world.registered(first), Some((one, Incarnation(1))));
    assert_eq!(world.registered(second), Some((two, Incarnation(1))));
    // Ids of those that are gone are not given out again soon, and a live
    // one keeps its own.
    world.event(Event::Leaving { stream: first });
    let third = world.register(gateway(two.0, 3));
    assert_eq!(
        world.registered(third).map(|(id, _)| id),
        Some(NodeId(1_000_003))
    );
    let again = world.register(gateway(two.0, 2));
    assert_eq!(world.registered(again).map(|(id, _)| id), Some(two));
    assert_eq!(world.store, before);
}
