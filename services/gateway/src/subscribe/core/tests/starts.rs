//! Where reading begins, and begins again.

use super::*;

/// Story: the stored offset lies below the log start. The member hears what is
/// gone, and how much, before it goes on.
#[test]
pub(super) fn a_gap_is_told_before_records_follow() {
    let mut member = core(config());
    member.step(1, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    let refusal = || Refusal::new(ErrorCode::OffsetOutOfRange, "gone").with_bounds(20, 90);
    let stopped = || Event::Stopped {
        at: at(0),
        refusal: refusal(),
    };
    let effects = member.step(2, stopped());
    let [Frame::Gap(gap)] = tells(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(
        (gap.from_offset, gap.to_offset, gap.records_lost),
        (5, 20, 15)
    );
    assert!(matches!(requests(&effects)[..], [Request::Commit { .. }]));
    let effects = member.step(3, stored(1));
    assert!(effects.iter().any(|it| matches!(
        it,
        Effect::Read {
            start: StartAt::Offset(20),
            ..
        }
    )));
    let mut none = core(CoreConfig {
        policy: v1::ResetPolicy::None,
        ..config()
    });
    none.step(1, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    let effects = none.step(2, stopped());
    assert!(matches!(tells(&effects)[..], [Frame::PartitionError(_)]));
    assert!(none.step(3, Event::Tick).is_empty(), "nothing is read");
    let effects = none.step(4, seek(0, 20));
    assert!(matches!(effects[..], [Effect::Read { .. }]), "until a seek");
}

/// Story: a group begins at the end of a partition. Where that was is stored before
/// the first record goes out, so that the next owner does not begin at a later end
/// when this one dies with the record in its hands.
#[test]
pub(super) fn what_the_policy_chose_is_stored_before_records_follow() {
    let mut core = core(CoreConfig {
        policy: v1::ResetPolicy::Latest,
        ..config()
    });
    let effects = core.step(1, view(1, 1, vec![given(0, 1, None)], &[]));
    let begins = |it: &Effect| {
        matches!(
            it,
            Effect::Read {
                start: StartAt::Latest,
                ..
            }
        )
    };
    assert!(effects.iter().any(begins), "{effects:?}");
    let started = Event::Started {
        at: at(0),
        next: 70,
    };
    let effects = core.step(2, started);
    assert!(matches!(effects[0], Effect::Stop(_)), "{effects:?}");
    let [Request::Commit { seek, offsets }] = requests(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((*seek, offsets[0].offset), (false, 70));
    // A coordinator that is away holds the beginning back.
    let refused = Event::Answered(Err(Refusal::unavailable("later")));
    assert!(core.step(3, refused).is_empty());
    let effects = core.step(1_000, Event::Tick);
    assert!(matches!(requests(&effects)[..], [Request::Commit { .. }]));
    let effects = core.step(1_001, stored(1));
    assert!(
        matches!(
            effects[..],
            [Effect::Read {
                start: StartAt::Offset(70),
                ..
            }]
        ),
        "{effects:?}"
    );
    core.step(1_002, sent(0, 70, 71));
    assert_eq!(core.in_flight(), [at(0)]);
}

/// Story: retention passed the position of a group that begins at the end. The
/// position after the gap is stored too; what the member still holds goes first.
#[test]
pub(super) fn the_position_after_a_gap_is_stored() {
    let mut core = core(CoreConfig {
        policy: v1::ResetPolicy::Latest,
        commit_on_ack: true,
        ..config()
    });
    core.step(1, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    core.step(2, sent(0, 5, 6));
    let refusal = Refusal::new(ErrorCode::OffsetOutOfRange, "gone").with_bounds(20, 90);
    let effects = core.step(3, Event::Stopped { at: at(0), refusal });
    assert!(
        matches!(tells(&effects)[..], [Frame::Gap(_)]),
        "{effects:?}"
    );
    assert!(requests(&effects).is_empty(), "5 is in the member's hands");
    let reads = |effects: &[Effect]| effects.iter().any(|it| matches!(it, Effect::Read { .. }));
    assert!(
        !reads(&effects),
        "nothing is sent that a later owner would skip"
    );
    let effects = core.step(4, ack(0, 6));
    let [Request::Commit { offsets, .. }] = requests(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(offsets[0].offset, 90);
}

#[test]
pub(super) fn without_an_offset_and_without_a_policy_nothing_begins() {
    let mut core = core(CoreConfig {
        policy: v1::ResetPolicy::None,
        ..config()
    });
    let effects = core.step(1, view(1, 1, vec![given(0, 1, None)], &[]));
    let told = tells(&effects);
    assert!(matches!(
        told[..],
        [Frame::Assigned(_), Frame::PartitionError(_)]
    ));
    assert!(!effects.iter().any(|it| matches!(it, Effect::Read { .. })));
}

/// Story: after a change of leader the position moved over a placeholder of the new
/// epoch. Reading goes on without a claim about the old one, which would look like
/// a log that was cut back.
#[test]
pub(super) fn the_last_epoch_is_claimed_only_where_its_batch_ends() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    core.step(1, sent(0, 5, 8));
    let pause = |paused: bool| {
        let partitions = vec![position(0, 0)];
        Event::Client(if paused {
            Ask::Pause(v1::SubscribePause { partitions })
        } else {
            Ask::Resume(v1::SubscribeResume { partitions })
        })
    };
    let mut claimed = |now| {
        core.step(now, pause(true));
        let effects = core.step(now, pause(false));
        let [Effect::Read { last_epoch, .. }] = effects[..] else {
            panic!("{effects:?}")
        };
        let (at, next) = (at(0), 9);
        core.step(now, Event::Advanced { at, next });
        last_epoch
    };
    assert_eq!((claimed(2), claimed(3)), (1, -1));
}

/// Story: a member seeks far beyond the end and commits at once. The coordinator is
/// not told that this was delivered, so that it asks the leader for the bounds; once
/// a leader has begun there, it is.
#[test]
pub(super) fn a_seek_is_delivered_only_when_a_leader_begins_there() {
    let claimed = |core: &mut Core, now, id| {
        let effects = core.step(now, commit(id, 0, 1_000_000));
        let [Request::Commit { seek, offsets }] = requests(&effects)[..] else {
            panic!("{effects:?}")
        };
        let claimed = (*seek, offsets[0].delivered);
        let refusal = Refusal::new(ErrorCode::OffsetOutOfRange, "beyond").with_bounds(0, 10);
        let refused = CommitResult {
            error: Some(refusal.detail()),
            ..Default::default()
        };
        let effects = core.step(now, Event::Answered(Ok(Answer::Committed(vec![refused]))));
        let [Frame::Committed(answer)] = tells(&effects)[..] else {
            panic!("{effects:?}")
        };
        let code = answer.error.as_ref().map(|it| it.code);
        assert_eq!(code, Some(ErrorCode::OffsetOutOfRange as i32));
        claimed
    };
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    core.step(1, seek(0, 1_000_000));
    assert_eq!(claimed(&mut core, 2, 1), (true, false));
    let next = 1_000_000;
    core.step(3, Event::Started { at: at(0), next });
    assert_eq!(claimed(&mut core, 4, 2), (true, true));
}
