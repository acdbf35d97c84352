//! In-sync sets as leaders propose them.

use super::{replicas::Trio, *};

fn tp() -> TopicPartition {
    TopicPartition {
        topic_id: topic_id(1),
        partition: PartitionIndex(0),
    }
}

/// What the leader would propose now.
fn proposal(trio: &Trio, members: &[(u32, u64)]) -> AlterInSync {
    let p = trio.p();
    AlterInSync {
        node: p.leader,
        incarnation: p.leader_incarnation,
        proposals: vec![InSyncProposal {
            partition: tp(),
            leader_epoch: p.leader_epoch,
            partition_epoch: p.partition_epoch,
            members: members
                .iter()
                .map(|(node, incarnation)| (NodeId(*node), Incarnation(*incarnation)))
                .collect(),
            attempt: 0,
        }],
    }
}

fn ask(trio: &mut Trio, asked: AlterInSync) -> InSyncResult {
    match trio.world.ask(Request::AlterInSync(asked)) {
        Ok(Reply::InSync(mut results)) => results.remove(0),
        other => panic!("{other:?}"),
    }
}

/// A follower that lags leaves, and comes back; below the minimum it is
/// eligible meanwhile.
#[test]
fn followers_leave_and_return() {
    let mut trio = Trio::new(&[]);
    let asked = proposal(&trio, &[(1, 1), (2, 1)]);
    let result = ask(&mut trio, asked);
    assert_eq!(result.refused, None);
    assert_eq!(result.state.as_ref(), Some(trio.p()));
    assert_eq!(trio.shown(), (1, 0, vec![1, 2], vec![], vec![1, 2]));
    let asked = proposal(&trio, &[(1, 1)]);
    ask(&mut trio, asked);
    assert_eq!(trio.shown(), (1, 0, vec![1], vec![2], vec![1, 2]));
    let asked = proposal(&trio, &[(3, 1), (1, 1)]);
    ask(&mut trio, asked);
    assert_eq!(trio.shown(), (1, 0, vec![1, 3], vec![], vec![1, 3]));
    assert_eq!(trio.p().partition_epoch.0, 3);
}

/// A leader that was told "refused" counts on it: the same call, coming again when
/// the reason is gone, is not applied, nor is an earlier one that was late.
#[test]
fn an_attempt_is_looked_at_once() {
    let mut trio = Trio::new(&[]);
    let asked = proposal(&trio, &[(1, 1), (2, 1)]);
    ask(&mut trio, asked);
    let numbered = |trio: &Trio, attempt, members: &[(u32, u64)]| {
        let mut asked = proposal(trio, members);
        asked.proposals[0].attempt = attempt;
        asked
    };
    let wrong = numbered(&trio, 5, &[(1, 1), (3, 7)]);
    assert!(ask(&mut trio, wrong).refused.is_some());
    for attempt in [5, 4, 1] {
        let late = numbered(&trio, attempt, &[(1, 1), (2, 1), (3, 1)]);
        let answer = trio.world.ask(Request::AlterInSync(late));
        assert_eq!(answer, Err(Refusal::RepeatedProposal), "{attempt}");
        assert_eq!(trio.shown(), (1, 0, vec![1, 2], vec![], vec![1, 2]));
    }
    let next = numbered(&trio, 6, &[(1, 1), (2, 1), (3, 1)]);
    assert_eq!(ask(&mut trio, next).refused, None);
    assert_eq!(trio.shown().2, [1, 2, 3]);
}

/// The same proposal again is a success, not a stale one.
#[test]
fn a_repeat_is_success() {
    for fate in [Fate::Committed, Fate::UnknownDone, Fate::UnknownNotDone] {
        let mut trio = Trio::new(&[]);
        let asked = proposal(&trio, &[(1, 1), (2, 1)]);
        let call = trio.world.request(Request::AlterInSync(asked.clone()));
        trio.world.finish_write(fate);
        trio.world.settle();
        let Some(Ok(Reply::InSync(first))) = trio.world.reply(call) else {
            panic!("answered")
        };
        assert_eq!(ask(&mut trio, asked), first[0]);
        assert_eq!(first[0].refused, None);
        assert_eq!(trio.p().partition_epoch.0, 1, "{fate:?}");
    }
}

