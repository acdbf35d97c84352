//! Rows of (before, event) → effects, then random events against a model.

use super::*;
use crate::{Report, SessionTag};
use talweg_types::{Acks, Durability, Incarnation};

mod admission;
mod in_sync;
mod random;
mod reports;

const NOW: MonotonicMs = MonotonicMs(1_000);
const ME: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(2);
const THIRD: NodeId = NodeId(3);

fn settings(durability: Durability, rf: u32) -> LeaderSettings {
    LeaderSettings {
        durability,
        replication_factor: rf,
        min_insync_replicas: if rf >= 3 { 2 } else { 1 },
    }
}

fn ends(log_end: i64, flushed_end: i64) -> ReplicaEnds {
    ReplicaEnds {
        log_end: Offset(log_end),
        flushed_end: Offset(flushed_end),
    }
}

fn lead(epoch: i32, at: i64, in_sync: &[NodeId], settings: LeaderSettings) -> Event<u32> {
    Event::Lead(Lead {
        epoch: LeaderEpoch(epoch),
        incarnation: Incarnation(7),
        ends: ends(at, at),
        high_watermark: Offset(at),
        in_sync: in_sync.iter().copied().collect(),
        partition_epoch: PartitionEpoch(1),
        replicas: [ME, OTHER, THIRD].into(),
        settings,
    })
}

fn leading(durability: Durability, in_sync: &[NodeId], rf: u32) -> Leader<u32> {
    let settings = settings(durability, rf);
    let mut leader = Leader::new(ME, settings);
    assert_eq!(
        leader.step(NOW, lead(3, 10, in_sync, settings)),
        [],
        "the stored watermark holds"
    );
    leader
}

fn appended(log_end: i64, waiters: &[(Acks, i64, u32)]) -> Event<u32> {
    let waiter = |(acks, end, token): &(Acks, i64, u32)| Waiter {
        acks: *acks,
        end: Offset(*end),
        token: *token,
    };
    Event::Appended {
        log_end: Offset(log_end),
        waiters: waiters.iter().map(waiter).collect(),
    }
}

fn flushed(end: i64) -> Event<u32> {
    Event::Flushed {
        flushed_end: Offset(end),
    }
}

fn reported(epoch: i32, incarnation: u64, log_end: i64, flushed_end: i64) -> Event<u32> {
    Event::Reported(Report {
        node: OTHER,
        epoch: LeaderEpoch(epoch),
        incarnation: Incarnation(incarnation),
        session: SessionTag(1),
        ends: ends(log_end, flushed_end),
    })
}

/// The controller's word in epoch 3.
fn confirmed(partition_epoch: i64, members: &[NodeId]) -> Event<u32> {
    Event::InSyncChanged(InSync {
        epoch: LeaderEpoch(3),
        partition_epoch: PartitionEpoch(partition_epoch),
        members: members.iter().copied().collect(),
    })
}

/// What was asked, as (attempt, node, incarnation).
fn asked(id: u64, partition_epoch: i64, members: &[(NodeId, Option<u64>)]) -> Effect<u32> {
    let member = |(node, incarnation): &(NodeId, Option<u64>)| Member {
        node: *node,
        incarnation: incarnation.map(Incarnation),
    };
    Effect::ProposeInSync(Proposal {
        id: ProposalId(id),
        epoch: LeaderEpoch(3),
        partition_epoch: PartitionEpoch(partition_epoch),
        members: members.iter().map(member).collect(),
    })
}

fn done(token: u32, holding: u32, flushed: u32) -> Effect<u32> {
    Effect::Done {
        token,
        reached: Reached {
            holding,
            flushed,
            epoch: LeaderEpoch(3),
        },
    }
}

fn watermark(offset: i64) -> Effect<u32> {
    Effect::HighWatermark(Offset(offset))
}

