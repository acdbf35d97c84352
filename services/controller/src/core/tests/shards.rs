//! Shards: the topic appears with the first coordinator, every shard has one holder in
//! each epoch, epochs only rise, and what need not move does not.

use super::*;
use crate::core::sessions::coordinator_incarnation as incarnation_of;
use proptest::prelude::*;
use talweg_types::{CONSUMER_OFFSETS, ShardEpoch};

const SHARDS: usize = 8;

fn coordinator(node: u32, process: u128) -> Registration {
    Registration {
        plane: Plane::Coordinator,
        node: NodeId(node),
        folders: BTreeSet::new(),
        grpc_address: format!("http://coordinator-{process}:7073"),
        ..registration(node, process << 80, 1)
    }
}

fn process(process: u128) -> Incarnation {
    incarnation_of(Uuid::from_u128(process << 80))
}

impl World {
    fn coordinator(&mut self, id: u128) -> (NodeId, StreamId) {
        let stream = self.register(coordinator(0, id));
        self.settle();
        let (node, incarnation) = self.registered(stream).expect("registered");
        assert_eq!(incarnation, process(id));
        (node, stream)
    }

    /// Number of shards by holder.
    fn held(&self) -> BTreeMap<NodeId, usize> {
        let mut held = BTreeMap::new();
        for stored in self.store.shards.values() {
            *held.entry(stored.value.coordinator).or_default() += 1;
        }
        held
    }

    fn epochs(&self) -> Vec<i32> {
        self.store
            .shards
            .values()
            .map(|s| s.value.epoch.0)
            .collect()
    }
}

/// A cluster with a storage node and two coordinators.
fn world() -> (World, [(NodeId, StreamId); 2]) {
    let mut world = World::new();
    world.node(1, 1);
    let one = world.coordinator(11);
    let two = world.coordinator(12);
    (world, [one, two])
}

#[test]
fn the_topic_appears_with_the_first_coordinator_and_all_shards_are_its() {
    let mut world = World::new();
    world.node(1, 1);
    assert!(world.store.topic_by_name(CONSUMER_OFFSETS).is_none());
    let (one, _) = world.coordinator(11);
    let (_, topic) = world.store.topic_by_name(CONSUMER_OFFSETS).expect("made");
    assert_eq!((topic.life, topic.partitions), (Life::Ready, SHARDS as u32));
    assert_eq!(topic.config["cleanup.policy"], "compact");
    assert_eq!(topic.config["retention.ms"], "-1");
    assert_eq!(world.held(), BTreeMap::from([(one, SHARDS)]));
    assert_eq!(world.epochs(), [1; SHARDS]);
}

/// Story: coordinators start before any storage node.
#[test]
fn without_storage_nodes_it_waits_for_one() {
    let mut world = World::new();
    let (one, _) = world.coordinator(11);
    assert!(world.store.shards.is_empty());
    world.node(1, 1);
    assert_eq!(world.held(), BTreeMap::from([(one, SHARDS)]));
}

#[test]
fn a_new_coordinator_gets_its_share_and_one_that_leaves_gives_all_back() {
    let (mut world, [(one, _), (two, stream)]) = world();
    assert_eq!(world.held(), BTreeMap::from([(one, 4), (two, 4)]));
    let moved = world.epochs().iter().filter(|epoch| **epoch == 2).count();
    assert_eq!(moved, 4, "the others stayed where they were");
    world.event(Event::Leaving { stream });
    world.settle();
    assert_eq!(world.held(), BTreeMap::from([(one, 8)]));
    let mut epochs = world.epochs();
    epochs.sort_unstable();
    assert_eq!(epochs, [1, 1, 1, 1, 3, 3, 3, 3]);
}

#[test]
fn a_process_that_registers_again_keeps_its_shards_and_a_new_one_gets_new_epochs() {
    let (mut world, [(one, _), (two, stream)]) = world();
    let before = world.epochs();
    world.event(Event::StreamBroken { stream });
    let again = world.register(coordinator(two.0, 12));
    world.settle();
    assert_eq!(world.registered(again).expect("in").0, two);
    assert_eq!(world.epochs(), before);
    // Its process dies; the next one asks for the same id.
    world.event(Event::StreamBroken { stream: again });
    world.event(Event::ProbeRefused {
        node: two,
        incarnation: process(12),
    });
    let new = world.register(coordinator(two.0, 13));
    world.settle();
    assert_eq!(world.registered(new).expect("in"), (two, process(13)));
    let of_two = world
        .store
        .shards
        .values()
        .filter(|s| s.value.coordinator == two);
    let raised =
        of_two.filter(|s| s.value.epoch > ShardEpoch(2) && s.value.incarnation == process(13));
    assert_eq!(raised.count(), 4);
    assert_eq!(world.held(), BTreeMap::from([(one, 4), (two, 4)]));
}

