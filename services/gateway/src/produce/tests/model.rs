//! The model: partition leaders with producer sessions, and a client that
//! remembers what it sent.

use super::super::{
    credit::Amount,
    open::Opening,
    session::{Lanes, Now, Session},
};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use talweg_batch::{BatchBuilder, BatchHeader, decode_records};
use talweg_client::{
    delivery::{Batch, DeliveryCore, LinkId, Want},
    view::View,
};
use talweg_kit::errors::{Effect, ErrorCode, Refusal};
use talweg_proto::v1::{self, produce_response::Frame};
use talweg_types::{
    Acks, Compression, PartitionIndex, ProducerId, TimestampMs, TopicId, TopicPartition,
    limits::IN_FLIGHT_BATCHES,
};

pub const PARTITIONS: u32 = 3;
pub const WALL_MS: i64 = 1_700_000_000_000;

/// A topic "t" with three partitions, led by node 1.
pub fn view(config: &[(&str, &str)]) -> View {
    let mut view = View::default();
    view.apply(v1::Metadata {
        cluster_id: vec![9; 16].into(),
        revision: 1,
        topics: vec![v1::TopicMetadata {
            topic: Some(v1::Topic {
                name: "t".into(),
                topic_id: vec![1; 16].into(),
                partitions: PARTITIONS,
                config: config
                    .iter()
                    .map(|(k, v)| ((*k).into(), (*v).into()))
                    .collect(),
                ..Default::default()
            }),
            partitions: (0..PARTITIONS)
                .map(|partition| v1::PartitionMetadata {
                    partition,
                    leader: 1,
                    leader_epoch: 2,
                    ..Default::default()
                })
                .collect(),
            earlier_counts: Vec::new(),
        }],
        nodes: Vec::new(),
    });
    view
}

pub fn at(partition: u32) -> TopicPartition {
    let topic_id = TopicId::from_slice(&[1; 16]).expect("16 bytes");
    TopicPartition {
        topic_id,
        partition: PartitionIndex(partition),
    }
}

/// The delivery core as the session sees it.
pub struct ModelLanes(pub DeliveryCore);

impl Lanes for ModelLanes {
    fn is_idle(&self, partition: TopicPartition) -> bool {
        self.0.is_idle(partition)
    }

    fn has_room(&self, partition: TopicPartition) -> bool {
        self.0.has_room(partition)
    }

    fn offer(&mut self, partition: TopicPartition, _: Acks, batch: Batch) {
        self.0.offer(partition, batch);
    }

    fn renumber(
        &mut self,
        partition: TopicPartition,
        stamp: &mut dyn FnMut(&Batch) -> Option<Bytes>,
    ) {
        self.0.renumber(partition, stamp);
    }
}

/// One partition's log, and its producer sessions.
#[derive(Default)]
struct Log {
    values: Vec<u64>,
    sessions: BTreeMap<i64, (i16, i32)>,
    remembered: BTreeMap<(i64, i16, i32), i64>,
}

pub fn values_of(batch: &Bytes) -> Vec<u64> {
    let records = decode_records(batch, 1 << 24).expect("decodes");
    let value = |record: talweg_batch::Record| {
        let value = record.value.expect("a value");
        u64::from_be_bytes(value[..8].try_into().expect("8 bytes"))
    };
    records.into_iter().map(value).collect()
}

impl Log {
    fn append(&mut self, batch: &Bytes) -> Result<i64, ErrorCode> {
        let header = BatchHeader::parse(batch).expect("a header");
        let (id, epoch, first) = (
            header.producer_id.0,
            header.producer_epoch.0,
            header.base_sequence.0,
        );
        if id >= 0 {
            if let Some(offset) = self.remembered.get(&(id, epoch, first)) {
                return Ok(*offset);
            }
            match self.sessions.get(&id).copied() {
                Some((current, _)) if epoch < current => return Err(ErrorCode::ProducerFenced),
                Some((current, next)) if epoch == current && first != next => {
                    return Err(ErrorCode::OutOfOrderSequence);
                }
                None if first != 0 => return Err(ErrorCode::UnknownProducer),
                Some((current, _)) if epoch > current && first != 0 => {
                    return Err(ErrorCode::OutOfOrderSequence);
                }
                _ => {}
            }
            self.sessions
                .insert(id, (epoch, first + header.record_count));
            self.remembered
                .insert((id, epoch, first), self.values.len() as i64);
        }
        let base = self.values.len() as i64;
        self.values.extend(values_of(batch));
        Ok(base)
    }
}

