//! Balancing: the planner by properties, the whole by stories.

use super::{super::rebalance::*, *};
use crate::convert::{BalanceTold, balance_progress};
use proptest::prelude::*;

fn tp(topic: u128, partition: u32) -> TopicPartition {
    TopicPartition {
        topic_id: topic_id(topic),
        partition: PartitionIndex(partition),
    }
}

#[derive(Clone, Debug)]
struct Case {
    nodes: BTreeMap<NodeId, PlanNode>,
    partitions: Vec<PlanPartition>,
}

/// Nodes over `racks`, partitions on some of them.
fn case(racks: u32, leaves: bool, fixed: bool) -> impl Strategy<Value = Case> {
    let partition = (0u128..4, 1usize..4, any::<u64>(), prop::bool::weighted(0.1));
    let leaving = proptest::collection::vec(prop::bool::weighted(0.2), 8);
    (
        2u32..8,
        leaving,
        proptest::collection::vec(partition, 0..40),
    )
        .prop_map(move |(count, leaving, partitions)| {
            let nodes = (1..=count).map(|id| {
                let goes = leaves && leaving[id as usize];
                let node = PlanNode {
                    rack: format!("r{}", id % racks),
                    takes: !goes,
                    leaves: goes,
                };
                (NodeId(id), node)
            });
            let place = |(i, (topic, factor, seed, stays)): (usize, (u128, usize, u64, bool))| {
                let mut ids: Vec<_> = (1..=count).map(NodeId).collect();
                let mut seed = seed;
                let mut chosen = Vec::new();
                while chosen.len() < factor.min(count as usize) {
                    let at = usize::try_from(seed % ids.len() as u64).expect("small");
                    // Low ids come more often, so that there is something to do.
                    chosen.push(ids.remove(at.min(seed as usize % 3 + at / 2).min(ids.len() - 1)));
                    seed /= 7;
                }
                PlanPartition {
                    tp: tp(topic + 1, i as u32),
                    replicas: chosen,
                    fixed: fixed && stays,
                    barred: Vec::new(),
                }
            };
            Case {
                nodes: nodes.collect(),
                partitions: partitions.into_iter().enumerate().map(place).collect(),
            }
        })
}

impl Case {
    fn plan(&self) -> Vec<PlannedMove> {
        plan(&self.nodes, self.partitions.clone(), usize::MAX)
    }

    /// What the plan leads to.
    fn after(&self) -> Self {
        let moves: BTreeMap<_, _> = self.plan().into_iter().map(|m| (m.tp, m.to)).collect();
        let mut after = self.clone();
        for p in &mut after.partitions {
            if let Some(to) = moves.get(&p.tp) {
                p.replicas.clone_from(to);
            }
        }
        after
    }

    fn loads(&self) -> Vec<usize> {
        let load = |node: &NodeId| {
            let holds = |p: &&PlanPartition| p.replicas.contains(node);
            self.partitions.iter().filter(holds).count()
        };
        let takers = self.nodes.iter().filter(|(_, node)| node.takes);
        takers.map(|(id, _)| load(id)).collect()
    }

    fn firsts(&self, node: NodeId) -> usize {
        let first = |p: &&PlanPartition| p.replicas.first() == Some(&node);
        self.partitions.iter().filter(first).count()
    }

    fn racks(&self, p: &PlanPartition) -> usize {
        let racks = p.replicas.iter().map(|n| self.nodes[n].rack.as_str());
        racks.collect::<BTreeSet<_>>().len()
    }
}

fn spread(loads: &[usize]) -> usize {
    loads.iter().max().unwrap_or(&0) - loads.iter().min().unwrap_or(&0)
}

/// Replicas above their node's fair share, the fullest nodes taking what is left
/// over: no plan can move fewer.
fn fewest(mut loads: Vec<usize>) -> usize {
    let (total, nodes) = (loads.iter().sum::<usize>(), loads.len());
    loads.sort_unstable_by(|a, b| b.cmp(a));
    let share = |at: usize| total / nodes + usize::from(at < total % nodes);
    let above = loads.iter().enumerate();
    above.map(|(at, load)| load.saturating_sub(share(at))).sum()
}

