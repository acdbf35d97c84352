//! Where replicas go.

use super::*;

/// A node in a rack.
fn racked(world: &mut World, process: u128, rack: &str) -> NodeId {
    let asking = Registration {
        rack: rack.into(),
        ..registration(0, process, process)
    };
    let stream = world.register(asking);
    world.settle();
    world.registered(stream).expect("in").0
}

fn with_factor(name: &str, partitions: i32, factor: Option<i32>, id: u128) -> Request {
    let Request::Create(mut request) = create(name, Some(partitions), id) else {
        unreachable!()
    };
    request.replication_factor = factor;
    Request::Create(request)
}

fn spread(counts: impl Iterator<Item = usize>) -> usize {
    let counts: Vec<_> = counts.collect();
    counts.iter().max().expect("some") - counts.iter().min().expect("some")
}

/// As many racks as there are, then even numbers of replicas and leaders.
#[test]
fn replicas_are_spread_over_racks_and_nodes() {
    // Nodes per rack, replication factor, racks that each partition must reach.
    for (racks, factor, reached) in [
        (vec![2, 2, 2], 3, 3),
        (vec![3, 3], 3, 2),
        (vec![4], 3, 1),
        (vec![1, 1, 1], 3, 3),
        (vec![2, 2], 2, 2),
    ] {
        let mut world = World::new();
        let mut rack_of = BTreeMap::new();
        for (rack, count) in racks.iter().enumerate() {
            for _ in 0..*count {
                let process = rack_of.len() as u128 + 1;
                let id = racked(&mut world, process, &format!("r{rack}"));
                rack_of.insert(id, rack);
            }
        }
        world
            .ask(with_factor("t", 60, Some(factor), 1))
            .expect("created");
        for (tp, p) in world.store.partitions_of(topic_id(1)) {
            let racks: BTreeSet<_> = p.replicas.iter().map(|node| rack_of[node]).collect();
            assert_eq!(racks.len(), reached, "{tp}: {:?}", p.replicas);
            let distinct: BTreeSet<_> = p.replicas.iter().collect();
            assert_eq!(distinct.len(), factor as usize);
            assert_eq!((p.leader, &p.in_sync), (p.replicas[0], &p.replicas));
            assert_eq!(p.last_in_sync, p.replicas);
        }
        let hosted = rack_of.keys().map(|id| world.store.hosted_count(*id));
        assert!(spread(hosted) <= 1, "{racks:?}: replicas are even");
        let led = rack_of.keys().map(|id| world.store.led_count(*id));
        let led: Vec<_> = led.collect();
        assert!(
            spread(led.iter().copied()) <= 2,
            "{racks:?}: leaders are even: {led:?}"
        );
    }
}

/// Racks of different size: the racks come first, then evenness within them.
#[test]
fn the_same_state_gives_the_same_plan() {
    let plan = || {
        let mut world = World::new();
        for (process, rack) in [(1, "a"), (2, "a"), (3, "b"), (4, "c"), (5, "c")] {
            racked(&mut world, process, rack);
        }
        world
            .ask(with_factor("t", 40, Some(3), 1))
            .expect("created");
        world.store
    };
    assert_eq!(plan(), plan());
}

/// 3, or the number of nodes; and what min.insync.replicas is then.
#[test]
fn the_default_factor_depends_on_the_nodes() {
    for (nodes, factor, warned) in [(1, 1, false), (2, 2, true), (3, 3, false), (5, 3, false)] {
        let mut world = World::new();
        for process in 1..=nodes {
            world.node(process, process);
        }
        let reply = world.ask(with_factor("t", 4, None, 1));
        let Ok(Reply::Created(answer)) = reply else {
            panic!("{reply:?}")
        };
        assert_eq!(answer.topic.replication_factor, factor);
        let warning = |w: &String| w.contains("min.insync.replicas=1");
        assert_eq!(answer.warnings.iter().any(warning), warned, "{nodes} nodes");
    }
}

/// The limit counts replicas, and a refusal has the numbers.
#[test]
fn the_limit_of_a_node_counts_replicas() {
    let mut world = World::new();
    for process in 1..=3 {
        world.node(process, process);
    }
    world
        .ask(with_factor("a", 150, Some(3), 1))
        .expect("created");
    let refusal = world
        .ask(with_factor("b", 60, Some(3), 2))
        .expect_err("full");
    assert!(
        matches!(
            refusal,
            Refusal::LimitExceeded {
                name: "max.partitions.per.node",
                limit: 200,
                ..
            }
        ),
        "{refusal}"
    );
    assert!(refusal.to_string().contains("room for 50"), "{refusal}");
    world.ask(with_factor("b", 50, Some(3), 2)).expect("fits");
    let refusal = world
        .ask(with_factor("c", 1, Some(4), 3))
        .expect_err("too few");
    assert_eq!(
        refusal,
        Refusal::NotEnoughNodes {
            needed: 4,
            alive: 3
        }
    );
}

/// New partitions of a topic have as many replicas as the others.
#[test]
fn growth_keeps_the_factor() {
    let mut world = World::new();
    for process in 1..=4 {
        world.node(process, process);
    }
    world.ask(with_factor("t", 2, Some(3), 1)).expect("created");
    let grow = AlterTopic {
        name: "t".into(),
        partitions: Some(9),
        set: BTreeMap::new(),
        reset: BTreeSet::new(),
    };
    world.ask(Request::Alter(grow)).expect("grown");
    let partitions: Vec<_> = world.store.partitions_of(topic_id(1)).collect();
    assert_eq!(partitions.len(), 9);
    assert!(partitions.iter().all(|(_, p)| p.replicas.len() == 3));
}

/// 1 ≤ min.insync.replicas ≤ replication factor, at creation and later.
#[test]
fn min_insync_replicas_is_checked_against_the_factor() {
    let mut world = World::new();
    for process in 1..=3 {
        world.node(process, process);
    }
    world.ask(with_factor("t", 1, Some(3), 1)).expect("created");
    let set = |value: &str| {
        Request::Alter(AlterTopic {
            name: "t".into(),
            partitions: None,
            set: BTreeMap::from([("min.insync.replicas".to_owned(), value.to_owned())]),
            reset: BTreeSet::new(),
        })
    };
    for bad in ["0", "4", "x"] {
        let refusal = world.ask(set(bad)).expect_err("refused");
        assert!(
            matches!(&refusal, Refusal::Config(e) if e.key() == "min.insync.replicas"),
            "{refusal}"
        );
    }
    for good in ["1", "2", "3"] {
        world.ask(set(good)).expect("set");
    }
}