/// Each reason in words, with the state as it is, and nothing is written.
#[test]
fn what_is_stale_or_wrong_is_refused() {
    let mut trio = Trio::new(&[]);
    trio.start(3, super::replicas::Boot::Whole);
    let before = trio.world.store.clone();
    let good = proposal(&trio, &[(1, 1), (2, 1)]);
    let with = |change: &dyn Fn(&mut AlterInSync)| {
        let mut asked = good.clone();
        asked.proposals[0].members = vec![(NodeId(1), Incarnation(1))];
        change(&mut asked);
        asked
    };
    let member = |node, incarnation| (NodeId(node), Incarnation(incarnation));
    let cases = [
        (
            with(&|a| a.proposals[0].partition_epoch.0 = 0),
            "partition epoch 0",
        ),
        (
            with(&|a| a.proposals[0].leader_epoch.0 = 7),
            "leader epoch 7",
        ),
        (with(&|a| a.node = NodeId(2)), "the leader is node 1"),
        (
            with(&|a| a.proposals[0].members = vec![member(2, 1)]),
            "must have the leader",
        ),
        (
            with(&|a| a.proposals[0].members.push(member(9, 1))),
            "node 9 is no replica",
        ),
        (
            with(&|a| a.proposals[0].members.push(member(1, 1))),
            "twice",
        ),
        (
            with(&|a| a.proposals[0].members.push(member(3, 1))),
            "incarnation 2, not 1",
        ),
        (
            with(&|a| a.proposals[0].partition.partition.0 = 5),
            "no such partition",
        ),
    ];
    for (asked, part) in cases {
        let result = ask(&mut trio, asked);
        let refused = result.refused.expect(part);
        assert!(refused.contains(part), "{refused}");
        let known = (!part.contains("no such")).then(|| trio.p().clone());
        assert_eq!(result.state, known);
        assert_eq!(trio.world.store, before);
    }
    let stale = AlterInSync {
        incarnation: Incarnation(9),
        ..good.clone()
    };
    let refusal = trio.world.ask(Request::AlterInSync(stale));
    assert_eq!(refusal, Err(Refusal::StaleIncarnation { id: NodeId(1) }));
    trio.die(2);
    let asked = proposal(&trio, &[(1, 1), (2, 1)]);
    let refused = ask(&mut trio, asked).refused.expect("dead");
    assert!(refused.contains("node 2 is dead"), "{refused}");
    // A new controller has not heard the leader yet.
    trio.world.crash(false);
    let refusal = trio.world.ask(Request::AlterInSync(good));
    assert_eq!(refusal, Err(Refusal::NotRegistered { id: NodeId(1) }));
}

/// Many partitions share a transaction; a waiting creation lets them pass.
#[test]
fn proposals_are_urgent_and_share_transactions() {
    let mut world = World::new();
    for process in 1..=3 {
        world.node(process, process);
    }
    let Request::Create(mut request) = create("t", Some(120), 1) else {
        unreachable!()
    };
    request.replication_factor = Some(3);
    world.ask(Request::Create(request)).expect("created");
    let creation = world.request(create("u", Some(70), 2));
    let mut calls = Vec::new();
    for leader in 1..=3 {
        let led: Vec<_> = world.store.led_by(NodeId(leader)).collect();
        let proposals = led.into_iter().map(|partition| InSyncProposal {
            partition,
            leader_epoch: LeaderEpoch(0),
            partition_epoch: talweg_types::PartitionEpoch(0),
            members: vec![(NodeId(leader), Incarnation(1))],
            attempt: 0,
        });
        let asked = AlterInSync {
            node: NodeId(leader),
            incarnation: Incarnation(1),
            proposals: proposals.collect(),
        };
        calls.push(world.request(Request::AlterInSync(asked)));
    }
    // The creation's first write is under way; then three calls in two writes.
    for _ in 0..3 {
        world.finish_write(Fate::Committed);
    }
    for call in &calls {
        let Some(Ok(Reply::InSync(results))) = world.reply(*call) else {
            panic!("answered")
        };
        assert!(results.iter().all(|r| r.refused.is_none()));
    }
    assert_eq!(world.reply(creation), None, "it waits");
    world.settle();
    assert!(matches!(world.reply(creation), Some(Ok(_))));
}

/// The rule is what keeps an old set out: without it the set is taken. Attempts that
/// are numbered hide that from the simulation.
#[cfg(feature = "planted-faults")]
#[test]
fn the_planted_mistake_with_partition_epochs_is_seen() {
    use crate::core::fault::{Fault, plant};
    for fault in [None, Some(Fault::PartitionEpochNotCompared)] {
        plant(fault);
        let mut trio = Trio::new(&[]);
        let old = proposal(&trio, &[(1, 1), (3, 1)]);
        let newer = proposal(&trio, &[(1, 1), (2, 1)]);
        ask(&mut trio, newer);
        let taken = ask(&mut trio, old).refused.is_none();
        plant(None);
        assert_eq!(taken, fault.is_some());
    }
}
