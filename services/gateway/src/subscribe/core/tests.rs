//! A member under random histories against an oracle, and single rules.

use super::*;
use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::BTreeSet;
use talweg_proto::coordinator::v1::{AssignedPartition, PartitionRef, RemovalReason};
use talweg_types::{PartitionIndex, TopicId};

fn at(partition: u32) -> TopicPartition {
    TopicPartition {
        topic_id: TopicId::from_slice(&[5; 16]).expect("16 bytes"),
        partition: PartitionIndex(partition),
    }
}

fn config() -> CoreConfig {
    CoreConfig {
        policy: v1::ResetPolicy::Earliest,
        commit_on_ack: false,
        session_ms: 10_000,
        processing_ms: 60_000,
        max_attempts: 3,
        backoff_ms: vec![1_000, 2_000],
        block: false,
        no_dead_letters: false,
    }
}

fn core(config: CoreConfig) -> Core {
    Core::new(config, vec!["t".into()], Arc::new(|_| "t".into()), 0)
}

fn given(partition: u32, epoch: i32, next: Option<i64>) -> AssignedPartition {
    AssignedPartition {
        topic_id: vec![5; 16].into(),
        partition,
        given_epoch: epoch,
        next_offset: next,
        leader_epoch: -1,
        delivery: DeliveryMode::Normal.into(),
        ..Default::default()
    }
}

fn view(sequence: u64, epoch: i32, assigned: Vec<AssignedPartition>, revoking: &[u32]) -> Event {
    let reference = |partition: &u32| PartitionRef {
        topic_id: vec![5; 16].into(),
        partition: *partition,
    };
    Event::View(MemberView {
        member_epoch: epoch,
        assigned,
        revoking: revoking.iter().map(reference).collect(),
        revoke_within_ms: 5_000,
        shard_epoch: 1,
        sequence,
        ..Default::default()
    })
}

fn position(partition: u32, offset: i64) -> v1::SubscribePosition {
    v1::SubscribePosition {
        topic_id: vec![5; 16].into(),
        partition,
        offset,
        ..Default::default()
    }
}

fn ack(partition: u32, offset: i64) -> Event {
    let next = vec![position(partition, offset)];
    Event::Client(Ask::Ack(v1::SubscribeAck { next }))
}

fn commit(id: u64, partition: u32, offset: i64) -> Event {
    Event::Client(Ask::Commit(v1::SubscribeCommit {
        commit_id: id,
        next: vec![position(partition, offset)],
    }))
}

fn nack(partition: u32, offset: i64) -> Event {
    Event::Client(Ask::Nack(v1::SubscribeNack {
        record: Some(position(partition, offset)),
        reason: "bad".into(),
        poison: false,
    }))
}

fn seek(partition: u32, offset: i64) -> Event {
    let next = vec![position(partition, offset)];
    Event::Client(Ask::Seek(v1::SubscribeSeek { next }))
}

fn sent(partition: u32, from: i64, to: i64) -> Event {
    sent_runs(partition, &[from..to], to)
}

fn sent_runs(partition: u32, runs: &[Run], to: i64) -> Event {
    Event::Sent {
        at: at(partition),
        runs: runs.to_vec(),
        to,
        epoch: 1,
    }
}

fn stored(count: usize) -> Event {
    Event::Answered(Ok(Answer::Committed(vec![CommitResult::default(); count])))
}

fn requests(effects: &[Effect]) -> Vec<&Request> {
    effects
        .iter()
        .filter_map(|it| match it {
            Effect::Request(request) => Some(request),
            _ => None,
        })
        .collect()
}

fn tells(effects: &[Effect]) -> Vec<&Frame> {
    effects
        .iter()
        .filter_map(|it| match it {
            Effect::Tell(frame) => Some(frame),
            _ => None,
        })
        .collect()
}

/// What the world knows of one partition.
#[derive(Default)]
struct Truth {
    stored: Option<i64>,
    generation: u64,
    /// The next offset that the client must see in this generation.
    expected: i64,
    /// Sent in this generation, and what the client did with it.
    passed_to: i64,
    copying: BTreeSet<i64>,
    copied: BTreeSet<i64>,
    /// The highest that was passed in this ownership, whatever was sought since.
    passed_most: i64,
    reading: Option<i64>,
    /// The leader has not said where it begins.
    starting: bool,
    /// Sought, and nothing has come from there.
    unproven: bool,
    owned: bool,
    epoch_given: i32,
}

/// A member, a coordinator that may fail and a client that does as it likes.
struct World {
    rng: StdRng,
    latest: bool,
    core: Core,
    now: u64,
    epoch: i32,
    sequence: u64,
    parts: Vec<Truth>,
    revoking: BTreeSet<u32>,
    asked: Option<Request>,
    copies: Vec<Copy>,
    sought: BTreeSet<u32>,
    next_commit: u64,
    unanswered: BTreeSet<u64>,
}

