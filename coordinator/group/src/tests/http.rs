//! Members without a stream.

use super::bench::*;
use crate::*;
use talweg_types::{MemberId, Offset};

fn http() -> MemberMeta {
    MemberMeta {
        kind: MemberKind::Http,
        ..meta()
    }
}

fn poll(bench: &mut Bench, member: MemberId, epoch: Option<MemberEpoch>) -> Result<View, Refusal> {
    match bench.send(Event::Poll { member, epoch })? {
        Answer::View(view) => Ok(view),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_poll_goes_on_after_what_was_returned_and_a_failover_forgets_it() {
    let mut bench = Bench::new(1);
    let me = bench.join_as(1, http()).unwrap();
    let next = [(at(0), Offset(7))].into();
    let returned = Event::Returned {
        member: me.member,
        epoch: Some(me.epoch),
        next,
    };
    bench.send(returned).unwrap();
    let view = poll(&mut bench, me.member, Some(me.epoch)).unwrap();
    assert_eq!(view.assigned[&at(0)].next, Some(Offset(7)));
    assert_eq!(bench.stored(0), None, "polling never commits");
    bench.commit(me, 0, 3).unwrap();
    let by = Committer::Member(me);
    bench.commit_as(by, CommitKind::Seek, 0, 2).unwrap();
    let view = poll(&mut bench, me.member, Some(me.epoch)).unwrap();
    assert_eq!(
        view.assigned[&at(0)].next,
        Some(Offset(2)),
        "a seek moves the poll too"
    );
    bench.fail_over();
    let view = poll(&mut bench, me.member, Some(me.epoch)).unwrap();
    assert_eq!(view.assigned[&at(0)].next, Some(Offset(2)));
}

#[test]
fn the_next_poll_gives_up_what_was_asked_back() {
    let mut bench = Bench::new(2);
    let me = bench.join_as(1, http()).unwrap();
    bench.join(2);
    assert_eq!(bench.has(2), []);
    let view = poll(&mut bench, me.member, Some(me.epoch)).unwrap();
    assert_eq!((view.assigned.len(), bench.has(2).len()), (1, 1));
    let streaming = bench.caller(2).epoch;
    let refused = poll(&mut bench, id(2), Some(streaming));
    assert!(matches!(refused, Err(Refusal::Invalid { .. })));
    assert!(poll(&mut bench, id(1), None).is_err());
    assert!(matches!(
        poll(&mut bench, id(1), Some(MemberEpoch(0))),
        Err(Refusal::Fenced { .. })
    ));
}

/// Story: a member asks for other topics and never gets the answer; it asks again with
/// the token that it has.
#[test]
fn a_lost_answer_does_not_fence_a_member_that_asked_for_other_topics() {
    let mut bench = Bench::new(2);
    let me = bench.join_as(1, http()).unwrap();
    let mut other = http();
    other.subscription.names.insert("other".into());
    for _ in 0..2 {
        bench.claim(1, Some(1), other.clone()).unwrap();
        let view = poll(&mut bench, me.member, Some(me.epoch)).unwrap();
        assert!(view.epoch > me.epoch, "{view:?}");
    }
}

#[test]
fn callers_without_an_id_share_one_member() {
    let mut bench = Bench::new(1);
    bench.topics = topics(&[1, 1]);
    let shared = |topic: &str| MemberMeta {
        kind: MemberKind::HttpShared,
        subscription: Subscription::names([topic]),
        ..meta()
    };
    bench.join_as(1, shared("t0")).unwrap();
    bench.join_as(1, shared("t1")).unwrap();
    let view = poll(&mut bench, id(1), None).unwrap();
    assert_eq!(view.assigned.len(), 2);
    let alone = Committer::Standalone;
    assert!(bench.commit_as(alone, CommitKind::Commit, 0, 1).is_ok());
    bench.join(2);
    assert!(bench.commit_as(alone, CommitKind::Commit, 0, 2).is_err());
}

#[test]
fn an_http_member_that_dies_is_counted_where_it_was_sent_more_than_it_committed() {
    let mut bench = Bench::new(3);
    let me = bench.join_as(1, http()).unwrap();
    let next = [(at(0), Offset(7)), (at(1), Offset(4))].into();
    let returned = Event::Returned {
        member: me.member,
        epoch: Some(me.epoch),
        next,
    };
    bench.send(returned).unwrap();
    bench.commit(me, 0, 7).unwrap();
    bench.pass(45_000, &[]);
    let counted: Vec<_> = bench.group.state().failures().keys().copied().collect();
    assert_eq!(counted, [at(1)]);
}

/// Story: somebody looks at a group's records with curl now and then, and never commits.
/// No record is set aside for that.
#[test]
fn a_caller_of_the_shared_member_that_does_not_come_back_is_no_death() {
    let mut bench = Bench::new(1);
    let shared = MemberMeta {
        kind: MemberKind::HttpShared,
        ..meta()
    };
    for _ in 0..3 {
        bench.join_as(1, shared.clone()).unwrap();
        poll(&mut bench, id(1), None).unwrap();
        let returned = Event::Returned {
            member: id(1),
            epoch: None,
            next: [(at(0), Offset(7))].into(),
        };
        bench.send(returned).unwrap();
        bench.pass(45_000, &[]);
        assert!(bench.group.state().members().is_empty(), "its session ends");
    }
    assert!(bench.group.state().failures().is_empty());
    bench.join(2);
    assert_eq!(bench.delivery(2, 0), Delivery::Normal);
}

/// Story: a poll waits longer than the session lasts. Signs of life keep the member, and
/// what it is asked back stays in its hands until it has its answer and polls again.
#[test]
fn signs_of_life_keep_a_member_that_waits() {
    let mut bench = Bench::new(2);
    let me = bench.join_as(1, http()).unwrap();
    bench.join(2);
    for _ in 0..2 {
        bench.pass(25_000, &[1, 2]);
    }
    assert_eq!((bench.revoking(1).len(), bench.has(2)), (1, vec![]));
    poll(&mut bench, me.member, Some(me.epoch)).unwrap();
    assert_eq!(bench.has(2).len(), 1);
}
