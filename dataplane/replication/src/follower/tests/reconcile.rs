//! Histories that have parted.

use super::*;
use crate::Position;

fn diverged(epoch: i32, end: i64) -> FollowerEvent<u32> {
    let body = FetchedBody::Diverged {
        epoch: LeaderEpoch(epoch),
        end: Offset(end),
    };
    fetched(1, 4, body, (-1, 0))
}

fn cut(to: i64, below_watermark: bool) -> FollowerEffect<u32> {
    FollowerEffect::Truncate {
        to: Offset(to),
        below_watermark,
    }
}

/// Before each: epochs 1 (0–10) and 3 (10–20), watermark 5.
#[test]
fn it_cuts_to_the_end_of_the_common_history() {
    let log = log();
    for (epoch, end, to) in [
        (3, 15, 15),
        (1, 8, 8),
        // The leader has more of epoch 1 than this log.
        (1, 14, 10),
        // The leader has an epoch that this log lacks.
        (2, 12, 10),
        (1, 5, 5),
    ] {
        let mut follower = opening(&log);
        let effects = step(&mut follower, diverged(epoch, end), &log);
        assert_eq!(effects, [cut(to, false)], "{epoch} {end}");
        assert_eq!(follower.session(), None);
        let mut log = log.clone();
        log.cut(to);
        let truncated = FollowerEvent::Truncated { ends: ends(to, to) };
        let last = log.last_epoch().0;
        assert_eq!(
            step(&mut follower, truncated, &log),
            [open(2, 4, to, last, 0)]
        );
    }
}

/// Story: a leader without what was promised is not followed.
#[test]
fn nothing_is_cut_below_the_watermark() {
    let log = log();
    let mut follower = opening(&log);
    let why = FollowerFailure::RefusedTruncation {
        epoch: LeaderEpoch(4),
        to: Offset(4),
        high_watermark: Offset(5),
    };
    assert_eq!(
        step(&mut follower, diverged(1, 4), &log),
        [FollowerEffect::Failed(why)]
    );
    assert_eq!(follower.failure(), Some(why));
    let good = fetched(1, 4, FetchedBody::Nothing, (20, 0));
    assert_eq!(step(&mut follower, good, &log), [], "until a later epoch");
    assert_eq!(
        step(&mut follower, follow(5, -1, 5, &log), &log),
        [open(2, 5, 20, 3, 0)]
    );
}

/// Rows: newest recovered epoch → allowed. The log's last epoch is 3.
#[test]
fn a_recovered_epoch_may_cut_below_the_watermark_once() {
    let mut log = log();
    for (recovered, allowed) in [(-1, false), (3, false), (4, true)] {
        let mut follower = Follower::new(ME);
        step(&mut follower, follow(4, recovered, 5, &log), &log);
        let effects = step(&mut follower, diverged(1, 4), &log);
        assert_eq!(effects == [cut(4, true)], allowed, "{recovered}");
    }
    let mut follower = Follower::new(ME);
    step(&mut follower, follow(4, 4, 5, &log), &log);
    step(&mut follower, diverged(1, 4), &log);
    log.cut(4);
    let truncated = FollowerEvent::Truncated { ends: ends(4, 4) };
    assert_eq!(step(&mut follower, truncated, &log), [open(2, 4, 4, 1, 0)]);
    assert_eq!(follower.high_watermark(), Offset(4));
}

#[test]
fn an_answer_that_leads_nowhere_is_a_failure() {
    let log = log();
    for (epoch, end) in [(3, 20), (3, 25), (9, 99)] {
        let mut follower = opening(&log);
        let effects = step(&mut follower, diverged(epoch, end), &log);
        let nowhere = matches!(
            effects[..],
            [FollowerEffect::Failed(FollowerFailure::NoProgress { .. })]
        );
        assert!(nowhere, "{epoch} {end}: {effects:?}");
    }
}

fn restart(at: i64, below_watermark: bool) -> FollowerEffect<u32> {
    FollowerEffect::DropAndRestart {
        at: Offset(at),
        below_watermark,
    }
}

/// Story: retention at the leader has passed what this replica holds.
#[test]
fn one_below_the_leaders_start_begins_there() {
    let mut log = log();
    let mut follower = opening(&log);
    let below = fetched(1, 4, FetchedBody::BelowStart, (40, 30));
    let at = Offset(30);
    assert_eq!(step(&mut follower, below, &log), [restart(30, false)]);
    log = Model(vec![], 30, 30);
    assert_eq!(
        step(&mut follower, FollowerEvent::Restarted { at }, &log),
        [open(2, 4, 30, -1, 0)]
    );
    assert_eq!(follower.high_watermark(), at);
    assert_eq!(follower.ends(), ends(30, 30));
}