impl World {
    fn new(seed: u64, config: CoreConfig) -> Self {
        let mut parts: Vec<Truth> = Vec::new();
        parts.resize_with(4, Truth::default);
        Self {
            rng: StdRng::seed_from_u64(seed),
            latest: config.policy == v1::ResetPolicy::Latest,
            core: core(config),
            now: 0,
            epoch: 1,
            sequence: 0,
            parts,
            revoking: BTreeSet::new(),
            asked: None,
            copies: Vec::new(),
            sought: BTreeSet::new(),
            next_commit: 1,
            unanswered: BTreeSet::new(),
        }
    }

    fn step(&mut self, event: Event) {
        self.now += self.rng.random_range(0..50);
        let effects = self.core.step(self.now, event);
        for effect in effects {
            self.effect(effect);
        }
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Read {
                at,
                start,
                generation,
                ..
            } => {
                let number = at.partition.0;
                let truth = &mut self.parts[number as usize];
                let from = match start {
                    StartAt::Offset(offset) => offset,
                    _ => 0,
                };
                truth.starting = !matches!(start, StartAt::Offset(_));
                assert!(
                    !truth.starting || truth.stored.is_none(),
                    "what is stored goes before the policy"
                );
                assert!(
                    truth.owned && !self.revoking.contains(&number),
                    "reads its own"
                );
                if generation != truth.generation {
                    assert!(generation > truth.generation, "generations rise");
                    truth.generation = generation;
                    truth.expected = from;
                    truth.copying.clear();
                    if !self.sought.contains(&number) {
                        assert_eq!(from, truth.stored.unwrap_or(0), "begins where it was left");
                    }
                    truth.copied.clear();
                    (truth.passed_to, truth.passed_most) = (from, from);
                }
                assert_eq!(from, truth.expected, "no skip and no step back");
                truth.reading = Some(from);
            }
            Effect::Stop(at) => self.parts[at.partition.0 as usize].reading = None,
            Effect::Request(request) => {
                assert!(self.asked.is_none(), "one request at a time");
                self.check_request(&request);
                self.asked = Some(request);
            }
            Effect::Copy(copy) => self.copies.push(copy),
            Effect::Tell(Frame::Committed(committed)) => {
                assert!(
                    self.unanswered.remove(&committed.commit_id),
                    "answered once"
                );
            }
            Effect::Tell(_) => {}
            Effect::End { .. } => panic!("nothing ends this member"),
        }
    }

    fn check_request(&mut self, request: &Request) {
        let Request::Commit { seek, offsets } = request else {
            return;
        };
        for offset in offsets {
            let truth = &self.parts[offset.partition as usize];
            assert_eq!(offset.delivered, !truth.unproven);
            assert!(
                offset.offset <= truth.passed_most,
                "stored within what was passed"
            );
            let first = truth.copying.first();
            assert!(
                first.is_none_or(|first| offset.offset <= *first),
                "not past a failed record"
            );
            if !seek {
                let low = truth.stored.unwrap_or(0);
                assert!(offset.offset >= low, "no step back without a seek");
            }
        }
    }

    fn view(&mut self) -> Event {
        self.sequence += 1;
        let mine = |(number, truth): (usize, &Truth)| {
            let number = number as u32;
            (truth.owned && !self.revoking.contains(&number))
                .then(|| given(number, truth.epoch_given, truth.stored))
        };
        let assigned = self.parts.iter().enumerate().filter_map(mine).collect();
        let revoking: Vec<u32> = self.revoking.iter().copied().collect();
        view(self.sequence, self.epoch, assigned, &revoking)
    }

    fn answer(&mut self) {
        let Some(request) = self.asked.take() else {
            return;
        };
        let fails = self.rng.random_ratio(1, 5);
        let answer = match request {
            Request::Commit { offsets, .. } if !fails => {
                for offset in &offsets {
                    self.parts[offset.partition as usize].stored = Some(offset.offset);
                    self.sought.remove(&offset.partition);
                }
                Ok(Answer::Committed(vec![
                    CommitResult::default();
                    offsets.len()
                ]))
            }
            Request::Revoked(partitions) if !fails => {
                for at in partitions {
                    let number = at.partition.0;
                    let truth = &mut self.parts[number as usize];
                    self.revoking.remove(&number);
                    truth.owned = false;
                    truth.reading = None;
                    self.sought.remove(&number);
                }
                let Event::View(view) = self.view() else {
                    unreachable!()
                };
                Ok(Answer::View(view))
            }
            _ if fails => Err(Refusal::unavailable("later")),
            _ => Ok(Answer::Done),
        };
        self.step(Event::Answered(answer));
    }

    fn turn(&mut self) {
        let number = self.rng.random_range(0..self.parts.len() as u32);
        let truth = &mut self.parts[number as usize];
        match self.rng.random_range(0..20) {
            0 => {
                // Given, or asked back.
                if !truth.owned {
                    truth.owned = true;
                    self.epoch += 1;
                    truth.give(self.epoch);
                } else {
                    self.revoking.insert(number);
                }
                let view = self.view();
                self.step(view);
            }
            1 if self.revoking.contains(&number) => {
                let partitions = vec![position(number, 0)];
                let revoked = v1::SubscribeRevoked { partitions };
                self.step(Event::Client(Ask::Revoked(revoked)));
            }
            2 => {
                let paused = self.rng.random_bool(0.5);
                let partitions = vec![position(number, 0)];
                self.step(Event::Client(if paused {
                    Ask::Pause(v1::SubscribePause { partitions })
                } else {
                    Ask::Resume(v1::SubscribeResume { partitions })
                }));
            }
            3 if truth.owned && !self.revoking.contains(&number) && truth.generation > 0 => {
                let to = self.rng.random_range(0..=truth.expected);
                truth.generation += 1;
                truth.unproven = true;
                truth.expected = to;
                truth.copying.clear();
                truth.copied.clear();
                truth.passed_to = to;
                truth.passed_most = truth.passed_most.max(to);
                self.sought.insert(number);
                self.step(seek(number, to));
            }
            4 if truth.owned && truth.generation > 0 => {
                let offset = self.rng.random_range(0..=truth.expected + 1);
                let sent =
                    truth.reading.is_some() && offset >= truth.passed_to && offset < truth.expected;
                if sent {
                    truth.copying.insert(offset);
                }
                let before = self.copies.len();
                self.step(nack(number, offset));
                if self.copies.len() == before && sent {
                    self.parts[number as usize].copying.remove(&offset);
                }
            }
            5 | 6 if !self.copies.is_empty() => {
                let index = self.rng.random_range(0..self.copies.len());
                let copy = self.copies.swap_remove(index);
                let StartAt::Offset(offset) = copy.start else {
                    unreachable!()
                };
                let truth = &mut self.parts[copy.at.partition.0 as usize];
                truth.copied(&copy, offset);
                let result = Ok(offset + 1);
                self.step(Event::Copied { copy, result });
            }
            7 | 8 if truth.owned && truth.generation > 0 => {
                let to = self.rng.random_range(truth.passed_to..=truth.expected);
                truth.pass(to);
                self.step(ack(number, to));
            }
            9 | 10 if truth.owned && truth.generation > 0 => {
                let to = self.rng.random_range(truth.passed_to..=truth.expected);
                truth.pass(to);
                let id = self.next_commit;
                self.next_commit += 1;
                self.unanswered.insert(id);
                self.step(commit(id, number, to));
            }
            11 | 12 => self.answer(),
            13 => self.step(Event::Tick),
            14 => {
                let view = self.view();
                self.step(view);
            }
            _ => {
                let Some(from) = truth.reading else { return };
                assert_eq!(from, truth.expected);
                if std::mem::take(&mut truth.starting) {
                    // Where the end is just now, if the policy asks for that.
                    let next = i64::from(self.latest) * self.rng.random_range(0..50);
                    (truth.expected, truth.reading) = (next, Some(next));
                    (truth.passed_to, truth.passed_most) = (next, next);
                    let at = at(number);
                    return self.step(Event::Started { at, next });
                }
                assert!(
                    truth.stored.is_some() || self.sought.contains(&number),
                    "where it begins is stored before records follow"
                );
                let to = from + self.rng.random_range(1..4);
                truth.expected = to;
                truth.unproven = false;
                truth.reading = Some(to);
                self.step(sent(number, from, to));
            }
        }
    }
}

