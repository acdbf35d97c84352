//! Partitions that come and go, commits, time and topics.

use super::*;
use talweg_proto::coordinator::v1::RemovalReason;

/// Story: two members; one is asked a partition back while it works on a record.
/// It is given up after the answer, not before, and what was done is stored first.
#[test]
pub(super) fn a_partition_is_given_up_when_its_records_are_done() {
    let mut core = core(CoreConfig {
        commit_on_ack: true,
        ..config()
    });
    core.step(1, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    core.step(2, sent(0, 5, 6));
    let effects = core.step(3, view(2, 1, vec![], &[0]));
    assert!(matches!(tells(&effects)[..], [Frame::Revoking(_)]));
    assert!(matches!(effects[..], [_, Effect::Stop(_)]), "{effects:?}");
    let effects = core.step(4, ack(0, 6));
    assert!(matches!(requests(&effects)[..], [Request::Commit { .. }]));
    let effects = core.step(5, stored(1));
    assert_eq!(requests(&effects), [&Request::Revoked(vec![at(0)])]);
}

/// Story: a client that commits another partition without a pause still gives up
/// what it is asked for.
#[test]
pub(super) fn commits_elsewhere_do_not_hold_a_partition_back() {
    let mut core = core(config());
    core.step(
        1,
        view(1, 1, vec![given(0, 1, Some(5)), given(1, 1, Some(5))], &[]),
    );
    core.step(2, sent(1, 5, 9));
    core.step(3, commit(1, 1, 6));
    core.step(4, commit(2, 1, 7));
    let effects = core.step(5, view(2, 1, vec![given(1, 1, Some(5))], &[0]));
    assert!(requests(&effects).is_empty(), "the first commit is out");
    core.step(6, commit(3, 1, 8));
    let effects = core.step(7, stored(1));
    assert_eq!(requests(&effects), [&Request::Revoked(vec![at(0)])]);
}

#[test]
pub(super) fn nothing_in_hand_is_given_up_at_once() {
    let mut core = core(config());
    core.step(1, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    let effects = core.step(3, view(2, 1, vec![], &[0]));
    assert_eq!(requests(&effects), [&Request::Revoked(vec![at(0)])]);
}

#[test]
pub(super) fn what_was_not_sent_is_not_stored() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(0))], &[]));
    core.step(1, sent(0, 0, 10));
    for (event, code) in [
        (commit(1, 0, 11), ErrorCode::OffsetOutOfRange),
        (commit(2, 0, -1), ErrorCode::OffsetOutOfRange),
        (commit(3, 1, 0), ErrorCode::Fenced),
    ] {
        let effects = core.step(2, event);
        let [Frame::Committed(answer)] = tells(&effects)[..] else {
            panic!("{effects:?}")
        };
        assert_eq!(answer.error.as_ref().expect("refused").code, code as i32);
        assert!(requests(&effects).is_empty());
    }
}

/// Story: a client that is stopped sends nothing; the coordinator hears nothing
/// of it either, and its session runs out. One that lives is heard of in time.
#[test]
pub(super) fn the_coordinator_hears_of_a_client_that_lives() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![], &[]));
    assert_eq!(core.next_deadline(), None, "silence is not passed on");
    let beat = || Event::Client(Ask::Heartbeat(v1::Heartbeat { time_ms: 0 }));
    core.step(100, beat());
    assert_eq!(core.next_deadline(), Some(2_500));
    let effects = core.step(2_500, Event::Tick);
    assert_eq!(requests(&effects), [&Request::Heartbeat]);
    core.step(2_600, Event::Answered(Ok(Answer::Done)));
    assert!(
        core.step(60_000, Event::Nudged).is_empty(),
        "silent too long"
    );
}

