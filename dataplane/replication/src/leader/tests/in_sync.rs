//! Who leaves and returns, and what holds the watermark meanwhile.

use super::*;

fn at(ms: u64) -> MonotonicMs {
    MonotonicMs(ms)
}

fn refused(id: u64, partition_epoch: i64) -> Event<u32> {
    Event::ProposalRefused {
        id: ProposalId(id),
        partition_epoch: PartitionEpoch(partition_epoch),
    }
}

/// Leads in epoch 3 from offset 10 on with the other in the set, which stands there.
fn pair(rf: u32) -> Leader<u32> {
    let mut leader = leading(Durability::Replicated, &[ME, OTHER], rf);
    leader.step(NOW, reported(3, 1, 10, 10));
    leader
}

/// Leads alone, with the watermark at 10, and nothing asked.
fn alone(rf: u32) -> Leader<u32> {
    leading(Durability::Replicated, &[ME], rf)
}

#[test]
fn a_follower_lags_when_it_has_not_stood_at_the_end_for_long() {
    let mut leader = pair(2);
    leader.step(at(1_000), appended(12, &[]));
    leader.step(at(2_000), reported(3, 1, 12, 12));
    assert_eq!(leader.lagging(at(99_000), 10_000), [], "it stands there");
    leader.step(at(5_000), appended(13, &[]));
    leader.step(at(6_000), reported(3, 1, 12, 12));
    assert_eq!(leader.lagging(at(15_000), 10_000), []);
    assert_eq!(leader.lagging(at(15_001), 10_000), [OTHER]);
    assert_eq!(leader.next_tick(), Some(at(15_001)));
}

/// Story: nothing is written, and a follower's fetching is cut off. It leaves a
/// lag time after it was last heard, does not return by itself, and returns when
/// it fetches again.
#[test]
fn a_follower_that_fetches_no_more_lags_wherever_it_stands() {
    let mut leader = pair(2);
    let ended = |session| {
        Event::FetchEnded(FetchEnded {
            node: OTHER,
            incarnation: Incarnation(1),
            session: SessionTag(session),
            heard: at(5_000),
        })
    };
    let report = reported(3, 1, 10, 10);
    let Event::Reported(Report { session, .. }) = report else {
        panic!("a report");
    };
    leader.step(at(8_000), ended(session.0 + 1));
    assert_eq!(leader.next_tick(), None, "of another session");
    leader.step(at(8_000), ended(session.0));
    assert_eq!(leader.lagging(at(15_000), 10_000), []);
    assert_eq!(leader.next_tick(), Some(at(15_001)));
    let shrink = leader.step(at(15_001), Event::Tick);
    assert_eq!(shrink, [asked(1, 1, &[(ME, Some(7))])]);
    leader.step(at(15_002), confirmed(2, &[ME]));
    assert_eq!(
        leader.step(at(30_000), Event::Tick),
        [],
        "it stands there, and is gone"
    );
    let opened = FetchOpened {
        node: OTHER,
        epoch: LeaderEpoch(3),
        incarnation: Incarnation(1),
        session: SessionTag(session.0 + 1),
    };
    leader.step(at(30_001), Event::FetchOpened(opened));
    let growth = leader.step(at(30_002), Event::Tick);
    assert_eq!(growth, [asked(2, 2, &[(ME, Some(7)), (OTHER, Some(1))])]);
}

/// Story: under load a follower never stands at the end, but always reaches
/// where the end was.
#[test]
fn reaching_the_end_as_of_an_earlier_report_counts() {
    let mut leader = pair(2);
    for round in 1..40 {
        let (now, end) = (at(1_000 * round), 10 + i64::try_from(round).unwrap());
        leader.step(now, appended(end, &[]));
        leader.step(now, reported(3, 1, end - 1, 0));
        assert_eq!(leader.lagging(now, 2_500), [], "round {round}");
    }
}

#[test]
fn a_member_that_has_never_spoken_lags_since_the_epoch_began() {
    let mut leader = leading(Durability::Replicated, &[ME, OTHER], 2);
    assert_eq!(leader.step(at(11_000), Event::Tick), []);
    assert_eq!(
        leader.step(at(11_001), Event::Tick),
        [asked(1, 1, &[(ME, Some(7))])]
    );
    assert_eq!(leader.next_tick(), None, "one question at a time");
    assert_eq!(leader.step(at(99_000), Event::Tick), []);
}

/// Story: until the controller has answered, both sets hold the watermark.
#[test]
fn old_and_proposed_hold_the_watermark() {
    let mut leader = pair(2);
    leader.step(NOW, appended(12, &[(Acks::All, 12, 1)]));
    let shrink = leader.step(at(20_000), Event::Tick);
    assert_eq!(shrink, [asked(1, 1, &[(ME, Some(7))])]);
    assert_eq!(leader.high_watermark(), Offset(10), "the old set holds");
    assert_eq!(
        leader.step(at(20_001), confirmed(2, &[ME])),
        [watermark(12), done(1, 1, 0)]
    );
    let growth = leader.step(at(20_002), reported(3, 1, 12, 0));
    assert_eq!(growth, [asked(2, 2, &[(ME, Some(7)), (OTHER, Some(1))])]);
    assert_eq!(leader.step(at(20_003), appended(15, &[])), []);
    assert_eq!(
        leader.high_watermark(),
        Offset(12),
        "the proposed set holds"
    );
    let refused = refused(2, 2);
    assert_eq!(leader.step(at(20_004), refused), [watermark(15)]);
    assert_eq!(
        leader.step(at(20_050), reported(3, 1, 15, 0)),
        [],
        "not before"
    );
    assert_eq!(leader.next_tick(), Some(at(20_104)));
    assert_eq!(
        leader.step(at(20_104), Event::Tick),
        [asked(3, 2, &[(ME, Some(7)), (OTHER, Some(1))])]
    );
}

