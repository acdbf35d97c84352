//! What a produce stream has taken and not yet answered, and the credit that it
//! uses up. No IO, no clock.
//!
//! ```text
//! outstanding = bytes and records of what is not answered ≤ granted (one frame alone may be larger)
//! ```
//! Answers of one partition leave in the order of their stream sequences, so
//! that "all up to sequence n" is true; partitions do not wait for one another.

use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{BatchAck, Credit, Durability, ProduceRefusal};
use talweg_replication::Reached;
use talweg_types::{Offset, TimestampMs, TopicPartition};
use tokio::time::Instant;

/// Bytes and records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amount {
    pub bytes: u64,
    pub records: u64,
}

impl std::ops::AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.records += other.records;
    }
}

impl From<Amount> for Credit {
    fn from(amount: Amount) -> Self {
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        Self {
            bytes: number(amount.bytes),
            records: number(amount.records),
        }
    }
}

/// Where an accepted batch has got to.
#[derive(Clone, PartialEq, Debug)]
pub enum Fate {
    Waiting,
    Done {
        base_offset: Offset,
        append_time: TimestampMs,
        duplicate: bool,
        reached: Reached,
    },
    Refused(Refusal),
}

/// One accepted batch.
#[derive(Debug)]
struct Entry {
    sequence: u64,
    amount: Amount,
    /// Acks none: answered by credit alone.
    silent: bool,
    fate: Fate,
}

/// A partition with unanswered batches.
struct Slot {
    tp: TopicPartition,
    entries: VecDeque<Entry>,
}

/// What to tell the client.
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    Ack(BatchAck),
    Refusal(ProduceRefusal),
    Credit(Amount),
}

/// All that is unanswered on one stream.
pub struct Pending {
    granted: Amount,
    outstanding: Amount,
    /// Those with entries only; numbers are not used again.
    slots: BTreeMap<u32, Slot>,
    by_partition: BTreeMap<TopicPartition, u32>,
    next_slot: u32,
    /// In order of deadline; those answered meanwhile are skipped.
    deadlines: VecDeque<(Instant, u32, u64)>,
}

impl Pending {
    pub fn new(granted: Amount) -> Self {
        Self {
            granted,
            outstanding: Amount::default(),
            slots: BTreeMap::new(),
            by_partition: BTreeMap::new(),
            next_slot: 0,
            deadlines: VecDeque::new(),
        }
    }

    pub fn granted(&self) -> Amount {
        self.granted
    }

