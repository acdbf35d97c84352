//! All lanes of one producer: pure. Takes batches, routes and answers; says
//! what to send where and what ended how. Every batch taken ends exactly once.

use super::batch::Done;
use super::batch::{Batch, Freed, LinkId, Settled};
use super::lane::{Lane, LaneAck, Next};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use talweg_kit::errors::Refusal;
use talweg_proto::v1;
use talweg_types::{PartitionIndex, TopicId, TopicPartition};

/// What [`DeliveryCore::next`] found.
#[derive(Debug)]
pub enum Want {
    /// Send this batch, then call [`DeliveryCore::mark_sent`].
    Send(Batch),
    /// Number what is left of the partition anew ([`DeliveryCore::renumber`]).
    Renumber,
    /// Nothing can be sent there now.
    Nothing,
}

/// The lanes that have batches, and what is in flight on which link.
#[derive(Default)]
pub struct DeliveryCore {
    lanes: BTreeMap<TopicPartition, Lane>,
    /// Of each link, which partition a sequence belongs to.
    flights: BTreeMap<(LinkId, u64), TopicPartition>,
    /// Sent to a leader that was replaced since, and sent again elsewhere: only
    /// the credit that they have borrowed is still waited for.
    abandoned: BTreeMap<(LinkId, u64), (TopicPartition, Freed)>,
    /// Lanes that may have something to send.
    ready: BTreeSet<TopicPartition>,
    settled: Vec<Settled>,
    leaders_may_lag: bool,
    /// Spreads retries of many producers; a plain linear congruence.
    jitter: u64,
    taken: u64,
    ended: u64,
}

impl DeliveryCore {
    /// `leaders_may_lag`: UNKNOWN_TOPIC by a leader means that it has not heard
    /// of the topic yet. `seed` spreads the retries.
    pub fn new(leaders_may_lag: bool, seed: u64) -> Self {
        Self {
            leaders_may_lag,
            jitter: seed,
            ..Self::default()
        }
    }

    /// Takes a batch; it will be among the settled ones exactly once.
    pub fn offer(&mut self, partition: TopicPartition, batch: Batch) {
        self.taken += 1;
        self.lanes.entry(partition).or_default().push(batch);
        self.ready.insert(partition);
    }

    /// Batches that were taken and not yet settled.
    pub fn unanswered(&self) -> u64 {
        self.taken - self.ended
    }

    /// A numbered batch for this partition would be sent at once.
    pub fn has_room(&self, partition: TopicPartition) -> bool {
        self.lanes.get(&partition).is_none_or(Lane::has_room)
    }

    /// Nothing for this partition is unanswered.
    pub fn is_idle(&self, partition: TopicPartition) -> bool {
        self.lanes.get(&partition).is_none_or(Lane::is_idle)
    }

    /// Lanes that may have something to send; they leave the list.
    pub fn take_ready(&mut self) -> BTreeSet<TopicPartition> {
        std::mem::take(&mut self.ready)
    }

    /// Puts a lane back on the list.
    pub fn set_ready(&mut self, partition: TopicPartition) {
        self.ready.insert(partition);
    }

    /// Lanes with anything left, for [`Self::take_ready`] at the next tick.
    pub fn set_all_ready(&mut self) {
        self.ready.extend(self.lanes.keys().copied());
    }

    /// A leader changed: waiting for one ends.
    pub fn wake_all(&mut self) {
        self.lanes.values_mut().for_each(Lane::wake);
        self.set_all_ready();
    }

    /// What the partition wants to send on `link`.
    pub fn next(&mut self, partition: TopicPartition, link: LinkId, now: u64) -> Want {
        let Some(lane) = self.lanes.get(&partition) else {
            return Want::Nothing;
        };
        match lane.next(link, now) {
            Next::Send(batch) => Want::Send(batch.clone()),
            Next::Renumber => Want::Renumber,
            Next::Nothing => Want::Nothing,
        }
    }

    /// When the lane may send again, monotonic milliseconds; 0 is any time.
    pub fn retry_at(&self, partition: TopicPartition) -> u64 {
        self.lanes.get(&partition).map_or(0, Lane::retry_at)
    }

    /// The batch of the last [`Want::Send`] was sent.
    pub fn mark_sent(&mut self, partition: TopicPartition, link: LinkId, sequence: u64) {
        if let Some(lane) = self.lanes.get_mut(&partition) {
            lane.mark_sent(link, sequence);
            self.flights.insert((link, sequence), partition);
        }
    }

    /// Numbers what is left of the partition anew. Only after [`Want::Renumber`].
    pub fn renumber(
        &mut self,
        partition: TopicPartition,
        stamp: impl FnMut(&Batch) -> Option<Bytes>,
    ) {
        if let Some(lane) = self.lanes.get_mut(&partition) {
            lane.renumber(stamp);
        }
        self.sweep(partition);
    }

    /// There is no way to a leader before `until`; `refusal` says why, if it is known.
    pub fn no_route(&mut self, partition: TopicPartition, refusal: Option<Refusal>, until: u64) {
        if let Some(lane) = self.lanes.get_mut(&partition) {
            lane.no_route(refusal, until);
        }
    }

    /// Everything of the partition that is not in flight ends with `refusal`.
    pub fn fail(&mut self, partition: TopicPartition, refusal: &Refusal) {
        if let Some(lane) = self.lanes.get_mut(&partition) {
            lane.fail_waiting(refusal);
        }
        self.sweep(partition);
    }