/// Story: a delivery that takes too long is told once.
#[test]
pub(super) fn a_hanging_delivery_overruns_once() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(0))], &[]));
    core.step(1, sent(0, 0, 2));
    core.step(2, ack(0, 1));
    assert_eq!(core.next_deadline(), Some(2_500));
    let effects = core.step(60_002, Event::Tick);
    assert!(requests(&effects).contains(&&Request::Overran(vec![at(0)])));
    core.step(60_003, Event::Answered(Ok(Answer::Done)));
    let effects = core.step(200_000, Event::Tick);
    assert!(!requests(&effects).contains(&&Request::Overran(vec![at(0)])));
}

/// Story: a member that was replaced hears why, and everything it still says is
/// in vain.
#[test]
pub(super) fn a_removed_member_is_fenced() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(0))], &[]));
    core.step(1, sent(0, 0, 2));
    let removed = Event::Removed(MemberRemoved {
        reason: RemovalReason::SessionExpired.into(),
        ..Default::default()
    });
    let effects = core.step(2, removed);
    let [
        Effect::End {
            refusal: Some(refusal),
            ..
        },
    ] = &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!(refusal.code, ErrorCode::Fenced);
    assert!(core.step(3, commit(1, 0, 2)).is_empty());
}

/// Story: a retry topic appears and the member joins again for it; what it reads
/// goes on without a repeat.
#[test]
pub(super) fn joining_again_moves_nothing() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(0))], &[]));
    core.step(1, sent(0, 0, 9));
    let topics = vec!["t".to_owned(), "t.g.retry.1".to_owned()];
    let effects = core.step(2, Event::Topics(topics.clone().into()));
    assert_eq!(requests(&effects), [&Request::Rejoin(topics)]);
    let Event::View(again) = view(2, 4, vec![given(0, 4, Some(0)), given(1, 4, None)], &[]) else {
        unreachable!()
    };
    let effects = core.step(3, Event::Answered(Ok(Answer::View(again))));
    let reads: Vec<_> = effects
        .iter()
        .filter_map(|it| match it {
            Effect::Read { at, .. } => Some(at.partition.0),
            _ => None,
        })
        .collect();
    assert_eq!(reads, [1], "only what is new");
    assert_eq!(core.epoch(), 4);
}

/// Story: a retry topic appears while the join for another one is under way, and
/// then that join fails: the coordinator hears of both in the end.
#[test]
pub(super) fn topics_that_appear_during_a_join_are_joined_after_it() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(0))], &[]));
    let names = |some: &[&str]| -> Vec<String> { some.iter().map(|it| (*it).into()).collect() };
    let (one, two) = (names(&["t", "r1"]), names(&["t", "r1", "r2"]));
    let effects = core.step(1, Event::Topics(one.clone().into()));
    assert_eq!(requests(&effects), [&Request::Rejoin(one)]);
    assert!(core.step(2, Event::Topics(two.clone().into())).is_empty());
    let answer = |sequence, epoch| match view(sequence, epoch, vec![], &[]) {
        Event::View(view) => Event::Answered(Ok(Answer::View(view))),
        _ => unreachable!(),
    };
    let effects = core.step(3, answer(2, 2));
    assert_eq!(requests(&effects), [&Request::Rejoin(two.clone())]);
    let refused = Event::Answered(Err(Refusal::unavailable("later")));
    assert!(core.step(4, refused).is_empty(), "not at once");
    assert_eq!(core.next_deadline(), Some(1_004));
    let effects = core.step(1_004, Event::Tick);
    assert_eq!(requests(&effects), [&Request::Rejoin(two)]);
    let effects = core.step(1_005, answer(3, 3));
    assert!(requests(&effects).is_empty(), "all of them are known");
}