impl Truth {
    fn pass(&mut self, to: i64) {
        self.passed_to = self.passed_to.max(to);
        while self.copied.remove(&self.passed_to) {
            self.passed_to += 1;
        }
        self.passed_most = self.passed_most.max(self.passed_to);
    }

    fn copied(&mut self, copy: &Copy, offset: i64) {
        if self.generation == copy.generation {
            self.copying.remove(&offset);
            self.copied.insert(offset);
            self.pass(self.passed_to);
        }
    }

    fn give(&mut self, epoch: i32) {
        self.copying.clear();
        self.unproven = false;
        self.epoch_given = epoch;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn nothing_is_skipped_and_nothing_stored_that_was_not_passed(seed: u64, on_ack: bool, latest: bool) {
        let policy = if latest { v1::ResetPolicy::Latest } else { v1::ResetPolicy::Earliest };
        let config = CoreConfig { commit_on_ack: on_ack, policy, ..config() };
        let mut world = World::new(seed, config);
        for _ in 0..400 {
            world.turn();
        }
        // Everything under way ends, and every commit has its answer.
        for _ in 0..5_000 {
            if world.unanswered.is_empty() {
                break;
            }
            while let Some(copy) = world.copies.pop() {
                let StartAt::Offset(offset) = copy.start else { unreachable!() };
                let truth = &mut world.parts[copy.at.partition.0 as usize];
                truth.copied(&copy, offset);
                world.step(Event::Copied { copy, result: Ok(offset + 1) });
            }
            world.answer();
            world.step(Event::Tick);
        }
        prop_assert!(world.unanswered.is_empty(), "no commit waits for ever");
    }
}

/// Story: two members; one is asked a partition back while it works on a record.
/// It is given up after the answer, not before, and what was done is stored first.
#[test]
fn a_partition_is_given_up_when_its_records_are_done() {
    let mut core = core(CoreConfig {
        commit_on_ack: true,
        ..config()
    });
    core.step(1, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    core.step(2, sent(0, 5, 6));
    let effects = core.step(3, view(2, 1, vec![], &[0]));
    assert!(matches!(tells(&effects)[..], [Frame::Revoking(_)]));
    assert!(matches!(effects[..], [_, Effect::Stop(_)]), "{effects:?}");
    let effects = core.step(4, ack(0, 6));
    assert!(matches!(requests(&effects)[..], [Request::Commit { .. }]));
    let effects = core.step(5, stored(1));
    assert_eq!(requests(&effects), [&Request::Revoked(vec![at(0)])]);
}

/// Story: a record that is tried again in place does not pass those before it, nor
/// their copies.
#[test]
fn what_lies_before_a_blocked_record_is_not_passed_with_it() {
    let mut core = core(CoreConfig {
        block: true,
        commit_on_ack: true,
        ..config()
    });
    core.step(1, view(1, 1, vec![given(0, 1, Some(10))], &[]));
    core.step(2, sent(0, 10, 20));
    core.step(3, nack(0, 15));
    let effects = core.step(4, ack(0, 12));
    let [Request::Commit { offsets, .. }] = requests(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(offsets[0].offset, 12, "13 and 14 are in the member's hands");
}

/// Story: a client that commits another partition without a pause still gives up
/// what it is asked for.
#[test]
fn commits_elsewhere_do_not_hold_a_partition_back() {
    let mut core = core(config());
    core.step(
        1,
        view(1, 1, vec![given(0, 1, Some(5)), given(1, 1, Some(5))], &[]),
    );
    core.step(2, sent(1, 5, 9));
    core.step(3, commit(1, 1, 6));
    core.step(4, commit(2, 1, 7));
    let effects = core.step(5, view(2, 1, vec![given(1, 1, Some(5))], &[0]));
    assert!(requests(&effects).is_empty(), "the first commit is out");
    core.step(6, commit(3, 1, 8));
    let effects = core.step(7, stored(1));
    assert_eq!(requests(&effects), [&Request::Revoked(vec![at(0)])]);
}

#[test]
fn nothing_in_hand_is_given_up_at_once() {
    let mut core = core(config());
    core.step(1, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    let effects = core.step(3, view(2, 1, vec![], &[0]));
    assert_eq!(requests(&effects), [&Request::Revoked(vec![at(0)])]);
}

/// Story: the stored offset lies below the log start. The member hears what is
/// gone, and how much, before it goes on.
#[test]
fn a_gap_is_told_before_records_follow() {
    let mut member = core(config());
    member.step(1, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    let refusal = || Refusal::new(ErrorCode::OffsetOutOfRange, "gone").with_bounds(20, 90);
    let stopped = || Event::Stopped {
        at: at(0),
        refusal: refusal(),
    };
    let effects = member.step(2, stopped());
    let [Frame::Gap(gap)] = tells(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(
        (gap.from_offset, gap.to_offset, gap.records_lost),
        (5, 20, 15)
    );
    assert!(matches!(requests(&effects)[..], [Request::Commit { .. }]));
    let effects = member.step(3, stored(1));
    assert!(effects.iter().any(|it| matches!(
        it,
        Effect::Read {
            start: StartAt::Offset(20),
            ..
        }
    )));
    let mut none = core(CoreConfig {
        policy: v1::ResetPolicy::None,
        ..config()
    });
    none.step(1, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    let effects = none.step(2, stopped());
    assert!(matches!(tells(&effects)[..], [Frame::PartitionError(_)]));
    assert!(none.step(3, Event::Tick).is_empty(), "nothing is read");
    let effects = none.step(4, seek(0, 20));
    assert!(matches!(effects[..], [Effect::Read { .. }]), "until a seek");
}

/// Story: a group begins at the end of a partition. Where that was is stored before
/// the first record goes out, so that the next owner does not begin at a later end
/// when this one dies with the record in its hands.
#[test]
fn what_the_policy_chose_is_stored_before_records_follow() {
    let mut core = core(CoreConfig {
        policy: v1::ResetPolicy::Latest,
        ..config()
    });
    let effects = core.step(1, view(1, 1, vec![given(0, 1, None)], &[]));
    let begins = |it: &Effect| {
        matches!(
            it,
            Effect::Read {
                start: StartAt::Latest,
                ..
            }
        )
    };
    assert!(effects.iter().any(begins), "{effects:?}");
    let started = Event::Started {
        at: at(0),
        next: 70,
    };
    let effects = core.step(2, started);
    assert!(matches!(effects[0], Effect::Stop(_)), "{effects:?}");
    let [Request::Commit { seek, offsets }] = requests(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((*seek, offsets[0].offset), (false, 70));
    // A coordinator that is away holds the beginning back.
    let refused = Event::Answered(Err(Refusal::unavailable("later")));
    assert!(core.step(3, refused).is_empty());
    let effects = core.step(1_000, Event::Tick);
    assert!(matches!(requests(&effects)[..], [Request::Commit { .. }]));
    let effects = core.step(1_001, stored(1));
    assert!(
        matches!(
            effects[..],
            [Effect::Read {
                start: StartAt::Offset(70),
                ..
            }]
        ),
        "{effects:?}"
    );
    core.step(1_002, sent(0, 70, 71));
    assert_eq!(core.in_flight(), [at(0)]);
}

/// Story: retention passed the position of a group that begins at the end. The
/// position after the gap is stored too; what the member still holds goes first.
#[test]
fn the_position_after_a_gap_is_stored() {
    let mut core = core(CoreConfig {
        policy: v1::ResetPolicy::Latest,
        commit_on_ack: true,
        ..config()
    });
    core.step(1, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    core.step(2, sent(0, 5, 6));
    let refusal = Refusal::new(ErrorCode::OffsetOutOfRange, "gone").with_bounds(20, 90);
    let effects = core.step(3, Event::Stopped { at: at(0), refusal });
    assert!(
        matches!(tells(&effects)[..], [Frame::Gap(_)]),
        "{effects:?}"
    );
    assert!(requests(&effects).is_empty(), "5 is in the member's hands");
    let effects = core.step(4, ack(0, 6));
    let [Request::Commit { offsets, .. }] = requests(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(offsets[0].offset, 90);
}

#[test]
fn without_an_offset_and_without_a_policy_nothing_begins() {
    let mut core = core(CoreConfig {
        policy: v1::ResetPolicy::None,
        ..config()
    });
    let effects = core.step(1, view(1, 1, vec![given(0, 1, None)], &[]));
    let told = tells(&effects);
    assert!(matches!(
        told[..],
        [Frame::Assigned(_), Frame::PartitionError(_)]
    ));
    assert!(!effects.iter().any(|it| matches!(it, Effect::Read { .. })));
}

/// Story: a record that killed three members becomes a dead letter unread, and
/// the next one follows.
#[test]
fn a_deadly_record_is_buried_and_passed() {
    let mut core = core(config());
    let deadly = AssignedPartition {
        delivery: DeliveryMode::DeadLetter.into(),
        attempts: 3,
        reason: "crashed".into(),
        ..given(0, 1, Some(5))
    };
    let effects = core.step(1, view(1, 1, vec![deadly.clone()], &[]));
    let copies: Vec<&Copy> = effects
        .iter()
        .filter_map(|it| match it {
            Effect::Copy(copy) => Some(copy),
            _ => None,
        })
        .collect();
    let [copy] = copies[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(
        (copy.to, &*copy.reason),
        (Destination::DeadLetters(3), "crashed")
    );
    let copied = Event::Copied {
        copy: copy.clone(),
        result: Ok(6),
    };
    let effects = core.step(2, copied);
    let [Request::Commit { offsets, .. }] = requests(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(offsets[0].offset, 6);
    assert!(
        !effects.iter().any(|it| matches!(it, Effect::Copy(_))),
        "once"
    );
    core.step(3, stored(1));
    let effects = core.step(4, view(2, 1, vec![given(0, 1, Some(6))], &[]));
    assert!(matches!(
        effects[..],
        [Effect::Read {
            start: StartAt::Offset(6),
            ..
        }]
    ));
}

/// Story: retention takes the record that killed three members before it is
/// buried. The member hears of the gap, and the partition goes on.
#[test]
fn a_deadly_record_that_is_gone_stalls_nothing() {
    let mut core = core(config());
    let deadly = AssignedPartition {
        delivery: DeliveryMode::DeadLetter.into(),
        attempts: 3,
        ..given(0, 1, Some(5))
    };
    let effects = core.step(1, view(1, 1, vec![deadly], &[]));
    let Some(Effect::Copy(copy)) = effects.last() else {
        panic!("{effects:?}")
    };
    let gone = Refusal::new(ErrorCode::OffsetOutOfRange, "gone").with_bounds(20, 90);
    let copied = Event::Copied {
        copy: copy.clone(),
        result: Err(gone),
    };
    let effects = core.step(2, copied);
    assert!(
        matches!(tells(&effects)[..], [Frame::Gap(gap)] if gap.to_offset == 20),
        "{effects:?}"
    );
    let [Request::Commit { offsets, .. }] = requests(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(offsets[0].offset, 20);
    assert!(core.step(3, stored(1)).is_empty(), "20 is not deadly");
    let effects = core.step(4, view(2, 1, vec![given(0, 1, Some(20))], &[]));
    assert!(matches!(
        effects[..],
        [Effect::Read {
            start: StartAt::Offset(20),
            ..
        }]
    ));
}

/// Story: from the second death on the new owner gets one record at a time.
#[test]
fn one_by_one_waits_for_each_record() {
    let mut core = core(CoreConfig {
        commit_on_ack: true,
        ..config()
    });
    let careful = AssignedPartition {
        delivery: DeliveryMode::OneByOne.into(),
        attempts: 2,
        ..given(0, 1, Some(5))
    };
    core.step(1, view(1, 1, vec![careful], &[]));
    let effects = core.step(2, sent(0, 5, 6));
    assert!(matches!(effects[..], [Effect::Stop(_)]), "{effects:?}");
    let effects = core.step(3, ack(0, 6));
    assert!(effects.iter().any(|it| matches!(it, Effect::Read { .. })));
}

/// Story: `on_failure=block`: the failed record comes again after its back-off and
/// before those behind it; after the last attempt it is a dead letter.
#[test]
fn a_blocked_record_waits_in_place() {
    let mut core = core(CoreConfig {
        block: true,
        ..config()
    });
    core.step(0, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    core.step(0, sent(0, 5, 8));
    let effects = core.step(0, nack(0, 5));
    assert!(matches!(effects[..], [Effect::Stop(_)]), "{effects:?}");
    assert!(
        core.step(999, Event::Tick).is_empty(),
        "its time is not over"
    );
    let effects = core.step(1_000, Event::Tick);
    assert!(
        matches!(
            effects[..],
            [Effect::Read {
                start: StartAt::Offset(5),
                generation: 2,
                ..
            }]
        ),
        "{effects:?}"
    );
    core.step(1_000, sent(0, 5, 6));
    core.step(1_000, nack(0, 5));
    core.step(3_000, Event::Tick);
    core.step(3_000, sent(0, 5, 6));
    let effects = core.step(3_000, nack(0, 5));
    assert!(
        matches!(&effects[..], [Effect::Copy(copy)] if copy.to == Destination::DeadLetters(3)),
        "{effects:?}"
    );
}

/// Story: a commit past a failed record waits until its copy is safe.
#[test]
fn a_commit_waits_for_the_copy_below_it() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(0))], &[]));
    core.step(1, sent(0, 0, 10));
    let effects = core.step(2, nack(0, 3));
    let [Effect::Copy(copy)] = &effects[..] else {
        panic!("{effects:?}")
    };
    let effects = core.step(3, commit(7, 0, 10));
    assert!(requests(&effects).is_empty(), "the copy is not safe");
    let copied = Event::Copied {
        copy: copy.clone(),
        result: Ok(4),
    };
    let effects = core.step(4, copied);
    assert!(matches!(requests(&effects)[..], [Request::Commit { .. }]));
    let effects = core.step(5, stored(1));
    assert!(matches!(tells(&effects)[..], [Frame::Committed(it)] if it.commit_id == 7));
}

#[test]
fn what_was_not_sent_is_not_stored() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(0))], &[]));
    core.step(1, sent(0, 0, 10));
    for (event, code) in [
        (commit(1, 0, 11), ErrorCode::OffsetOutOfRange),
        (commit(2, 0, -1), ErrorCode::OffsetOutOfRange),
        (commit(3, 1, 0), ErrorCode::Fenced),
    ] {
        let effects = core.step(2, event);
        let [Frame::Committed(answer)] = tells(&effects)[..] else {
            panic!("{effects:?}")
        };
        assert_eq!(answer.error.as_ref().expect("refused").code, code as i32);
        assert!(requests(&effects).is_empty());
    }
}

/// Story: a client that is stopped sends nothing; the coordinator hears nothing
/// of it either, and its session runs out. One that lives is heard of in time.
#[test]
fn the_coordinator_hears_of_a_client_that_lives() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![], &[]));
    assert_eq!(core.next_deadline(), None, "silence is not passed on");
    let beat = || Event::Client(Ask::Heartbeat(v1::Heartbeat { time_ms: 0 }));
    core.step(100, beat());
    assert_eq!(core.next_deadline(), Some(2_500));
    let effects = core.step(2_500, Event::Tick);
    assert_eq!(requests(&effects), [&Request::Heartbeat]);
    core.step(2_600, Event::Answered(Ok(Answer::Done)));
    assert!(
        core.step(60_000, Event::Nudged).is_empty(),
        "silent too long"
    );
}

/// Story: a delivery that takes too long is told once.
#[test]
fn a_hanging_delivery_overruns_once() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(0))], &[]));
    core.step(1, sent(0, 0, 2));
    core.step(2, ack(0, 1));
    assert_eq!(core.next_deadline(), Some(2_500));
    let effects = core.step(60_002, Event::Tick);
    assert!(requests(&effects).contains(&&Request::Overran(vec![at(0)])));
    core.step(60_003, Event::Answered(Ok(Answer::Done)));
    let effects = core.step(200_000, Event::Tick);
    assert!(!requests(&effects).contains(&&Request::Overran(vec![at(0)])));
}

