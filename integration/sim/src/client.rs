//! Producers and consumers. An idempotent producer sends what is unanswered
//! again, in order and byte for byte; a plain one sends everything once.

use crate::{
    Checked, Happened,
    net::{Message, Peer},
    oracle::records,
    rng::Rng,
    world::{CLIENTS, Event, World, wall_clock},
};
use std::{collections::VecDeque, ops::Range, sync::Arc};
use talweg_batch::{BatchBuilder, CheckedBatch, ValidationLimits, check_client_batch};
use talweg_log::{AppendError, ReadError};
use talweg_storage::parts::{AppendRefusal, Outcome};
use talweg_types::{
    Acks, Compression, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs, TopicConfig,
    TopicPartition,
};

pub type OpId = u64;
/// The number of a record; each has its own.
pub type Value = u32;

/// Unanswered batches of a producer, as for a gateway's.
const UNANSWERED_MAX: usize = 4;
const NODES_MAX: usize = 8;
/// A producer begins a new session after so many refusals of its oldest batch.
const OUT_OF_ORDER_MAX: u32 = 8;

/// A batch.
pub struct Op {
    pub tp: TopicPartition,
    pub acks: Acks,
    first: Value,
    count: u32,
    batch: CheckedBatch,
    /// Whose it is, and the producer id that it carries; `None`: a plain one's.
    lane: Option<usize>,
    producer: Option<i64>,
    attempt: u32,
}

impl Op {
    pub fn values(&self) -> Range<Value> {
        self.first..self.first + self.count
    }
}

/// An idempotent producer for one partition.
struct Lane {
    tp: TopicPartition,
    acks: Acks,
    producer: i64,
    sequence: i32,
    unanswered: VecDeque<OpId>,
    /// When the unanswered are sent again.
    again: u64,
    out_of_order: u32,
}

struct Consumer {
    tp: TopicPartition,
    next: i64,
    epoch: i32,
}

pub struct Request {
    pub tp: TopicPartition,
    pub acks: Acks,
    pub batch: CheckedBatch,
}

pub struct Clients {
    rng: Rng,
    ops: Vec<Op>,
    lanes: Vec<Lane>,
    consumers: Vec<Consumer>,
    next_value: Value,
    next_producer: i64,
    pub quiet: bool,
}

impl Clients {
    pub fn new(rng: Rng) -> Self {
        Self {
            rng,
            ops: Vec::new(),
            lanes: Vec::new(),
            consumers: Vec::new(),
            next_value: 0,
            next_producer: 1_000,
            quiet: false,
        }
    }

    pub fn op(&self, op: OpId) -> &Op {
        &self.ops[op as usize]
    }

    pub fn request(&self, op: OpId) -> Request {
        let Op {
            tp, acks, batch, ..
        } = self.op(op);
        Request {
            tp: *tp,
            acks: *acks,
            batch: batch.clone(),
        }
    }

    pub fn begin(&mut self, partitions: &[TopicPartition]) {
        for tp in partitions {
            for acks in [Acks::All, Acks::One] {
                self.next_producer += 1;
                self.lanes.push(Lane {
                    tp: *tp,
                    acks,
                    producer: self.next_producer,
                    sequence: 0,
                    unanswered: VecDeque::new(),
                    again: 0,
                    out_of_order: 0,
                });
            }
            self.consumers.push(Consumer {
                tp: *tp,
                next: 0,
                epoch: -1,
            });
        }
    }

    /// Producers that wait for an answer at acks=all.
    pub fn waiting(&self) -> usize {
        self.lanes
            .iter()
            .filter(|lane| lane.acks == Acks::All)
            .map(|lane| lane.unanswered.len())
            .sum()
    }

    pub fn readers_behind(&self, end: impl Fn(&TopicPartition) -> i64) -> usize {
        self.consumers
            .iter()
            .filter(|consumer| consumer.next < end(&consumer.tp))
            .count()
    }

    /// A new batch; of a lane's producer, or of nobody's.
    fn make(
        &mut self,
        tp: TopicPartition,
        acks: Acks,
        lane: Option<usize>,
    ) -> Result<OpId, String> {
        let count = self.rng.between(1, 3) as u32;
        let size = self.rng.between(8, 220) as usize;
        let mut builder = BatchBuilder::new(Compression::None);
        let producer = lane.map(|lane| self.lanes[lane].producer);
        if let Some(lane) = lane {
            let lane = &mut self.lanes[lane];
            builder.set_producer(
                ProducerId(lane.producer),
                ProducerEpoch(0),
                Sequence(lane.sequence),
            );
            lane.sequence += count as i32;
        }
        let first = self.next_value;
        self.next_value += count;
        let headers = || std::iter::empty::<(&[u8], Option<&[u8]>)>();
        for value in first..self.next_value {
            let mut bytes = value.to_be_bytes().to_vec();
            bytes.resize(size, b'.');
            let pushed = builder.push(wall_clock(), None, Some(&bytes), headers());
            pushed.map_err(|error| format!("a record: {error}"))?;
        }
        let bytes = builder
            .build()
            .map_err(|error| format!("a batch: {error}"))?;
        let limits = ValidationLimits {
            max_timestamp: TimestampMs(i64::MAX / 2),
            ..ValidationLimits::for_topic(&TopicConfig::default(), wall_clock())
        };
        let batch =
            check_client_batch(bytes, &limits).map_err(|error| format!("a batch: {error}"))?;
        self.ops.push(Op {
            tp,
            acks,
            first,
            count,
            batch,
            lane,
            producer,
            attempt: 0,
        });
        Ok(self.ops.len() as OpId - 1)
    }
}

