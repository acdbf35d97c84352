//! Whose word counts, and what followers are owed.

use super::*;

fn opened(epoch: i32, incarnation: u64, session: u64) -> Event<u32> {
    Event::FetchOpened(FetchOpened {
        node: OTHER,
        epoch: LeaderEpoch(epoch),
        incarnation: Incarnation(incarnation),
        session: SessionTag(session),
    })
}

fn said(node: NodeId, epoch: i32, incarnation: u64, session: u64) -> Event<u32> {
    Event::Reported(Report {
        node,
        epoch: LeaderEpoch(epoch),
        incarnation: Incarnation(incarnation),
        session: SessionTag(session),
        ends: ends(12, 12),
    })
}

/// Before each: (epoch 3, incarnation 5, session 5) has said 10.
#[test]
fn older_tags_are_dropped() {
    for (event, counts) in [
        (said(OTHER, 3, 5, 5), true),
        (said(OTHER, 3, 5, 6), true),
        (said(OTHER, 3, 5, 4), false),
        (said(OTHER, 3, 4, 9), false),
        (said(OTHER, 3, 6, 1), false),
        (said(OTHER, 2, 5, 5), false),
        (said(OTHER, 4, 5, 5), false),
        (said(NodeId(9), 3, 5, 5), false),
        (said(ME, 3, 5, 5), false),
    ] {
        let mut leader = leading(Durability::Replicated, &[ME, OTHER], 2);
        leader.step(NOW, opened(3, 5, 5));
        let Event::Reported(mut first) = said(OTHER, 3, 5, 5) else {
            unreachable!()
        };
        first.ends = ends(10, 10);
        leader.step(NOW, Event::Reported(first));
        leader.step(NOW, appended(12, &[]));
        let effects = leader.step(NOW, event.clone());
        assert_eq!(!effects.is_empty(), counts, "{event:?}");
        assert_eq!(leader.ends_of(NodeId(9)), None);
    }
}

#[test]
fn a_session_ends_the_ones_before_it() {
    let mut leader = leading(Durability::Replicated, &[ME, OTHER], 2);
    leader.step(NOW, appended(12, &[]));
    leader.step(NOW, reported(3, 1, 10, 10));
    leader.step(NOW, opened(3, 1, 2));
    assert_eq!(leader.step(NOW, reported(3, 1, 12, 12)), []);
    assert_eq!(leader.step(NOW, said(OTHER, 3, 1, 2)), [watermark(12)]);
}

/// Story: the last advance reaches a follower although no data follows.
#[test]
fn a_follower_is_owed_what_it_was_not_told() {
    let start = Offset(4);
    let mut leader = leading(Durability::Replicated, &[ME, OTHER], 2);
    assert_eq!(
        leader.owes_watermark(OTHER, start),
        None,
        "it does not fetch"
    );
    leader.step(NOW, opened(3, 1, 1));
    let (session, bounds) = leader.owes_watermark(OTHER, start).unwrap();
    assert_eq!(bounds.high_watermark, Some(Offset(10)));
    leader.set_told(OTHER, session, bounds);
    assert_eq!(leader.owed(start).count(), 0);
    assert_eq!(
        leader.owed(Offset(5)).collect::<Vec<_>>(),
        [OTHER],
        "log start"
    );
    leader.step(NOW, appended(12, &[]));
    assert_eq!(leader.owed(start).count(), 0);
    leader.step(NOW, reported(3, 1, 12, 12));
    let (_, bounds) = leader.owes_watermark(OTHER, start).unwrap();
    assert_eq!(bounds.high_watermark, Some(Offset(12)));
    leader.step(NOW, opened(3, 1, 2));
    leader.set_told(OTHER, session, bounds);
    assert!(
        leader.owes_watermark(OTHER, start).is_some(),
        "another session"
    );
    leader.fetch_closed(OTHER, SessionTag(2));
    assert_eq!(leader.owes_watermark(OTHER, start), None);
}

#[test]
fn a_leader_that_does_not_know_its_watermark_tells_none() {
    let settings = settings(Durability::Replicated, 2);
    let mut leader = Leader::<u32>::new(ME, settings);
    let Event::Lead(mut event) = lead(3, 10, &[ME, OTHER], settings) else {
        unreachable!()
    };
    event.high_watermark = Offset(6);
    leader.step(NOW, Event::Lead(event));
    assert_eq!(leader.bounds(Offset(0)).high_watermark, None);
    leader.step(NOW, reported(3, 1, 10, 10));
    assert_eq!(leader.bounds(Offset(0)).high_watermark, Some(Offset(10)));
}
