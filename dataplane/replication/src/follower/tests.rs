//! Rows of (before, event) → effects.

use super::*;
use crate::{Report, check_position};
use talweg_types::{LeaderEpoch, Offset};

mod reconcile;

const NOW: MonotonicMs = MonotonicMs(1_000);
const ME: NodeId = NodeId(2);
const LEADER: NodeId = NodeId(1);

type Effects = Vec<FollowerEffect<u32>>;

/// (epoch, start) of each epoch, log start, log end.
#[derive(Clone, Debug)]
struct Model(Vec<(i32, i64)>, i64, i64);

impl Model {
    fn cut(&mut self, to: i64) {
        self.0.retain(|entry| entry.1 < to);
        self.2 = to;
    }
}

impl History for Model {
    fn last_epoch(&self) -> LeaderEpoch {
        LeaderEpoch(self.0.last().map_or(-1, |entry| entry.0))
    }

    fn end_of(&self, epoch: LeaderEpoch) -> (LeaderEpoch, Offset) {
        let next = self.0.iter().find(|entry| entry.0 > epoch.0);
        let end = Offset(next.map_or(self.2, |entry| entry.1));
        match self.0.iter().rfind(|entry| entry.0 <= epoch.0) {
            Some(entry) => (LeaderEpoch(entry.0), end),
            None => (LeaderEpoch::NONE, Offset(self.1)),
        }
    }
}

/// Epochs 1 (from 0) and 3 (from 10) up to 20.
fn log() -> Model {
    Model(vec![(1, 0), (3, 10)], 0, 20)
}

fn ends(log_end: i64, flushed_end: i64) -> ReplicaEnds {
    ReplicaEnds {
        log_end: Offset(log_end),
        flushed_end: Offset(flushed_end),
    }
}

fn follow(epoch: i32, recovered: i32, high_watermark: i64, log: &Model) -> FollowerEvent<u32> {
    FollowerEvent::Follow(Follow {
        leader: LEADER,
        epoch: LeaderEpoch(epoch),
        incarnation: Incarnation(7),
        recovered: LeaderEpoch(recovered),
        log_start: Offset(log.1),
        high_watermark: Offset(high_watermark),
        ends: ends(log.2, log.2),
    })
}

fn open(session: u64, epoch: i32, next: i64, last_epoch: i32, wait: u64) -> FollowerEffect<u32> {
    FollowerEffect::OpenFetch(OpenFetch {
        session: SessionTag(session),
        leader: LEADER,
        epoch: LeaderEpoch(epoch),
        incarnation: Incarnation(7),
        next: Offset(next),
        last_epoch: LeaderEpoch(last_epoch),
        not_before: NOW.plus(wait),
    })
}

fn fetched(
    session: u64,
    epoch: i32,
    body: FetchedBody<u32>,
    bounds: (i64, i64),
) -> FollowerEvent<u32> {
    FollowerEvent::Fetched(Fetched {
        session: SessionTag(session),
        epoch: LeaderEpoch(epoch),
        body,
        high_watermark: (bounds.0 >= 0).then_some(Offset(bounds.0)),
        log_start: Offset(bounds.1),
    })
}

fn batches(from: i64, end: i64, first_epoch: i32, last_epoch: i32) -> FetchedBody<u32> {
    FetchedBody::Batches {
        from: Offset(from),
        end: Offset(end),
        first_epoch: LeaderEpoch(first_epoch),
        last_epoch: LeaderEpoch(last_epoch),
        frame: 99,
    }
}

fn report(session: u64, epoch: i32, log_end: i64, flushed_end: i64) -> FollowerEffect<u32> {
    FollowerEffect::Report(Report {
        node: ME,
        epoch: LeaderEpoch(epoch),
        incarnation: Incarnation(7),
        session: SessionTag(session),
        ends: ends(log_end, flushed_end),
    })
}

fn watermark(to: i64) -> FollowerEffect<u32> {
    FollowerEffect::SetHighWatermark(Offset(to))
}

const APPEND: FollowerEffect<u32> = FollowerEffect::Append { frame: 99 };

fn step(follower: &mut Follower, event: FollowerEvent<u32>, log: &Model) -> Effects {
    follower.step(NOW, event, log)
}