/// Story: what is only written is not acknowledged where the topic asks for flushed.
#[test]
fn synced_alone_answers_after_the_flush_and_in_order() {
    let mut leader = leading(Durability::Synced, &[ME], 1);
    let waiters = [(Acks::All, 12, 1), (Acks::One, 14, 2), (Acks::Zero, 15, 3)];
    assert_eq!(
        leader.step(NOW, appended(15, &waiters)),
        [done(3, 1, 0)],
        "acks 0 waits for the append alone"
    );
    assert_eq!(
        leader.step(NOW, flushed(12)),
        [watermark(12), done(1, 1, 1)]
    );
    assert_eq!(leader.step(NOW, flushed(12)), [], "nothing twice");
    assert_eq!(
        leader.step(NOW, flushed(15)),
        [watermark(15), done(2, 1, 1)]
    );
    assert_eq!(leader.waiting(), 0);
}

/// Story: a repeat of a batch waits behind what came before it, although its
/// own offset was passed long ago.
#[test]
fn a_repeat_does_not_overtake() {
    let mut leader = leading(Durability::Synced, &[ME], 1);
    assert_eq!(
        leader.step(NOW, appended(12, &[(Acks::All, 12, 1), (Acks::All, 5, 2)])),
        []
    );
    assert_eq!(
        leader.step(NOW, flushed(12)),
        [watermark(12), done(1, 1, 1), done(2, 1, 1)]
    );
}

#[test]
fn replicated_alone_answers_after_the_write() {
    let mut leader = leading(Durability::Replicated, &[ME], 1);
    assert_eq!(
        leader.step(NOW, appended(12, &[(Acks::All, 12, 1)])),
        [watermark(12), done(1, 1, 0)]
    );
    assert_eq!(leader.step(NOW, flushed(12)), []);
}

/// Story: the slowest in-sync replica holds the watermark; acks 1 do not wait for it.
#[test]
fn the_watermark_is_the_lowest_counted_end_over_the_in_sync_set() {
    let mut leader = leading(Durability::Replicated, &[ME, OTHER], 2);
    let waiters = [(Acks::All, 12, 1), (Acks::One, 14, 2)];
    assert_eq!(leader.step(NOW, appended(14, &waiters)), [done(2, 1, 0)]);
    assert_eq!(leader.step(NOW, reported(3, 1, 11, 11)), [watermark(11)]);
    assert_eq!(
        leader.step(NOW, reported(2, 1, 14, 14)),
        [],
        "an older epoch's word"
    );
    assert_eq!(
        leader.step(NOW, reported(3, 1, 12, 0)),
        [watermark(12), done(1, 2, 0)]
    );
    assert_eq!(
        leader.step(NOW, reported(3, 1, 11, 0)),
        [],
        "nothing steps back"
    );
    assert_eq!(
        leader.step(NOW, reported(3, 2, 14, 14)),
        [],
        "a new process must leave the set before it counts"
    );
    assert_eq!(
        leader.step(NOW, confirmed(2, &[ME])),
        [
            watermark(14),
            asked(1, 2, &[(ME, Some(7)), (OTHER, Some(2))])
        ],
        "what the new process said was kept"
    );
    assert_eq!(leader.step(NOW, reported(3, 2, 14, 14)), []);
    assert_eq!(
        leader.step(NOW, reported(3, 1, 14, 14)),
        [],
        "the old process speaks no more"
    );
}

/// Story: below the minimum nothing moves, what waits is unknown, what comes is refused.
#[test]
fn a_set_below_the_minimum_stops_acks_all() {
    let mut leader = leading(Durability::Replicated, &[ME, OTHER], 3);
    assert_eq!(leader.step(NOW, appended(12, &[(Acks::All, 12, 1)])), []);
    let why = Failure::NotEnoughReplicasAfterAppend;
    assert_eq!(
        leader.step(NOW, confirmed(2, &[ME])),
        [Effect::Failed { token: 1, why }]
    );
    assert_eq!(leader.high_watermark(), Offset(10));
    assert_eq!(
        leader.admit(Acks::All),
        Err(NotAdmitted::NotEnoughReplicas {
            in_sync: 1,
            needed: 2
        })
    );
    assert_eq!(leader.admit(Acks::One), Ok(()));
    assert_eq!(
        leader.step(NOW, appended(13, &[(Acks::One, 13, 2)])),
        [done(2, 1, 0)]
    );
}

