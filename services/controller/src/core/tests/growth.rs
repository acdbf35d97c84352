//! The internal topic's replicas, when storage nodes come after it was made.

use super::*;
use talweg_types::CONSUMER_OFFSETS;

fn coordinator(process: u128) -> Registration {
    Registration {
        plane: Plane::Coordinator,
        node: NodeId(0),
        folders: BTreeSet::new(),
        ..registration(0, process << 80, 1)
    }
}

impl World {
    fn offsets(&self) -> (TopicId, u32) {
        let (id, topic) = self.store.topic_by_name(CONSUMER_OFFSETS).expect("there");
        (id, topic.replication_factor)
    }

    fn moving(&self) -> Vec<(TopicPartition, Partition)> {
        let (id, _) = self.offsets();
        let partitions = self.store.partitions_of(id);
        let moving = partitions.filter(|(_, p)| p.moving.is_some());
        moving.map(|(tp, p)| (tp, p.clone())).collect()
    }

    /// Its leader says that all replicas have caught up.
    fn caught_up(&mut self, partition: TopicPartition, p: &Partition) {
        let member = |id: &NodeId| (*id, self.store.nodes[id].value.incarnation);
        let proposal = InSyncProposal {
            partition,
            leader_epoch: p.leader_epoch,
            partition_epoch: p.partition_epoch,
            members: p.replicas.iter().map(member).collect(),
            attempt: 0,
        };
        let asked = AlterInSync {
            node: p.leader,
            incarnation: p.leader_incarnation,
            proposals: vec![proposal],
        };
        let reply = self.ask(Request::AlterInSync(asked));
        let Ok(Reply::InSync(results)) = reply else {
            panic!("{reply:?}")
        };
        assert_eq!(results[0].refused, None);
    }

    fn tick(&mut self) {
        self.event(Event::Tick);
        self.settle();
    }
}

/// Story: a coordinator registers when the first of three storage nodes is there. When
/// the others come, the groups' offsets get the replicas that they should have had.
#[test]
fn the_internal_topic_grows_with_the_cluster() {
    let mut world = World::new();
    world.node(1, 1);
    world.register(coordinator(11));
    world.settle();
    assert_eq!(world.offsets().1, 1);
    world.node(2, 2);
    world.node(3, 3);
    world.tick();
    let mut rounds = 0;
    while !world.moving().is_empty() {
        let moving = world.moving();
        assert!(moving.len() <= 4, "a few at a time");
        // One that is under way when the next node comes goes to what was wanted then.
        for (tp, p) in moving {
            world.caught_up(tp, &p);
        }
        world.tick();
        rounds += 1;
        assert!(rounds < 20, "it comes to an end");
    }
    let (id, factor) = world.offsets();
    assert_eq!(factor, 3);
    for (tp, p) in world.store.partitions_of(id) {
        assert_eq!(p.replicas.len(), 3, "{tp}");
        assert_eq!(p.in_sync.len(), 3, "{tp}");
    }
    let before = world.store.clone();
    world.tick();
    assert_eq!(world.store, before, "nothing is left to do");
}

/// Story: the copies are there, and two nodes are gone for a moment before the factor
/// is raised. With the factor the minimum rises: it waits until that costs nobody a write.
#[test]
fn the_factor_rises_only_with_enough_replicas_in_sync() {
    let mut world = World::new();
    world.node(1, 1);
    world.register(coordinator(11));
    world.settle();
    let (_, two, _) = world.node(2, 2);
    let (_, three, _) = world.node(3, 3);
    world.tick();
    let (id, _) = world.offsets();
    let short = |world: &World| {
        let partitions = world.store.partitions_of(id);
        partitions.filter(|(_, p)| p.replicas.len() < 3).count()
    };
    while short(&world) > 0 || world.moving().len() > 1 {
        let (tp, p) = world.moving().remove(0);
        world.caught_up(tp, &p);
        world.tick();
    }
    for stream in [two, three] {
        world.event(Event::Leaving { stream });
        world.settle();
    }
    for node in [2, 3] {
        world.register(registration(node, u128::from(node), u128::from(node)));
        world.settle();
    }
    let (tp, p) = world.moving().remove(0);
    world.caught_up(tp, &p);
    world.tick();
    assert!(world.moving().is_empty());
    assert!(
        world.offsets().1 < 3,
        "one replica in sync, two would be needed"
    );
    let all = world.store.partitions_of(id);
    let all: Vec<_> = all.map(|(tp, p)| (tp, p.clone())).collect();
    for (tp, p) in all.iter().filter(|(_, p)| p.in_sync.len() < 3) {
        world.caught_up(*tp, p);
    }
    world.tick();
    assert_eq!(world.offsets().1, 3);
}