/// Session 1 of epoch 4 is asked for at 20.
fn opening(log: &Model) -> Follower {
    let mut follower = Follower::new(ME);
    let effects = step(&mut follower, follow(4, -1, 5, log), log);
    assert_eq!(effects, [open(1, 4, 20, 3, 0)]);
    follower
}

/// Session 1 of epoch 4 has found the histories to agree.
fn following(log: &Model) -> Follower {
    let mut follower = opening(log);
    let good = fetched(1, 4, FetchedBody::Nothing, (-1, 0));
    assert_eq!(step(&mut follower, good, log), [report(1, 4, 20, 20)]);
    follower
}

/// Story: what is handed over is reported once its write and its flush return,
/// and the watermark waits for the log end.
#[test]
fn batches_are_written_flushed_and_reported() {
    let mut log = log();
    let mut follower = following(&log);
    let frame = fetched(1, 4, batches(20, 23, 3, 4), (22, 6));
    assert_eq!(
        step(&mut follower, frame, &log),
        [
            APPEND,
            watermark(20),
            FollowerEffect::SetLogStart(Offset(6))
        ]
    );
    assert_eq!(follower.in_flight(), 3);
    log.0.push((4, 22));
    log.2 = 23;
    let log_end = Offset(23);
    let written = FollowerEvent::Written { log_end };
    assert_eq!(
        step(&mut follower, written.clone(), &log),
        [watermark(22), report(1, 4, 23, 20)]
    );
    assert_eq!(step(&mut follower, written, &log), [], "nothing twice");
    let flushed_end = Offset(23);
    let flushed = FollowerEvent::Flushed { flushed_end };
    assert_eq!(step(&mut follower, flushed, &log), [report(1, 4, 23, 23)]);
    let last = fetched(1, 4, FetchedBody::Nothing, (23, 6));
    assert_eq!(step(&mut follower, last, &log), [watermark(23)]);
    let lower = fetched(1, 4, FetchedBody::Nothing, (21, 2));
    assert_eq!(step(&mut follower, lower, &log), [], "neither falls");
}

/// Before each: session 1 of epoch 4 follows at 20.
#[test]
fn what_does_not_come_next_opens_another_session() {
    let again = || vec![open(2, 4, 20, 3, 100)];
    let diverged = FetchedBody::Diverged {
        epoch: LeaderEpoch(1),
        end: Offset(8),
    };
    for (event, expected) in [
        (fetched(1, 4, batches(21, 23, 4, 4), (5, 0)), again()),
        (fetched(1, 4, batches(20, 20, 4, 4), (5, 0)), again()),
        (fetched(1, 4, batches(20, 18, 4, 4), (5, 0)), again()),
        (fetched(1, 4, batches(20, 22, 2, 4), (5, 0)), again()),
        (fetched(1, 4, batches(20, 22, 4, 3), (5, 0)), again()),
        (fetched(1, 4, batches(20, 22, 4, 5), (5, 0)), again()),
        (fetched(1, 4, diverged.clone(), (5, 0)), again()),
        (fetched(1, 4, FetchedBody::BelowStart, (30, 30)), again()),
        (
            FollowerEvent::Broken {
                session: SessionTag(1),
            },
            again(),
        ),
        (fetched(1, 4, batches(18, 20, 3, 3), (5, 0)), vec![]),
        (fetched(1, 4, batches(20, 22, 3, 4), (5, 0)), vec![APPEND]),
    ] {
        let log = log();
        let mut follower = following(&log);
        assert_eq!(
            step(&mut follower, event.clone(), &log),
            expected,
            "{event:?}"
        );
    }
}