    /// An acknowledgement came on `link`.
    pub fn on_ack(&mut self, link: LinkId, ack: &v1::BatchAck) -> Freed {
        let Some(topic_id) = TopicId::from_slice(&ack.topic_id) else {
            return Freed::default();
        };
        let partition = TopicPartition {
            topic_id,
            partition: PartitionIndex(ack.partition),
        };
        let (skip, mut freed) = self.take_abandoned(link, partition, ack.up_to_sequence);
        let Some(lane) = self.lanes.get_mut(&partition) else {
            return freed;
        };
        let done = Done {
            base_offset: None,
            timestamp_ms: ack.timestamp_ms,
            durability: ack.durability.unwrap_or_default(),
            duplicate: false,
        };
        let ack = LaneAck {
            up_to: ack.up_to_sequence,
            base_offsets: &ack.base_offsets,
            done,
            duplicates: ack.duplicates,
            skip,
        };
        let flights = &mut self.flights;
        freed.merge(lane.on_ack(link, ack, |sequence| {
            flights.remove(&(link, sequence));
        }));
        self.sweep(partition);
        freed
    }

    /// A refusal came on `link`.
    pub fn on_refusal(
        &mut self,
        link: LinkId,
        sequences: &[u64],
        refusal: &Refusal,
        now: u64,
    ) -> Freed {
        let mut freed = Freed::default();
        let mut touched = BTreeSet::new();
        for sequence in sequences {
            if let Some((_, borrowed)) = self.abandoned.remove(&(link, *sequence)) {
                freed.merge(borrowed);
                continue;
            }
            let Some(partition) = self.flights.remove(&(link, *sequence)) else {
                continue;
            };
            let jitter = self.next_jitter();
            if let Some(lane) = self.lanes.get_mut(&partition) {
                let lag = self.leaders_may_lag;
                freed.merge(lane.on_refusal(link, *sequence, refusal, lag, (now, jitter)));
                touched.insert(partition);
            }
        }
        touched
            .into_iter()
            .for_each(|partition| self.sweep(partition));
        freed
    }

    /// `link` leads to the partition's leader: what is in flight to an earlier
    /// one is sent there too, without waiting for an answer.
    pub fn abandon(&mut self, partition: TopicPartition, link: LinkId, now: u64) {
        let Some(lane) = self.lanes.get_mut(&partition) else {
            return;
        };
        let (old, sequences) = lane.abandon(link, now);
        for (sequence, borrowed) in sequences {
            self.flights.remove(&(old, sequence));
            self.abandoned
                .insert((old, sequence), (partition, borrowed));
        }
        self.sweep(partition);
    }

    /// The link on which batches of the partition are unanswered.
    pub fn link_of(&self, partition: TopicPartition) -> Option<LinkId> {
        self.lanes.get(&partition).and_then(Lane::link)
    }

    /// Abandoned batches that an acknowledgement covers: how many, and their credit.
    fn take_abandoned(
        &mut self,
        link: LinkId,
        partition: TopicPartition,
        up_to: u64,
    ) -> (usize, Freed) {
        let covered = self.abandoned.range((link, 0)..=(link, up_to));
        let covered: Vec<(LinkId, u64)> = covered
            .filter(|(_, (of, _))| *of == partition)
            .map(|(key, _)| *key)
            .collect();
        let mut freed = Freed::default();
        for key in &covered {
            if let Some((_, borrowed)) = self.abandoned.remove(key) {
                freed.merge(borrowed);
            }
        }
        (covered.len(), freed)
    }

    /// The link is gone.
    pub fn on_broken(&mut self, link: LinkId, now: u64) {
        self.abandoned.retain(|(of, _), _| *of != link);
        let flights: Vec<((LinkId, u64), TopicPartition)> = self
            .flights
            .range((link, 0)..=(link, u64::MAX))
            .map(|(key, partition)| (*key, *partition))
            .collect();
        let mut touched = BTreeSet::new();
        for (key, partition) in flights {
            self.flights.remove(&key);
            touched.insert(partition);
        }
        for partition in touched {
            if let Some(lane) = self.lanes.get_mut(&partition) {
                lane.on_broken(link, now);
            }
            self.sweep(partition);
        }
    }

    /// Ends what is over its time.
    pub fn tick(&mut self, now: u64) {
        let partitions: Vec<TopicPartition> = self.lanes.keys().copied().collect();
        for partition in partitions {
            if let Some(lane) = self.lanes.get_mut(&partition) {
                lane.expire(now);
            }
            self.sweep(partition);
        }
    }

    /// What ended since the last call, in order for each partition.
    pub fn take_settled(&mut self) -> Vec<Settled> {
        std::mem::take(&mut self.settled)
    }

    /// Whether [`Self::take_settled`] has anything.
    pub fn has_settled(&self) -> bool {
        !self.settled.is_empty()
    }

    fn sweep(&mut self, partition: TopicPartition) {
        let Some(lane) = self.lanes.get_mut(&partition) else {
            return;
        };
        let (settled, ended) = (&mut self.settled, &mut self.ended);
        lane.release(|ticket, outcome| {
            *ended += 1;
            settled.push(Settled {
                partition,
                ticket,
                outcome,
            });
        });
        if lane.is_empty() {
            self.lanes.remove(&partition);
            self.ready.remove(&partition);
        } else {
            self.ready.insert(partition);
        }
    }

    fn next_jitter(&mut self) -> u64 {
        self.jitter = self
            .jitter
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.jitter >> 33
    }

    /// The invariants of all lanes, and that each flight is known.
    pub fn check(&self) -> Result<(), &'static str> {
        self.lanes.values().try_for_each(Lane::check)
    }
}
