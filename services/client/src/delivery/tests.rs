//! A model leader that breaks, refuses and moves at random: whatever it does,
//! each batch ends once, nothing numbered overtakes or doubles, and bytes that
//! may be in the log never change.

use super::*;
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use talweg_batch::{BatchBuilder, BatchHeader, HEADER_BYTES};
use talweg_kit::errors::{Effect, ErrorCode, Refusal};
use talweg_proto::v1;
use talweg_types::{
    Compression, PartitionIndex, ProducerEpoch, ProducerId, Sequence, TimestampMs, TopicId,
    TopicPartition, limits::IN_FLIGHT_BATCHES,
};

fn partition() -> TopicPartition {
    TopicPartition {
        topic_id: TopicId::from_slice(&[7; 16]).expect("16 bytes"),
        partition: PartitionIndex(3),
    }
}

fn numbered(value: u64, epoch: i16, sequence: i32) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None).with_producer(
        ProducerId(9),
        ProducerEpoch(epoch),
        Sequence(sequence),
    );
    builder
        .push(TimestampMs(1), None, Some(&value.to_be_bytes()), [])
        .expect("a record");
    builder.build().expect("a batch")
}

fn value_of(bytes: &Bytes) -> u64 {
    let records = talweg_batch::decode_records(bytes, 1 << 20).expect("decodes");
    u64::from_be_bytes(
        records[0]
            .value
            .as_deref()
            .expect("a value")
            .try_into()
            .expect("8 bytes"),
    )
}

/// A leader with one producer session, as the log keeps it.
#[derive(Default)]
struct Leader {
    log: Vec<u64>,
    session: Option<(i16, i32)>,
    remembered: BTreeMap<(i16, i32), i64>,
}

impl Leader {
    fn append(&mut self, bytes: &Bytes) -> Result<i64, ErrorCode> {
        let header = BatchHeader::parse(bytes).expect("a header");
        let (epoch, sequence) = (header.producer_epoch.0, header.base_sequence.0);
        if let Some(offset) = self.remembered.get(&(epoch, sequence)) {
            return Ok(*offset);
        }
        match self.session {
            Some((current, _)) if epoch < current => return Err(ErrorCode::ProducerFenced),
            Some((current, next)) if epoch == current && sequence != next => {
                return Err(ErrorCode::OutOfOrderSequence);
            }
            Some((current, _)) if epoch > current && sequence != 0 => {
                return Err(ErrorCode::OutOfOrderSequence);
            }
            None if sequence != 0 => return Err(ErrorCode::UnknownProducer),
            _ => {}
        }
        self.session = Some((epoch, sequence + 1));
        let offset = self.log.len() as i64;
        self.remembered.insert((epoch, sequence), offset);
        self.log.push(value_of(bytes));
        Ok(offset)
    }
}

/// What the model does next.
#[derive(Clone, Debug)]
enum Step {
    Offer,
    /// The leader takes and acknowledges the next frame.
    Serve,
    /// The leader takes the next frame, the answer is lost with the link.
    ServeThenBreak,
    /// Refused before the append, retriable.
    Refuse(ErrorCode),
    /// Appended, then the leadership was lost.
    AppendedButLost,
    /// Refused for good.
    RefuseForGood,
    Break,
    /// Another node leads; the last one may have taken the next frame and stays silent.
    Move {
        appended: bool,
    },
    /// An acknowledgement of a leader that was replaced arrives after all.
    LateAck,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Offer),
        6 => Just(Step::Serve),
        1 => Just(Step::ServeThenBreak),
        2 => prop_oneof![
            Just(ErrorCode::NotLeader), Just(ErrorCode::Throttled), Just(ErrorCode::DiskFull),
            Just(ErrorCode::NotEnoughReplicas), Just(ErrorCode::NoQuorumContact),
        ].prop_map(Step::Refuse),
        1 => Just(Step::AppendedButLost),
        1 => Just(Step::RefuseForGood),
        1 => Just(Step::Break),
        1 => any::<bool>().prop_map(|appended| Step::Move { appended }),
        1 => Just(Step::LateAck),
        2 => (1_u64..400).prop_map(Step::Pass),
    ]
}