/// Story: all coordinators are gone; the shards say so, and come back in new epochs.
#[test]
fn with_nobody_there_the_shards_are_nobodys() {
    let (mut world, [(_, one), (_, two)]) = world();
    world.event(Event::Leaving { stream: one });
    world.event(Event::Leaving { stream: two });
    world.settle();
    assert_eq!(world.held(), BTreeMap::from([(NodeId::NONE, SHARDS)]));
    let before = world.epochs();
    let (three, _) = world.coordinator(14);
    assert_eq!(world.held(), BTreeMap::from([(three, SHARDS)]));
    assert!(
        world
            .epochs()
            .iter()
            .zip(before)
            .all(|(now, before)| *now > before)
    );
}

/// Story: a new controller is elected. Who held shards is awaited; those that come
/// back keep theirs, those of one that does not go after its time-out.
#[test]
fn a_new_controller_takes_no_shard_from_who_was_not_heard_yet() {
    let (mut world, [(one, _), (two, _)]) = world();
    let before = world.store.shards.clone();
    world.crash(false);
    world.settle();
    assert_eq!(world.store.shards, before);
    let told = world.core.session(one).expect("awaited");
    assert_eq!(told.grpc_address, "http://coordinator-11:7073");
    let stream = world.register(coordinator(one.0, 11));
    world.settle();
    assert_eq!(world.registered(stream).expect("in").0, one);
    assert_eq!(world.store.shards, before, "the other one is awaited");
    // Another process must not get the id of one that is awaited.
    let other = world.register(coordinator(two.0, 15));
    world.settle();
    assert_ne!(world.registered(other).expect("in").0, two);
    let spent = world.clock + TIMEOUT + TIMEOUT / 2;
    while world.clock < spent {
        world.heartbeat(stream);
        world.heartbeat(other);
        world.pass(TIMEOUT / 4);
        world.settle();
    }
    let held = world.held();
    assert_eq!(held.get(&two), None);
    assert_eq!(held.get(&one), Some(&4));
}

#[test]
fn clients_change_no_internal_topic() {
    let (mut world, _) = world();
    let internal = Refusal::InternalTopic {
        name: CONSUMER_OFFSETS.into(),
    };
    let delete = Request::Delete(DeleteTopic {
        name: Some(CONSUMER_OFFSETS.into()),
        id: None,
    });
    assert_eq!(world.ask(delete), Err(internal.clone()));
    let (id, _) = world.store.topic_by_name(CONSUMER_OFFSETS).expect("there");
    let by_id = Request::Delete(DeleteTopic {
        name: None,
        id: Some(id),
    });
    assert_eq!(world.ask(by_id), Err(internal.clone()));
    let grow = Request::Alter(AlterTopic {
        name: CONSUMER_OFFSETS.into(),
        partitions: Some(60),
        set: BTreeMap::new(),
        reset: BTreeSet::new(),
    });
    assert_eq!(world.ask(grow), Err(internal));
}

fn derive(name: &str, source: u128, group: &str, id: u128) -> Request {
    Request::Derive(DeriveTopic {
        name: name.into(),
        source: topic_id(source),
        group: group.into(),
        id: topic_id(id),
    })
}