#[derive(Clone, Debug)]
pub enum Step {
    /// Thin records: key byte (0: none), bad ones among them.
    Records(Vec<(u8, bool)>),
    /// A batch of this many records without a producer id.
    Batch(u32, u8),
    Serve(u32),
    ServeThenBreak(u32),
    Refuse(u32, ErrorCode),
    AppendedButLost(u32),
    Break,
    /// The leader forgets its sessions, as after their expiry.
    Forget(u32),
    Pass(u64),
}

pub fn step() -> impl Strategy<Value = Step> {
    let partition = 0..PARTITIONS;
    prop_oneof![
        8 => prop::collection::vec((0_u8..6, prop::bool::weighted(0.1)), 1..12).prop_map(Step::Records),
        2 => (partition.clone(), 1_u8..5).prop_map(|(at, count)| Step::Batch(at, count)),
        10 => partition.clone().prop_map(Step::Serve),
        1 => partition.clone().prop_map(Step::ServeThenBreak),
        2 => (partition.clone(), prop_oneof![
            Just(ErrorCode::NotLeader), Just(ErrorCode::Throttled), Just(ErrorCode::RecordTooLarge),
        ]).prop_map(|(at, code)| Step::Refuse(at, code)),
        1 => partition.clone().prop_map(Step::AppendedButLost),
        1 => Just(Step::Break),
        1 => partition.prop_map(Step::Forget),
        4 => (1_u64..300).prop_map(Step::Pass),
    ]
}

pub struct World {
    view: View,
    session: Session,
    lanes: ModelLanes,
    logs: BTreeMap<u32, Log>,
    link: LinkId,
    wire: BTreeMap<u32, VecDeque<(u64, Bytes)>>,
    next_on_link: u64,
    mono_ms: u64,
    /// Value of each sequence (records of a batch have one sequence).
    sent: BTreeMap<u64, Vec<u64>>,
    answers: BTreeMap<u64, Result<(u32, i64), Refusal>>,
    bytes: BTreeMap<Vec<u64>, Bytes>,
    next_value: u64,
}

impl World {
    pub fn new(timeout_ms: u64) -> Self {
        let opening = Opening {
            delivery_timeout_ms: timeout_ms,
            compression: Some(Compression::None),
            ..Opening::default()
        };
        let mut session = Session::new(
            opening,
            Amount {
                bytes: 1 << 20,
                records: 10_000,
            },
            0,
        );
        session.set_producer(ProducerId(77));
        Self {
            view: view(&[]),
            session,
            lanes: ModelLanes(DeliveryCore::new(true, 5)),
            logs: BTreeMap::new(),
            link: LinkId(1),
            wire: BTreeMap::new(),
            next_on_link: 0,
            mono_ms: 1,
            sent: BTreeMap::new(),
            answers: BTreeMap::new(),
            bytes: BTreeMap::new(),
            next_value: 0,
        }
    }

    fn now(&self) -> Now {
        Now {
            mono_ms: self.mono_ms,
            wall_ms: WALL_MS,
        }
    }

    fn value(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value
    }

    pub fn step(&mut self, step: &Step) {
        match step {
            Step::Records(records) => self.records(records),
            Step::Batch(partition, count) => self.batch(*partition, *count),
            Step::Serve(partition) => self.serve(*partition, None),
            Step::ServeThenBreak(partition) => {
                if let Some((_, batch)) = self.wire.entry(*partition).or_default().pop_front() {
                    // Appended or not, nobody is told.
                    self.logs.entry(*partition).or_default().append(&batch).ok();
                }
                self.break_link();
            }
            Step::Refuse(partition, code) => {
                if let Some((sequence, _)) = self.wire.entry(*partition).or_default().pop_front() {
                    self.refuse(sequence, *code);
                }
            }
            Step::AppendedButLost(partition) => {
                self.serve(*partition, Some(ErrorCode::LeadershipLost))
            }
            Step::Break => self.break_link(),
            Step::Forget(partition) => {
                let log = self.logs.entry(*partition).or_default();
                // Only what nobody repeats may be forgotten: sessions live long.
                if self.wire.get(partition).is_none_or(VecDeque::is_empty)
                    && self.lanes.0.is_idle(at(*partition))
                {
                    log.sessions.clear();
                    log.remembered.clear();
                }
            }
            Step::Pass(ms) => self.pass(*ms),
        }
        self.pump();
    }

