//! More than one decision can take: what is forgotten, what is assigned.

use super::bench::*;
use crate::*;
use std::collections::BTreeSet;
use talweg_types::limits;

const MANY: usize = 5_000;

/// A group without members that has committed in very many partitions.
fn large() -> Bench {
    let mut bench = Bench::new(MANY);
    let item = |p| CommitItem {
        at: at(p),
        offset: talweg_types::Offset(7),
        leader_epoch: talweg_types::LeaderEpoch(1),
        metadata: String::new(),
        bounds: Bounds::Log {
            log_start: talweg_types::Offset(0),
            high_watermark: talweg_types::Offset(10),
        },
    };
    let items = (0..u32::try_from(MANY).unwrap()).map(item).collect();
    let commit = Commit {
        by: Committer::Standalone,
        kind: CommitKind::Commit,
        items,
    };
    bench.send(Event::Commit(commit)).unwrap();
    bench
}

/// The event, then ticks until nothing is due; each decision is small enough.
fn forget(bench: &mut Bench, event: Event) -> usize {
    let mut event = Some(event);
    let mut decisions = 0;
    while event.is_some() || bench.group.next_deadline().is_some() {
        let before = bench.log.len();
        bench.send(event.take().unwrap_or(Event::Tick)).unwrap();
        let records = bench.log.len() - before;
        assert!(records <= limits::FORGOTTEN_AT_ONCE_MAX, "{records}");
        decisions += 1;
        assert!(decisions < 100, "it comes to an end");
    }
    decisions
}

/// Story: a group of very many partitions was not used for its retention. All of it at
/// once would fit no batch, and so it would stay for ever.
#[test]
fn a_group_of_very_many_offsets_expires_in_parts() {
    let mut bench = large();
    bench.now.wall.0 += 1_000;
    let decisions = forget(
        &mut bench,
        Event::Expire {
            retention_ms: 1_000,
        },
    );
    assert!(decisions > 1);
    assert!(bench.group.state().is_gone());
}

/// Story: between two parts somebody commits. What is left stays.
#[test]
fn a_group_that_is_used_again_keeps_what_is_left() {
    let mut bench = large();
    bench.now.wall.0 += 1_000;
    bench
        .send(Event::Expire {
            retention_ms: 1_000,
        })
        .unwrap();
    let left = bench.group.state().offsets().len();
    assert!(left > 1 && left < MANY);
    let last = u32::try_from(MANY).unwrap() - 1;
    let by = Committer::Standalone;
    bench.commit_as(by, CommitKind::Commit, last, 8).unwrap();
    forget(&mut bench, Event::Tick);
    assert_eq!(bench.group.state().offsets().len(), left);
}

#[test]
fn a_group_is_deleted_by_asking_until_it_is_done_and_goes_last() {
    let mut bench = large();
    let mut asked = 0;
    while bench.send(Event::DeleteGroup).unwrap() == Answer::More {
        assert!(!bench.group.state().is_gone());
        asked += 1;
    }
    assert!(asked > 0 && bench.group.state().is_gone());
}

#[test]
fn a_deleted_topic_of_very_many_partitions_goes_in_parts() {
    let mut bench = large();
    let ids = BTreeSet::from([topic_id(0)]);
    assert!(forget(&mut bench, Event::TopicsDeleted(ids)) > 1);
    assert!(bench.group.state().offsets().is_empty());
}

/// Story: a subscription finds more partitions than one decision can give. Its member
/// is told so when it comes, and not left without any for ever.
#[test]
fn a_subscription_that_no_decision_can_assign_is_refused() {
    let limit = Settings::default().decision_bytes / 64;
    let mut bench = Bench::new(limit + 1);
    let refused = bench.join_as(1, meta()).expect_err("too many");
    assert!(
        matches!(refused, Refusal::Limit { limit: most, actual, .. } if most == limit && actual == limit + 1),
        "{refused:?}"
    );
    assert!(bench.group.state().members().is_empty());
}

/// Story: the only member was lost before it had committed anything. What is kept about
/// its loss goes too, and the group after it.
#[test]
fn failures_without_offsets_are_forgotten_as_well() {
    let mut bench = Bench::new(MANY);
    bench.join(1);
    bench.pass(u64::from(Timeouts::default().session_ms), &[]);
    assert_eq!(bench.removed.len(), 1);
    let by = Committer::Standalone;
    for p in 0..10 {
        bench.commit_as(by, CommitKind::Commit, p, 3).unwrap();
    }
    bench.now.wall.0 += 1_000;
    forget(
        &mut bench,
        Event::Expire {
            retention_ms: 1_000,
        },
    );
    assert!(bench.group.state().is_gone());
    assert_eq!(bench.group.state().failures().len(), 0);
}