#[test]
fn a_derived_topic_is_made_once_and_is_nobody_elses() {
    let mut world = World::new();
    world.node(1, 1);
    world.ask(create("orders", Some(5), 1)).expect("created");
    world
        .ask(create("orders.other.dlq", Some(1), 2))
        .expect("created");
    let made = world.ask(derive("orders.billing.dlq", 1, "billing", 3));
    let Ok(Reply::Created(answer)) = &made else {
        panic!("{made:?}");
    };
    assert_eq!((answer.id, answer.topic.partitions), (topic_id(3), 5));
    let of = Derived {
        source: topic_id(1),
        group: "billing".into(),
    };
    assert_eq!(answer.topic.derived, Some(of));
    assert_eq!(
        world.ask(derive("orders.billing.dlq", 1, "billing", 4)),
        made
    );
    for (name, group) in [("orders.other.dlq", "other"), ("orders.billing.dlq", "b2")] {
        let conflict = Refusal::NameConflict {
            name: name.into(),
            group: group.into(),
        };
        assert_eq!(world.ask(derive(name, 1, group, 5)), Err(conflict));
    }
    let long = "x".repeat(250);
    assert!(matches!(
        world.ask(derive(&long, 1, "g", 6)),
        Err(Refusal::InvalidName { .. })
    ));
    assert!(matches!(
        world.ask(derive("a.g.dlq", 99, "g", 7)),
        Err(Refusal::UnknownTopicId { .. })
    ));
    // What failed of failed records would have no end of topics.
    assert!(matches!(
        world.ask(derive("orders.billing.dlq.g.dlq", 3, "g", 9)),
        Err(Refusal::InvalidArgument {
            field: "source_topic_id",
            ..
        })
    ));
    // The source goes; what failed of it stays, and is still found.
    let delete = Request::Delete(DeleteTopic {
        name: Some("orders".into()),
        id: None,
    });
    world.ask(delete).expect("deleted");
    assert_eq!(
        world.ask(derive("orders.billing.dlq", 1, "billing", 8)),
        made
    );
}

#[derive(Clone, Debug)]
enum Step {
    Start(u8),
    Break(u8),
    Again(u8),
    Refused(u8),
    Leave(u8),
    Write(Fate),
    Crash(bool),
    Pass,
}

fn step() -> impl Strategy<Value = Step> {
    let who = 0u8..4;
    prop_oneof![
        3 => who.clone().prop_map(Step::Start),
        1 => who.clone().prop_map(Step::Break),
        2 => who.clone().prop_map(Step::Again),
        1 => who.clone().prop_map(Step::Refused),
        1 => who.prop_map(Step::Leave),
        8 => Just(Step::Write(Fate::Committed)),
        1 => Just(Step::Write(Fate::UnknownDone)),
        1 => Just(Step::Write(Fate::UnknownNotDone)),
        1 => any::<bool>().prop_map(Step::Crash),
        1 => Just(Step::Pass),
    ]
}

#[derive(Clone, Copy, Default)]
struct Process {
    id: u128,
    node: u32,
    stream: Option<StreamId>,
}

struct History {
    world: World,
    processes: [Process; 4],
    next: u128,
    storage: StreamId,
    /// Who held each shard in each epoch.
    given: BTreeMap<(TopicPartition, ShardEpoch), (NodeId, Incarnation)>,
    newest: BTreeMap<TopicPartition, ShardEpoch>,
}

impl History {
    fn new() -> Self {
        let mut world = World::new();
        let (_, storage, _) = world.node(1, 1);
        Self {
            world,
            processes: [Process::default(); 4],
            next: 100,
            storage,
            given: BTreeMap::new(),
            newest: BTreeMap::new(),
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Start(i) => {
                self.next += 1;
                let node = self.processes[usize::from(i)].node;
                self.processes[usize::from(i)] = Process {
                    id: self.next,
                    node,
                    stream: None,
                };
                self.register(i);
            }
            Step::Again(i) if self.processes[usize::from(i)].id > 0 => self.register(i),
            Step::Break(i) => {
                if let Some(stream) = self.processes[usize::from(i)].stream.take() {
                    self.world.event(Event::StreamBroken { stream });
                }
            }
            Step::Refused(i) => {
                let process = &mut self.processes[usize::from(i)];
                if process.stream.is_none() && process.id > 0 {
                    let (node, id) = (NodeId(process.node), std::mem::take(&mut process.id));
                    self.world.event(Event::ProbeRefused {
                        node,
                        incarnation: self::process(id),
                    });
                }
            }
            Step::Leave(i) => {
                let process = &mut self.processes[usize::from(i)];
                if let Some(stream) = process.stream.take() {
                    process.id = 0;
                    self.world.event(Event::Leaving { stream });
                }
            }
            Step::Write(fate) => drop(self.world.finish_write(fate)),
            Step::Crash(done) => {
                self.world.crash(done);
                self.comes_back();
            }
            Step::Pass => self.pass(TIMEOUT / 3),
            Step::Again(_) => {}
        }
        if self.world.take_resigned() {
            self.comes_back();
        }
        self.look();
    }

    fn register(&mut self, i: u8) {
        let process = self.processes[usize::from(i)];
        let stream = self.world.register(coordinator(process.node, process.id));
        self.processes[usize::from(i)].stream = Some(stream);
    }

