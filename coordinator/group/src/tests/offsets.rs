//! Committed offsets.

use super::bench::*;
use crate::*;
use talweg_types::{LeaderEpoch, Offset};

const ALONE: Committer = Committer::Standalone;

#[test]
fn a_commit_never_steps_back_and_a_seek_may() {
    let mut bench = Bench::new(1);
    let me = bench.join(1);
    assert!(bench.commit(me, 0, 10).is_ok());
    let records = bench.log.len();
    assert!(bench.commit(me, 0, 10).is_ok());
    assert_eq!(bench.log.len(), records, "twice is a no-op");
    let expected = Refusal::BelowCommitted {
        at: at(0),
        offset: Offset(9),
        stored: Offset(10),
    };
    assert_eq!(bench.commit(me, 0, 9), Err(expected));
    let by = Committer::Member(me);
    assert!(bench.commit_as(by, CommitKind::Seek, 0, 4).is_ok());
    assert_eq!(bench.stored(0), Some(4));
}

/// Story: a consumer is stuck at one record and commits the same offset again and again,
/// now with other words beside it, now as a client of its own.
#[test]
fn a_commit_of_the_same_offset_is_no_progress() {
    let mut bench = Bench::new(1);
    let same = |bench: &mut Bench, by, offset, metadata: &str| {
        let item = CommitItem {
            at: at(0),
            offset: Offset(offset),
            leader_epoch: LeaderEpoch::NONE,
            metadata: metadata.into(),
            bounds: Bounds::Log {
                log_start: Offset(0),
                high_watermark: Offset(1_000),
            },
        };
        let kind = CommitKind::Commit;
        let items = vec![item];
        bench
            .send(Event::Commit(Commit { by, kind, items }))
            .unwrap();
        let stored = &bench.group.state().offsets()[&at(0)];
        (stored.committed_at, stored.moved_at)
    };
    let moved = same(&mut bench, ALONE, 3, "").1;
    assert_eq!(moved, bench.now.wall);
    bench.pass(10_000, &[]);
    let now = bench.now.wall;
    assert_eq!(same(&mut bench, ALONE, 3, ""), (now, moved));
    bench.fail_over();
    let me = Committer::Member(bench.join(1));
    bench.pass(10_000, &[1]);
    let now = bench.now.wall;
    assert_eq!(same(&mut bench, me, 3, "still there"), (now, moved));
    assert_eq!(same(&mut bench, me, 4, "at last"), (now, now));
}

#[test]
fn offsets_outside_the_log_and_of_nothing_are_refused() {
    let mut bench = Bench::new(1);
    let by = Committer::Member(bench.join(1));
    for kind in [CommitKind::Commit, CommitKind::Seek] {
        assert!(matches!(
            bench.commit_as(by, kind, 0, 1_001),
            Err(Refusal::OutOfRange { .. })
        ));
        assert!(matches!(
            bench.commit_as(by, kind, 0, -1),
            Err(Refusal::Invalid { .. })
        ));
        assert_eq!(
            bench.commit_as(by, kind, 1, 1),
            Err(Refusal::UnknownPartition(at(1)))
        );
    }
    assert!(
        bench.commit_as(by, CommitKind::Commit, 0, 1_000).is_ok(),
        "the end is allowed"
    );
    let item = CommitItem {
        at: at(0),
        offset: Offset(5_000),
        leader_epoch: LeaderEpoch::NONE,
        metadata: "x".repeat(4_097),
        bounds: Bounds::Delivered,
    };
    let short = CommitItem {
        metadata: String::new(),
        ..item.clone()
    };
    let nowhere = CommitItem {
        at: talweg_types::TopicPartition {
            topic_id: topic_id(9),
            ..at(0)
        },
        ..short.clone()
    };
    let commit = |by, items| {
        Event::Commit(Commit {
            by,
            kind: CommitKind::Commit,
            items,
        })
    };
    let Ok(Answer::Committed(answers)) = bench.send(commit(by, vec![item, short.clone(), nowhere]))
    else {
        panic!("refused as a whole");
    };
    assert!(matches!(
        answers[0],
        Err(Refusal::Limit {
            field: "metadata",
            ..
        })
    ));
    assert!(answers[1].is_ok(), "the gateway has checked it");
    assert!(matches!(answers[2], Err(Refusal::UnknownTopic(_))));
    let leaver = bench.caller(1);
    bench.send(Event::Leave(leaver)).unwrap();
    let Ok(Answer::Committed(answers)) = bench.send(commit(ALONE, vec![short.clone()])) else {
        panic!("refused as a whole");
    };
    assert!(matches!(
        answers[0],
        Err(Refusal::Invalid {
            field: "bounds",
            ..
        })
    ));
    let many = vec![short; 10_001];
    assert!(matches!(
        bench.send(commit(ALONE, many)),
        Err(Refusal::Limit { .. })
    ));
}