    fn records(&mut self, records: &[(u8, bool)]) {
        let first_sequence = self.session.next_sequence();
        let mut frame = v1::RecordsFrame {
            topic: "t".into(),
            first_sequence,
            ..Default::default()
        };
        for (nth, (key, bad)) in records.iter().enumerate() {
            let value = self.value();
            self.sent.insert(first_sequence + nth as u64, vec![value]);
            frame.records.push(v1::Record {
                key: (*key > 0).then(|| vec![*key].into()),
                value: Some(value.to_be_bytes().to_vec().into()),
                timestamp_ms: bad.then_some(-5),
                ..Default::default()
            });
        }
        let now = self.now();
        self.session
            .on_records(frame, &self.view, now, &mut self.lanes);
    }

    fn batch(&mut self, partition: u32, count: u8) {
        let mut builder = BatchBuilder::new(Compression::None);
        let values: Vec<u64> = (0..count).map(|_| self.value()).collect();
        for value in &values {
            builder
                .push(TimestampMs(WALL_MS), None, Some(&value.to_be_bytes()), [])
                .expect("a record");
        }
        let first_sequence = self.session.next_sequence();
        self.sent.insert(first_sequence, values);
        let batches = builder.build().expect("a batch");
        let frame = v1::BatchFrame {
            topic: "t".into(),
            partition,
            first_sequence,
            batches,
            ..Default::default()
        };
        let now = self.now();
        self.session
            .on_batches(frame, &self.view, now, &mut self.lanes);
    }

    fn pass(&mut self, ms: u64) {
        self.mono_ms += ms;
        self.lanes.0.tick(self.mono_ms);
        self.lanes.0.set_all_ready();
        let now = self.now();
        self.session.on_time(&self.view, now, &mut self.lanes);
    }

    fn serve(&mut self, partition: u32, lost: Option<ErrorCode>) {
        let Some((sequence, batch)) = self.wire.entry(partition).or_default().pop_front() else {
            return;
        };
        match (self.logs.entry(partition).or_default().append(&batch), lost) {
            (Ok(_), Some(code)) | (Err(code), _) => self.refuse(sequence, code),
            (Ok(offset), None) => {
                let ack = v1::BatchAck {
                    topic_id: vec![1; 16].into(),
                    partition,
                    up_to_sequence: sequence,
                    base_offsets: vec![offset],
                    ..Default::default()
                };
                self.lanes.0.on_ack(self.link, &ack);
            }
        }
    }

    fn refuse(&mut self, sequence: u64, code: ErrorCode) {
        let refusal = Refusal::new(code, "by the model");
        self.lanes
            .0
            .on_refusal(self.link, &[sequence], &refusal, self.mono_ms);
    }

    fn break_link(&mut self) {
        self.lanes.0.on_broken(self.link, self.mono_ms);
        self.wire.clear();
        self.link = LinkId(self.link.0 + 1);
        self.next_on_link = 0;
    }

    fn pump(&mut self) {
        loop {
            let settled = self.lanes.0.take_settled();
            let now = self.now();
            self.session
                .on_settled(settled, &self.view, now, &mut self.lanes);
            for partition in self.lanes.0.take_ready() {
                self.pump_lane(partition);
            }
            if !self.lanes.0.has_settled() {
                break;
            }
        }
        self.lanes.0.check().expect("the lanes' invariant");
        while let Some(answer) = self.session.next_answer() {
            self.on_answer(answer);
        }
    }

