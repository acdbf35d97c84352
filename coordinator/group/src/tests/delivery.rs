//! Records that kill or hang their consumers.

use super::bench::*;
use crate::*;

/// A member reads partition 0 and dies; the next comes.
fn die(bench: &mut Bench, n: u8, meta: MemberMeta) {
    bench.join_as(n, meta).unwrap();
    bench.broken(n, Some(&[0]));
    bench.pass(45_000, &[]);
}

#[test]
fn three_deaths_and_the_record_is_a_dead_letter() {
    let mut bench = Bench::new(2);
    for (n, then) in [
        (1, Delivery::Normal),
        (2, Delivery::OneByOne),
        (
            3,
            Delivery::DeadLetter {
                attempts: 3,
                reason: FailureKind::Crashed,
            },
        ),
    ] {
        die(&mut bench, n, meta());
        bench.join(100 + n);
        assert_eq!(bench.delivery(100 + n, 0), then, "after death {n}");
        assert_eq!(
            bench.delivery(100 + n, 1),
            Delivery::Normal,
            "nothing was in flight there"
        );
        bench.send(Event::Leave(bench.caller(100 + n))).unwrap();
        bench.fail_over();
    }
    let me = bench.join(9);
    bench.commit(me, 0, 1).unwrap();
    assert_eq!(
        bench.delivery(9, 0),
        Delivery::Normal,
        "and the owner was told"
    );
    assert!(bench.group.state().failures().is_empty());
}

#[test]
fn where_dead_letters_are_not_allowed_the_partition_pauses_until_a_seek() {
    let mut bench = Bench::new(1);
    let blocking = MemberMeta {
        policy: DeadLetterPolicy {
            attempts: 2,
            dead_letters: false,
        },
        ..meta()
    };
    for n in 1..=2 {
        die(&mut bench, n, blocking.clone());
    }
    let me = bench.join_as(3, blocking).unwrap();
    let paused = Delivery::Paused {
        attempts: 2,
        reason: FailureKind::Crashed,
    };
    assert_eq!(bench.delivery(3, 0), paused);
    bench
        .commit_as(Committer::Member(me), CommitKind::Seek, 0, 0)
        .unwrap();
    assert_eq!(bench.delivery(3, 0), Delivery::Normal);
}

#[test]
fn a_commit_between_deaths_ends_the_count() {
    let mut bench = Bench::new(1);
    for n in 1..=6 {
        let me = bench.join(n);
        bench.commit(me, 0, i64::from(n)).unwrap();
        assert_eq!(bench.delivery(n, 0), Delivery::Normal);
        bench.broken(n, Some(&[0]));
        bench.pass(45_000, &[]);
    }
}

#[test]
fn an_overrun_moves_that_members_partitions_once() {
    let mut bench = Bench::new(6);
    for n in 1..=3 {
        bench.join(n);
        (1..n).for_each(|m| bench.confirm(m));
    }
    let (first, third) = (bench.has(1), bench.has(3));
    let slow = bench.caller(2);
    let hung = bench.has(2)[0];
    let overran = Event::Overran {
        caller: slow,
        partitions: [at(hung)].into(),
    };
    bench.send(overran.clone()).unwrap();
    assert_eq!(bench.removed, [(id(2), Removal::Overran)]);
    assert!(first.iter().all(|p| bench.has(1).contains(p)));
    assert!(third.iter().all(|p| bench.has(3).contains(p)));
    assert_eq!(bench.has(1).len() + bench.has(3).len(), 6);
    let failures = bench.group.state().failures().clone();
    assert_eq!(failures.keys().copied().collect::<Vec<_>>(), [at(hung)]);
    assert_eq!(
        (failures[&at(hung)].overruns, failures[&at(hung)].deaths),
        (1, 0)
    );
    assert!(bench.send(overran).is_err(), "the repeat is of nobody");
    assert!(bench.commit(slow, hung, 1).is_err());
}

#[test]
fn a_static_member_that_crashes_within_its_session_is_counted() {
    let mut bench = Bench::new(1);
    bench.join_as(1, named("a")).unwrap();
    for n in 2..=3 {
        bench.broken(n - 1, Some(&[0]));
        bench.join_as(n, named("a")).unwrap();
    }
    assert_eq!(bench.delivery(3, 0), Delivery::OneByOne);
    // Neither a clean restart nor a resume is a death.
    bench.broken(3, Some(&[]));
    bench.join_as(4, named("a")).unwrap();
    bench.broken(4, Some(&[0]));
    bench.claim(9, Some(4), named("a")).unwrap();
    assert_eq!(bench.delivery(4, 0), Delivery::OneByOne);
}

#[test]
fn where_nobody_knows_what_was_in_flight_all_is_suspect() {
    let mut bench = Bench::new(2);
    for n in 1..=2 {
        bench.join(n);
        bench.pass(45_000, &[]);
    }
    bench.join(3);
    assert_eq!(bench.delivery(3, 0), Delivery::OneByOne);
    assert_eq!(bench.delivery(3, 1), Delivery::OneByOne);
}
