//! Who is in, who is out, and who may speak for whom.

use super::bench::*;
use crate::*;

#[test]
fn a_silent_member_is_out_and_its_partitions_move_once() {
    let mut bench = Bench::new(4);
    bench.join(1);
    bench.join(2);
    bench.confirm(1);
    let zombie = bench.caller(2);
    bench.pass(30_000, &[1]);
    bench.pass(15_000, &[1]);
    assert_eq!(bench.removed, [(id(2), Removal::SessionExpired)]);
    assert_eq!(bench.has(1).len(), 4);
    for p in 0..4 {
        let late = bench.commit(zombie, p, 9);
        assert_eq!(late, Err(Refusal::UnknownMember(id(2))));
    }
    let late = bench.send(Event::Heartbeat(zombie));
    assert_eq!(late, Err(Refusal::UnknownMember(id(2))));
}

#[test]
fn a_static_member_restarts_and_nothing_moves() {
    let mut bench = Bench::new(4);
    bench.join_as(1, named("a")).unwrap();
    bench.join_as(2, named("b")).unwrap();
    bench.confirm(1);
    let (first, second) = (bench.has(1), bench.has(2));
    let old = bench.caller(2);
    bench.broken(2, Some(&[]));
    bench.join_as(3, named("b")).unwrap();
    assert_eq!(
        (bench.has(1), bench.has(3)),
        (first.clone(), second.clone())
    );
    assert_eq!(bench.removed, [(id(2), Removal::Replaced { by: id(3) })]);
    assert_eq!(bench.group.status(), GroupStatus::Stable);
    // The old process, back from the dead.
    assert!(bench.commit(old, second[0], 1).is_err());
    assert!(bench.send(Event::Leave(old)).is_err());
    assert_eq!(
        bench.claim(9, Some(2), named("b")),
        Err(Refusal::UnknownMember(id(2)))
    );
    assert!(matches!(
        bench.join_as(9, named("b")),
        Err(Refusal::InstanceInUse { .. })
    ));
    // Time goes on without another move.
    bench.pass(40_000, &[1, 3]);
    bench.pass(40_000, &[1, 3]);
    assert_eq!((bench.has(1), bench.has(3)), (first, second));
}

#[test]
fn a_twin_is_refused_while_the_holders_stream_lives() {
    let mut bench = Bench::new(2);
    bench.join_as(1, named("a")).unwrap();
    let refused = bench.join_as(2, named("a"));
    let expected = Refusal::InstanceInUse {
        instance: "a".into(),
        retry_after_ms: 0,
    };
    assert_eq!(refused, Err(expected));
    bench.pass(40_000, &[1]);
    assert!(bench.join_as(2, named("a")).is_err());
    assert!(
        bench.commit(bench.caller(1), 0, 1).is_ok(),
        "the holder is not disturbed"
    );
    bench.broken(1, None);
    assert!(bench.join_as(2, named("a")).is_ok());
}

/// Field report B052: the answer to a join was lost; the retry is itself.
#[test]
fn a_repeated_join_is_the_same_member() {
    let mut bench = Bench::new(2);
    bench.join_as(1, named("a")).unwrap();
    let again = bench.join_as(1, named("a")).unwrap();
    assert_eq!((again.member, bench.has(1)), (id(1), vec![0, 1]));
    bench.broken(1, None);
    assert!(bench.join_as(1, named("a")).is_ok());
    assert_eq!(bench.group.state().members().len(), 1);
}

#[test]
fn a_token_takes_over_even_a_living_stream_and_fences_it() {
    let mut bench = Bench::new(2);
    bench.join_as(1, named("a")).unwrap();
    bench.join(2);
    bench.confirm(1);
    let old = bench.caller(1);
    let p = bench.has(1)[0];
    let new = bench.claim(9, Some(1), named("a")).unwrap();
    assert!(new.epoch > old.epoch);
    assert_eq!(bench.has(1), [p]);
    assert!(bench.removed.is_empty());
    for late in [
        Event::Heartbeat(old),
        Event::Leave(old),
        Event::StreamBroken {
            caller: old,
            in_flight: None,
        },
        Event::Revoked {
            caller: old,
            partitions: [at(p)].into(),
        },
        Event::Overran {
            caller: old,
            partitions: [at(p)].into(),
        },
    ] {
        let answer = bench.send(late.clone());
        assert!(
            matches!(answer, Err(Refusal::Fenced { .. })),
            "{late:?}: {answer:?}"
        );
    }
    let fenced = bench.commit(old, p, 1);
    assert!(matches!(fenced, Err(Refusal::Fenced { .. })));
    assert!(bench.commit(new, p, 1).is_ok());
    // An epoch that was never given out.
    let epoch = MemberEpoch(new.epoch.0 + 1);
    assert!(
        bench
            .send(Event::Heartbeat(Caller { epoch, ..new }))
            .is_err()
    );
}

