//! Loading, undoing, and the coordinator's move.

use super::bench::*;
use crate::*;
use talweg_types::MonotonicMs;

#[test]
fn a_failed_append_is_taken_back_whole() {
    let mut bench = Bench::new(4);
    bench.join_as(1, named("a")).unwrap();
    bench.join(2);
    bench.broken(1, Some(&[0]));
    let before = bench.group.state().clone();
    let join = |n, meta| {
        Event::Join(Join {
            new_id: id(n),
            claim: None,
            meta,
        })
    };
    let (now, topics) = (bench.now, bench.topics.clone());
    let events = [
        join(3, named("a")),
        join(4, meta()),
        Event::Tick,
        bench.confirmation(2),
    ];
    let steps = events.map(|event| bench.group.step(now, &topics, event));
    assert_ne!(*bench.group.state(), before);
    for step in steps.into_iter().rev() {
        bench.group.undo(now, step.undo);
    }
    assert_eq!(*bench.group.state(), before);
    assert_eq!(bench.group.state().state_hash(), before.state_hash());
    assert_eq!(bench.group.check(), Ok(()));
    // The members are as before, and the claimant comes again.
    bench.pass(10, &[2]);
    bench.pass(5_000, &[2]);
    assert!(bench.join_as(3, named("a")).is_ok());
}

#[test]
fn members_outlive_the_coordinators_move() {
    let mut bench = Bench::new(4);
    bench.join_as(1, named("a")).unwrap();
    bench.join(2);
    let (old, records) = (bench.caller(1), bench.log.len());
    bench.fail_over();
    assert_eq!(bench.log.len(), records, "a move writes nothing");
    let Ok(Answer::View(view)) = bench.send(Event::Heartbeat(old)) else {
        panic!("the first heartbeat is answered with the view");
    };
    assert_eq!((view.epoch, view.revoking.len()), (old.epoch, 2));
    assert_eq!(bench.send(Event::Heartbeat(old)), Ok(Answer::Done));
    assert!(bench.join_as(9, named("a")).is_err(), "its stream lives");
    bench.confirm(1);
    assert_eq!(bench.has(2).len(), 2);
}

#[test]
fn after_a_move_a_name_is_kept_for_its_holders_return_and_no_longer() {
    let mut bench = Bench::new(1);
    bench.join_as(1, named("a")).unwrap();
    bench.fail_over();
    let refused = bench.join_as(2, named("a"));
    let expected = Refusal::InstanceInUse {
        instance: "a".into(),
        retry_after_ms: 5_000,
    };
    assert_eq!(refused, Err(expected));
    bench.pass(5_000, &[]);
    assert!(bench.join_as(2, named("a")).is_ok());
}

#[test]
fn members_that_do_not_return_after_a_move_have_a_whole_session() {
    let mut bench = Bench::new(1);
    bench.join(1);
    bench.pass(44_000, &[]);
    bench.fail_over();
    assert_eq!(
        bench.group.next_deadline(),
        Some(MonotonicMs(44_000 + 45_000))
    );
    bench.pass(44_999, &[]);
    assert!(bench.removed.is_empty());
    bench.pass(1, &[]);
    assert_eq!(bench.removed, [(id(1), Removal::SessionExpired)]);
}

#[test]
fn topics_that_changed_during_the_move_are_seen() {
    let mut bench = Bench::new(1);
    bench.join(1);
    bench.topics = topics(&[3]);
    bench.fail_over();
    assert_eq!(bench.has(1), [0, 1, 2]);
}

#[test]
fn loading_is_all_or_nothing() {
    let mut bench = Bench::new(2);
    bench.join(1);
    bench.join(2);
    bench.confirm(1);
    let good = bench.group.state().snapshot();
    assert_eq!(
        GroupState::load(good.clone()).as_ref(),
        Ok(bench.group.state())
    );
    for without in 0..good.len() {
        let mut records = good.clone();
        records.remove(without);
        assert!(
            matches!(GroupState::load(records), Err(LoadError::Broken(_))),
            "{:?}",
            good[without].key
        );
    }
    let mut twice = good.clone();
    for record in &mut twice {
        if let (Key::Current(_), Some(Value::Current(current))) = (record.key, &mut record.value) {
            let owned = Owned {
                given_epoch: MemberEpoch(1),
                revoking: true,
            };
            current.owned.extend((0..2).map(|p| (at(p), owned)));
        }
    }
    let doctored = GroupState::load(twice);
    assert!(
        matches!(doctored, Err(LoadError::Broken(Broken::TwoOwners(_)))),
        "{doctored:?}"
    );
    let wrong = Record {
        key: Key::Offset(at(0)),
        value: good[0].value.clone(),
    };
    assert_eq!(
        GroupState::load([wrong.clone()]),
        Err(LoadError::WrongValue(wrong.key))
    );
}

/// A commit shows that the holder's stream lives, before its first heartbeat too.
#[test]
fn after_a_move_a_commit_keeps_the_name() {
    let mut bench = Bench::new(1);
    let me = bench.join_as(1, named("a")).unwrap();
    bench.fail_over();
    bench.pass(4_999, &[]);
    bench.commit(me, 0, 1).unwrap();
    bench.pass(4_999, &[]);
    assert!(bench.join_as(2, named("a")).is_err());
    let heartbeat = bench.send(Event::Heartbeat(me));
    assert!(matches!(heartbeat, Ok(Answer::View(_))), "{heartbeat:?}");
}