/// Story: a question without an answer may be granted at any later time.
#[test]
fn what_is_in_doubt_holds_until_the_partition_epoch_moves() {
    let mut leader = alone(2);
    leader.step(NOW, reported(3, 1, 10, 10));
    let lost = Event::ProposalTimedOut { id: ProposalId(1) };
    assert_eq!(leader.step(NOW, lost), []);
    leader.step(NOW, appended(12, &[]));
    assert_eq!(leader.high_watermark(), Offset(10));
    let again = leader.step(at(1_100), Event::Tick);
    assert_eq!(again, [asked(2, 1, &[(ME, Some(7)), (OTHER, Some(1))])]);
    let old = refused(1, 1);
    assert_eq!(
        leader.step(at(1_100), old),
        [],
        "an answer to another question"
    );
    let refused = refused(2, 1);
    assert_eq!(
        leader.step(at(1_100), refused),
        [],
        "the first may be granted yet"
    );
    assert_eq!(leader.high_watermark(), Offset(10));
    assert_eq!(
        leader.step(at(1_200), confirmed(2, &[ME])),
        [watermark(12)],
        "now it cannot"
    );
}

#[test]
fn words_about_other_epochs_and_without_the_leader_are_ignored() {
    let mut leader = pair(2);
    leader.step(NOW, appended(12, &[]));
    let of_epoch = |epoch| {
        Event::InSyncChanged(InSync {
            epoch: LeaderEpoch(epoch),
            partition_epoch: PartitionEpoch(9),
            members: [ME].into(),
        })
    };
    for event in [
        confirmed(1, &[ME]),
        confirmed(0, &[ME]),
        confirmed(9, &[OTHER]),
        of_epoch(2),
        of_epoch(4),
    ] {
        assert_eq!(leader.step(NOW, event), []);
        assert_eq!(leader.in_sync(), &[ME, OTHER].into());
        assert_eq!(leader.partition_epoch(), PartitionEpoch(1));
    }
}

/// Story: the question came twice, was granted, and then refused as stale.
#[test]
fn a_refusal_at_a_higher_partition_epoch_leaves_it_open() {
    let mut leader = alone(2);
    leader.step(NOW, reported(3, 1, 10, 10));
    leader.step(NOW, appended(12, &[]));
    assert_eq!(leader.step(NOW, refused(1, 2)), []);
    assert_eq!(leader.high_watermark(), Offset(10), "the other may be in");
    assert_eq!(leader.step(NOW, confirmed(2, &[ME, OTHER])), []);
    assert_eq!(leader.step(NOW, reported(3, 1, 12, 0)), [watermark(12)]);
}

/// Rows: (minimum met, watermark stored, reports) → asks with the last of them.
#[test]
fn a_follower_returns_at_the_watermark_and_the_epoch_start() {
    for (rf, stored, reports, expected) in [
        (2, 10, &[9][..], false),
        (2, 10, &[10], true),
        (2, 6, &[6, 9], false),
        (2, 6, &[6, 10], true),
        // Below the minimum: also the end (12) as of its report before.
        (3, 10, &[10], false),
        (3, 10, &[11, 11], false),
        (3, 10, &[10, 12], true),
    ] {
        let settings = settings(Durability::Replicated, rf);
        let mut leader = Leader::<u32>::new(ME, settings);
        let Event::Lead(mut event) = lead(3, 10, &[ME, THIRD], settings) else {
            unreachable!()
        };
        event.high_watermark = Offset(stored);
        if rf == 3 {
            event.in_sync = [ME].into();
        }
        leader.step(NOW, Event::Lead(event));
        leader.step(NOW, appended(12, &[]));
        let (last, before) = reports.split_last().unwrap();
        for end in before {
            assert_eq!(leader.step(NOW, reported(3, 1, *end, 0)), []);
        }
        let effects = leader.step(NOW, reported(3, 1, *last, 0));
        let asks = matches!(effects[..], [Effect::ProposeInSync(_)]);
        assert_eq!(asks, expected, "{rf} {stored} {reports:?}");
    }
}

/// Story: a process that has come back with less speaks before the controller
/// has said that the old one is gone.
#[test]
fn a_new_process_of_a_member_counts_once_the_old_one_has_left() {
    let mut leader = pair(2);
    leader.step(NOW, appended(12, &[]));
    assert_eq!(leader.step(NOW, reported(3, 2, 5, 5)), []);
    assert_eq!(leader.ends_of(OTHER), Some(ends(10, 10)));
    assert_eq!(leader.step(NOW, confirmed(2, &[ME])), [watermark(12)]);
    assert_eq!(leader.ends_of(OTHER), Some(ends(5, 5)));
    assert_eq!(leader.step(NOW, reported(3, 1, 12, 12)), [], "the old one");
    assert_eq!(leader.ends_of(OTHER), Some(ends(5, 5)));
}