/// Story: a member that was replaced hears why, and everything it still says is
/// in vain.
#[test]
fn a_removed_member_is_fenced() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(0))], &[]));
    core.step(1, sent(0, 0, 2));
    let removed = Event::Removed(MemberRemoved {
        reason: RemovalReason::SessionExpired.into(),
        ..Default::default()
    });
    let effects = core.step(2, removed);
    let [
        Effect::End {
            refusal: Some(refusal),
            ..
        },
    ] = &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!(refusal.code, ErrorCode::Fenced);
    assert!(core.step(3, commit(1, 0, 2)).is_empty());
}

/// Story: a retry topic appears and the member joins again for it; what it reads
/// goes on without a repeat.
#[test]
fn joining_again_moves_nothing() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(0))], &[]));
    core.step(1, sent(0, 0, 9));
    let topics = vec!["t".to_owned(), "t.g.retry.1".to_owned()];
    let effects = core.step(2, Event::Topics(topics.clone()));
    assert_eq!(requests(&effects), [&Request::Rejoin(topics)]);
    let Event::View(again) = view(2, 4, vec![given(0, 4, Some(0)), given(1, 4, None)], &[]) else {
        unreachable!()
    };
    let effects = core.step(3, Event::Answered(Ok(Answer::View(again))));
    let reads: Vec<_> = effects
        .iter()
        .filter_map(|it| match it {
            Effect::Read { at, .. } => Some(at.partition.0),
            _ => None,
        })
        .collect();
    assert_eq!(reads, [1], "only what is new");
    assert_eq!(core.epoch(), 4);
}

