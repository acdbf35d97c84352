//! Tables and stories of topics.

use super::*;
use talweg_types::NameError;

fn with(change: impl FnOnce(&mut CreateTopic)) -> Request {
    let Request::Create(mut request) = create("t", Some(3), 1) else {
        unreachable!()
    };
    change(&mut request);
    Request::Create(request)
}

fn alter(change: impl FnOnce(&mut AlterTopic)) -> Request {
    let mut request = AlterTopic {
        name: "t".into(),
        partitions: None,
        set: BTreeMap::new(),
        reset: BTreeSet::new(),
    };
    change(&mut request);
    Request::Alter(request)
}

fn delete(name: &str) -> Request {
    Request::Delete(DeleteTopic {
        name: Some(name.into()),
        id: None,
    })
}

fn config(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// A topic outlives the moment in which a node is away: it does not get fewer replicas
/// for ever because of it.
#[test]
fn a_node_that_is_away_counts_for_the_default_factor() {
    let by_default = |id| match create(&format!("t{id}"), Some(1), id) {
        Request::Create(create) => Request::Create(CreateTopic {
            replication_factor: None,
            ..create
        }),
        other => panic!("{other:?}"),
    };
    let mut trio = super::replicas::Trio::new(&[]);
    trio.world.ask(by_default(11)).expect("created");
    assert_eq!(trio.world.partition(11, 0).replicas.len(), 3);
    trio.die(3);
    let refused = trio.world.ask(by_default(12));
    assert!(
        matches!(
            refused,
            Err(Refusal::NotEnoughNodes {
                needed: 3,
                alive: 2
            })
        ),
        "{refused:?}"
    );
}

/// Partitions are spread evenly over the nodes, each led by its one replica.
#[test]
fn a_topic_is_spread_evenly_and_led() {
    let mut world = World::new();
    let nodes = [world.node(1, 1), world.node(2, 2), world.node(3, 3)];
    world.ask(create("uneven", Some(2), 9)).expect("created");
    world.ask(create("t", None, 1)).expect("created");
    let counts: Vec<_> = nodes
        .iter()
        .map(|(id, ..)| world.store.led_count(*id))
        .collect();
    assert_eq!(counts, [5, 5, 4], "12 by default and 2 before");
    for (_, p) in world.store.partitions_of(topic_id(1)) {
        assert_eq!(
            (&p.replicas, &p.in_sync),
            (&vec![p.leader], &vec![p.leader])
        );
        assert_eq!(
            (p.leader_incarnation, p.leader_epoch),
            (Incarnation(1), LeaderEpoch(0))
        );
    }
}

/// More partitions than one transaction takes; nobody sees the topic before
/// its last write, and then all of it at once.
#[test]
fn a_large_topic_becomes_visible_in_one_step() {
    let mut world = World::new();
    world.node(1, 1);
    let call = world.request(create("t", Some(150), 1));
    let mut writes = 0;
    while world.reply(call).is_none() {
        assert!(world.core.view().visible_topic(topic_id(1)).is_none());
        assert!(world.finish_write(Fate::Committed));
        writes += 1;
    }
    assert_eq!(writes, 5, "topic and name, 63 + 63 + 24 partitions, ready");
    assert_eq!(world.core.view().partitions_of(topic_id(1)).count(), 150);
}

/// Each refusal with its own type, and nothing is written.
#[test]
fn what_must_not_be_created_is_refused() {
    let mut world = World::new();
    assert_eq!(
        world.ask(create("t", None, 1)),
        Err(Refusal::NotEnoughNodes {
            needed: 1,
            alive: 0
        })
    );
    world.node(1, 1);
    world.ask(create("taken", Some(1), 7)).expect("created");
    let before = world.store.clone();
    type Expected = fn(&Refusal) -> bool;
    let cases: Vec<(Request, Expected)> = vec![
        (with(|c| c.name = "".into()), |r| {
            matches!(
                r,
                Refusal::InvalidName {
                    why: NameError::Empty,
                    ..
                }
            )
        }),
        (with(|c| c.name = "__x".into()), |r| {
            matches!(
                r,
                Refusal::InvalidName {
                    why: NameError::Reserved,
                    ..
                }
            )
        }),
        (
            with(|c| c.name = "taken".into()),
            |r| matches!(r, Refusal::TopicExists { id, .. } if *id == topic_id(7)),
        ),
        (with(|c| c.partitions = Some(0)), |r| {
            matches!(r, Refusal::InvalidPartitions { .. })
        }),
        (with(|c| c.partitions = Some(-1)), |r| {
            matches!(r, Refusal::InvalidPartitions { .. })
        }),
        (with(|c| c.partitions = Some(151)), |r| {
            matches!(
                r,
                Refusal::LimitExceeded {
                    name: "max.partitions.per.topic",
                    limit: 150,
                    actual: 151,
                    ..
                }
            )
        }),
        (with(|c| c.replication_factor = Some(0)), |r| {
            matches!(r, Refusal::InvalidReplicationFactor { .. })
        }),
        (with(|c| c.replication_factor = Some(8)), |r| {
            r.to_string() == "a partition has from 1 to 7 replicas, not 8"
        }),
        (with(|c| c.replication_factor = Some(3)), |r| {
            *r == Refusal::NotEnoughNodes {
                needed: 3,
                alive: 1,
            }
        }),
        (
            with(|c| c.config = config(&[("min.insync.replicas", "2")])),
            |r| matches!(r, Refusal::Config(e) if e.key() == "min.insync.replicas"),
        ),
        (
            with(|c| c.config = config(&[("cleanup.policy", "compost")])),
            |r| matches!(r, Refusal::Config(e) if e.key() == "cleanup.policy"),
        ),
        (
            with(|c| c.config = config(&[("no.such", "1")])),
            |r| matches!(r, Refusal::Config(e) if e.key() == "no.such"),
        ),
        (with(|c| c.idempotency_key = "k".repeat(129)), |r| {
            matches!(
                r,
                Refusal::InvalidArgument {
                    field: "idempotency_key",
                    ..
                }
            )
        }),
    ];
    for (request, expected) in cases {
        let refusal = world.ask(request.clone()).expect_err("refused");
        assert!(expected(&refusal), "{request:?}: {refusal}");
        assert_eq!(world.store, before);
    }
}

/// A node takes its limit and not one more; the refusal has the numbers.
#[test]
fn nodes_have_a_limit() {
    let mut world = World::new();
    world.node(1, 1);
    world.ask(create("a", Some(150), 1)).expect("created");
    world.ask(create("b", Some(50), 2)).expect("created");
    let refusal = world.ask(create("c", Some(1), 3)).expect_err("full");
    assert!(matches!(
        refusal,
        Refusal::LimitExceeded {
            name: "max.partitions.per.node",
            limit: 200,
            actual: 201,
            ..
        }
    ));
    world.node(2, 2);
    world
        .ask(create("c", Some(1), 3))
        .expect("room on the second");
}

/// The client repeats a request whose answer it lost, and learns the first id;
/// another request for the name is refused with it.
#[test]
fn a_repeated_creation_is_recognised_by_its_key() {
    let mut world = World::new();
    world.node(1, 1);
    let keyed = |id, key: &str| {
        let key = key.to_owned();
        with(|c| (c.id, c.idempotency_key) = (topic_id(id), key))
    };
    let Ok(Reply::Created(first)) = world.ask(keyed(1, "k")) else {
        panic!("created")
    };
    let Ok(Reply::Created(again)) = world.ask(keyed(2, "k")) else {
        panic!("recognised")
    };
    assert_eq!(first, again);
    for (id, other) in [(3, "other"), (4, "")] {
        let refusal = world.ask(keyed(id, other)).expect_err("taken");
        assert_eq!(
            refusal,
            Refusal::TopicExists {
                name: "t".into(),
                id: topic_id(1)
            }
        );
    }
}

/// Partitions only grow; the earlier count is kept with its end; the new count
/// is in force in one step.
#[test]
fn growth_keeps_the_history_and_shrinking_is_refused() {
    let mut world = World::new();
    world.node(1, 1);
    world.ask(create("t", Some(2), 1)).expect("created");
    world.pass(TIMEOUT / 4);
    let grown_at = world.now().wall;
    let call = world.request(alter(|a| a.partitions = Some(100)));
    while world.reply(call).is_none() {
        assert_eq!(
            world
                .core
                .view()
                .visible_topic(topic_id(1))
                .expect("there")
                .partitions,
            2
        );
        assert!(world.finish_write(Fate::Committed));
    }
    let Some(Ok(Reply::Altered(answer))) = world.reply(call) else {
        panic!("altered")
    };
    assert_eq!(
        (answer.topic.partitions, &answer.topic.earlier),
        (100, &vec![(2, grown_at)])
    );
    assert!(
        answer.warnings[0].contains("keys will move"),
        "{:?}",
        answer.warnings
    );

    let same = world.ask(alter(|a| a.partitions = Some(100)));
    assert!(
        matches!(same, Ok(Reply::Altered(TopicAnswer { warnings, .. })) if warnings.is_empty())
    );
    let refusal = world
        .ask(alter(|a| a.partitions = Some(99)))
        .expect_err("shrinks");
    assert!(
        matches!(refusal, Refusal::InvalidPartitions { .. }),
        "{refusal}"
    );
}

/// Settings are set and reset; one refused setting refuses all.
#[test]
fn configuration_changes_whole_or_not_at_all() {
    let mut world = World::new();
    world.node(1, 1);
    world
        .ask(with(|c| c.config = config(&[("retention.ms", "1000")])))
        .expect("created");
    let set = config(&[("segment.bytes", "4096"), ("min.acks", "all")]);
    let both = alter(|a| {
        a.set = set;
        a.reset = BTreeSet::from(["retention.ms".to_owned()]);
    });
    let Ok(Reply::Altered(answer)) = world.ask(both) else {
        panic!("altered")
    };
    assert_eq!(
        answer.topic.config,
        config(&[("min.acks", "all"), ("segment.bytes", "4096")])
    );

    let before = world.store.clone();
    let bad = [
        (
            config(&[("segment.bytes", "8192"), ("segment.ms", "x")]),
            "",
            "segment.ms",
        ),
        (config(&[("default.acks", "0")]), "", "default.acks"),
        (config(&[]), "no.such", "no.such"),
        (
            config(&[("segment.ms", "1000")]),
            "segment.ms",
            "segment.ms",
        ),
    ];
    for (set, reset, key) in bad {
        let reset = (!reset.is_empty())
            .then(|| reset.to_owned())
            .into_iter()
            .collect();
        let refusal = world
            .ask(alter(|a| (a.set, a.reset) = (set, reset)))
            .expect_err("refused");
        assert!(refusal.to_string().contains(key), "{refusal}");
        assert_eq!(world.store, before);
    }
    let missing = world.ask(Request::Alter(AlterTopic {
        name: "none".into(),
        partitions: None,
        set: BTreeMap::new(),
        reset: BTreeSet::new(),
    }));
    assert_eq!(
        missing,
        Err(Refusal::UnknownTopic {
            name: "none".into()
        })
    );
}

/// The name is free at once, under a new id; the tombstone stays until the
/// node has confirmed, also over a takeover by another controller.
#[test]
fn a_deleted_topic_leaves_a_tombstone_until_confirmed() {
    let mut world = World::new();
    let (node, _, incarnation) = world.node(1, 1);
    world.ask(create("t", Some(100), 1)).expect("created");
    let call = world.request(delete("t"));
    world.finish_write(Fate::Committed);
    assert_eq!(world.reply(call), Some(Ok(Reply::Deleted(topic_id(1)))));
    world
        .ask(create("t", Some(1), 2))
        .expect("the name is free");
    let stone = &world.store.tombstones[&topic_id(1)].value;
    assert_eq!(stone.pending, BTreeSet::from([node]));
    assert_eq!(world.store.partitions_of(topic_id(1)).count(), 0, "tidied");

    world.crash(false);
    world.settle();
    assert!(world.store.tombstones.contains_key(&topic_id(1)));
    let confirm = |incarnation| Request::ConfirmDeleted {
        node,
        incarnation,
        topics: BTreeSet::from([topic_id(1), topic_id(77)]),
        partitions: BTreeSet::new(),
    };
    let stale = world.ask(confirm(Incarnation(incarnation.0 + 1)));
    assert_eq!(stale, Err(Refusal::StaleIncarnation { id: node }));
    assert_eq!(world.ask(confirm(incarnation)), Ok(Reply::Confirmed));
    assert!(world.store.tombstones.is_empty());
    assert_eq!(
        world.ask(confirm(incarnation)),
        Ok(Reply::Confirmed),
        "a repeat is success"
    );
    assert!(
        world.store.topics.contains_key(&topic_id(2)),
        "the new topic is untouched"
    );
}

/// By name, by id, by both; a recreated topic is not deleted by its old id.
#[test]
fn deletion_names_one_topic() {
    let mut world = World::new();
    world.node(1, 1);
    world.ask(create("t", Some(1), 1)).expect("created");
    let by = |name: Option<&str>, id: Option<u128>| {
        Request::Delete(DeleteTopic {
            name: name.map(Into::into),
            id: id.map(topic_id),
        })
    };
    let cases = [
        (by(None, None), "name"),
        (by(Some("x"), None), "no topic is named"),
        (by(None, Some(9)), "no topic has the id"),
        (by(Some("t"), Some(9)), "has the id"),
    ];
    for (request, part) in cases {
        let refusal = world.ask(request).expect_err("refused");
        assert!(refusal.to_string().contains(part), "{refusal}");
    }
    assert_eq!(
        world.ask(by(None, Some(1))),
        Ok(Reply::Deleted(topic_id(1)))
    );
}

/// A controller dies at each step of a creation, with its write done or not;
/// its successor finishes the topic once a node is there.
#[test]
fn a_creation_is_finished_by_the_next_controller() {
    for steps in 0..4 {
        for done in [false, true] {
            let mut world = World::new();
            world.node(1, 1);
            world.request(create("t", Some(100), 1));
            for _ in 0..steps {
                world.finish_write(Fate::Committed);
            }
            world.crash(done);
            world.settle();
            world.register(registration(1, 2, 1));
            world.settle();
            let begun = steps > 0 || done;
            let topic = world.store.visible_topic(topic_id(1));
            assert_eq!(
                topic.is_some(),
                begun,
                "after {steps} steps, last done: {done}"
            );
            if begun {
                assert_eq!(world.store.partitions_of(topic_id(1)).count(), 100);
            }
        }
    }
}

/// Blocks of ids follow each other without overlap, whatever becomes of the
/// writes; they end below the derived ids.
#[test]
fn producer_ids_are_given_out_once() {
    let mut world = World::new();
    let mut taken = BTreeSet::new();
    for fate in [
        Fate::Committed,
        Fate::UnknownDone,
        Fate::UnknownNotDone,
        Fate::Committed,
    ] {
        let call = world.request(Request::Allocate { count: 1_000 });
        world.finish_write(Fate::Committed);
        let call2 = world.request(Request::Allocate { count: 10 });
        world.finish_write(fate);
        world.settle();
        for (call, count) in [(call, 1_000), (call2, 10)] {
            let Some(Ok(Reply::Allocated { first })) = world.reply(call) else {
                panic!("block")
            };
            assert!(
                (first..first + count).all(|id| taken.insert(id)),
                "{first} twice"
            );
        }
    }
    for count in [0, 100_001] {
        let refusal = world.ask(Request::Allocate { count }).expect_err("count");
        assert!(matches!(
            refusal,
            Refusal::InvalidArgument { field: "count", .. }
        ));
    }
    let last = Change::put(
        talweg_metastore::keys::Key::ProducerIds,
        Value::ProducerIds((1 << 62) - 5),
    );
    world.store.apply(world.store.revision.next(), vec![last]);
    world.crash(false);
    world.settle();
    assert!(world.ask(Request::Allocate { count: 5 }).is_ok());
    let refusal = world
        .ask(Request::Allocate { count: 1 })
        .expect_err("none left");
    assert!(
        matches!(refusal, Refusal::LimitExceeded { .. }),
        "{refusal}"
    );
}

/// A thousand requests wait; the next is told to come back.
#[test]
fn the_queue_of_requests_is_bounded() {
    let mut world = World::new();
    world.node(1, 1);
    let calls: Vec<_> = (0..1_002)
        .map(|_| world.request(Request::Allocate { count: 1 }))
        .collect();
    let busy = calls.iter().filter(|call| {
        matches!(
            world.reply(**call),
            Some(Err(Refusal::Busy { waiting: 1_000 }))
        )
    });
    assert_eq!(busy.count(), 1, "one is being written, a thousand wait");
    world.settle();
    assert!(calls.iter().all(|call| world.reply(*call).is_some()));
}
