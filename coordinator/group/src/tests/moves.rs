//! Only what must move moves, and it is in one member's hands at every moment.

use super::bench::*;
use crate::*;

#[test]
fn the_first_member_gets_all_and_the_second_its_half_when_the_first_confirms() {
    let mut bench = Bench::new(4);
    bench.join(1);
    assert_eq!(bench.has(1), [0, 1, 2, 3]);
    bench.join(2);
    assert_eq!(bench.has(2), []);
    assert_eq!((bench.has(1).len(), bench.revoking(1).len()), (2, 2));
    assert_eq!(bench.views[&id(1)].revoke_within_ms, 60_000);
    assert_eq!(bench.group.status(), GroupStatus::Reconciling);
    let given_up: Vec<_> = bench.revoking(1).iter().map(|at| at.partition.0).collect();
    bench.confirm(1);
    assert_eq!(bench.has(2), given_up);
    assert_eq!(bench.group.status(), GroupStatus::Stable);
    // Late and repeated: nothing.
    let records = bench.log.len();
    let late = Event::Revoked {
        caller: bench.caller(1),
        partitions: (0..4).map(at).collect(),
    };
    bench.send(late.clone()).unwrap();
    bench.send(late).unwrap();
    assert_eq!(bench.log.len(), records);
    assert_eq!(bench.has(1).len(), 2);
}

#[test]
fn what_is_not_given_up_in_time_is_taken() {
    let mut bench = Bench::new(2);
    bench.join(1);
    bench.join(2);
    bench.pass(30_000, &[1, 2]);
    bench.pass(29_999, &[1, 2]);
    assert_eq!(bench.has(2), []);
    let p = bench.revoking(1).first().unwrap().partition.0;
    let old = bench.caller(1);
    assert!(bench.commit(old, p, 7).is_ok(), "until then it may commit");
    assert_eq!(
        bench.group.next_deadline(),
        Some(bench.now.monotonic.plus(1))
    );
    bench.pass(1, &[]);
    assert_eq!(bench.has(2), [p]);
    assert!(bench.revoking(1).is_empty());
    let refused = bench.commit(old, p, 8);
    assert!(
        matches!(refused, Err(Refusal::NotOwner { .. })),
        "{refused:?}"
    );
    assert_eq!(
        bench.views[&id(2)].assigned[&at(p)].next.map(|next| next.0),
        Some(7)
    );
}

/// The target returns to the owner while it gives up: it is given anew, and a
/// confirmation of the first revocation does not confirm the second.
#[test]
fn a_partition_that_was_asked_back_is_given_anew() {
    let mut bench = Bench::new(2);
    bench.join(1);
    bench.join(2);
    let p = *bench.revoking(1).first().unwrap();
    let first = bench.confirmation(1);
    let leaver = bench.caller(2);
    bench.send(Event::Leave(leaver)).unwrap();
    assert!(
        bench.revoking(1).contains(&p),
        "told to give it up, it must"
    );
    bench.send(first.clone()).unwrap();
    assert_eq!(bench.has(1), [0, 1]);
    let given = bench.views[&id(1)].assigned[&p].given_epoch;
    bench.join(3);
    assert!(bench.revoking(1).contains(&p));
    bench.send(first).unwrap();
    assert_eq!(
        bench.has(3),
        [],
        "the repeat is of an earlier giving than {given}"
    );
    bench.confirm(1);
    assert_eq!(bench.has(3).len(), 1);
}

#[test]
fn twelve_to_thirteen_members_move_three_of_48_and_leave_the_rest_alone() {
    let mut bench = Bench::new(48);
    for n in 1..=12 {
        bench.join(n);
        for m in 1..n {
            bench.confirm(m);
        }
    }
    let before: Vec<_> = (1..=12).map(|n| bench.has(n)).collect();
    let records = bench.log.len();
    bench.join(13);
    for n in 1..=12 {
        bench.confirm(n);
    }
    assert_eq!(bench.has(13).len(), 3);
    let lost = before
        .iter()
        .zip(1..)
        .map(|(had, n)| had.len() - bench.has(n).len());
    assert_eq!(lost.sum::<usize>(), 3);
    assert!(
        bench.log.len() - records < 30,
        "members that lose nothing write nothing"
    );
    let leaver = bench.caller(13);
    bench.send(Event::Leave(leaver)).unwrap();
    for (had, n) in before.iter().zip(1..) {
        assert_eq!(bench.has(n).len(), had.len());
    }
}

#[test]
fn members_who_come_together_cost_one_rebalance() {
    let mut bench = Bench::new(10);
    bench.group = Group::new(Settings::default());
    for n in 1..=5 {
        bench.join(n);
    }
    assert_eq!(bench.has(1).len(), 10, "the first waits for nobody");
    assert_eq!(bench.group.status(), GroupStatus::Assigning);
    bench.pass(100, &[]);
    assert_eq!(bench.revoking(1).len(), 8);
    bench.confirm(1);
    assert!((1..=5).all(|n| bench.has(n).len() == 2));
}

#[test]
fn new_partitions_and_matching_topics_are_picked_up_and_missing_ones_given_up() {
    let mut bench = Bench::new(1);
    let wanted = MemberMeta {
        subscription: Subscription {
            names: ["later".to_owned()].into(),
            pattern: Some("t.*".into()),
        },
        ..meta()
    };
    bench.join_as(1, wanted).unwrap();
    assert_eq!(bench.views[&id(1)].assigned.len(), 1);
    bench.topics = topics(&[3, 2]);
    bench.send(Event::TopicsChanged).unwrap();
    assert_eq!(bench.views[&id(1)].assigned.len(), 5);
    let records = bench.log.len();
    bench.send(Event::TopicsChanged).unwrap();
    assert_eq!(bench.log.len(), records, "no change, no rebalance");
    bench.topics = topics(&[3]);
    bench.send(Event::TopicsChanged).unwrap();
    assert_eq!(bench.revoking(1).len(), 2);
    bench.confirm(1);
    assert_eq!(bench.views[&id(1)].assigned.len(), 3);
}

#[test]
fn most_members_choose_the_assignor() {
    let mut bench = Bench::new(4);
    let range = |name: &str| MemberMeta {
        assignor: Some(Assignor::Range),
        ..named(name)
    };
    bench.join_as(1, range("b")).unwrap();
    bench.join_as(2, range("a")).unwrap();
    bench.confirm(1);
    assert_eq!((bench.has(2), bench.has(1)), (vec![0, 1], vec![2, 3]));
}

/// The mini story: c1 [0 1], c2 [2] by range; c2 dies before it commits.
#[test]
fn c1_gets_what_c2_read_and_did_not_commit() {
    let mut bench = Bench::new(3);
    let range = MemberMeta {
        assignor: Some(Assignor::Range),
        ..meta()
    };
    bench.join_as(1, range.clone()).unwrap();
    bench.join_as(2, range).unwrap();
    bench.confirm(1);
    assert_eq!((bench.has(1), bench.has(2)), (vec![0, 1], vec![2]));
    bench.broken(2, Some(&[2]));
    bench.pass(44_999, &[1]);
    assert_eq!(bench.has(1), [0, 1]);
    bench.pass(1, &[1]);
    assert_eq!(bench.has(1), [0, 1, 2]);
    assert_eq!(
        bench.views[&id(1)].assigned[&at(2)].next,
        None,
        "from the start again"
    );
    let c1 = bench.caller(1);
    assert!(bench.commit(c1, 2, 5).is_ok());
}