/// Story: a retry topic appears while the join for another one is under way, and
/// then that join fails: the coordinator hears of both in the end.
#[test]
fn topics_that_appear_during_a_join_are_joined_after_it() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(0))], &[]));
    let names = |some: &[&str]| -> Vec<String> { some.iter().map(|it| (*it).into()).collect() };
    let (one, two) = (names(&["t", "r1"]), names(&["t", "r1", "r2"]));
    let effects = core.step(1, Event::Topics(one.clone()));
    assert_eq!(requests(&effects), [&Request::Rejoin(one)]);
    assert!(core.step(2, Event::Topics(two.clone())).is_empty());
    let answer = |sequence, epoch| match view(sequence, epoch, vec![], &[]) {
        Event::View(view) => Event::Answered(Ok(Answer::View(view))),
        _ => unreachable!(),
    };
    let effects = core.step(3, answer(2, 2));
    assert_eq!(requests(&effects), [&Request::Rejoin(two.clone())]);
    let refused = Event::Answered(Err(Refusal::unavailable("later")));
    assert!(core.step(4, refused).is_empty(), "not at once");
    assert_eq!(core.next_deadline(), Some(1_004));
    let effects = core.step(1_004, Event::Tick);
    assert_eq!(requests(&effects), [&Request::Rejoin(two)]);
    let effects = core.step(1_005, answer(3, 3));
    assert!(requests(&effects).is_empty(), "all of them are known");
}