struct World {
    core: DeliveryCore,
    leader: Leader,
    link: LinkId,
    wire: VecDeque<(u64, Bytes)>,
    next_on_link: u64,
    now: u64,
    offered: u64,
    epoch: i16,
    sequence: i32,
    /// Bytes of each batch at its first send since it was certainly not appended.
    sent: BTreeMap<u64, Bytes>,
    ended: BTreeMap<u64, Outcome>,
    /// Of replaced leaders: the link, the last unanswered sequence, how many.
    silent: Vec<(LinkId, u64, usize)>,
    timeout: u64,
}

impl World {
    fn new(timeout: u64) -> Self {
        Self {
            core: DeliveryCore::new(true, 42),
            leader: Leader::default(),
            link: LinkId(1),
            wire: VecDeque::new(),
            next_on_link: 0,
            now: 1,
            offered: 0,
            epoch: 0,
            sequence: 0,
            sent: BTreeMap::new(),
            ended: BTreeMap::new(),
            silent: Vec::new(),
            timeout,
        }
    }

    fn offer(&mut self) {
        let bytes = numbered(self.offered, self.epoch, self.sequence);
        self.sequence += 1;
        let batch = Batch {
            ticket: self.offered,
            bytes,
            records: 1,
            numbering: Numbering::Ours,
            deadline_ms: self.now + self.timeout,
        };
        self.offered += 1;
        self.core.offer(partition(), batch);
    }

    fn pump(&mut self) {
        loop {
            match self.core.next(partition(), self.link, self.now) {
                Want::Nothing => break,
                Want::Renumber => self.renumber(),
                Want::Send(batch) => {
                    let before = self.sent.insert(batch.ticket, batch.bytes.clone());
                    if let Some(before) = before {
                        assert_eq!(before, batch.bytes, "the bytes of a batch changed");
                    }
                    self.core
                        .mark_sent(partition(), self.link, self.next_on_link);
                    self.wire.push_back((self.next_on_link, batch.bytes));
                    self.next_on_link += 1;
                    assert!(self.wire.len() <= IN_FLIGHT_BATCHES, "too many unanswered");
                }
            }
        }
        self.core.check().expect("the invariant");
        for settled in self.core.take_settled() {
            assert!(
                self.ended.insert(settled.ticket, settled.outcome).is_none(),
                "ended twice"
            );
        }
    }

    fn renumber(&mut self) {
        self.epoch += 1;
        self.sequence = 0;
        let (epoch, sequence, sent) = (self.epoch, &mut self.sequence, &mut self.sent);
        self.core.renumber(partition(), |batch| {
            // The core promises that it is certainly not in the log.
            assert!(
                !self.leader.log.contains(&value_of(&batch.bytes)),
                "renumbered what is appended"
            );
            sent.remove(&batch.ticket);
            let bytes = numbered(value_of(&batch.bytes), epoch, *sequence);
            *sequence += 1;
            Some(bytes)
        });
    }

    fn ack(&mut self, sequence: u64, offset: i64) {
        let ack = v1::BatchAck {
            topic_id: Bytes::copy_from_slice(partition().topic_id.as_bytes()),
            partition: 3,
            up_to_sequence: sequence,
            base_offsets: vec![offset],
            ..Default::default()
        };
        self.core.on_ack(self.link, &ack);
    }

    fn refuse(&mut self, sequence: u64, code: ErrorCode) {
        let refusal = Refusal::new(code, "by the model");
        self.core
            .on_refusal(self.link, &[sequence], &refusal, self.now);
    }

    fn break_link(&mut self) {
        self.core.on_broken(self.link, self.now);
        self.wire.clear();
        self.link = LinkId(self.link.0 + 1);
        self.next_on_link = 0;
    }

