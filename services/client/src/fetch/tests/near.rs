//! Readers with a rack: moved to a follower near by, and back.

use super::*;

/// A reader of rack `r1` at its leader, node 1, which told offset 3 of 1,000.
fn at_the_leader(routes: &Map) -> (FetchCore, LinkId, v1::FetchPartition) {
    let mut core = core_of("r1");
    core.add(interest(0, StartAt::Latest));
    let (link, request) = reading(&mut core, routes, 0);
    assert_eq!(
        request.start,
        Some(Start::Latest(true)),
        "the leader knows the end"
    );
    core.on_frame(link, data(&request, 0, 3), 1);
    assert_eq!(offsets(&core.take_events()), [3]);
    (core, link, request)
}

/// The same reader, moved to node 2.
fn at_the_follower(routes: &Map) -> (FetchCore, LinkId, v1::FetchPartition) {
    *routes.near.lock() = Some(node(2));
    let (mut core, leader, request) = at_the_leader(routes);
    let (links, ..) = pump(&mut core, routes, 2);
    core.on_frame(leader, data(&request, 3, 1), 3);
    assert_eq!(
        offsets(&core.take_events()),
        [4],
        "the leader serves meanwhile"
    );
    core.on_frame(links[0], opened(), 4);
    let (_, sent, _) = pump(&mut core, routes, 4);
    let moved = added(&sent).remove(0);
    assert_eq!(
        (moved.start, moved.last_epoch),
        (Some(Start::Offset(4)), Some(7))
    );
    let removes = sent.iter().any(|(link, frame)| {
        *link == leader
            && matches!(frame, fetch_request::Frame::Update(update) if update.remove.len() == 1)
    });
    assert!(removes, "the leader is asked no more: {sent:?}");
    core.on_frame(leader, data(&request, 4, 1), 5);
    assert!(core.take_events().is_empty(), "a late voice");
    core.on_frame(links[0], data(&moved, 4, 2), 6);
    assert_eq!(offsets(&core.take_events()), [6]);
    (core, links[0], moved)
}

/// Bounds that a follower hears of later do not step back for the client.
#[test]
fn what_was_told_never_steps_back() {
    let routes = Map::new([(0, Route::To(node(1)))]);
    let (mut core, link, request) = at_the_follower(&routes);
    let mut behind = position(&request, 6);
    (behind.high_watermark, behind.log_start_offset) = (7, 0);
    let positions = vec![behind];
    let frame = Frame::Positions(v1::FetchPositions {
        positions,
        credit_left: None,
    });
    core.on_frame(link, frame, 7);
    let events = core.take_events();
    assert!(
        matches!(&events[..], [FetchEvent::Position(it)] if it.high_watermark == 1_000),
        "{events:?}"
    );
}

/// Whatever ails the follower, the leader is asked at once, from where the
/// reader stands, and the client hears nothing.
#[test]
fn the_leader_has_the_last_word() {
    for code in [
        ErrorCode::NotLeader,
        ErrorCode::OffsetNotAvailable,
        ErrorCode::OffsetOutOfRange,
        ErrorCode::DataDamaged,
        ErrorCode::UnknownTopic,
    ] {
        let routes = Map::new([(0, Route::To(node(1)))]);
        let (mut core, link, request) = at_the_follower(&routes);
        core.on_frame(link, error(&request, code), 10);
        assert!(core.take_events().is_empty(), "{code:?}");
        let (_, sent, _) = pump(&mut core, &routes, 10);
        let back = added(&sent).remove(0);
        assert_eq!(back.start, Some(Start::Offset(6)), "{code:?}");
        // Not again at once, but after a while.
        let (_, sent, _) = pump(&mut core, &routes, 11);
        assert!(added(&sent).is_empty());
        core.tick(6_000);
        let (_, sent, _) = pump(&mut core, &routes, 6_000);
        assert_eq!(
            added(&sent).len(),
            1,
            "{code:?}: the follower is tried again"
        );
    }
}

#[test]
fn a_follower_that_dies_or_leaves_the_set_is_left() {
    let routes = Map::new([(0, Route::To(node(1)))]);
    let (mut core, link, _) = at_the_follower(&routes);
    core.on_ended(link, Some(Refusal::unavailable("killed")), 10);
    let (_, sent, _) = pump(&mut core, &routes, 10);
    assert_eq!(added(&sent)[0].start, Some(Start::Offset(6)));
    assert!(core.take_events().is_empty());

    let (mut core, link, request) = at_the_follower(&routes);
    *routes.near.lock() = None;
    core.on_routes_changed();
    let (_, sent, _) = pump(&mut core, &routes, 10);
    assert_eq!(added(&sent)[0].start, Some(Start::Offset(6)));
    core.on_frame(link, data(&request, 6, 1), 11);
    assert!(core.take_events().is_empty(), "a late voice");
}

/// The follower becomes the leader: the same stream, asked anew.
#[test]
fn a_follower_that_is_elected_serves_on() {
    let routes = Map::new([(0, Route::To(node(1)))]);
    let (mut core, link, _) = at_the_follower(&routes);
    *routes.near.lock() = None;
    routes.set(0, Route::To(node(2)));
    core.on_routes_changed();
    let (_, sent, _) = pump(&mut core, &routes, 10);
    let update = sent.iter().find_map(|(on, frame)| match frame {
        fetch_request::Frame::Update(update) if *on == link => Some(update),
        _ => None,
    });
    let update = update.expect("asked");
    assert_eq!((update.remove.len(), update.add.len()), (1, 1));
    assert_eq!(update.add[0].start, Some(Start::Offset(6)));
}