impl World {
    pub fn clients_act(&mut self) -> Checked {
        let wait = self.clients.rng.between(20, 120);
        self.after(wait, Event::ClientsAct);
        for lane in 0..self.clients.lanes.len() {
            self.lane_acts(lane)?;
        }
        for tp in self.partitions() {
            if !self.clients.quiet && self.clients.rng.percent(12) {
                let acks = [Acks::Zero, Acks::One, Acks::All][self.clients.rng.below(3)];
                let op = self.clients.make(tp, acks, None)?;
                self.send_op(op);
            }
        }
        (0..self.clients.consumers.len()).try_for_each(|consumer| self.consume(consumer))
    }

    fn lane_acts(&mut self, number: usize) -> Checked {
        let now = self.now;
        let clients = &mut self.clients;
        let lane = &mut clients.lanes[number];
        if !lane.unanswered.is_empty() && now >= lane.again {
            lane.again = now + clients.rng.between(1_200, 3_000);
            let all: Vec<_> = lane.unanswered.iter().copied().collect();
            all.into_iter().for_each(|op| self.send_op(op));
            return Ok(());
        }
        let room = lane.unanswered.len() < UNANSWERED_MAX;
        if clients.quiet || !room || !clients.rng.percent(35) {
            return Ok(());
        }
        if lane.unanswered.is_empty() {
            lane.again = now + clients.rng.between(1_200, 3_000);
        }
        let (tp, acks) = (lane.tp, lane.acks);
        let op = clients.make(tp, acks, Some(number))?;
        clients.lanes[number].unanswered.push_back(op);
        self.send_op(op);
        Ok(())
    }

    /// To the leader as far as is known, or to some replica.
    fn send_op(&mut self, op: OpId) {
        let clients = &mut self.clients;
        let this = &mut clients.ops[op as usize];
        this.attempt += 1;
        let (tp, attempt) = (this.tp, this.attempt);
        let guess = clients.rng.below(NODES_MAX);
        let known = !clients.rng.percent(8);
        let Some(state) = self.control.partition(&tp) else {
            return;
        };
        let some = state.replicas[guess % state.replicas.len()];
        let node = if known && !state.leader.is_none() {
            state.leader
        } else {
            some
        };
        let to = Peer {
            end: node.0 as usize - 1,
            life: 0,
        };
        let from = Peer {
            end: CLIENTS,
            life: 0,
        };
        self.send_single(from, to, op, &Message::Produce { op, attempt });
    }

    pub fn answer_client(&mut self, node: usize, message: Message) {
        let from = self.nodes[node].peer();
        let to = Peer {
            end: CLIENTS,
            life: 0,
        };
        self.send_single(from, to, 0, &message);
    }

    /// What a process has answered in this step.
    pub fn answer_clients(&mut self, node: usize) -> Checked {
        let mut completions = Vec::new();
        let Some(process) = self.process(node) else {
            return Ok(());
        };
        process.out.wake();
        let answers = Arc::clone(&process.answers);
        answers.take(&mut completions);
        for completion in completions {
            let (op, attempt, outcome) = (completion.sequence, completion.slot, completion.outcome);
            match &outcome {
                Outcome::Done {
                    base_offset,
                    duplicate,
                    reached,
                    ..
                } => {
                    self.on_done(node, op, *base_offset, *duplicate, *reached)?;
                }
                Outcome::Refused(refusal) => self.note_refusal(op, refusal),
            }
            self.mix(op);
            self.answer_client(
                node,
                Message::Produced {
                    op,
                    attempt,
                    outcome,
                },
            );
        }
        Ok(())
    }

    fn note_refusal(&mut self, op: OpId, refusal: &AppendRefusal) {
        let happened = match refusal {
            AppendRefusal::LeadershipLost => Some(Happened::EpochEndedWithWaiters),
            AppendRefusal::NotEnoughReplicasAfterAppend => Some(Happened::NotEnoughAfter),
            AppendRefusal::NotEnoughReplicas { .. } => Some(Happened::NotEnough),
            AppendRefusal::NoQuorumContact { .. } => Some(Happened::NoContact),
            AppendRefusal::Log(AppendError::DiskFull) => Some(Happened::DiskFull),
            AppendRefusal::Log(AppendError::FolderFailed(_)) => Some(Happened::FolderFailed),
            _ => None,
        };
        happened
            .into_iter()
            .for_each(|what| self.coverage.note(what));
        let unknown = matches!(
            refusal,
            AppendRefusal::LeadershipLost | AppendRefusal::NotEnoughReplicasAfterAppend
        );
        // Sent once, and on a network that does not double what is sent.
        let op = self.clients.op(op);
        if op.lane.is_none() && !self.plan.wild && !unknown {
            self.oracle.on_refused(op.values());
        }
    }

