//! Rows of (before, event) → effects, then random events against a model.

use super::*;
use proptest::prelude::*;

const NOW: MonotonicMs = MonotonicMs(1_000);
const ME: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(2);

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
        ends: ends(log_end, flushed_end),
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
    let alone = Event::InSyncChanged(InSync {
        confirmed: [ME].into(),
        proposed: [].into(),
    });
    assert_eq!(leader.step(NOW, alone), [watermark(14)]);
    assert_eq!(leader.step(NOW, reported(3, 2, 14, 14)), []);
    assert_eq!(
        leader.step(NOW, reported(3, 1, 14, 14)),
        [],
        "the old process speaks no more"
    );
}

/// Story: while a change of the in-sync set is asked for, both sets hold the watermark.
#[test]
fn a_proposed_replica_holds_the_watermark_before_it_is_confirmed() {
    let mut leader = leading(Durability::Replicated, &[ME], 2);
    let pending = InSync {
        confirmed: [ME].into(),
        proposed: [ME, OTHER].into(),
    };
    assert_eq!(leader.step(NOW, Event::InSyncChanged(pending)), []);
    assert_eq!(leader.step(NOW, appended(12, &[(Acks::All, 12, 1)])), []);
    assert_eq!(
        leader.step(NOW, reported(3, 1, 12, 12)),
        [watermark(12), done(1, 2, 1)]
    );
}

