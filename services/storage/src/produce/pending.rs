//! What a produce stream has taken and not yet answered, and the credit that it
//! uses up. No IO, no clock.
//!
//! ```text
//! outstanding = bytes and records of what is not answered ≤ granted (one frame alone may be larger)
//! ```
//! Answers of one partition leave in the order of their stream sequences, so
//! that "all up to sequence n" is true; partitions do not wait for one another.

#[cfg(test)]
mod tests;

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
