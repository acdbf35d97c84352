//! Records that failed, and records that kill.

use super::*;

/// Story: a record that is tried again in place does not pass those before it, nor
/// their copies.
#[test]
pub(super) fn what_lies_before_a_blocked_record_is_not_passed_with_it() {
    let mut core = core(CoreConfig {
        block: true,
        commit_on_ack: true,
        ..config()
    });
    core.step(1, view(1, 1, vec![given(0, 1, Some(10))], &[]));
    core.step(2, sent(0, 10, 20));
    core.step(3, nack(0, 15));
    let effects = core.step(4, ack(0, 12));
    let [Request::Commit { offsets, .. }] = requests(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(offsets[0].offset, 12, "13 and 14 are in the member's hands");
}

/// Story: a record that killed three members becomes a dead letter unread, and
/// the next one follows.
#[test]
pub(super) fn a_deadly_record_is_buried_and_passed() {
    let mut core = core(config());
    let deadly = AssignedPartition {
        delivery: DeliveryMode::DeadLetter.into(),
        attempts: 3,
        reason: "crashed".into(),
        ..given(0, 1, Some(5))
    };
    let effects = core.step(1, view(1, 1, vec![deadly.clone()], &[]));
    let copies: Vec<&Copy> = effects
        .iter()
        .filter_map(|it| match it {
            Effect::Copy(copy) => Some(copy),
            _ => None,
        })
        .collect();
    let [copy] = copies[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(
        (copy.to, &*copy.reason),
        (Destination::DeadLetters(3), "crashed")
    );
    let copied = Event::Copied {
        copy: copy.clone(),
        result: Ok(6),
    };
    let effects = core.step(2, copied);
    let [Request::Commit { offsets, .. }] = requests(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(offsets[0].offset, 6);
    assert!(
        !effects.iter().any(|it| matches!(it, Effect::Copy(_))),
        "once"
    );
    core.step(3, stored(1));
    let effects = core.step(4, view(2, 1, vec![given(0, 1, Some(6))], &[]));
    assert!(matches!(
        effects[..],
        [Effect::Read {
            start: StartAt::Offset(6),
            ..
        }]
    ));
}

/// Story: retention takes the record that killed three members before it is
/// buried. The member hears of the gap, and the partition goes on.
#[test]
pub(super) fn a_deadly_record_that_is_gone_stalls_nothing() {
    let mut core = core(config());
    let deadly = AssignedPartition {
        delivery: DeliveryMode::DeadLetter.into(),
        attempts: 3,
        ..given(0, 1, Some(5))
    };
    let effects = core.step(1, view(1, 1, vec![deadly], &[]));
    let Some(Effect::Copy(copy)) = effects.last() else {
        panic!("{effects:?}")
    };
    let gone = Refusal::new(ErrorCode::OffsetOutOfRange, "gone").with_bounds(20, 90);
    let copied = Event::Copied {
        copy: copy.clone(),
        result: Err(gone),
    };
    let effects = core.step(2, copied);
    assert!(
        matches!(tells(&effects)[..], [Frame::Gap(gap)] if gap.to_offset == 20),
        "{effects:?}"
    );
    let [Request::Commit { offsets, .. }] = requests(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(offsets[0].offset, 20);
    assert!(core.step(3, stored(1)).is_empty(), "20 is not deadly");
    let effects = core.step(4, view(2, 1, vec![given(0, 1, Some(20))], &[]));
    assert!(matches!(
        effects[..],
        [Effect::Read {
            start: StartAt::Offset(20),
            ..
        }]
    ));
}

/// Story: from the second death on the new owner gets one record at a time.
#[test]
pub(super) fn one_by_one_waits_for_each_record() {
    let mut core = core(CoreConfig {
        commit_on_ack: true,
        ..config()
    });
    let careful = AssignedPartition {
        delivery: DeliveryMode::OneByOne.into(),
        attempts: 2,
        ..given(0, 1, Some(5))
    };
    core.step(1, view(1, 1, vec![careful], &[]));
    let effects = core.step(2, sent(0, 5, 6));
    assert!(matches!(effects[..], [Effect::Stop(_)]), "{effects:?}");
    let effects = core.step(3, ack(0, 6));
    assert!(effects.iter().any(|it| matches!(it, Effect::Read { .. })));
}

/// Story: `on_failure=block`: the failed record comes again after its back-off and
/// before those behind it; after the last attempt it is a dead letter.
#[test]
pub(super) fn a_blocked_record_waits_in_place() {
    let mut core = core(CoreConfig {
        block: true,
        ..config()
    });
    core.step(0, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    core.step(0, sent(0, 5, 8));
    let effects = core.step(0, nack(0, 5));
    assert!(matches!(effects[..], [Effect::Stop(_)]), "{effects:?}");
    assert!(
        core.step(999, Event::Tick).is_empty(),
        "its time is not over"
    );
    let effects = core.step(1_000, Event::Tick);
    assert!(
        matches!(
            effects[..],
            [Effect::Read {
                start: StartAt::Offset(5),
                generation: 2,
                ..
            }]
        ),
        "{effects:?}"
    );
    core.step(1_000, sent(0, 5, 6));
    core.step(1_000, nack(0, 5));
    core.step(3_000, Event::Tick);
    core.step(3_000, sent(0, 5, 6));
    let effects = core.step(3_000, nack(0, 5));
    assert!(
        matches!(&effects[..], [Effect::Copy(copy)] if copy.to == Destination::DeadLetters(3)),
        "{effects:?}"
    );
}

/// Story: a commit past a failed record waits until its copy is safe.
#[test]
pub(super) fn a_commit_waits_for_the_copy_below_it() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(0))], &[]));
    core.step(1, sent(0, 0, 10));
    let effects = core.step(2, nack(0, 3));
    let [Effect::Copy(copy)] = &effects[..] else {
        panic!("{effects:?}")
    };
    let effects = core.step(3, commit(7, 0, 10));
    assert!(requests(&effects).is_empty(), "the copy is not safe");
    let copied = Event::Copied {
        copy: copy.clone(),
        result: Ok(4),
    };
    let effects = core.step(4, copied);
    assert!(matches!(requests(&effects)[..], [Request::Commit { .. }]));
    let effects = core.step(5, stored(1));
    assert!(matches!(tells(&effects)[..], [Frame::Committed(it)] if it.commit_id == 7));
}

/// Story: in a compacted topic two failed records lie on both sides of a hole. Both
/// are copied; both are passed, and what is behind them is the member's still.
#[test]
pub(super) fn copied_records_pass_over_holes() {
    let mut core = core(CoreConfig {
        commit_on_ack: true,
        ..config()
    });
    core.step(0, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    core.step(1, sent_runs(0, &[5..6, 9..11], 12));
    let refused = core.step(2, nack(0, 7));
    assert!(
        matches!(tells(&refused)[..], [Frame::PartitionError(_)]),
        "there is no 7: {refused:?}"
    );
    let mut copied = |now, offset| {
        let effects = core.step(now, nack(0, offset));
        let [Effect::Copy(copy)] = &effects[..] else {
            panic!("{effects:?}")
        };
        let copy = copy.clone();
        let result = Ok(offset + 1);
        core.step(now, Event::Copied { copy, result })
    };
    let effects = copied(3, 5);
    let [Request::Commit { offsets, .. }] = requests(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(offsets[0].offset, 9, "the hole is passed with it");
    assert!(copied(4, 9).is_empty(), "one request at a time");
    let effects = core.step(5, stored(1));
    let [Request::Commit { offsets, .. }] = requests(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(offsets[0].offset, 10, "10 is in the member's hands");
}