    fn move_leader(&mut self, appended: bool) {
        if let Some((last, _)) = self.wire.back() {
            self.silent.push((self.link, *last, self.wire.len()));
        }
        if let Some((_, bytes)) = self.wire.pop_front().filter(|_| appended) {
            // Taken or not, nobody is told.
            self.leader.append(&bytes).ok();
        }
        self.wire.clear();
        self.link = LinkId(self.link.0 + 1);
        self.next_on_link = 0;
        self.core.abandon(partition(), self.link, self.now);
    }

    /// It settles nothing, and gives back what was borrowed on its link.
    fn late_ack(&mut self) {
        let Some((link, last, count)) = self.silent.pop() else {
            return;
        };
        let ack = v1::BatchAck {
            topic_id: Bytes::copy_from_slice(partition().topic_id.as_bytes()),
            partition: 3,
            up_to_sequence: last,
            base_offsets: vec![1_000_000; count],
            ..Default::default()
        };
        let freed = self.core.on_ack(link, &ack);
        assert_eq!(freed.records, count as i64, "the link's credit");
        assert!(!self.core.has_settled(), "a replaced leader has no say");
    }

    fn serve(&mut self) {
        if let Some((sequence, bytes)) = self.wire.pop_front() {
            match self.leader.append(&bytes) {
                Ok(offset) => self.ack(sequence, offset),
                Err(code) => self.refuse(sequence, code),
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Offer => self.offer(),
            Step::Serve => self.serve(),
            Step::ServeThenBreak => {
                if let Some((_, bytes)) = self.wire.pop_front() {
                    // Appended or not, nobody is told.
                    self.leader.append(&bytes).ok();
                }
                self.break_link();
            }
            Step::Refuse(code) => {
                if let Some((sequence, _)) = self.wire.pop_front() {
                    self.refuse(sequence, *code);
                }
            }
            Step::AppendedButLost => {
                if let Some((sequence, bytes)) = self.wire.pop_front() {
                    match self.leader.append(&bytes) {
                        Ok(_) => self.refuse(sequence, ErrorCode::LeadershipLost),
                        Err(code) => self.refuse(sequence, code),
                    }
                }
            }
            Step::RefuseForGood => {
                if let Some((sequence, _)) = self.wire.pop_front() {
                    self.refuse(sequence, ErrorCode::RecordTooLarge);
                }
            }
            Step::Break => self.break_link(),
            Step::Move { appended } => self.move_leader(*appended),
            Step::LateAck => self.late_ack(),
            Step::Pass(ms) => {
                self.now += ms;
                self.core.tick(self.now);
            }
        }
        self.pump();
    }

    /// Serves everything until nothing is unanswered.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            if self.core.unanswered() == 0 {
                return;
            }
            self.now += 50;
            self.core.tick(self.now);
            self.pump();
            self.serve();
            self.pump();
        }
        panic!("{} batches never ended", self.core.unanswered());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn whatever_a_leader_does_each_batch_ends_once_in_order(
        steps in prop::collection::vec(step(), 1..120),
        timeout in prop_oneof![Just(600_u64), Just(100_000)],
    ) {
        let mut world = World::new(timeout);
        steps.iter().for_each(|step| world.step(step));
        world.finish();

        prop_assert_eq!(world.ended.len() as u64, world.offered);
        let log = &world.leader.log;
        prop_assert!(log.windows(2).all(|pair| pair[0] < pair[1]), "out of order or twice: {:?}", log);
        for (ticket, outcome) in &world.ended {
            match outcome {
                Outcome::Done(done) => {
                    let at = done.base_offset.expect("remembered") as usize;
                    prop_assert_eq!(log.get(at), Some(ticket), "acknowledged at the wrong place");
                }
                Outcome::Refused(refusal) if refusal.effect() == Effect::NotDone => {
                    prop_assert!(!log.contains(ticket), "{} said not done: {:?}", ticket, refusal);
                }
                Outcome::Refused(_) => {}
            }
        }
    }
}