    fn pump_lane(&mut self, partition: TopicPartition) {
        loop {
            match self.lanes.0.next(partition, self.link, self.mono_ms) {
                Want::Nothing => return,
                Want::Renumber => {
                    for values in self.bytes.keys().cloned().collect::<Vec<_>>() {
                        // Bytes may change from here on, of what is not in the log.
                        let log = self.logs.entry(partition.partition.0).or_default();
                        if !values.iter().any(|it| log.values.contains(it)) {
                            self.bytes.remove(&values);
                        }
                    }
                    self.session
                        .renumber(partition, Some(ProducerId(78)), &mut self.lanes);
                }
                Want::Send(batch) => {
                    let known = self
                        .bytes
                        .entry(values_of(&batch.bytes))
                        .or_insert_with(|| batch.bytes.clone());
                    assert_eq!(*known, batch.bytes, "a batch was repacked or restamped");
                    self.lanes
                        .0
                        .mark_sent(partition, self.link, self.next_on_link);
                    let wire = self.wire.entry(partition.partition.0).or_default();
                    wire.push_back((self.next_on_link, batch.bytes));
                    let numbered = wire
                        .iter()
                        .filter(|it| BatchHeader::parse(&it.1).expect("a header").has_producer());
                    assert!(numbered.count() <= IN_FLIGHT_BATCHES, "too many unanswered");
                    self.next_on_link += 1;
                }
            }
        }
    }

    fn on_answer(&mut self, answer: Frame) {
        let mut put = |sequence, result| {
            assert!(
                self.answers.insert(sequence, result).is_none(),
                "{sequence} is answered twice"
            );
        };
        match answer {
            Frame::RecordsAck(ack) => {
                for (nth, sequence) in ack.sequences.iter().enumerate() {
                    put(*sequence, Ok((ack.partition, ack.base_offset + nth as i64)));
                }
            }
            Frame::BatchAck(ack) => {
                // Which sequences it answers: the newest of this partition that are open.
                let count = ack.base_offsets.len();
                let logs = &self.logs;
                let open: Vec<u64> = ack
                    .base_offsets
                    .iter()
                    .map(|offset| logs[&ack.partition].values[*offset as usize])
                    .map(|value| {
                        *self
                            .sent
                            .iter()
                            .find(|(_, values)| values[0] == value)
                            .expect("sent")
                            .0
                    })
                    .collect();
                assert_eq!(open.len(), count);
                assert_eq!(open.last(), Some(&ack.up_to_sequence));
                for (sequence, offset) in open.into_iter().zip(ack.base_offsets) {
                    put(sequence, Ok((ack.partition, offset)));
                }
            }
            Frame::Refusal(refusal) => {
                let why = Refusal::from_detail(refusal.error.expect("a detail"));
                refusal
                    .sequences
                    .into_iter()
                    .for_each(|sequence| put(sequence, Err(why.clone())));
            }
            other => panic!("{other:?}"),
        }
    }

    /// Everything is served until nothing is unanswered.
    pub fn finish(&mut self) {
        self.session.flush(&self.view, &mut self.lanes);
        for _ in 0..20_000 {
            self.pump();
            if self.session.is_quiet() {
                return;
            }
            self.pass(30);
            (0..PARTITIONS).for_each(|partition| self.serve(partition, None));
        }
        panic!("it never ends");
    }

    pub fn check(&self) {
        assert_eq!(
            self.answers.len(),
            self.sent.len(),
            "every sequence is answered"
        );
        for log in self.logs.values() {
            let mut seen = std::collections::BTreeSet::new();
            assert!(
                log.values.iter().all(|value| seen.insert(*value)),
                "twice in the log: {:?}",
                log.values
            );
        }
        for (sequence, answer) in &self.answers {
            let values = &self.sent[sequence];
            match answer {
                Ok((partition, offset)) => {
                    let log = &self.logs[partition].values;
                    assert_eq!(
                        &log[*offset as usize..*offset as usize + values.len()],
                        &values[..]
                    );
                }
                Err(refusal) if refusal.effect() == Effect::NotDone => {
                    let appended = self
                        .logs
                        .values()
                        .any(|log| log.values.contains(&values[0]));
                    assert!(!appended, "{sequence} was said not done: {refusal}");
                }
                Err(_) => {}
            }
        }
    }
}