    pub fn on_client_message(&mut self, message: Message) -> Checked {
        let Message::Produced {
            op,
            attempt,
            outcome,
        } = message
        else {
            return Ok(());
        };
        let now = self.now;
        let clients = &mut self.clients;
        let current = clients.ops[op as usize].attempt == attempt;
        let Some(lane) = clients.ops[op as usize]
            .lane
            .map(|lane| &mut clients.lanes[lane])
        else {
            return Ok(());
        };
        if !lane.unanswered.contains(&op) {
            return Ok(());
        }
        match outcome {
            Outcome::Done { .. } => {
                lane.unanswered.retain(|other| *other != op);
                lane.out_of_order = 0;
            }
            Outcome::Refused(_) if !current => {}
            Outcome::Refused(AppendRefusal::Log(
                AppendError::OutOfOrderSequence { .. }
                | AppendError::UnknownProducer
                | AppendError::Fenced { .. },
            )) if lane.unanswered.front() == Some(&op) => {
                lane.out_of_order += 1;
                lane.again = now + clients.rng.between(50, 400);
                if lane.out_of_order > OUT_OF_ORDER_MAX {
                    // What it remembers was lost: it begins anew.
                    clients.next_producer += 1;
                    lane.producer = clients.next_producer;
                    lane.sequence = 0;
                    lane.unanswered.clear();
                    lane.out_of_order = 0;
                }
            }
            Outcome::Refused(_) => lane.again = lane.again.min(now + clients.rng.between(50, 400)),
        }
        Ok(())
    }

    /// Reads below the watermark from whoever leads.
    fn consume(&mut self, number: usize) -> Checked {
        let clients = &mut self.clients;
        let guess = clients.rng.below(NODES_MAX);
        let known = !clients.rng.percent(25);
        let tp = clients.consumers[number].tp;
        let Some(state) = self.control.partition(&tp) else {
            return Ok(());
        };
        let some = state.replicas[guess % state.replicas.len()];
        let node = if known && !state.leader.is_none() {
            state.leader
        } else {
            some
        };
        let index = node.0 as usize - 1;
        if self.nodes[index].paused_until > self.now {
            return Ok(());
        }
        let Some(process) = self.nodes[index].process.as_ref() else {
            return Ok(());
        };
        let Some(handle) = process.handles.get(&tp) else {
            return Ok(());
        };
        let (Some(epoch), true, None) =
            (handle.leads(), handle.knows_watermark(), handle.failure())
        else {
            return Ok(());
        };
        let bounds = handle.reader.bounds();
        let watermark = bounds.high_watermark.0;
        let truth = self.oracle.truth(tp);
        truth
            .on_shown(index, epoch.0, watermark)
            .map_err(|why| format!("{tp}: {why}"))?;
        let consumer = &mut self.clients.consumers[number];
        if epoch.0 < consumer.epoch {
            // Fenced: it knows of a later leader.
            return Ok(());
        }
        if consumer.epoch < truth.reckoned {
            consumer.next = consumer.next.min(truth.end());
        }
        consumer.epoch = epoch.0;
        if watermark < consumer.next {
            return Err(format!(
                "{tp}: a consumer has read to {}, node {node} shows {watermark}",
                consumer.next
            ));
        }
        let from = Offset(consumer.next.max(bounds.log_start.0));
        let read = handle.reader.read(from, bounds.high_watermark, 1_500);
        let read = match read {
            Ok(read) => read,
            // It will be told in a moment that it leads no more.
            Err(ReadError::FolderFailed(_)) => return Ok(()),
            Err(error) => return Err(format!("{tp}: node {node} cannot read at {from}: {error}")),
        };
        let found =
            records(&read.batches).map_err(|why| format!("{tp}: node {node} at {from}: {why}"))?;
        consumer.next = read.next_offset.0.max(consumer.next);
        let seen = found
            .into_iter()
            .filter(|(offset, _)| *offset >= from.0 && *offset < watermark);
        for (expected, (offset, record)) in (from.0..).zip(seen) {
            let committed = truth.committed.get(offset as usize).copied();
            if committed != Some(record) || offset != expected {
                return Err(format!(
                    "{tp}: node {node} gives {record:?} at {offset} where {expected} was next, committed is {committed:?}"
                ));
            }
            self.coverage.note(Happened::Read);
        }
        Ok(())
    }
}

impl Clients {
    /// The producer id that a record carries; `None`: a plain one's.
    pub fn producer_of(&self, value: Value) -> Option<i64> {
        let after = self.ops.partition_point(|op| op.first <= value);
        self.ops[after.checked_sub(1)?].producer
    }
}
