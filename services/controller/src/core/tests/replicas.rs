//! Deaths, returns and boots of replicas: what becomes of sets and leaders.

use super::*;

/// What a restart found in the node's folder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Boot {
    Whole,
    Unclean,
    New,
}

/// Three nodes and a topic of one partition on all of them.
pub(super) struct Trio {
    pub(super) world: World,
    streams: BTreeMap<u32, StreamId>,
    next_process: u128,
}

impl Trio {
    pub(super) fn new(config: &[(&str, &str)]) -> Self {
        Self::of(3, config)
    }

    pub(super) fn of(nodes: u32, config: &[(&str, &str)]) -> Self {
        let mut world = World::new();
        let mut streams = BTreeMap::new();
        for id in 1..=nodes {
            let (node, stream, _) = world.node(u128::from(id), u128::from(id));
            assert_eq!(node.0, id);
            streams.insert(id, stream);
        }
        let Request::Create(mut request) = create("t", Some(1), 1) else {
            unreachable!()
        };
        request.replication_factor = i32::try_from(nodes).ok();
        let pairs = config.iter();
        request.config = pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        world.ask(Request::Create(request)).expect("created");
        Self {
            world,
            streams,
            next_process: 100,
        }
    }

    pub(super) fn p(&self) -> &Partition {
        self.world.partition(1, 0)
    }

    pub(super) fn stream(&self, id: u32) -> StreamId {
        self.streams[&id]
    }

    /// Leader, leader epoch, in-sync, eligible and last in-sync sets.
    pub(super) fn shown(&self) -> (u32, i32, Vec<u32>, Vec<u32>, Vec<u32>) {
        let p = self.p();
        let ids = |set: &[NodeId]| {
            let mut ids: Vec<_> = set.iter().map(|node| node.0).collect();
            ids.sort_unstable();
            ids
        };
        (
            p.leader.0,
            p.leader_epoch.0,
            ids(&p.in_sync),
            ids(&p.eligible),
            ids(&p.last_in_sync),
        )
    }

    pub(super) fn die(&mut self, id: u32) {
        let stream = self.streams[&id];
        self.world.event(Event::Leaving { stream });
        self.world.settle();
    }

    pub(super) fn start(&mut self, id: u32, boot: Boot) -> StreamId {
        self.next_process += 1;
        let mut asking = registration(id, self.next_process, u128::from(id));
        asking.clean = boot != Boot::Unclean;
        if boot == Boot::New {
            asking.fresh = asking.folders.clone();
        }
        let stream = self.world.register(asking);
        self.world.settle();
        assert!(self.world.registered(stream).is_some(), "{id} is in");
        self.streams.insert(id, stream);
        stream
    }

    pub(super) fn tell_end(&mut self, id: u32, epoch: i32, offset: i64) {
        let end = LogEnd {
            epoch: LeaderEpoch(epoch),
            offset: talweg_types::Offset(offset),
        };
        let tp = TopicPartition {
            topic_id: topic_id(1),
            partition: PartitionIndex(0),
        };
        self.world.event(Event::ReplicaEnds {
            stream: self.streams[&id],
            ends: vec![(tp, end)],
        });
        self.world.settle();
    }

    /// The leader has all of these in sync.
    pub(super) fn sync(&mut self, members: &[u32]) {
        let p = self.p().clone();
        let incarnation = |id: u32| self.world.store.nodes[&NodeId(id)].value.incarnation;
        let proposal = InSyncProposal {
            partition: TopicPartition {
                topic_id: topic_id(1),
                partition: PartitionIndex(0),
            },
            leader_epoch: p.leader_epoch,
            partition_epoch: p.partition_epoch,
            members: members
                .iter()
                .map(|id| (NodeId(*id), incarnation(*id)))
                .collect(),
            attempt: 0,
        };
        let asked = AlterInSync {
            node: p.leader,
            incarnation: p.leader_incarnation,
            proposals: vec![proposal],
        };
        let reply = self.world.ask(Request::AlterInSync(asked));
        let Ok(Reply::InSync(results)) = reply else {
            panic!("{reply:?}")
        };
        assert_eq!(results[0].refused, None);
    }
}

/// A death takes the node out of the set; its leadership goes to the next in
/// sync in the same change, a follower's death raises no epoch.
#[test]
fn a_death_moves_leadership_in_one_step() {
    let mut trio = Trio::new(&[]);
    let first = trio.p().leader.0;
    assert_eq!(first, 1);
    let before = trio.p().partition_epoch;
    trio.die(1);
    assert_eq!(trio.shown(), (2, 1, vec![2, 3], vec![], vec![2, 3]));
    assert_eq!(trio.p().partition_epoch.0, before.0 + 1, "one change");
    trio.die(3);
    assert_eq!(trio.shown(), (2, 1, vec![2], vec![3], vec![2, 3]));
    trio.die(2);
    assert_eq!(trio.shown(), (0, 2, vec![], vec![2, 3], vec![2, 3]));
    // Node 1 left when enough were in sync: it may lack what came after.
    trio.start(1, Boot::Whole);
    assert_eq!(trio.shown().0, 0, "node 1 may not lead");
    trio.start(3, Boot::Whole);
    assert_eq!(trio.shown(), (3, 3, vec![3], vec![2], vec![2, 3]));
    assert_eq!(trio.p().recovered, None);
    trio.sync(&[1, 3]);
    assert_eq!(trio.shown(), (3, 3, vec![1, 3], vec![], vec![1, 3]));
}