#[test]
fn a_batch_without_number_is_sent_once_and_unknown_when_its_link_breaks() {
    let mut core = DeliveryCore::new(true, 1);
    let batch = |ticket| Batch {
        ticket,
        bytes: Bytes::from_static(&[0; HEADER_BYTES]),
        records: 1,
        numbering: Numbering::Plain,
        deadline_ms: 1_000,
    };
    core.offer(partition(), batch(1));
    assert!(matches!(
        core.next(partition(), LinkId(1), 0),
        Want::Send(_)
    ));
    core.mark_sent(partition(), LinkId(1), 0);
    core.offer(partition(), batch(2));
    core.on_broken(LinkId(1), 5);
    let settled = core.take_settled();
    assert_eq!(settled.len(), 1);
    let Outcome::Refused(refusal) = &settled[0].outcome else {
        panic!("{settled:?}")
    };
    assert_eq!(
        (settled[0].ticket, refusal.code),
        (1, ErrorCode::OutcomeUnknown)
    );
    // The other one was never sent and goes out on the next link.
    let Want::Send(next) = core.next(partition(), LinkId(2), 5) else {
        panic!("nothing to send")
    };
    assert_eq!(next.ticket, 2);
}

#[test]
fn time_outs_say_whether_it_was_sent_and_keep_the_last_refusal() {
    let refuse = |code| Refusal::new(code, "test");
    let mut core = DeliveryCore::new(true, 1);
    let batch = |ticket| Batch {
        ticket,
        bytes: Bytes::from_static(&[0; HEADER_BYTES]),
        records: 1,
        numbering: Numbering::Client(5),
        deadline_ms: 100,
    };
    let link = LinkId(1);
    core.offer(partition(), batch(0));
    core.tick(100);
    core.offer(partition(), batch(1));
    core.mark_sent(partition(), link, 0);
    core.on_refusal(link, &[0], &refuse(ErrorCode::NotEnoughReplicas), 10);
    core.tick(100);
    core.offer(partition(), batch(2));
    core.mark_sent(partition(), link, 1);
    core.tick(100);
    let codes: Vec<(u64, ErrorCode)> = core
        .take_settled()
        .iter()
        .map(|it| match &it.outcome {
            Outcome::Refused(refusal) => (it.ticket, refusal.code),
            Outcome::Done(_) => panic!("{it:?}"),
        })
        .collect();
    let expected = [
        (0, ErrorCode::DeliveryTimeoutNotSent),
        (1, ErrorCode::NotEnoughReplicas),
        (2, ErrorCode::DeliveryTimeout),
    ];
    assert_eq!(codes, expected);
    assert_eq!(core.unanswered(), 0);
}

#[test]
fn a_gap_after_a_retriable_refusal_is_retried_and_a_gap_of_the_client_is_told() {
    // The leader refuses the first of two numbered batches; the second one is
    // then out of order through no fault of its own.
    let mut core = DeliveryCore::new(true, 1);
    let batch = |ticket| Batch {
        ticket,
        bytes: Bytes::from_static(&[0; HEADER_BYTES]),
        records: 1,
        numbering: Numbering::Client(5),
        deadline_ms: 10_000,
    };
    let link = LinkId(1);
    for ticket in 0..2 {
        core.offer(partition(), batch(ticket));
        core.mark_sent(partition(), link, ticket);
    }
    core.on_refusal(link, &[0], &Refusal::new(ErrorCode::NotLeader, "moved"), 0);
    core.on_refusal(
        link,
        &[1],
        &Refusal::new(ErrorCode::OutOfOrderSequence, "gap"),
        0,
    );
    assert!(core.take_settled().is_empty(), "both are retried");
    for ticket in 0..2 {
        let Want::Send(next) = core.next(partition(), LinkId(2), 5_000) else {
            panic!("{ticket}")
        };
        assert_eq!(next.ticket, ticket, "in order");
        core.mark_sent(partition(), LinkId(2), ticket);
    }
    core.on_refusal(
        LinkId(2),
        &[0],
        &Refusal::new(ErrorCode::OutOfOrderSequence, "gap"),
        5_000,
    );
    let settled = core.take_settled();
    assert!(
        matches!(&settled[..], [Settled { ticket: 0, outcome: Outcome::Refused(r), .. }] if r.code == ErrorCode::OutOfOrderSequence),
        "{settled:?}"
    );
}

