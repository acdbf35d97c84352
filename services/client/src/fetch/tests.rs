//! The reader's core against hand-made servers: stories as tables, and a
//! property that no credit rule makes it stand still.

use super::core::{Effect, FetchCore, FetchCoreConfig};
use super::event::{FetchEvent, Interest, StartAt};
use crate::delivery::{LinkId, Route, Routes, Target};
use bytes::Bytes;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::{collections::BTreeMap, sync::Arc};
use talweg_batch::{BatchBuilder, BatchHeader, stamp_prefix};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1::{self, fetch_partition::Start, fetch_request, fetch_response::Frame};
use talweg_types::{
    Compression, LeaderEpoch, NodeId, Offset, PartitionIndex, TimestampMs, TopicId, TopicPartition,
};
use tokio::sync::watch;

mod near;

const LARGEST: u32 = 1_000;
const PATIENCE_MS: u64 = 5_000;

/// Routes that a test sets.
struct Map {
    routes: Mutex<BTreeMap<u32, Route>>,
    near: Mutex<Option<Target>>,
    changed: watch::Sender<u64>,
}

impl Map {
    fn new(routes: impl IntoIterator<Item = (u32, Route)>) -> Self {
        let (changed, _) = watch::channel(0);
        Self {
            routes: Mutex::new(routes.into_iter().collect()),
            near: Mutex::default(),
            changed,
        }
    }

    fn set(&self, partition: u32, route: Route) {
        self.routes.lock().insert(partition, route);
    }
}

impl Routes for Map {
    fn route(&self, partition: TopicPartition) -> Route {
        self.routes.lock()[&partition.partition.0].clone()
    }

    fn near(&self, _: TopicPartition, rack: &str) -> Option<Target> {
        assert_eq!(rack, "r1");
        self.near.lock().clone()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn to_leaders(&self) -> bool {
        true
    }
}

fn node(id: u32) -> Target {
    Target {
        node: NodeId(id),
        address: Arc::from(format!("http://node{id}").as_str()),
    }
}

fn at(partition: u32) -> TopicPartition {
    let topic_id = TopicId::from_slice(&[4; 16]).expect("16 bytes");
    TopicPartition {
        topic_id,
        partition: PartitionIndex(partition),
    }
}

fn interest(partition: u32, start: StartAt) -> Interest {
    Interest {
        partition: at(partition),
        topic: "t".into(),
        start,
        leader_epoch: Some(2),
        last_epoch: None,
        largest_batch: LARGEST,
    }
}

fn core() -> FetchCore {
    core_of("")
}

fn core_of(rack: &str) -> FetchCore {
    let mut core = FetchCore::new(FetchCoreConfig {
        client_id: String::new(),
        form: v1::Form::Batches,
        isolation: v1::Isolation::ReadUncommitted,
        rack: rack.into(),
        patience_ms: PATIENCE_MS,
        leaders_may_lag: true,
    });
    core.set_target(10_000);
    core
}

/// Links that were opened, and what was sent, in order.
fn pump(
    core: &mut FetchCore,
    routes: &Map,
    now: u64,
) -> (
    Vec<LinkId>,
    Vec<(LinkId, fetch_request::Frame)>,
    Vec<LinkId>,
) {
    core.pump(now, routes);
    let (mut opened, mut sent, mut closed) = (Vec::new(), Vec::new(), Vec::new());
    for effect in core.take_effects() {
        match effect {
            Effect::Open(link, _) => opened.push(link),
            Effect::Send(link, frame) => sent.push((link, frame)),
            Effect::Close(link) => closed.push(link),
        }
    }
    (opened, sent, closed)
}

/// The partitions that updates ask for, with where they ask to begin.
fn added(sent: &[(LinkId, fetch_request::Frame)]) -> Vec<v1::FetchPartition> {
    let updates = sent.iter().filter_map(|(_, frame)| match frame {
        fetch_request::Frame::Update(update) => Some(update.add.clone()),
        _ => None,
    });
    updates.flatten().collect()
}

fn opened() -> Frame {
    Frame::Opened(v1::FetchOpened::default())
}

fn position(request: &v1::FetchPartition, next_offset: i64) -> v1::PartitionPosition {
    v1::PartitionPosition {
        topic_id: request.topic_id.clone(),
        partition: request.partition,
        next_offset,
        high_watermark: 1_000,
        generation: request.generation,
        ..Default::default()
    }
}

/// One batch of `records` records at `base`, of leader epoch 7.
fn batch(base: i64, records: usize) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    for _ in 0..records {
        builder
            .push(TimestampMs(1), None, Some(b"v"), [])
            .expect("a record");
    }
    let batch = builder.build().expect("a batch");
    let header = BatchHeader::parse(&batch).expect("a header");
    let prefix = stamp_prefix(&header, Offset(base), LeaderEpoch(7));
    [&prefix[..], &batch[prefix.len()..]].concat().into()
}

