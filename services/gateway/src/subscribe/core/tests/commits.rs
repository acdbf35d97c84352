//! Explicit commits that wait for their turn.

use super::*;

/// A member with two partitions that was sent ten records of each.
fn reading() -> Core {
    let mut core = core(config());
    let assigned = vec![given(0, 1, Some(0)), given(1, 1, Some(0))];
    core.step(0, view(1, 1, assigned, &[]));
    for partition in 0..2 {
        core.step(1, sent(partition, 0, 10));
    }
    core
}

/// Partition and offset of each that is to be stored.
fn storing(effects: &[Effect]) -> Vec<(u32, i64)> {
    let asked = requests(effects).into_iter().find_map(|it| match it {
        Request::Commit { offsets, .. } => Some(offsets),
        _ => None,
    });
    let asked = asked.into_iter().flatten();
    asked.map(|it| (it.partition, it.offset)).collect()
}

/// The commits that are answered, what is stored of each, and whether one was refused.
fn answers(effects: &[Effect]) -> Vec<(u64, Vec<i64>, bool)> {
    let answer = |frame: &&Frame| match frame {
        Frame::Committed(it) => {
            let offsets = it.offsets.iter().map(|it| it.offset).collect();
            Some((it.commit_id, offsets, it.error.is_some()))
        }
        _ => None,
    };
    tells(effects).iter().filter_map(answer).collect()
}

/// Story: a member commits after each record, faster than the log takes one append after
/// the other. It is never behind by more than one.
#[test]
fn commits_that_wait_go_together() {
    let mut core = reading();
    assert_eq!(storing(&core.step(2, commit(1, 0, 1))), [(0, 1)]);
    for (id, partition, offset) in [(2, 0, 2), (3, 1, 4), (4, 0, 3), (5, 0, 3)] {
        assert_eq!(storing(&core.step(3, commit(id, partition, offset))), []);
    }
    let effects = core.step(4, stored(1));
    assert_eq!(answers(&effects), [(1, vec![1], false)]);
    assert_eq!(storing(&effects), [(0, 3), (1, 4)]);
    let effects = core.step(5, stored(2));
    let each = [
        (2, vec![2], false),
        (3, vec![4], false),
        (4, vec![3], false),
        (5, vec![3], false),
    ];
    assert_eq!(answers(&effects), each);
    assert!(core.is_idle());
}

/// One that would go back waits for its own turn, and has its own answer.
#[test]
fn a_commit_that_goes_back_is_refused_alone() {
    let mut core = reading();
    core.step(2, commit(1, 0, 1));
    for (id, offset) in [(2, 5), (3, 4), (4, 6)] {
        core.step(3, commit(id, 0, offset));
    }
    assert_eq!(storing(&core.step(4, stored(1))), [(0, 5)]);
    let effects = core.step(5, stored(1));
    let expected = [(2, vec![5], false), (3, vec![], true)];
    assert_eq!(answers(&effects), expected);
    assert_eq!(storing(&effects), [(0, 6)]);
}

/// What the coordinator refuses of one partition is nothing to those of another.
#[test]
fn a_refused_offset_is_told_to_whom_it_belongs() {
    let mut core = reading();
    core.step(2, commit(1, 0, 1));
    for (id, partition, offset) in [(2, 0, 2), (3, 1, 4), (4, 0, 3)] {
        core.step(3, commit(id, partition, offset));
    }
    core.step(4, stored(1));
    let refused = CommitResult {
        error: Some(Refusal::new(ErrorCode::UnknownTopic, "it is gone").detail()),
        ..Default::default()
    };
    let results = vec![refused, CommitResult::default()];
    let effects = core.step(5, Event::Answered(Ok(Answer::Committed(results))));
    let each = [(2, vec![], true), (3, vec![4], false), (4, vec![], true)];
    assert_eq!(answers(&effects), each);
}