#[test]
fn hostile_answers_change_nothing() {
    let mut core = DeliveryCore::new(true, 1);
    let ack = |up_to_sequence, topic_id: &[u8]| v1::BatchAck {
        topic_id: Bytes::copy_from_slice(topic_id),
        partition: 3,
        up_to_sequence,
        base_offsets: vec![-5, i64::MAX],
        duplicates: u32::MAX,
        ..Default::default()
    };
    core.on_ack(LinkId(1), &ack(u64::MAX, &[7; 16]));
    core.on_ack(LinkId(1), &ack(0, &[1]));
    core.offer(
        partition(),
        Batch {
            ticket: 0,
            bytes: Bytes::from_static(&[0; HEADER_BYTES]),
            records: 1,
            numbering: Numbering::Ours,
            deadline_ms: 10,
        },
    );
    core.mark_sent(partition(), LinkId(1), 0);
    core.tick(10);
    core.on_ack(LinkId(2), &ack(u64::MAX, &[7; 16]));
    assert_eq!(
        core.on_ack(LinkId(1), &ack(u64::MAX, &[7; 16])).records,
        1,
        "the ghost's credit"
    );
    assert_eq!(
        core.on_ack(LinkId(1), &ack(u64::MAX, &[7; 16])),
        Freed::default()
    );
    core.check().expect("the invariant");
}

/// Leadership comes back to a node while it still owes answers to batches that were
/// sent again elsewhere: its next acknowledgement covers both, and each offset
/// belongs to its own batch.
#[test]
fn a_leader_that_returns_acknowledges_abandoned_batches_beside_new_ones() {
    let mut core = DeliveryCore::new(true, 1);
    let (first, second) = (LinkId(1), LinkId(2));
    let offer = |core: &mut DeliveryCore, ticket: u64| {
        core.offer(
            partition(),
            Batch {
                ticket,
                bytes: numbered(ticket, 0, i32::try_from(ticket).expect("few")),
                records: 1,
                numbering: Numbering::Ours,
                deadline_ms: 1_000,
            },
        );
    };
    let send = |core: &mut DeliveryCore, link, sequence| {
        assert!(matches!(core.next(partition(), link, 1), Want::Send(_)));
        core.mark_sent(partition(), link, sequence);
    };
    let ack = |core: &mut DeliveryCore, link, up_to, base_offsets: &[i64]| {
        let ack = v1::BatchAck {
            topic_id: Bytes::copy_from_slice(partition().topic_id.as_bytes()),
            partition: 3,
            up_to_sequence: up_to,
            base_offsets: base_offsets.to_vec(),
            ..Default::default()
        };
        core.on_ack(link, &ack)
    };
    offer(&mut core, 0);
    send(&mut core, first, 0);
    core.abandon(partition(), second, 1);
    send(&mut core, second, 0);
    assert_eq!(ack(&mut core, second, 0, &[40]).records, 1);
    offer(&mut core, 1);
    send(&mut core, first, 1);
    assert_eq!(ack(&mut core, first, 1, &[40, 41]).records, 2);
    let offsets = core.take_settled().into_iter().map(|it| match it.outcome {
        Outcome::Done(done) => done.base_offset,
        Outcome::Refused(refusal) => panic!("{refusal}"),
    });
    assert_eq!(offsets.collect::<Vec<_>>(), [Some(40), Some(41)]);
    assert_eq!(core.unanswered(), 0);
}

/// A batch that its leader would not recognise again waits for the answer.
#[test]
fn a_batch_without_number_is_not_abandoned() {
    let mut core = DeliveryCore::new(true, 1);
    core.offer(
        partition(),
        Batch {
            ticket: 0,
            bytes: numbered(0, -1, -1),
            records: 1,
            numbering: Numbering::Plain,
            deadline_ms: 1_000,
        },
    );
    core.mark_sent(partition(), LinkId(1), 0);
    core.abandon(partition(), LinkId(2), 1);
    assert!(matches!(
        core.next(partition(), LinkId(2), 1),
        Want::Nothing
    ));
    assert_eq!(core.link_of(partition()), Some(LinkId(1)));
}