fn copies(moves: &[PlannedMove]) -> usize {
    moves.iter().map(PlannedMove::copies).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// One rack: within one replica of each other, by the fewest copies.
    #[test]
    fn without_racks_loads_are_equal_by_the_fewest_copies(case in case(1, false, false)) {
        prop_assert!(spread(&case.after().loads()) <= 1, "{:?}", case.after().loads());
        prop_assert_eq!(copies(&case.plan()), fewest(case.loads()));
    }

    #[test]
    fn a_plan_is_sound_and_leaves_nothing_to_plan(
        case in (1u32..4).prop_flat_map(|racks| case(racks, true, true)),
    ) {
        let moves = case.plan();
        for planned in &moves {
            let p = case.partitions.iter().find(|p| p.tp == planned.tp).expect("there");
            prop_assert!(!p.fixed);
            prop_assert_eq!(&p.replicas, &planned.from);
            prop_assert_ne!(&planned.from, &planned.to);
            prop_assert_eq!(planned.from.len(), planned.to.len());
            let distinct: BTreeSet<_> = planned.to.iter().collect();
            prop_assert_eq!(distinct.len(), planned.to.len());
            let added = planned.to.iter().filter(|n| !planned.from.contains(n));
            prop_assert!(added.into_iter().all(|n| case.nodes[n].takes));
        }
        prop_assert_eq!(case.after().plan(), vec![]);
    }

    /// No partition is in fewer racks than before, and none in fewer than it
    /// could be, as far as one replica's move tells.
    #[test]
    fn the_spread_over_racks_is_kept(case in (2u32..5).prop_flat_map(|r| case(r, false, false))) {
        let after = case.after();
        let all = case.nodes.values().map(|n| &n.rack).collect::<BTreeSet<_>>().len();
        for (before, after_p) in case.partitions.iter().zip(&after.partitions) {
            let racks = after.racks(after_p);
            prop_assert!(racks >= case.racks(before));
            prop_assert_eq!(racks, all.min(after_p.replicas.len()));
        }
    }

    /// Within a rack there is always a move from fuller to emptier.
    #[test]
    fn nodes_of_one_rack_are_equally_full(case in (2u32..4).prop_flat_map(|r| case(r, false, false))) {
        let after = case.after();
        let mut racks: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (node, load) in after.nodes.values().zip(after.loads()) {
            racks.entry(&node.rack).or_default().push(load);
        }
        for loads in racks.values() {
            prop_assert!(spread(loads) <= 1, "{loads:?}");
        }
    }

    /// A node that is drained is empty, if others can hold what it held.
    #[test]
    fn leaving_nodes_are_emptied(case in (1u32..4).prop_flat_map(|r| case(r, true, false))) {
        let after = case.after();
        let takers = after.nodes.values().filter(|n| n.takes).count();
        for p in after.partitions.iter().filter(|p| p.replicas.len() <= takers) {
            prop_assert!(p.replicas.iter().all(|n| after.nodes[n].takes), "{p:?}");
        }
    }

    /// No exchange of two places makes leaders more even.
    #[test]
    fn leaders_are_even(case in (1u32..4).prop_flat_map(|r| case(r, false, false))) {
        let after = case.after();
        for p in &after.partitions {
            let first = after.firsts(p.replicas[0]);
            for other in &p.replicas[1..] {
                prop_assert!(first <= after.firsts(*other) + 1, "{p:?}");
            }
        }
    }
}