#[test]
fn waiters_fail_when_their_epoch_ends() {
    let lost = |token| Effect::Failed {
        token,
        why: Failure::LeadershipLost,
    };
    for (event, still) in [
        (
            Event::Resign {
                epoch: LeaderEpoch(3),
            },
            false,
        ),
        (
            Event::Resign {
                epoch: LeaderEpoch(4),
            },
            false,
        ),
        (lead(4, 12, &[ME], settings(Durability::Synced, 1)), true),
    ] {
        let mut leader = leading(Durability::Synced, &[ME], 1);
        leader.step(NOW, appended(12, &[(Acks::One, 11, 1), (Acks::All, 12, 2)]));
        let effects = leader.step(NOW, event);
        assert_eq!(effects[..2], [lost(1), lost(2)]);
        assert_eq!(leader.epoch().is_some(), still);
    }
}

#[test]
fn old_words_change_nothing() {
    let mut leader = leading(Durability::Synced, &[ME], 1);
    assert_eq!(
        leader.step(
            NOW,
            Event::Resign {
                epoch: LeaderEpoch(2)
            }
        ),
        []
    );
    assert_eq!(
        leader.step(NOW, lead(3, 99, &[ME], settings(Durability::Synced, 1))),
        []
    );
    assert_eq!(leader.epoch(), Some(LeaderEpoch(3)));
    leader.step(
        NOW,
        Event::Resign {
            epoch: LeaderEpoch(3),
        },
    );
    assert_eq!(leader.admit(Acks::Zero), Err(NotAdmitted::NotLeader));
    let late = leader.step(NOW, appended(20, &[(Acks::All, 20, 9)]));
    assert_eq!(
        late,
        [Effect::Failed {
            token: 9,
            why: Failure::LeadershipLost
        }]
    );
    assert_eq!(leader.step(NOW, flushed(20)), []);
    assert_eq!(leader.high_watermark(), Offset(10));
}

/// Story: a topic becomes `synced` while unflushed data was acknowledged; the
/// watermark stays, and new data waits for the flush.
#[test]
fn stricter_durability_takes_nothing_back() {
    let mut leader = leading(Durability::Replicated, &[ME], 1);
    leader.step(NOW, appended(15, &[]));
    assert_eq!(leader.high_watermark(), Offset(15));
    assert_eq!(
        leader.step(NOW, Event::SettingsChanged(settings(Durability::Synced, 1))),
        []
    );
    assert_eq!(leader.high_watermark(), Offset(15));
    assert_eq!(leader.step(NOW, appended(18, &[(Acks::All, 18, 1)])), []);
    assert_eq!(
        leader.step(NOW, flushed(18)),
        [watermark(18), done(1, 1, 1)]
    );
    leader.step(NOW, appended(20, &[(Acks::All, 20, 2)]));
    let looser = leader.step(
        NOW,
        Event::SettingsChanged(settings(Durability::Replicated, 1)),
    );
    assert_eq!(looser, [watermark(20), done(2, 1, 0)]);
}

/// Story: a new leader may be behind the watermark that the old one published.
#[test]
fn a_new_leader_knows_its_watermark_from_its_epoch_start_on() {
    let settings = settings(Durability::Replicated, 2);
    let mut leader = Leader::<u32>::new(ME, settings);
    let Event::Lead(mut event) = lead(3, 10, &[ME, OTHER], settings) else {
        unreachable!()
    };
    event.high_watermark = Offset(6);
    leader.step(NOW, Event::Lead(event));
    assert!(!leader.watermark_is_known());
    assert_eq!(leader.step(NOW, reported(3, 1, 9, 9)), [watermark(9)]);
    assert!(!leader.watermark_is_known());
    assert_eq!(leader.step(NOW, reported(3, 1, 10, 10)), [watermark(10)]);
    assert!(leader.watermark_is_known());
}
