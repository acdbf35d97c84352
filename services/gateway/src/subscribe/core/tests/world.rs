//! A member, a coordinator that may fail and a client that does as it likes.

use super::*;
use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::BTreeSet;

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
pub(super) struct World {
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
    pub(super) fn new(seed: u64, config: CoreConfig) -> Self {
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
            Effect::Tell(_) | Effect::Warn(_) => {}
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

    pub(super) fn turn(&mut self) {
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

/// As above, always the same.
#[cfg(feature = "planted-faults")]
pub(super) fn some_histories() {
    for seed in 0..200 {
        let config = CoreConfig {
            commit_on_ack: seed % 2 == 0,
            policy: v1::ResetPolicy::Latest,
            ..config()
        };
        let mut world = World::new(seed, config);
        for _ in 0..400 {
            world.turn();
        }
    }
}