/// Story: a retry topic appears and the coordinator will never have the member with it,
/// or there is no room for it. The client and the operator hear so, once.
#[test]
fn a_retry_topic_that_is_not_read_is_said() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(0))], &[]));
    let said = |effects: &[Effect]| -> Vec<i32> {
        let warned = effects.iter().filter(|it| matches!(it, Effect::Warn(_)));
        let told = tells(effects).into_iter().filter_map(|it| match it {
            Frame::PartitionError(error) => error.error.as_ref().map(|it| it.code),
            _ => None,
        });
        let told: Vec<_> = told.collect();
        assert_eq!(warned.count(), told.len());
        told
    };
    let names = vec!["t".to_owned(), "t.g.retry.1".to_owned()];
    core.step(1, Event::Topics(names.clone().into()));
    let refused = || Event::Answered(Err(Refusal::invalid("topics", "too many partitions")));
    let effects = core.step(2, refused());
    assert_eq!(said(&effects), [ErrorCode::InvalidArgument as i32]);
    let again = core.next_deadline().expect("tried again");
    core.step(again, Event::Tick);
    let effects = core.step(again + 1, refused());
    assert!(said(&effects).is_empty(), "said already");
    let wanted = |left_out| {
        Event::Topics(Wanted {
            names: names.clone(),
            left_out,
        })
    };
    let limit = ErrorCode::LimitExceeded as i32;
    let now = again + 2;
    assert_eq!(said(&core.step(now, wanted(2))), [limit]);
    assert!(said(&core.step(now, wanted(2))).is_empty());
    assert_eq!(said(&core.step(now, wanted(3))), [limit], "one more");
}

/// Story: a commit waits behind another one, whose copy is under way. Meanwhile the
/// member seeks back, and what it acknowledges there is stored: the commit of before
/// the seek must not undo that.
#[test]
pub(super) fn a_commit_of_before_a_seek_is_not_stored_after_it() {
    let mut core = core(CoreConfig {
        commit_on_ack: true,
        ..config()
    });
    let both = vec![given(0, 1, Some(0)), given(1, 1, Some(0))];
    core.step(0, view(1, 1, both, &[]));
    core.step(1, sent(0, 0, 10));
    core.step(1, sent(1, 0, 10));
    let effects = core.step(2, nack(0, 3));
    let [Effect::Copy(copy)] = &effects[..] else {
        panic!("{effects:?}")
    };
    let copied = Event::Copied {
        copy: copy.clone(),
        result: Ok(4),
    };
    core.step(3, commit(7, 0, 10));
    assert!(core.step(3, commit(8, 1, 10)).is_empty(), "both wait");
    core.step(4, seek(1, 0));
    core.step(5, sent(1, 0, 2));
    let effects = core.step(6, ack(1, 1));
    let [Request::Commit { seek: true, .. }] = requests(&effects)[..] else {
        panic!("{effects:?}")
    };
    core.step(7, stored(1));
    let effects = core.step(8, copied);
    assert!(matches!(requests(&effects)[..], [Request::Commit { .. }]));
    let effects = core.step(9, stored(1));
    let [Frame::Committed(first), Frame::Committed(second)] = tells(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((first.commit_id, second.commit_id), (7, 8));
    assert!(first.error.is_none() && second.error.is_some());
    assert!(requests(&effects).is_empty());
}

/// Story: a commit comes late, behind a higher one.
#[test]
pub(super) fn only_a_seek_goes_back() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(0))], &[]));
    core.step(1, sent(0, 0, 10));
    core.step(2, commit(1, 0, 8));
    core.step(3, stored(1));
    let effects = core.step(4, commit(2, 0, 5));
    let [Frame::Committed(answer)] = tells(&effects)[..] else {
        panic!("{effects:?}")
    };
    let code = answer.error.as_ref().map(|it| it.code);
    assert_eq!(code, Some(ErrorCode::BelowCommitted as i32));
    core.step(5, seek(0, 5));
    let effects = core.step(6, commit(3, 0, 5));
    assert!(matches!(
        requests(&effects)[..],
        [Request::Commit { seek: true, .. }]
    ));
}

/// Story: a partition was taken away; what a coordinator said before arrives late
/// and does not bring it back.
#[test]
pub(super) fn an_old_view_changes_nothing() {
    let mut core = core(config());
    core.step(0, view(5, 2, vec![], &[]));
    let effects = core.step(1, view(4, 1, vec![given(0, 1, Some(0))], &[]));
    assert!(effects.is_empty(), "{effects:?}");
}