    pub fn outstanding(&self) -> Amount {
        self.outstanding
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether a frame is within the grant. A frame larger than the whole grant
    /// may come when nothing else is unanswered.
    pub fn fits(&self, frame: Amount) -> bool {
        self.outstanding == Amount::default()
            || (self.outstanding.bytes + frame.bytes <= self.granted.bytes
                && self.outstanding.records + frame.records <= self.granted.records)
    }

    /// Takes batches of one partition in; returns the slot that names it.
    pub fn push(
        &mut self,
        tp: TopicPartition,
        batches: impl Iterator<Item = (u64, Amount)>,
        silent: bool,
        deadline: Instant,
    ) -> u32 {
        let number = *self.by_partition.entry(tp).or_insert_with(|| {
            self.next_slot = self.next_slot.wrapping_add(1);
            self.next_slot
        });
        let slot = self.slots.entry(number).or_insert_with(|| Slot {
            tp,
            entries: VecDeque::new(),
        });
        for (sequence, amount) in batches {
            self.outstanding += amount;
            slot.entries.push_back(Entry {
                sequence,
                amount,
                silent,
                fate: Fate::Waiting,
            });
            self.deadlines.push_back((deadline, number, sequence));
        }
        number
    }

    /// The partition that a slot names, while it has unanswered batches.
    pub fn partition(&self, slot: u32) -> Option<TopicPartition> {
        self.slots.get(&slot).map(|slot| slot.tp)
    }

    /// Decides the fate of a batch; false if it was answered before.
    pub fn decide(&mut self, slot: u32, sequence: u64, fate: Fate) -> bool {
        let Some(slot) = self.slots.get_mut(&slot) else {
            return false;
        };
        let Ok(index) = slot
            .entries
            .binary_search_by_key(&sequence, |entry| entry.sequence)
        else {
            return false;
        };
        let entry = &mut slot.entries[index];
        let open = entry.fate == Fate::Waiting;
        if open {
            entry.fate = fate;
        }
        open
    }

    /// Refuses what has waited past its deadline; returns the slots concerned.
    pub fn expire(&mut self, now: Instant, refusal: &Refusal) -> Vec<u32> {
        let mut slots = Vec::new();
        while let Some((_, slot, sequence)) = self
            .deadlines
            .front()
            .copied()
            .filter(|(at, ..)| *at <= now)
        {
            self.deadlines.pop_front();
            if self.decide(slot, sequence, Fate::Refused(refusal.clone())) && !slots.contains(&slot)
            {
                slots.push(slot);
            }
        }
        slots
    }

    /// When [`Self::expire`] has something to do, at the earliest.
    pub fn next_deadline(&mut self) -> Option<Instant> {
        while let Some((deadline, slot, sequence)) = self.deadlines.front().copied() {
            let open = self
                .slots
                .get(&slot)
                .is_some_and(|slot| slot.entries.front().is_some_and(|e| e.sequence <= sequence));
            if open {
                return Some(deadline);
            }
            self.deadlines.pop_front();
        }
        None
    }

    /// Answers for the batches at the front of a slot whose fate is decided.
    pub fn answers(&mut self, number: u32, answers: &mut Vec<Answer>) {
        let Some(slot) = self.slots.get_mut(&number) else {
            return;
        };
        let tp = slot.tp;
        let mut credit = Amount::default();
        while slot
            .entries
            .front()
            .is_some_and(|entry| entry.fate != Fate::Waiting)
        {
            let Some(entry) = slot.entries.pop_front() else {
                break;
            };
            self.outstanding.bytes -= entry.amount.bytes;
            self.outstanding.records -= entry.amount.records;
            match entry.fate {
                Fate::Done { .. } if entry.silent => credit += entry.amount,
                Fate::Done {
                    base_offset,
                    append_time,
                    duplicate,
                    reached,
                } => {
                    acknowledge(
                        answers,
                        tp,
                        entry.sequence,
                        base_offset,
                        append_time,
                        duplicate,
                        reached,
                    );
                }
                Fate::Refused(refusal) => refuse(answers, tp, entry.sequence, &refusal),
                Fate::Waiting => {}
            }
        }
        if credit != Amount::default() {
            answers.push(Answer::Credit(credit));
        }
        if slot.entries.is_empty() {
            self.slots.remove(&number);
            self.by_partition.remove(&tp);
        }
    }
}

fn id_bytes(tp: TopicPartition) -> Bytes {
    Bytes::copy_from_slice(tp.topic_id.as_bytes())
}

/// Adds to the acknowledgement before, if that is about the same partition.
fn acknowledge(
    answers: &mut Vec<Answer>,
    tp: TopicPartition,
    sequence: u64,
    base_offset: Offset,
    append_time: TimestampMs,
    duplicate: bool,
    reached: Reached,
) {
    let of = |ack: &BatchAck| {
        ack.partition == tp.partition.0 && ack.topic_id == tp.topic_id.as_bytes()[..]
    };
    let durability = |reached: Reached| Durability {
        replicas_holding: reached.holding,
        replicas_flushed: reached.flushed,
        leader_epoch: reached.epoch.0,
    };
    if !matches!(answers.last(), Some(Answer::Ack(ack)) if of(ack)) {
        answers.push(Answer::Ack(BatchAck {
            topic_id: id_bytes(tp),
            partition: tp.partition.0,
            timestamp_ms: append_time.0,
            durability: Some(durability(reached)),
            ..BatchAck::default()
        }));
    }
    let Some(Answer::Ack(ack)) = answers.last_mut() else {
        return;
    };
    ack.up_to_sequence = sequence;
    ack.base_offsets.push(base_offset.0);
    ack.timestamp_ms = ack.timestamp_ms.max(append_time.0);
    ack.duplicates += u32::from(duplicate);
    if let Some(lowest) = &mut ack.durability {
        lowest.replicas_holding = lowest.replicas_holding.min(reached.holding);
        lowest.replicas_flushed = lowest.replicas_flushed.min(reached.flushed);
        lowest.leader_epoch = lowest.leader_epoch.min(reached.epoch.0);
    }
}

/// Adds to the refusal before, if it says the same of the same partition.
fn refuse(answers: &mut Vec<Answer>, tp: TopicPartition, sequence: u64, refusal: &Refusal) {
    let error = refusal.detail();
    if let Some(Answer::Refusal(last)) = answers.last_mut()
        && last.partition == Some(tp.partition.0)
        && last.topic_id == tp.topic_id.as_bytes()[..]
        && last.error.as_ref() == Some(&error)
    {
        last.sequences.push(sequence);
        return;
    }
    answers.push(Answer::Refusal(ProduceRefusal {
        topic_id: id_bytes(tp),
        partition: Some(tp.partition.0),
        sequences: vec![sequence],
        error: Some(error),
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_kit::errors::ErrorCode;
    use talweg_types::{LeaderEpoch, PartitionIndex, TopicId};
    use uuid::Uuid;

    fn tp(partition: u32) -> TopicPartition {
        TopicPartition {
            topic_id: TopicId(Uuid::from_u128(7)),
            partition: PartitionIndex(partition),
        }
    }

    fn batch(sequence: u64) -> (u64, Amount) {
        (
            sequence,
            Amount {
                bytes: 100,
                records: 10,
            },
        )
    }

    fn done(offset: i64, flushed: u32) -> Fate {
        let reached = Reached {
            holding: 1,
            flushed,
            epoch: LeaderEpoch(3),
        };
        Fate::Done {
            base_offset: Offset(offset),
            append_time: TimestampMs(offset),
            duplicate: false,
            reached,
        }
    }

    fn refused(code: ErrorCode) -> Fate {
        Fate::Refused(Refusal::new(code, "no"))
    }

    fn pending() -> Pending {
        Pending::new(Amount {
            bytes: 1_000,
            records: 50,
        })
    }

    fn answers(pending: &mut Pending, slot: u32) -> Vec<Answer> {
        let mut answers = Vec::new();
        pending.answers(slot, &mut answers);
        answers
    }

    /// Story: batches are done out of order; nothing is said to be done "up to"
    /// a sequence before all below it are.
    #[test]
    fn acknowledgements_say_up_to_and_mean_it() {
        let (mut p, far) = (pending(), Instant::now());
        let slot = p.push(tp(0), [0, 1, 2, 3].map(batch).into_iter(), false, far);
        let other = p.push(tp(1), [4].map(batch).into_iter(), false, far);
        assert!(p.decide(slot, 1, done(11, 0)));
        assert_eq!(answers(&mut p, slot), []);
        assert!(p.decide(other, 4, done(5, 1)));
        assert_eq!(
            answers(&mut p, other).len(),
            1,
            "partitions do not wait for one another"
        );
        p.decide(slot, 0, done(10, 1));
        p.decide(slot, 2, refused(ErrorCode::OutOfOrderSequence));
        p.decide(slot, 3, done(12, 1));
        assert!(
            !p.decide(slot, 3, refused(ErrorCode::Internal)),
            "decided once"
        );
        let said = answers(&mut p, slot);
        let [
            Answer::Ack(first),
            Answer::Refusal(refusal),
            Answer::Ack(last),
        ] = &said[..]
        else {
            panic!("{said:?}")
        };
        assert_eq!(
            (first.up_to_sequence, &first.base_offsets[..]),
            (1, &[10, 11][..])
        );
        assert_eq!(
            first.durability.expect("durability").replicas_flushed,
            0,
            "the lowest of both"
        );
        assert_eq!(first.timestamp_ms, 11);
        assert_eq!(refusal.sequences, [2]);
        assert_eq!(
            (last.up_to_sequence, &last.base_offsets[..]),
            (3, &[12][..])
        );
        assert!(p.is_empty());
        assert_eq!(p.outstanding(), Amount::default());
    }

    #[test]
    fn credit_is_what_is_unanswered() {
        let (mut p, far) = (pending(), Instant::now());
        assert!(
            p.fits(Amount {
                bytes: 5_000,
                records: 1
            }),
            "alone, anything goes"
        );
        let slot = p.push(tp(0), [0, 1, 2, 3].map(batch).into_iter(), false, far);
        assert!(p.fits(Amount {
            bytes: 600,
            records: 10
        }));
        assert!(!p.fits(Amount {
            bytes: 601,
            records: 1
        }));
        assert!(!p.fits(Amount {
            bytes: 1,
            records: 11
        }));
        (0..4).for_each(|n| assert!(p.decide(slot, n, refused(ErrorCode::DiskFull))));
        let said = answers(&mut p, slot);
        assert!(
            matches!(&said[..], [Answer::Refusal(all)] if all.sequences == [0, 1, 2, 3]),
            "{said:?}"
        );
        assert!(p.fits(Amount {
            bytes: 1_000,
            records: 50
        }));
    }

    /// Story: acks none: success returns credit, refusals are still said, and
    /// each batch is answered by exactly one of the two.
    #[test]
    fn silent_batches_are_answered_with_credit_or_a_refusal() {
        let (mut p, far) = (pending(), Instant::now());
        let slot = p.push(tp(0), [0, 1, 2].map(batch).into_iter(), true, far);
        p.decide(slot, 0, done(0, 0));
        p.decide(slot, 1, refused(ErrorCode::DiskFull));
        p.decide(slot, 2, done(10, 0));
        let said = answers(&mut p, slot);
        assert!(matches!(said[0], Answer::Refusal(_)));
        assert_eq!(
            said[1],
            Answer::Credit(Amount {
                bytes: 200,
                records: 20
            })
        );
        assert_eq!(said.len(), 2);
    }

    /// Story: a disk stalls past the delivery time-out; the client is told
    /// "unknown", and what the log says later is not told twice.
    #[test]
    fn what_waits_too_long_is_refused_once() {
        let (mut p, start) = (pending(), Instant::now());
        let later = |ms| start + std::time::Duration::from_millis(ms);
        let slot = p.push(tp(0), [0].map(batch).into_iter(), false, later(10));
        assert_eq!(
            p.push(tp(0), [1].map(batch).into_iter(), false, later(20)),
            slot
        );
        assert_eq!(p.next_deadline(), Some(later(10)));
        let refusal = Refusal::new(ErrorCode::DeliveryTimeout, "late");
        assert!(p.expire(later(9), &refusal).is_empty());
        assert_eq!(p.expire(later(10), &refusal), [slot]);
        assert_eq!(answers(&mut p, slot).len(), 1);
        assert!(!p.decide(slot, 0, done(0, 1)));
        assert_eq!(p.next_deadline(), Some(later(20)));
        p.decide(slot, 1, done(1, 1));
        answers(&mut p, slot);
        assert_eq!(p.next_deadline(), None);
        assert_eq!(p.partition(slot), None);
        assert_ne!(
            p.push(tp(0), [2].map(batch).into_iter(), false, later(30)),
            slot,
            "numbers are not used again"
        );
    }
}