/// Story: below the minimum nothing moves, what waits is unknown, what comes is refused.
#[test]
fn a_set_below_the_minimum_stops_acks_all() {
    let mut leader = leading(Durability::Replicated, &[ME, OTHER], 3);
    assert_eq!(leader.step(NOW, appended(12, &[(Acks::All, 12, 1)])), []);
    let alone = Event::InSyncChanged(InSync {
        confirmed: [ME].into(),
        proposed: [].into(),
    });
    let why = Failure::NotEnoughReplicasAfterAppend;
    assert_eq!(leader.step(NOW, alone), [Effect::Failed { token: 1, why }]);
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

#[test]
fn a_follower_lags_when_it_has_not_stood_at_the_end_for_long() {
    let mut leader = leading(Durability::Replicated, &[ME, OTHER], 2);
    let at = MonotonicMs;
    leader.step(at(1_000), appended(12, &[]));
    leader.step(at(2_000), reported(3, 1, 12, 12));
    assert_eq!(leader.lagging(at(12_000), 10_000), []);
    leader.step(at(5_000), appended(13, &[]));
    leader.step(at(6_000), reported(3, 1, 12, 12));
    assert_eq!(leader.lagging(at(12_001), 10_000), [OTHER]);
}

#[derive(Clone, Debug)]
enum Move {
    Append {
        records: i64,
        acks: Vec<Acks>,
    },
    Flush(i64),
    Report {
        epoch_back: i32,
        incarnation: u64,
        log_back: i64,
        flush_back: i64,
    },
    Shrink,
    Propose,
    Confirm,
    Lead,
    Resign,
    Durability(Durability),
}

fn moves() -> impl Strategy<Value = Move> {
    let acks = prop_oneof![Just(Acks::Zero), Just(Acks::One), Just(Acks::All)];
    prop_oneof![
        6 => (1..5i64, proptest::collection::vec(acks, 0..3)).prop_map(|(records, acks)| Move::Append { records, acks }),
        4 => (0..6i64).prop_map(Move::Flush),
        6 => (0..2i32, 1..3u64, 0..6i64, 0..6i64).prop_map(|(epoch_back, incarnation, log_back, flush_back)| {
            Move::Report { epoch_back, incarnation, log_back, flush_back }
        }),
        1 => Just(Move::Shrink),
        1 => Just(Move::Propose),
        1 => Just(Move::Confirm),
        1 => Just(Move::Lead),
        1 => Just(Move::Resign),
        1 => prop_oneof![Just(Durability::Synced), Just(Durability::Replicated)].prop_map(Move::Durability),
    ]
}

/// The driver's side: what was appended and what the leader said about it.
struct Model {
    leader: Leader<u32>,
    epoch: i32,
    log_end: i64,
    flushed_end: i64,
    /// Token → (end, acks, epoch).
    open: BTreeMap<u32, (i64, Acks, i32)>,
    next_token: u32,
    watermark: i64,
    durability: Durability,
}

impl Model {
    fn apply(&mut self, step: Move) -> Result<(), TestCaseError> {
        let settings = settings(self.durability, 2);
        let event = match step {
            Move::Append { records, acks } => {
                self.log_end += records;
                let leads = self.leader.epoch().is_some();
                let waiters: Vec<_> = acks.iter().map(|acks| self.wait(*acks)).collect();
                prop_assert!(leads || self.leader.admit(Acks::Zero).is_err());
                appended(self.log_end, &waiters)
            }
            Move::Flush(back) => {
                self.flushed_end = self.flushed_end.max(self.log_end - back);
                flushed(self.flushed_end)
            }
            Move::Report {
                epoch_back,
                incarnation,
                log_back,
                flush_back,
            } => {
                let log_end = (self.log_end - log_back).max(0);
                reported(
                    self.epoch - epoch_back,
                    incarnation,
                    log_end,
                    (log_end - flush_back).max(0),
                )
            }
            Move::Shrink => Event::InSyncChanged(InSync {
                confirmed: [ME].into(),
                proposed: [].into(),
            }),
            Move::Propose => Event::InSyncChanged(InSync {
                confirmed: [ME].into(),
                proposed: [ME, OTHER].into(),
            }),
            Move::Confirm => Event::InSyncChanged(InSync {
                confirmed: [ME, OTHER].into(),
                proposed: [].into(),
            }),
            Move::Lead => {
                self.epoch += 1;
                let Event::Lead(mut event) = lead(self.epoch, self.log_end, &[ME], settings) else {
                    unreachable!()
                };
                event.ends = ends(self.log_end, self.flushed_end);
                event.high_watermark = Offset(self.watermark);
                Event::Lead(event)
            }
            Move::Resign => Event::Resign {
                epoch: LeaderEpoch(self.epoch),
            },
            Move::Durability(durability) => {
                self.durability = durability;
                Event::SettingsChanged(LeaderSettings {
                    durability,
                    ..settings
                })
            }
        };
        let ends_epoch = matches!(event, Event::Lead(_) | Event::Resign { .. });
        let effects = self.leader.step(NOW, event);
        self.on_effects(effects, ends_epoch)
    }

    fn wait(&mut self, acks: Acks) -> (Acks, i64, u32) {
        self.next_token += 1;
        self.open
            .insert(self.next_token, (self.log_end, acks, self.epoch));
        (acks, self.log_end, self.next_token)
    }

    fn on_effects(
        &mut self,
        effects: Vec<Effect<u32>>,
        ends_epoch: bool,
    ) -> Result<(), TestCaseError> {
        let mut last = [0u32; 2];
        for effect in effects {
            match effect {
                Effect::HighWatermark(Offset(to)) => {
                    prop_assert!(to > self.watermark && to <= self.log_end);
                    self.watermark = to;
                }
                Effect::Done { token, reached } => {
                    let (end, acks, epoch) = self.open.remove(&token).expect("answered once");
                    prop_assert_eq!(
                        reached.epoch.0,
                        epoch,
                        "released in the epoch of its append"
                    );
                    prop_assert!(acks != Acks::All || end <= self.watermark);
                    prop_assert!(reached.flushed <= reached.holding && reached.holding >= 1);
                    if acks != Acks::Zero {
                        let queue = usize::from(acks == Acks::All);
                        prop_assert!(token > last[queue], "in order");
                        last[queue] = token;
                    }
                }
                Effect::Failed { token, .. } => {
                    self.open.remove(&token).expect("answered once");
                }
            }
        }
        if ends_epoch && self.leader.epoch().is_none() {
            prop_assert!(self.open.is_empty(), "nothing waits without a leader");
        }
        prop_assert_eq!(self.leader.waiting(), self.open.len());
        prop_assert_eq!(self.leader.high_watermark(), Offset(self.watermark));
        prop_assert_eq!(self.leader.check(), Ok(()));
        Ok(())
    }
}

proptest! {
    /// Story: whatever happens in whatever order, each produce is answered once,
    /// in order, in its epoch, and the watermark only rises.
    #[test]
    fn every_waiter_is_answered_once_and_the_watermark_only_rises(
        steps in proptest::collection::vec(moves(), 1..60),
    ) {
        let leader = Leader::new(ME, settings(Durability::Synced, 2));
        let mut model = Model {
            leader, epoch: 1, log_end: 0, flushed_end: 0, open: BTreeMap::new(), next_token: 0,
            watermark: 0, durability: Durability::Synced,
        };
        for step in steps {
            model.apply(step)?;
        }
    }
}