    /// The storage node finds the next controller; coordinators may or may not.
    fn comes_back(&mut self) {
        for process in &mut self.processes {
            process.stream = None;
        }
        self.storage = self.world.register(registration(1, 1, 1));
    }

    fn pass(&mut self, time: Duration) {
        let streams = self.processes.iter().filter_map(|p| p.stream);
        for stream in streams.chain([self.storage]).collect::<Vec<_>>() {
            self.world.heartbeat(stream);
        }
        self.world.pass(time);
    }

    /// One holder in each epoch, and epochs only rise.
    fn look(&mut self) {
        for process in &mut self.processes {
            let registered = process
                .stream
                .and_then(|stream| self.world.registered(stream));
            if let Some((node, _)) = registered {
                process.node = node.0;
            }
        }
        for (tp, stored) in &self.world.store.shards {
            let shard = &stored.value;
            let newest = self.newest.insert(*tp, shard.epoch);
            assert!(
                newest.is_none_or(|newest| newest <= shard.epoch),
                "{tp} went back"
            );
            if shard.coordinator.is_none() {
                continue;
            }
            let holder = (shard.coordinator, shard.incarnation);
            let first = *self.given.entry((*tp, shard.epoch)).or_insert(holder);
            assert_eq!(first, holder, "{tp}: two holders in one epoch");
        }
    }

    /// All is well again: everybody who runs is heard, and the shards are theirs, evenly.
    fn end(&mut self) {
        self.world.settle();
        for i in 0..4u8 {
            if self.processes[usize::from(i)].id > 0 {
                self.register(i);
            }
            self.world.settle();
            self.look();
        }
        for _ in 0..12 {
            self.pass(TIMEOUT / 4);
            self.world.settle();
            self.look();
            if self.world.take_resigned() {
                self.comes_back();
                (0..4u8)
                    .filter(|i| self.processes[usize::from(*i)].id > 0)
                    .collect::<Vec<_>>()
                    .into_iter()
                    .for_each(|i| self.register(i));
                self.world.settle();
                self.look();
            }
        }
        let running: BTreeSet<_> = self
            .processes
            .iter()
            .filter(|p| p.id > 0)
            .map(|p| NodeId(p.node))
            .collect();
        let held = self.world.held();
        let holders: BTreeSet<_> = held.keys().copied().collect();
        match running.is_empty() {
            true => assert!(holders.iter().all(|id| id.is_none()), "{held:?}"),
            false => assert_eq!(holders, running, "{held:?}"),
        }
        let (least, most) = (held.values().min(), held.values().max());
        assert!(
            most.zip(least)
                .is_none_or(|(most, least)| most - least <= 1)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn shards_have_one_holder_an_epoch_through_all_that_happens(
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut history = History::new();
        steps.iter().for_each(|step| history.run(step));
        history.end();
    }
}

/// The rules are what the histories see: without one of them they fail.
#[cfg(feature = "planted-faults")]
mod planted {
    use super::*;
    use crate::core::fault::{Fault, plant};

    fn commits() -> impl Iterator<Item = Step> {
        std::iter::repeat_n(Step::Write(Fate::Committed), 12)
    }

    /// A coordinator's process dies, and its next one takes its id.
    fn replaced(meanwhile: Vec<Step>) -> Vec<Step> {
        let first = std::iter::once(Step::Start(0)).chain(commits());
        let next = [Step::Break(0), Step::Refused(0), Step::Start(0)];
        first
            .chain(next)
            .chain(meanwhile)
            .chain(commits())
            .collect()
    }

    fn run(steps: &[Step]) {
        let mut history = History::new();
        steps.iter().for_each(|step| history.run(step));
        let newest = history.processes[0];
        let theirs = process(newest.id);
        let stored = history.world.store.shards.values();
        let all = stored.map(|s| s.value.incarnation).all(|it| it == theirs);
        assert!(all, "an old process holds shards");
        history.end();
    }

    #[test]
    fn mistakes_with_shards_are_seen() {
        // The write that frees the dead one's shards fails: they still name it when
        // its successor is there.
        let unfreed = vec![Step::Write(Fate::UnknownNotDone)];
        for (fault, steps) in [
            (Fault::ShardEpochKept, replaced(Vec::new())),
            (Fault::NewCoordinatorContinues, replaced(unfreed)),
        ] {
            plant(Some(fault));
            let failed = std::panic::catch_unwind(|| run(&steps)).is_err();
            plant(None);
            assert!(failed, "{fault:?} was not seen");
            run(&steps);
        }
    }
}