fn data(request: &v1::FetchPartition, base: i64, records: usize) -> Frame {
    Frame::Batches(v1::FetchedBatches {
        position: Some(position(request, base + records as i64)),
        credit_left: None,
        first_offset: base,
        batches: batch(base, records),
    })
}

fn error(request: &v1::FetchPartition, code: ErrorCode) -> Frame {
    Frame::PartitionError(v1::FetchPartitionError {
        topic_id: request.topic_id.clone(),
        partition: request.partition,
        generation: request.generation,
        error: Some(Refusal::new(code, "by the test").detail()),
        ..Default::default()
    })
}

/// Opens a link for partition 0 at node 1; returns its request.
fn reading(core: &mut FetchCore, routes: &Map, now: u64) -> (LinkId, v1::FetchPartition) {
    let (links, ..) = pump(core, routes, now);
    core.on_frame(links[0], opened(), now);
    let (_, sent, _) = pump(core, routes, now);
    let request = added(&sent).remove(0);
    (links[0], request)
}

fn offsets(events: &[FetchEvent]) -> Vec<i64> {
    let next = |event: &FetchEvent| match event {
        FetchEvent::Data(data) => Some(data.position.next_offset),
        _ => None,
    };
    events.iter().filter_map(next).collect()
}

/// A broken stream costs nothing: the partition is asked for from where the
/// reader stands, with the epoch of the last batch it holds.
#[test]
fn a_reader_goes_on_where_it_stands() {
    let routes = Map::new([(0, Route::To(node(1)))]);
    let mut core = core();
    core.add(interest(0, StartAt::Earliest));
    let (link, request) = reading(&mut core, &routes, 0);
    assert_eq!(
        (request.start, request.leader_epoch),
        (Some(Start::Earliest(true)), Some(2))
    );
    core.on_frame(link, data(&request, 0, 3), 1);
    assert_eq!(offsets(&core.take_events()), [3]);

    core.on_ended(link, Some(Refusal::unavailable("broken")), 10);
    let (again, ..) = pump(&mut core, &routes, 1_000);
    core.on_frame(again[0], opened(), 1_000);
    let (_, sent, _) = pump(&mut core, &routes, 1_000);
    let request = added(&sent).remove(0);
    assert_eq!(request.start, Some(Start::Offset(3)));
    assert_eq!((request.leader_epoch, request.last_epoch), (None, Some(7)));
}

/// A drained stream serves until its successor is open; then its late frames
/// are dropped and it is closed.
#[test]
fn a_drain_is_followed_make_before_break() {
    let routes = Map::new([(0, Route::To(node(1)))]);
    let mut core = core();
    core.add(interest(0, StartAt::Earliest));
    let (old, request) = reading(&mut core, &routes, 0);
    core.on_frame(old, Frame::Drain(v1::Drain::default()), 5);
    assert_eq!(core.take_drained(), [node(1)]);
    routes.set(0, Route::To(node(2)));
    let (new, ..) = pump(&mut core, &routes, 5);
    core.on_frame(old, data(&request, 0, 2), 6);
    assert_eq!(
        offsets(&core.take_events()),
        [2],
        "the old stream still serves"
    );

    core.on_frame(new[0], opened(), 7);
    let (_, sent, _) = pump(&mut core, &routes, 7);
    let moved = added(&sent).remove(0);
    assert_eq!(
        moved.start,
        Some(Start::Offset(2)),
        "nothing is asked for twice"
    );
    core.on_frame(old, data(&request, 2, 2), 8);
    assert!(core.take_events().is_empty(), "a late voice");
    core.on_frame(new[0], data(&moved, 2, 5), 9);
    assert_eq!(offsets(&core.take_events()), [7]);
    core.tick(10);
    let (.., closed) = pump(&mut core, &routes, 10);
    assert_eq!(closed, [old]);
}