/// Nothing goes where it is not allowed, and no node gets too many.
#[test]
fn limits_and_bars_are_kept() {
    let node = |takes| PlanNode {
        rack: String::new(),
        takes,
        leaves: false,
    };
    let nodes = BTreeMap::from([(NodeId(1), node(true)), (NodeId(2), node(true))]);
    let on_one = |i, barred: &[u32]| PlanPartition {
        tp: tp(1, i),
        replicas: vec![NodeId(1)],
        fixed: false,
        barred: barred.iter().copied().map(NodeId).collect(),
    };
    let all: Vec<_> = (0..6).map(|i| on_one(i, &[])).collect();
    assert_eq!(plan(&nodes, all.clone(), 100).len(), 3);
    assert_eq!(plan(&nodes, all, 2).len(), 2);
    let barred: Vec<_> = (0..6).map(|i| on_one(i, &[2])).collect();
    assert_eq!(plan(&nodes, barred, 100), vec![]);
    // What is only away keeps what it has.
    let away = BTreeMap::from([(NodeId(1), node(false)), (NodeId(2), node(true))]);
    assert_eq!(
        plan(&away, (0..6).map(|i| on_one(i, &[])).collect(), 100),
        vec![]
    );
}

fn balance(throttle: Option<u64>) -> Request {
    Request::Balance(BalanceCluster {
        throttle,
        id: Uuid::from_u128(0xba1),
    })
}

/// The leader of each moving partition reports that the new replicas caught up.
fn catch_up(world: &mut World) {
    let moving: Vec<_> = world.store.moving().collect();
    let proposals = moving.into_iter().map(|tp| {
        let p = world.store.partitions[&tp].value.clone();
        let member = |id: &NodeId| (*id, world.store.nodes[id].value.incarnation);
        let asked = AlterInSync {
            node: p.leader,
            incarnation: p.leader_incarnation,
            proposals: vec![InSyncProposal {
                partition: tp,
                leader_epoch: p.leader_epoch,
                partition_epoch: p.partition_epoch,
                members: p.replicas.iter().map(member).collect(),
                attempt: 0,
            }],
        };
        Request::AlterInSync(asked)
    });
    for proposal in proposals.collect::<Vec<_>>() {
        world.ask(proposal).expect("taken");
    }
    for node in world.store.nodes.clone().into_keys() {
        let partitions = world.store.partitions.iter();
        let removed = partitions.filter(|(_, p)| p.value.removed.contains(&node));
        let partitions: BTreeSet<_> = removed.map(|(tp, _)| *tp).collect();
        let incarnation = world.store.nodes[&node].value.incarnation;
        world
            .ask(Request::ConfirmDeleted {
                node,
                incarnation,
                topics: BTreeSet::new(),
                partitions,
            })
            .expect("confirmed");
    }
}

fn run_to_the_end(world: &mut World, streams: &[StreamId]) -> usize {
    for round in 0..200 {
        if world.store.balance.is_none() {
            return round;
        }
        assert!(world.store.moving().count() <= 4, "a few at a time");
        streams.iter().for_each(|stream| world.heartbeat(*stream));
        world.pass(TIMEOUT / 4);
        world.settle();
        catch_up(world);
        world.settle();
    }
    panic!("it does not end: {:?}", world.core.balance_progress());
}

/// A fourth node joins and gets its share; planned first, over a controller's
/// death, with a limit that is shared out; then a node is emptied.
#[test]
fn a_node_joins_and_another_leaves() {
    let mut world = World::new();
    let mut streams: Vec<_> = (1..=3).map(|id| world.node(id, id).1).collect();
    let Request::Create(mut request) = create("t", Some(12), 1) else {
        unreachable!()
    };
    request.replication_factor = Some(3);
    world.ask(Request::Create(request)).expect("created");
    assert_eq!(world.core.balance_progress().planned, vec![]);
    world.ask(balance(Some(0))).expect("nothing to do");
    assert!(world.store.balance.is_none());

    streams.push(world.node(4, 4).1);
    let before = world.store.clone();
    let planned = world.core.balance_progress();
    assert_eq!(
        planned
            .planned
            .iter()
            .map(PlannedMove::copies)
            .sum::<usize>(),
        9
    );
    assert_eq!(world.store, before, "a plan changes nothing");
    world.ask(balance(Some(4_000))).expect("begun");
    let started = world.core.balance_progress();
    assert!(started.running && started.moves_total == planned.planned.len());
    world.pass(TIMEOUT / 4);
    world.settle();
    assert_eq!(world.store.moving().count(), 4);
    for tp in world.store.moving() {
        let moving = world.store.partitions[&tp].value.moving.as_ref();
        assert_eq!(moving.map(|moving| moving.throttle), Some(1_000));
    }
    // Joined with another limit, and by the next controller.
    world.ask(balance(Some(0))).expect("joined");
    world.crash(false);
    streams = (1..=4)
        .map(|id| world.register(registration(id, u128::from(id), u128::from(id))))
        .collect();
    world.settle();
    run_to_the_end(&mut world, &streams);
    for id in 1..=4 {
        assert_eq!(world.store.hosted_count(NodeId(id)), 9, "node {id}");
    }
    assert_eq!(world.core.balance_progress(), BalanceProgress::default());

    world
        .ask(Request::Drain {
            node: NodeId(2),
            draining: true,
        })
        .expect("drained");
    world.ask(balance(Some(0))).expect("begun");
    run_to_the_end(&mut world, &streams);
    assert_eq!(world.store.hosted_count(NodeId(2)), 0);
    world.event(Event::Leaving { stream: streams[1] });
    world.settle();
    let removed = world.ask(Request::RemoveNode { node: NodeId(2) });
    assert_eq!(removed, Ok(Reply::Removed));
}

