//! What a Produce stream decides: pure, no IO, no clock.
//!
//! A stream is an idempotent producer: thin records are checked, partitioned,
//! packed and numbered here, in order; batches pass through. [`Lanes`] deliver.
//!
//! Always true: every stream sequence is answered exactly once (acks 0: done
//! is told by credit alone), and what is answered gives its credit back.

mod packing;
mod settling;

use super::{
    answers::{Answers, id},
    check::{self, Rules},
    credit::{Amount, Credit},
    open::Opening,
    pack::{Builders, Pack, fill_limit},
    partitioner::Partitioner,
    parts::{Parts, too_large},
    restamp::restamp,
};
use bytes::Bytes;
use std::{collections::BTreeMap, ops::Range, sync::Arc};
use talweg_batch::{BatchHeader, Encoders, record_bytes};
use talweg_client::{
    delivery::{Batch, Numbering, Outcome, Settled, Upstream},
    payload,
    view::{TopicView, View},
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1::{self, BatchFrame, RecordsFrame, produce_response::Frame};
use talweg_types::{
    Acks, LeaderEpoch, PartitionIndex, ProducerEpoch, ProducerId, Sequence, TimestampMs,
    TopicPartition, limits,
};

/// What delivers batches.
pub trait Lanes {
    /// Nothing for this partition is unanswered.
    fn is_idle(&self, partition: TopicPartition) -> bool;
    /// A numbered batch for this partition would be sent at once.
    fn has_room(&self, partition: TopicPartition) -> bool;
    /// Takes a batch; its end comes as [`Settled`].
    fn offer(&mut self, partition: TopicPartition, acks: Acks, batch: Batch);
    /// Numbers what is left of the partition anew.
    fn renumber(
        &mut self,
        partition: TopicPartition,
        stamp: &mut dyn FnMut(&Batch) -> Option<Bytes>,
    );
}

impl Lanes for Upstream {
    fn is_idle(&self, partition: TopicPartition) -> bool {
        Upstream::is_idle(self, partition)
    }

    fn has_room(&self, partition: TopicPartition) -> bool {
        Upstream::has_room(self, partition)
    }

    fn offer(&mut self, partition: TopicPartition, acks: Acks, batch: Batch) {
        Upstream::offer(self, partition, acks, batch);
    }

    fn renumber(
        &mut self,
        partition: TopicPartition,
        stamp: &mut dyn FnMut(&Batch) -> Option<Bytes>,
    ) {
        Upstream::renumber(self, partition, stamp);
    }
}

/// The moment: monotonic and wall-clock milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub mono_ms: u64,
    pub wall_ms: i64,
}

/// Our numbers in one partition.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    id: ProducerId,
    epoch: ProducerEpoch,
    next: Sequence,
}

/// What a batch on its way answers.
struct Ticket {
    what: Answered,
    amount: Amount,
    /// Acks 0: done is told by credit alone.
    silent: bool,
    /// When its oldest record came.
    since_ms: u64,
}

/// What happened since it was last asked for; for metrics.
#[derive(Default)]
pub struct Stats {
    /// Batches handed over, and their bytes.
    pub batches: u64,
    pub bytes: u64,
    /// Of each batch that ended: from its oldest record to its answer, milliseconds.
    pub delivered_ms: Vec<u64>,
}

enum Answered {
    Records(Vec<u64>),
    Batch(u64),
}

/// A Produce stream's state.
pub struct Session {
    opening: Opening,
    credit: Credit,
    next_sequence: u64,
    /// The last frame could not be counted: the next one may begin further on.
    uncounted: bool,
    producer: Option<ProducerId>,
    numbers: BTreeMap<TopicPartition, Numbers>,
    partitioner: Partitioner,
    packs: BTreeMap<TopicPartition, Pack>,
    builders: Builders,
    encoders: Encoders,
    tickets: BTreeMap<u64, Ticket>,
    next_ticket: u64,
    answers: Answers,
    stats: Stats,
}

impl Session {
    /// `seed` spreads the partitions that streams begin with.
    pub fn new(opening: Opening, granted: Amount, seed: u32) -> Self {
        Self {
            opening,
            credit: Credit::new(granted),
            next_sequence: 0,
            uncounted: false,
            producer: None,
            numbers: BTreeMap::new(),
            partitioner: Partitioner::new(seed),
            packs: BTreeMap::new(),
            builders: Builders::default(),
            encoders: Encoders::new(),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            answers: Answers::default(),
            stats: Stats::default(),
        }
    }