#[test]
fn clients_that_assign_themselves_commit_only_where_nobody_streams() {
    let mut bench = Bench::new(1);
    assert!(bench.commit_as(ALONE, CommitKind::Commit, 0, 3).is_ok());
    let me = bench.join(1);
    assert_eq!(bench.views[&id(1)].assigned[&at(0)].next, Some(Offset(3)));
    let refused = bench.commit_as(ALONE, CommitKind::Commit, 0, 5);
    assert_eq!(refused, Err(Refusal::StreamingMembers));
    bench.send(Event::Leave(me)).unwrap();
    assert!(bench.commit_as(ALONE, CommitKind::Commit, 0, 5).is_ok());
}

#[test]
fn offsets_expire_from_the_last_sign_of_life() {
    let mut bench = Bench::new(1);
    let me = bench.join(1);
    bench.commit(me, 0, 3).unwrap();
    let expire = Event::Expire {
        retention_ms: 60_000,
    };
    // Field report B054: alive on a quiet topic.
    for _ in 0..4 {
        bench.pass(40_000, &[1]);
        bench.send(expire.clone()).unwrap();
    }
    assert_eq!(bench.stored(0), Some(3));
    bench.send(Event::Leave(bench.caller(1))).unwrap();
    bench.pass(59_999, &[]);
    bench.send(expire.clone()).unwrap();
    assert_eq!(bench.stored(0), Some(3));
    bench.fail_over();
    bench.commit_as(ALONE, CommitKind::Commit, 0, 3).unwrap();
    bench.pass(59_999, &[]);
    bench.send(expire.clone()).unwrap();
    assert_eq!(
        bench.stored(0),
        Some(3),
        "a repeated commit is a sign of life"
    );
    bench.pass(1, &[]);
    bench.send(expire).unwrap();
    assert!(bench.group.state().is_gone());
}

#[test]
fn reset_and_delete_wait_until_nobody_is_there() {
    let mut bench = Bench::new(2);
    let me = bench.join(1);
    bench.commit(me, 0, 10).unwrap();
    let change = |p, before: Option<i64>, after| ResetChange {
        at: at(p),
        before: before.map(Offset),
        after: Offset(after),
        leader_epoch: LeaderEpoch::NONE,
    };
    let reset = |changes: &[ResetChange], execute| Event::Reset {
        changes: changes.to_vec(),
        execute,
    };
    let good = [change(0, Some(10), 2), change(1, None, 7)];
    for event in [
        reset(&good, false),
        reset(&good, true),
        Event::DeleteOffsets([at(0)].into()),
        Event::DeleteGroup,
    ] {
        assert_eq!(bench.send(event), Err(Refusal::NotEmpty(1)));
    }
    bench.send(Event::Leave(me)).unwrap();
    bench.send(reset(&good, false)).unwrap();
    assert_eq!(bench.stored(0), Some(10), "a dry run changes nothing");
    assert!(
        bench.send(reset(&[change(0, Some(9), 2)], true)).is_err(),
        "it has moved"
    );
    bench.send(reset(&good, true)).unwrap();
    assert_eq!((bench.stored(0), bench.stored(1)), (Some(2), Some(7)));
    bench.send(Event::DeleteOffsets([at(0)].into())).unwrap();
    assert_eq!((bench.stored(0), bench.stored(1)), (None, Some(7)));
    bench.send(Event::DeleteGroup).unwrap();
    assert!(bench.group.state().is_gone());
    assert_eq!(bench.send(Event::DeleteGroup), Err(Refusal::UnknownGroup));
    // Field report B047: the name is used again.
    assert!(bench.commit_as(ALONE, CommitKind::Commit, 0, 1).is_ok());
    bench.fail_over();
    assert_eq!(bench.stored(0), Some(1));
}

#[test]
fn a_deleted_topic_takes_its_offsets_and_a_missing_one_does_not() {
    let mut bench = Bench::new(2);
    let me = bench.join(1);
    bench.commit(me, 0, 10).unwrap();
    bench.topics = topics(&[]);
    bench.send(Event::TopicsChanged).unwrap();
    bench.confirm(1);
    assert_eq!(bench.stored(0), Some(10), "absent is not deleted");
    bench.topics = topics(&[2]);
    bench.send(Event::TopicsChanged).unwrap();
    assert_eq!(bench.views[&id(1)].assigned[&at(0)].next, Some(Offset(10)));
    bench.topics = topics(&[]);
    bench
        .send(Event::TopicsDeleted([topic_id(0)].into()))
        .unwrap();
    assert_eq!(bench.stored(0), None);
    assert!(bench.views[&id(1)].assigned.is_empty() && bench.revoking(1).is_empty());
}

/// Field report B056: the former owner's commit comes after the new one's.
#[test]
fn a_late_commit_of_a_former_owner_harms_nothing() {
    let mut bench = Bench::new(2);
    let old = bench.join(1);
    bench.join(2);
    let p = bench.revoking(1).first().unwrap().partition.0;
    bench.confirm(1);
    let new = bench.caller(2);
    bench.commit(new, p, 20).unwrap();
    for kind in [CommitKind::Commit, CommitKind::Seek] {
        let late = bench.commit_as(Committer::Member(old), kind, p, 15);
        assert!(matches!(late, Err(Refusal::NotOwner { .. })), "{late:?}");
    }
    assert_eq!(bench.stored(p), Some(20));
}