#[test]
fn old_sessions_and_epochs_are_not_heard() {
    let diverged = FetchedBody::Diverged {
        epoch: LeaderEpoch(1),
        end: Offset(8),
    };
    for event in [
        fetched(1, 4, batches(20, 22, 4, 4), (20, 0)),
        fetched(3, 4, batches(20, 22, 4, 4), (20, 0)),
        fetched(2, 3, batches(20, 22, 3, 3), (20, 0)),
        fetched(2, 5, batches(20, 22, 4, 4), (20, 0)),
        fetched(1, 4, diverged.clone(), (20, 0)),
        fetched(1, 4, FetchedBody::BelowStart, (30, 30)),
        FollowerEvent::Broken {
            session: SessionTag(1),
        },
        follow(4, -1, 0, &log()),
        follow(3, -1, 0, &log()),
        FollowerEvent::Unfollow {
            epoch: LeaderEpoch(3),
        },
        FollowerEvent::Truncated { ends: ends(3, 3) },
        FollowerEvent::Restarted { at: Offset(50) },
    ] {
        let log = log();
        let mut follower = following(&log);
        let broken = FollowerEvent::Broken {
            session: SessionTag(1),
        };
        assert_eq!(step(&mut follower, broken, &log), [open(2, 4, 20, 3, 100)]);
        assert_eq!(step(&mut follower, event.clone(), &log), [], "{event:?}");
        assert_eq!(follower.session(), Some(SessionTag(2)), "{event:?}");
        assert_eq!(follower.ends(), ends(20, 20));
    }
}

/// Story: a session breaks while a write is under way; the next is asked for
/// where the log really ends.
#[test]
fn no_session_is_opened_before_writes_have_returned() {
    let mut log = log();
    let mut follower = following(&log);
    step(
        &mut follower,
        fetched(1, 4, batches(20, 22, 4, 4), (5, 0)),
        &log,
    );
    step(
        &mut follower,
        fetched(1, 4, batches(22, 23, 4, 4), (5, 0)),
        &log,
    );
    let next = follow(5, -1, 5, &log);
    assert_eq!(step(&mut follower, next, &log), []);
    log.0.push((4, 20));
    log.2 = 22;
    let log_end = Offset(22);
    assert_eq!(
        step(&mut follower, FollowerEvent::Written { log_end }, &log),
        []
    );
    let failed = FollowerEvent::WriteFailed { log_end };
    assert_eq!(step(&mut follower, failed, &log), [open(2, 5, 22, 4, 100)]);
}

#[test]
fn one_that_does_not_follow_says_nothing() {
    let log = log();
    let mut follower = following(&log);
    let epoch = LeaderEpoch(5);
    assert_eq!(
        step(&mut follower, FollowerEvent::Unfollow { epoch }, &log),
        []
    );
    assert_eq!(follower.following(), None);
    for event in [
        fetched(1, 4, batches(20, 22, 4, 4), (20, 0)),
        FollowerEvent::Flushed {
            flushed_end: Offset(30),
        },
        FollowerEvent::Written {
            log_end: Offset(30),
        },
        follow(5, -1, 5, &log),
    ] {
        assert_eq!(step(&mut follower, event, &log), []);
    }
    assert_eq!(
        step(&mut follower, follow(6, -1, 5, &log), &log),
        [open(2, 6, 20, 3, 0)]
    );
}

/// Story: the controller's word is older than what the log holds.
#[test]
fn an_epoch_below_the_logs_last_is_not_followed() {
    let log = log();
    let mut follower = Follower::new(ME);
    assert_eq!(step(&mut follower, follow(2, -1, 5, &log), &log), []);
    assert_eq!(
        step(&mut follower, follow(3, -1, 5, &log), &log),
        [open(1, 3, 20, 3, 0)]
    );
}

#[test]
fn waits_grow_while_sessions_bring_nothing() {
    let log = log();
    let mut follower = opening(&log);
    for (session, wait) in [
        (1, 100),
        (2, 200),
        (3, 400),
        (4, 800),
        (5, 1_600),
        (6, 2_000),
        (7, 2_000),
    ] {
        let broken = FollowerEvent::Broken {
            session: SessionTag(session),
        };
        let expected = open(session + 1, 4, 20, 3, wait);
        assert_eq!(step(&mut follower, broken, &log), [expected]);
    }
    let good = fetched(8, 4, FetchedBody::Nothing, (-1, 0));
    step(&mut follower, good, &log);
    let broken = FollowerEvent::Broken {
        session: SessionTag(8),
    };
    assert_eq!(step(&mut follower, broken, &log), [open(9, 4, 20, 3, 100)]);
}