    /// The sequence that the next record or batch must have.
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    pub fn granted(&self) -> Amount {
        self.credit.granted()
    }

    /// Thin records need an identity, which this stream does not have yet.
    pub fn needs_producer(&self) -> bool {
        self.producer.is_none()
    }

    pub fn set_producer(&mut self, id: ProducerId) {
        self.producer = Some(id);
    }

    /// Refuses a frame that carries neither records nor batches.
    pub fn refuse_frame(&mut self, refusal: &Refusal) {
        self.answers.refusal(None, None, [], refusal);
    }

    /// The next frame for the client.
    pub fn next_answer(&mut self) -> Option<Frame> {
        self.answers.pop()
    }

    /// What happened since the last call.
    pub fn take_stats(&mut self) -> Stats {
        std::mem::take(&mut self.stats)
    }

    /// Everything accepted is answered, and every answer taken.
    pub fn is_quiet(&self) -> bool {
        self.tickets.is_empty() && self.packs.is_empty() && self.answers.is_empty()
    }

    // Frames

    /// Takes thin records; each is answered by itself.
    pub fn on_records(
        &mut self,
        frame: RecordsFrame,
        view: &View,
        now: Now,
        lanes: &mut impl Lanes,
    ) {
        let count = frame.records.len() as u64;
        let sequences = frame.first_sequence..frame.first_sequence.saturating_add(count);
        if let Err(refusal) = self.count(sequences.clone(), false) {
            return self.answers.refusal(None, None, sequences, &refusal);
        }
        let sizes: Vec<u64> = frame
            .records
            .iter()
            .map(|it| payload::record_bytes(it) as u64)
            .collect();
        let amount = Amount {
            bytes: sizes.iter().sum(),
            records: count,
        };
        let (topic, acks) = match self.admit_records(&frame, amount, view) {
            Ok(admitted) => admitted,
            Err(refusal) => return self.answers.refusal(None, None, sequences, &refusal),
        };
        let rules = Rules::new(&topic, TimestampMs(now.wall_ms));
        let mut touched = Vec::new();
        for (index, record) in frame.records.iter().enumerate() {
            let amount = Amount {
                bytes: sizes[index],
                records: 1,
            };
            let sequence = frame.first_sequence + index as u64;
            match rules.check(index, record) {
                Ok(()) => {
                    let at = self.pack(&rules, record, (sequence, amount), acks, now, lanes);
                    if touched.last() != Some(&at) {
                        touched.push(at);
                    }
                }
                Err(refusal) => {
                    self.credit.give_back(amount);
                    let topic_id = Bytes::copy_from_slice(topic.id.as_bytes());
                    self.answers
                        .refusal(Some(topic_id), record.partition, [sequence], &refusal);
                }
            }
        }
        for partition in touched {
            if lanes.is_idle(partition) {
                self.seal(partition, Some(&topic), lanes);
            }
        }
    }

    fn admit_records(
        &mut self,
        frame: &RecordsFrame,
        amount: Amount,
        view: &View,
    ) -> Result<(Arc<TopicView>, Acks), Refusal> {
        if amount.bytes > u64::from(limits::FRAME_PAYLOAD_BYTES) && amount.records > 1 {
            return Err(too_large(amount.bytes, "records"));
        }
        check::writable(&frame.topic)?;
        let topic = Arc::clone(view.resolve(&frame.topic, &frame.topic_id)?);
        check::writable(&topic.topic.name)?;
        let acks = check::acks(&topic, self.opening.acks)?;
        if self.producer.is_none() {
            return Err(crate::ids::none_left());
        }
        if topic.partitions.is_empty() {
            return Err(
                Refusal::new(ErrorCode::TopicNotReady, "the topic is being created")
                    .retry_after(50),
            );
        }
        self.credit.take(amount)?;
        Ok((topic, acks))
    }

    /// Takes encoded batches of one partition.
    pub fn on_batches(
        &mut self,
        mut frame: BatchFrame,
        view: &View,
        now: Now,
        lanes: &mut impl Lanes,
    ) {
        let parts = Parts::of(std::mem::take(&mut frame.batches));
        let sequences = frame.first_sequence..frame.first_sequence.saturating_add(parts.count());
        if let Err(refusal) = self.count(sequences.clone(), parts.rest.is_some()) {
            return self.answers.refusal(None, None, sequences, &refusal);
        }
        let (topic, partition, acks) = match self.admit_batches(&frame, &parts, view) {
            Ok(admitted) => admitted,
            Err(refusal) => return self.answers.refusal(None, None, sequences, &refusal),
        };
        if let Some(refusal) = &parts.rest {
            let last = sequences.end - 1;
            self.answers.refusal(
                Some(id(partition)),
                Some(partition.partition.0),
                [last],
                refusal,
            );
        }
        // What was packed before goes before.
        self.seal(partition, Some(&topic), lanes);
        let deadline_ms = now.mono_ms.saturating_add(self.opening.delivery_timeout_ms);
        for (sequence, (header, batch)) in sequences.zip(parts.batches) {
            self.pass_on(
                partition,
                &topic,
                (sequence, header, batch),
                acks,
                deadline_ms,
                lanes,
            );
        }
    }