/// Story: in a compacted topic two failed records lie on both sides of a hole. Both
/// are copied; both are passed, and what is behind them is the member's still.
#[test]
fn copied_records_pass_over_holes() {
    let mut core = core(CoreConfig {
        commit_on_ack: true,
        ..config()
    });
    core.step(0, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    core.step(1, sent_runs(0, &[5..6, 9..11], 12));
    let refused = core.step(2, nack(0, 7));
    assert!(
        matches!(tells(&refused)[..], [Frame::PartitionError(_)]),
        "there is no 7: {refused:?}"
    );
    let mut copied = |now, offset| {
        let effects = core.step(now, nack(0, offset));
        let [Effect::Copy(copy)] = &effects[..] else {
            panic!("{effects:?}")
        };
        let copy = copy.clone();
        let result = Ok(offset + 1);
        core.step(now, Event::Copied { copy, result })
    };
    let effects = copied(3, 5);
    let [Request::Commit { offsets, .. }] = requests(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(offsets[0].offset, 9, "the hole is passed with it");
    assert!(copied(4, 9).is_empty(), "one request at a time");
    let effects = core.step(5, stored(1));
    let [Request::Commit { offsets, .. }] = requests(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(offsets[0].offset, 10, "10 is in the member's hands");
}

/// Story: after a change of leader the position moved over a placeholder of the new
/// epoch. Reading goes on without a claim about the old one, which would look like
/// a log that was cut back.
#[test]
fn the_last_epoch_is_claimed_only_where_its_batch_ends() {
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    core.step(1, sent(0, 5, 8));
    let pause = |paused: bool| {
        let partitions = vec![position(0, 0)];
        Event::Client(if paused {
            Ask::Pause(v1::SubscribePause { partitions })
        } else {
            Ask::Resume(v1::SubscribeResume { partitions })
        })
    };
    let mut claimed = |now| {
        core.step(now, pause(true));
        let effects = core.step(now, pause(false));
        let [Effect::Read { last_epoch, .. }] = effects[..] else {
            panic!("{effects:?}")
        };
        let (at, next) = (at(0), 9);
        core.step(now, Event::Advanced { at, next });
        last_epoch
    };
    assert_eq!((claimed(2), claimed(3)), (1, -1));
}

/// Story: a commit waits behind another one, whose copy is under way. Meanwhile the
/// member seeks back, and what it acknowledges there is stored: the commit of before
/// the seek must not undo that.
#[test]
fn a_commit_of_before_a_seek_is_not_stored_after_it() {
    let mut core = core(CoreConfig {
        commit_on_ack: true,
        ..config()
    });
    let both = vec![given(0, 1, Some(0)), given(1, 1, Some(0))];
    core.step(0, view(1, 1, both, &[]));
    core.step(1, sent(0, 0, 10));
    core.step(1, sent(1, 0, 10));
    let effects = core.step(2, nack(0, 3));
    let [Effect::Copy(copy)] = &effects[..] else {
        panic!("{effects:?}")
    };
    let copied = Event::Copied {
        copy: copy.clone(),
        result: Ok(4),
    };
    core.step(3, commit(7, 0, 10));
    assert!(core.step(3, commit(8, 1, 10)).is_empty(), "both wait");
    core.step(4, seek(1, 0));
    core.step(5, sent(1, 0, 2));
    let effects = core.step(6, ack(1, 1));
    let [Request::Commit { seek: true, .. }] = requests(&effects)[..] else {
        panic!("{effects:?}")
    };
    core.step(7, stored(1));
    let effects = core.step(8, copied);
    assert!(matches!(requests(&effects)[..], [Request::Commit { .. }]));
    let effects = core.step(9, stored(1));
    let [Frame::Committed(first), Frame::Committed(second)] = tells(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((first.commit_id, second.commit_id), (7, 8));
    assert!(first.error.is_none() && second.error.is_some());
    assert!(requests(&effects).is_empty());
}

/// Story: a member seeks far beyond the end and commits at once. The coordinator is
/// not told that this was delivered, so that it asks the leader for the bounds; once
/// a leader has begun there, it is.
#[test]
fn a_seek_is_delivered_only_when_a_leader_begins_there() {
    let claimed = |core: &mut Core, now, id| {
        let effects = core.step(now, commit(id, 0, 1_000_000));
        let [Request::Commit { seek, offsets }] = requests(&effects)[..] else {
            panic!("{effects:?}")
        };
        let claimed = (*seek, offsets[0].delivered);
        let refusal = Refusal::new(ErrorCode::OffsetOutOfRange, "beyond").with_bounds(0, 10);
        let refused = CommitResult {
            error: Some(refusal.detail()),
            ..Default::default()
        };
        let effects = core.step(now, Event::Answered(Ok(Answer::Committed(vec![refused]))));
        let [Frame::Committed(answer)] = tells(&effects)[..] else {
            panic!("{effects:?}")
        };
        let code = answer.error.as_ref().map(|it| it.code);
        assert_eq!(code, Some(ErrorCode::OffsetOutOfRange as i32));
        claimed
    };
    let mut core = core(config());
    core.step(0, view(1, 1, vec![given(0, 1, Some(5))], &[]));
    core.step(1, seek(0, 1_000_000));
    assert_eq!(claimed(&mut core, 2, 1), (true, false));
    let next = 1_000_000;
    core.step(3, Event::Started { at: at(0), next });
    assert_eq!(claimed(&mut core, 4, 2), (true, true));
}