/// A leader that is cut off from its cluster says nothing of it. Its reader goes to the
/// one that the routes name, once that one's stream is open.
#[test]
fn a_leader_that_was_replaced_is_left_without_a_word_of_its_own() {
    let routes = Map::new([(0, Route::To(node(1)))]);
    let mut core = core();
    core.add(interest(0, StartAt::Earliest));
    let (old, request) = reading(&mut core, &routes, 0);
    core.on_frame(old, data(&request, 0, 2), 1);
    routes.set(0, Route::To(node(2)));
    core.on_routes_changed();
    let (new, sent, _) = pump(&mut core, &routes, 2);
    assert!(added(&sent).is_empty(), "not before its stream is open");
    core.on_frame(old, data(&request, 2, 2), 3);
    assert_eq!(offsets(&core.take_events()), [2, 4]);

    core.on_frame(new[0], opened(), 4);
    let (_, sent, _) = pump(&mut core, &routes, 4);
    let moved = added(&sent).remove(0);
    assert_eq!(moved.start, Some(Start::Offset(4)));
    assert_eq!(moved.last_epoch, Some(7), "divergence is looked for");
    let removed = sent.iter().any(|(link, frame)| {
        matches!(frame, fetch_request::Frame::Update(update) if *link == old && update.remove.len() == 1)
    });
    assert!(removed, "{sent:?}");
    core.on_frame(old, data(&request, 4, 2), 5);
    assert!(core.take_events().is_empty(), "a late voice");

    // The same leader again: nothing moves.
    core.on_routes_changed();
    let (opened, sent, _) = pump(&mut core, &routes, 6);
    assert!(opened.is_empty() && added(&sent).is_empty(), "{sent:?}");
}

/// No leader, a leader that moved, one that has not heard of the topic: the
/// reader waits, hears nothing, and goes on; what is final it hears at once.
#[test]
fn what_will_pass_is_waited_for_and_what_will_not_is_told() {
    for code in [
        ErrorCode::NotLeader,
        ErrorCode::NoLeader,
        ErrorCode::UnknownTopic,
        ErrorCode::TopicNotReady,
    ] {
        let routes = Map::new([(0, Route::To(node(1)))]);
        let mut core = core();
        core.add(interest(0, StartAt::Offset(5)));
        let (link, request) = reading(&mut core, &routes, 0);
        core.on_frame(link, error(&request, code), 1);
        assert!(core.take_events().is_empty(), "{code:?}");
        let (_, sent, _) = pump(&mut core, &routes, 600);
        assert_eq!(added(&sent)[0].start, Some(Start::Offset(5)), "{code:?}");
    }
    for code in [
        ErrorCode::OffsetOutOfRange,
        ErrorCode::DataDamaged,
        ErrorCode::FencedLeaderEpoch,
    ] {
        let routes = Map::new([(0, Route::To(node(1)))]);
        let mut core = core();
        core.add(interest(0, StartAt::Offset(5)));
        let (link, request) = reading(&mut core, &routes, 0);
        core.on_frame(link, error(&request, code), 1);
        let events = core.take_events();
        assert!(
            matches!(&events[..], [FetchEvent::Stopped { refusal, .. }] if refusal.code == code),
            "{events:?}"
        );
        assert!(!core.contains(at(0)));
    }
}