    fn admit_batches(
        &mut self,
        frame: &BatchFrame,
        parts: &Parts,
        view: &View,
    ) -> Result<(Arc<TopicView>, TopicPartition, Acks), Refusal> {
        parts.check_size()?;
        check::writable(&frame.topic)?;
        let topic = Arc::clone(view.resolve(&frame.topic, &frame.topic_id)?);
        check::writable(&topic.topic.name)?;
        let acks = check::acks(&topic, self.opening.acks)?;
        let Some(state) = topic.partitions.get(frame.partition as usize) else {
            return Err(talweg_client::view::no_partition(&topic, frame.partition));
        };
        check_epoch(frame.leader_epoch, state.leader_epoch)?;
        let bytes = parts
            .batches
            .iter()
            .map(|(_, batch)| batch.len() as u64)
            .sum();
        self.credit.take(Amount {
            bytes,
            ..parts.amount
        })?;
        let partition = TopicPartition {
            topic_id: topic.id,
            partition: PartitionIndex(frame.partition),
        };
        Ok((topic, partition, acks))
    }

    fn pass_on(
        &mut self,
        partition: TopicPartition,
        topic: &TopicView,
        (sequence, header, bytes): (u64, BatchHeader, Bytes),
        acks: Acks,
        deadline_ms: u64,
        lanes: &mut impl Lanes,
    ) {
        let records = u32::try_from(header.record_count).unwrap_or(0);
        let amount = Amount {
            bytes: bytes.len() as u64,
            records: records.into(),
        };
        let limit = topic.config.max_message_bytes;
        if bytes.len() > limit as usize {
            self.credit.give_back(amount);
            let refusal = batch_too_large(limit, bytes.len());
            return self.answers.refusal(
                Some(id(partition)),
                Some(partition.partition.0),
                [sequence],
                &refusal,
            );
        }
        let numbering = match header.producer_id.0 {
            id if id >= 0 => Numbering::Client(id),
            _ => Numbering::Plain,
        };
        let batch = Batch {
            ticket: self.next_ticket,
            bytes,
            records,
            numbering,
            deadline_ms,
        };
        self.hand_over(
            partition,
            acks,
            batch,
            Answered::Batch(sequence),
            amount,
            lanes,
        );
    }

    /// Takes the sequences, which must follow.
    fn count(&mut self, sequences: Range<u64>, uncounted: bool) -> Result<(), Refusal> {
        let follows = sequences.start == self.next_sequence
            || (self.uncounted && sequences.start > self.next_sequence);
        if !follows || sequences.end == u64::MAX {
            let message = format!(
                "stream sequence {} was due, not {}",
                self.next_sequence, sequences.start
            );
            return Err(Refusal::new(ErrorCode::InvalidStreamSequence, message)
                .with_field("first_sequence", "must continue the stream's sequence"));
        }
        self.next_sequence = sequences.end;
        self.uncounted = uncounted;
        Ok(())
    }
}

fn batch_too_large(limit: u32, actual: usize) -> Refusal {
    Refusal::new(
        ErrorCode::BatchTooLarge,
        format!("batch of {actual} bytes; the limit is {limit}"),
    )
    .with_limit("max.message.bytes", limit, actual as u64, "bytes")
}

/// The epoch that a client believes in, against ours: FENCED_LEADER_EPOCH or
/// UNKNOWN_LEADER_EPOCH.
pub fn check_epoch(asked: Option<i32>, current: LeaderEpoch) -> Result<(), Refusal> {
    let Some(asked) = asked.filter(|asked| *asked != current.0) else {
        return Ok(());
    };
    let code = match asked < current.0 {
        true => ErrorCode::FencedLeaderEpoch,
        false => ErrorCode::UnknownLeaderEpoch,
    };
    Err(Refusal::new(
        code,
        format!("the leader epoch is {current}, not {asked}"),
    ))
}
