//! Random events against a model of the driver.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// May be an answer to what is asked; an older one's leaves it asked.
fn answers(event: &Event<u32>) -> bool {
    matches!(
        event,
        Event::InSyncChanged(_) | Event::ProposalRefused { .. } | Event::ProposalTimedOut { .. }
    )
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
    Confirm,
    Refuse(u64),
    TimeOut(u64),
    Tick(u64),
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
        1 => Just(Move::Confirm),
        1 => (0..2u64).prop_map(Move::Refuse),
        1 => (0..2u64).prop_map(Move::TimeOut),
        2 => (0..20_000u64).prop_map(Move::Tick),
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
    now: MonotonicMs,
    partition_epoch: i64,
    last_asked: u64,
    is_asked: bool,
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
            Move::Shrink => self.confirm(&[ME]),
            Move::Confirm => self.confirm(&[ME, OTHER]),
            Move::Refuse(back) => Event::ProposalRefused {
                id: ProposalId(self.last_asked.saturating_sub(back)),
                partition_epoch: PartitionEpoch(self.partition_epoch),
            },
            Move::TimeOut(back) => Event::ProposalTimedOut {
                id: ProposalId(self.last_asked.saturating_sub(back)),
            },
            Move::Tick(ms) => {
                self.now.0 += ms;
                Event::Tick
            }
            Move::Lead => {
                self.epoch += 1;
                self.partition_epoch += 1;
                let Event::Lead(mut event) = lead(self.epoch, self.log_end, &[ME], settings) else {
                    unreachable!()
                };
                event.ends = ends(self.log_end, self.flushed_end);
                event.high_watermark = Offset(self.watermark);
                event.partition_epoch = PartitionEpoch(self.partition_epoch);
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
        if answers(&event) || ends_epoch {
            self.is_asked = false;
        }
        let effects = self.leader.step(self.now, event);
        self.on_effects(effects, ends_epoch)
    }

    fn confirm(&mut self, members: &[NodeId]) -> Event<u32> {
        self.partition_epoch += 1;
        Event::InSyncChanged(InSync {
            epoch: LeaderEpoch(self.epoch),
            partition_epoch: PartitionEpoch(self.partition_epoch),
            members: members.iter().copied().collect(),
        })
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
                Effect::ProposeInSync(proposal) => {
                    prop_assert!(!self.is_asked, "one at a time");
                    prop_assert_eq!(proposal.partition_epoch.0, self.partition_epoch);
                    prop_assert!(proposal.members.iter().any(|member| member.node == ME));
                    self.is_asked = true;
                    self.last_asked = proposal.id.0;
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
            watermark: 0, durability: Durability::Synced, now: NOW, partition_epoch: 1, last_asked: 0,
            is_asked: false,
        };
        for step in steps {
            model.apply(step)?;
        }
    }
}