#[test]
fn patience_ends_with_the_last_refusal_and_a_deleted_topic_ends_at_once() {
    let wait = || Route::Wait(Refusal::new(ErrorCode::NoLeader, "nobody leads"));
    let routes = Map::new([(0, wait()), (1, wait())]);
    let mut core = core();
    core.add(interest(0, StartAt::Earliest));
    core.add(interest(1, StartAt::Earliest));
    pump(&mut core, &routes, 0);
    routes.set(
        1,
        Route::Gone(Refusal::new(ErrorCode::UnknownTopic, "deleted")),
    );
    core.on_routes_changed();
    pump(&mut core, &routes, 100);
    let events = core.take_events();
    assert!(
        matches!(&events[..], [FetchEvent::Stopped { partition, refusal }] if *partition == at(1) && refusal.code == ErrorCode::UnknownTopic),
        "{events:?}"
    );
    core.tick(PATIENCE_MS - 1);
    assert!(core.take_events().is_empty());
    core.tick(PATIENCE_MS);
    let events = core.take_events();
    assert!(
        matches!(&events[..], [FetchEvent::Stopped { refusal, .. }] if refusal.code == ErrorCode::NoLeader),
        "{events:?}"
    );

    // A leader that is known but cannot be reached is not waited for either.
    let routes = Map::new([(0, Route::To(node(1)))]);
    let mut core = self::core();
    core.add(interest(0, StartAt::Earliest));
    for now in (0..=PATIENCE_MS + 1_000).step_by(500) {
        let (links, ..) = pump(&mut core, &routes, now);
        links
            .into_iter()
            .for_each(|link| core.on_ended(link, Some(Refusal::unavailable("refused")), now));
        core.tick(now);
    }
    assert!(matches!(
        &core.take_events()[..],
        [FetchEvent::Stopped { .. }]
    ));
}

#[test]
fn frames_from_before_a_seek_are_dropped() {
    let routes = Map::new([(0, Route::To(node(1)))]);
    let mut core = core();
    core.add(interest(0, StartAt::Earliest));
    let (link, before) = reading(&mut core, &routes, 0);
    core.seek(at(0), StartAt::Offset(40), None);
    core.on_frame(link, data(&before, 0, 3), 1);
    assert!(core.take_events().is_empty());
    let (_, sent, _) = pump(&mut core, &routes, 2);
    let seeks: Vec<v1::FetchPartition> = sent
        .iter()
        .filter_map(|(_, frame)| match frame {
            fetch_request::Frame::Update(update) => update.seek.first().cloned(),
            _ => None,
        })
        .collect();
    assert_eq!(seeks[0].start, Some(Start::Offset(40)));
    core.on_frame(link, data(&seeks[0], 40, 3), 3);
    assert_eq!(offsets(&core.take_events()), [43]);
    core.remove(at(0));
    core.on_frame(link, data(&seeks[0], 43, 3), 4);
    assert!(core.take_events().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Story: one server keeps the credit rule to the letter, batches have any
    /// size up to the largest, the reader takes data when it likes. It never
    /// stands still for want of credit, and what is under way stays bounded.
    #[test]
    fn credit_never_starves_and_is_never_exceeded(
        sizes in prop::collection::vec(1_i64..=i64::from(LARGEST), 1..60),
        window in 1_i64..5_000,
        lazy in 0_usize..4,
    ) {
        let routes = Map::new([(0, Route::To(node(1)))]);
        let mut core = core();
        let mut held = std::collections::VecDeque::new();
        core.set_target(window);
        core.add(interest(0, StartAt::Earliest));
        let (links, sent, _) = pump(&mut core, &routes, 0);
        let Some((_, fetch_request::Frame::Open(open))) = sent.first() else { panic!("{sent:?}") };
        let first = open.credit.expect("a credit").bytes;
        prop_assert!(first >= i64::from(LARGEST));
        let mut left = first;
        core.on_frame(links[0], opened(), 0);
        let (mut at, mut idle) = (0, 0);
        while at < sizes.len() || !held.is_empty() {
            let under_way: i64 = held.iter().sum();
            core.set_target(window - under_way);
            for (_, frame) in pump(&mut core, &routes, 0).1 {
                if let fetch_request::Frame::Credit(credit) = frame {
                    prop_assert!(credit.bytes >= 0);
                    left += credit.bytes;
                }
            }
            prop_assert!(left + under_way <= window.max(i64::from(LARGEST)) + i64::from(LARGEST), "more under way than granted");
            let next = sizes.get(at).copied();
            match next {
                Some(size) if (size <= left || left >= first) && held.len() <= lazy => {
                    left -= size;
                    core.on_payload_for_test(links[0], size);
                    held.push_back(size);
                    (at, idle) = (at + 1, 0);
                }
                _ => {
                    prop_assert!(held.pop_front().is_some() || idle == 0, "it stands still");
                    idle += 1;
                }
            }
        }
    }
}