#[test]
fn a_resumed_member_finishes_a_revocation_begun_before() {
    let mut bench = Bench::new(2);
    bench.join(1);
    bench.join(2);
    assert_eq!(bench.revoking(1).len(), 1);
    bench.broken(1, None);
    bench.claim(9, Some(1), meta()).unwrap();
    assert_eq!(bench.revoking(1).len(), 1);
    bench.confirm(1);
    assert_eq!(bench.has(2).len(), 1);
}

#[test]
fn a_takeover_gives_on_what_the_holder_was_asked_back() {
    let mut bench = Bench::new(2);
    bench.join_as(1, named("a")).unwrap();
    bench.join(2);
    bench.broken(1, Some(&[]));
    bench.join_as(3, named("a")).unwrap();
    assert_eq!((bench.has(2).len(), bench.has(3).len()), (1, 1));
}

#[test]
fn a_broken_stream_alone_moves_nothing() {
    let mut bench = Bench::new(4);
    bench.join(1);
    bench.join(2);
    bench.confirm(1);
    let had = bench.has(2);
    bench.broken(2, None);
    bench.pass(44_000, &[1]);
    bench.claim(9, Some(2), meta()).unwrap();
    bench.pass(44_000, &[1, 2]);
    assert_eq!(bench.has(2), had);
    assert!(!bench.group.is_live(id(9), bench.now));
    assert!(bench.group.is_live(id(2), bench.now));
}

#[test]
fn changed_wishes_are_taken_on_resume() {
    let mut bench = Bench::new(2);
    bench.topics = topics(&[2, 3]);
    bench.join(1);
    let wider = MemberMeta {
        subscription: Subscription::names(["t0", "t1"]),
        ..meta()
    };
    bench.claim(9, Some(1), wider).unwrap();
    assert_eq!(bench.views[&id(1)].assigned.len(), 5);
}

#[test]
fn bad_joins_name_the_field() {
    let mut bench = Bench::new(1);
    bench.join_as(1, named("a")).unwrap();
    let long = "x".repeat(250);
    let times = |session_ms| Timeouts {
        session_ms,
        ..Timeouts::default()
    };
    let policy = DeadLetterPolicy {
        attempts: 0,
        dead_letters: true,
    };
    for (field, meta) in [
        ("instance_id", named("")),
        ("instance_id", named(&long)),
        (
            "client_id",
            MemberMeta {
                client_id: long.clone(),
                ..meta()
            },
        ),
        (
            "rack",
            MemberMeta {
                rack: long.clone(),
                ..meta()
            },
        ),
        (
            "session_timeout_ms",
            MemberMeta {
                timeouts: times(99),
                ..meta()
            },
        ),
        (
            "session_timeout_ms",
            MemberMeta {
                timeouts: times(u32::MAX),
                ..meta()
            },
        ),
        ("max_attempts", MemberMeta { policy, ..meta() }),
        (
            "topics",
            MemberMeta {
                subscription: Subscription::default(),
                ..meta()
            },
        ),
    ] {
        let refused = bench.join_as(2, meta).unwrap_err().to_string();
        assert!(refused.contains(field), "{field}: {refused}");
    }
    // A token of another member's name.
    assert!(bench.claim(2, Some(1), named("b")).is_err());
    assert_eq!(bench.group.state().members().len(), 1);
}

/// Story: the link to a gateway breaks. Who is heard again gets its view, for one may
/// have been lost; who is not, loses its instance id to a claimant after the grace.
#[test]
fn after_a_broken_link_streams_are_unknown_until_they_are_heard() {
    let mut bench = Bench::new(2);
    bench.join_as(1, named("a")).unwrap();
    bench.join_as(2, named("b")).unwrap();
    let members = [id(1), id(2), id(9)].into();
    bench.send(Event::LinkBroken(members)).unwrap();
    let early = bench.join_as(3, named("b"));
    assert!(
        matches!(early, Err(Refusal::InstanceInUse { retry_after_ms, .. }) if retry_after_ms > 0)
    );
    let heartbeat = Event::Heartbeat(bench.caller(1));
    let answer = bench.send(heartbeat.clone());
    assert!(matches!(answer, Ok(Answer::View(view)) if view.member == id(1)));
    assert_eq!(bench.send(heartbeat), Ok(Answer::Done));
    bench.pass(6_000, &[1]);
    assert!(bench.join_as(3, named("a")).is_err());
    bench.join_as(4, named("b")).unwrap();
}