/// Nodes that die at the same time leave in one change, all of them eligible.
#[test]
fn silence_of_all_keeps_everybody_eligible() {
    let mut trio = Trio::new(&[]);
    trio.world.crash(false);
    trio.world.pass(TIMEOUT * 2);
    trio.world.settle();
    assert_eq!(trio.shown(), (0, 1, vec![], vec![1, 2, 3], vec![1, 2, 3]));
    trio.start(2, Boot::Whole);
    assert_eq!(trio.shown(), (2, 2, vec![2], vec![1, 3], vec![1, 2, 3]));
}

/// Restarted before anybody saw it die: out of the set all the same, and back
/// through its leader only.
#[test]
fn a_fast_restart_counts_as_a_death() {
    let mut trio = Trio::new(&[]);
    trio.start(2, Boot::Whole);
    assert_eq!(trio.shown(), (1, 0, vec![1, 3], vec![], vec![1, 3]));
    trio.start(1, Boot::Whole);
    assert_eq!(trio.shown(), (3, 1, vec![3], vec![1], vec![1, 3]));
    trio.start(3, Boot::Whole);
    // The eligible one leads, node 3 may follow.
    assert_eq!(trio.shown(), (1, 2, vec![1], vec![3], vec![1, 3]));
    assert_eq!(trio.p().leader_incarnation, Incarnation(2));
}

/// The only replica leads again after a death in the same boot, without a
/// record that something might be missing.
#[test]
fn a_single_replica_leads_again() {
    for config in [&[][..], &[("durability", "replicated")][..]] {
        let mut one = Trio::of(1, config);
        one.start(1, Boot::Whole);
        assert_eq!(one.shown(), (1, 2, vec![1], vec![], vec![1]));
        one.die(1);
        assert_eq!(one.shown(), (0, 3, vec![], vec![1], vec![1]));
        one.start(1, Boot::Whole);
        assert_eq!(one.shown(), (1, 4, vec![1], vec![], vec![1]));
        assert_eq!(one.p().recovered, None);
    }
}

/// With min.insync.replicas=1 a dead follower may miss what the leader alone
/// acknowledges; it is never eligible.
#[test]
fn above_the_minimum_nobody_becomes_eligible() {
    let mut two = Trio::of(2, &[]);
    two.die(2);
    assert_eq!(two.shown(), (1, 0, vec![1], vec![], vec![1]));
    two.die(1);
    assert_eq!(two.shown(), (0, 1, vec![], vec![1], vec![1]));
    two.start(2, Boot::Whole);
    assert_eq!(two.shown().0, 0, "only node 1 has everything");
    two.start(1, Boot::Whole);
    assert_eq!(two.shown(), (1, 2, vec![1], vec![], vec![1]));
}

/// The eligible set is emptied before a lower minimum is in force.
#[test]
fn a_lower_minimum_empties_the_eligible_set_first() {
    let mut trio = Trio::new(&[]);
    trio.die(3);
    trio.die(2);
    assert_eq!(trio.shown().3, [2]);
    let lower = AlterTopic {
        name: "t".into(),
        partitions: None,
        set: BTreeMap::from([("min.insync.replicas".to_owned(), "1".to_owned())]),
        reset: BTreeSet::new(),
    };
    let call = trio.world.request(Request::Alter(lower));
    assert!(trio.world.finish_write(Fate::Committed));
    assert_eq!(trio.shown(), (1, 0, vec![1], vec![], vec![1]));
    let topic = &trio.world.store.topics[&topic_id(1)].value;
    assert!(topic.config.is_empty(), "not yet");
    trio.world.settle();
    assert!(matches!(trio.world.reply(call), Some(Ok(_))));
}

/// What each boot costs, by durability: (leader, in-sync, eligible) after node 2
/// of an eligible pair came back.
#[test]
fn boots_cost_what_they_cost() {
    let synced = &[("durability", "synced")][..];
    let replicated = &[][..];
    for (config, boot, eligible) in [
        (replicated, Boot::Whole, vec![2]),
        (replicated, Boot::Unclean, vec![]),
        (replicated, Boot::New, vec![]),
        (synced, Boot::Whole, vec![2]),
        (synced, Boot::Unclean, vec![2]),
        (synced, Boot::New, vec![]),
    ] {
        let mut trio = Trio::new(config);
        trio.die(3);
        trio.die(2);
        assert_eq!(trio.shown(), (1, 0, vec![1], vec![2], vec![1, 2]));
        trio.start(2, boot);
        let last = match boot {
            Boot::New => vec![1],
            _ => vec![1, 2],
        };
        assert_eq!(
            trio.shown(),
            (1, 0, vec![1], eligible, last),
            "{config:?} {boot:?}"
        );
    }
}

/// A controller that dies anywhere within a death or a restart leaves a state
/// from which its successor comes to the same end.
#[test]
fn a_successor_finishes_what_a_death_began() {
    for done in [false, true] {
        for writes in 0..4 {
            let mut trio = Trio::new(&[]);
            let mut asking = registration(1, 50, 1);
            asking.clean = false;
            trio.world.register(asking.clone());
            for _ in 0..writes {
                trio.world.finish_write(Fate::Committed);
            }
            trio.world.crash(done);
            for id in [2, 3] {
                trio.world
                    .register(registration(id, u128::from(id), u128::from(id)));
            }
            let stream = trio.world.register(asking);
            trio.world.settle();
            let incarnation = trio.world.registered(stream).expect("in").1;
            assert_eq!(incarnation, Incarnation(2));
            let (leader, epoch, in_sync, ..) = trio.shown();
            assert_eq!((leader, in_sync), (2, vec![2, 3]), "{writes} {done}");
            assert_eq!(epoch, 1);
        }
    }
}