/// Story: a leader whose log starts later, with nothing that can be compared,
/// and below what was promised here.
#[test]
fn a_restart_below_the_watermark_is_refused() {
    let log = log();
    let mut follower = opening(&log);
    let effects = step(
        &mut follower,
        fetched(1, 4, FetchedBody::BelowStart, (40, 4)),
        &log,
    );
    let refused = matches!(
        effects[..],
        [FollowerEffect::Failed(
            FollowerFailure::RefusedRestart { .. }
        )]
    );
    assert!(refused, "{effects:?}");
}

/// Story: every record of the leader's was lost with the power, its epoch is recorded
/// as recovered, and nothing of this log can be compared with the nothing it has.
#[test]
fn a_recovered_epoch_may_restart_below_the_watermark() {
    let log = log();
    for (recovered, allowed) in [(-1, false), (3, false), (4, true)] {
        let mut follower = Follower::new(ME);
        step(&mut follower, follow(4, recovered, 5, &log), &log);
        let below = fetched(1, 4, FetchedBody::BelowStart, (40, 4));
        let effects = step(&mut follower, below, &log);
        assert_eq!(effects == [restart(4, true)], allowed, "{recovered}");
    }
}

/// Story: the histories part below what this log still holds. It drops all of it, and
/// asks the leader where to begin.
#[test]
fn a_log_that_begins_after_the_histories_part_is_dropped() {
    let mut follower = Follower::new(ME);
    let log = Model(vec![(1, 6)], 6, 20);
    step(&mut follower, follow(4, 4, 8, &log), &log);
    let effects = step(&mut follower, diverged(1, 5), &log);
    assert_eq!(effects, [restart(0, true)]);
    let empty = Model(vec![], 0, 0);
    let restarted = FollowerEvent::Restarted { at: Offset::ZERO };
    assert_eq!(
        step(&mut follower, restarted, &empty),
        [open(2, 4, 0, -1, 0)]
    );
}

/// Story: a new epoch begins while the log is being cut for the old one.
#[test]
fn a_cut_under_way_is_waited_for() {
    let mut log = log();
    let mut follower = opening(&log);
    assert_eq!(step(&mut follower, diverged(3, 15), &log), [cut(15, false)]);
    assert_eq!(step(&mut follower, follow(5, -1, 5, &log), &log), []);
    log.cut(15);
    let truncated = FollowerEvent::Truncated { ends: ends(15, 15) };
    assert_eq!(step(&mut follower, truncated, &log), [open(2, 5, 15, 3, 0)]);
}

/// Story: histories that parted more than once meet after a few rounds, at the
/// end of what they share.
#[test]
fn rounds_end_where_the_histories_agree() {
    let leader = Model(vec![(1, 0), (3, 8), (6, 12), (7, 20)], 0, 30);
    let mut log = Model(vec![(1, 0), (2, 8), (4, 14), (5, 18)], 0, 25);
    let mut follower = Follower::new(ME);
    let mut effects = step(&mut follower, follow(8, -1, 3, &log), &log);
    let mut rounds = 0;
    loop {
        let [FollowerEffect::OpenFetch(asked)] = effects[..] else {
            panic!("{effects:?}")
        };
        let (start, end) = (Offset(leader.1), Offset(leader.2));
        let answer = check_position(&leader, start, end, asked.last_epoch, asked.next);
        let Position::Diverged { epoch, end } = answer else {
            assert_eq!(answer, Position::Ok);
            break;
        };
        let body = FetchedBody::Diverged { epoch, end };
        let answer = fetched(asked.session.0, 8, body, (-1, 0));
        let cuts = step(&mut follower, answer, &log);
        let [FollowerEffect::Truncate { to, .. }] = cuts[..] else {
            panic!("{cuts:?}")
        };
        log.cut(to.0);
        let truncated = FollowerEvent::Truncated {
            ends: ends(to.0, to.0),
        };
        effects = step(&mut follower, truncated, &log);
        rounds += 1;
    }
    assert_eq!(log.2, 8, "after {rounds} rounds");
    assert!(rounds <= 4);
}