/// Stopped, it begins nothing new.
#[test]
fn a_balancing_is_stopped() {
    let mut world = World::new();
    world.node(1, 1);
    world.ask(create("t", Some(20), 1)).expect("created");
    let (_, two, _) = world.node(2, 2);
    world.ask(balance(Some(0))).expect("begun");
    world.heartbeat(two);
    world.pass(TIMEOUT / 4);
    world.settle();
    assert_eq!(world.store.moving().count(), 4);
    for _ in 0..2 {
        world.ask(balance(None)).expect("stopped");
    }
    catch_up(&mut world);
    world.pass(TIMEOUT / 4);
    world.settle();
    assert_eq!(
        (world.store.moving().count(), &world.store.balance),
        (0, &None)
    );
    assert_eq!(world.store.hosted_count(NodeId(2)), 4);
}

/// A caller that has seen it go on is told when it does not any more: done if
/// nothing is left, else stopped, also if a node came just as it ended.
#[test]
fn the_end_of_a_balancing_is_told() {
    let mut world = World::new();
    let mut streams = vec![world.node(1, 1).1];
    world.ask(create("t", Some(4), 1)).expect("created");
    streams.push(world.node(2, 2).1);
    world.ask(balance(Some(0))).expect("begun");
    let fresh = BalanceTold {
        execute: true,
        ..BalanceTold::default()
    };
    let told = balance_progress(&world.core, fresh);
    assert!(!told.done && !told.stopped, "{told:?}");
    let before = BalanceTold {
        running: true,
        total: told.moves_total,
        ..fresh
    };
    run_to_the_end(&mut world, &streams);
    let told = balance_progress(&world.core, before);
    assert!(told.done && !told.stopped, "{told:?}");
    assert_eq!(told.moves_done, told.moves_total);

    world.node(3, 3);
    let told = balance_progress(&world.core, before);
    assert!(told.stopped && !told.done, "{told:?}");
    let plans = BalanceTold {
        execute: false,
        ..fresh
    };
    let told = balance_progress(&world.core, plans);
    assert!(!told.stopped && !told.done, "a plan: {told:?}");
}

/// The last moves are under way when it is stopped: they are not done.
#[test]
fn a_balancing_that_is_stopped_with_its_last_moves_under_way_is_not_done() {
    let mut world = World::new();
    world.node(1, 1);
    world.ask(create("t", Some(4), 1)).expect("created");
    let (_, two, _) = world.node(2, 2);
    world.ask(balance(Some(0))).expect("begun");
    world.heartbeat(two);
    world.pass(TIMEOUT / 4);
    world.settle();
    assert_eq!(world.core.balance_progress().planned, vec![]);
    world.ask(balance(None)).expect("stopped");
    let before = BalanceTold {
        execute: true,
        running: true,
        total: 2,
    };
    let told = balance_progress(&world.core, before);
    assert!(told.stopped && !told.done, "{told:?}");
    assert_eq!((told.moves.len(), told.moves_done), (2, 0));
}
