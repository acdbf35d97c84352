//! The shard: decides, batches, releases.

use crate::{
    Encoded, Input, Machine, Now, Outcome, Output,
    batch::{Batch, Decision},
    deadlines::Deadlines,
    loading::shard_hash,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};
use talweg_types::{MonotonicMs, Offset, limits};

/// A machine that is due again at once waits at least this long.
const TICK_PAUSE_MS: u64 = 10;
/// What did not fit one append is tried again after this.
const OVERSIZED_PAUSE_MS: u64 = 1_000;

/// What a shard may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of the records of one append, before the batch header.
    pub append_bytes: usize,
    /// Decisions that wait for an append; more requests are refused.
    pub waiting: usize,
    /// Bytes of records that wait; more requests are refused.
    pub waiting_bytes: usize,
}

impl Limits {
    /// For a topic with this `max.message.bytes`.
    pub fn for_batches_of(max_message_bytes: u32) -> Self {
        // For the batch header.
        let margin = 1024;
        let append_bytes = usize::try_from(max_message_bytes).unwrap_or(usize::MAX);
        Self {
            append_bytes: append_bytes.saturating_sub(margin).max(margin / 2),
            waiting: limits::SHARD_WAITING_MAX,
            waiting_bytes: limits::SHARD_WAITING_BYTES_MAX,
        }
    }
}

/// One shard while this coordinator holds it.
pub struct Shard<M: Machine> {
    settings: M::Settings,
    limits: Limits,
    /// With all that was decided.
    machines: BTreeMap<Arc<str>, M>,
    deadlines: Deadlines,
    /// Oldest first. The first is in flight if `flying`.
    batches: VecDeque<Batch<M>>,
    flying: bool,
    /// Decisions and bytes in `batches`.
    waiting: usize,
    waiting_bytes: usize,
    /// Decisions so far.
    decided: u64,
    next_id: u64,
    /// Committed up to here, exclusive; only grows.
    applied: Offset,
}

impl<M: Machine> Shard<M> {
    /// With nothing in it.
    pub fn empty(settings: M::Settings, limits: Limits) -> Self {
        Self::loaded(settings, limits, BTreeMap::new(), Offset::ZERO)
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn loaded(
        settings: M::Settings,
        limits: Limits,
        machines: BTreeMap<Arc<str>, M>,
        applied: Offset,
    ) -> Self {
        let mut deadlines = Deadlines::default();
        for (name, machine) in &machines {
            deadlines.set(name, machine.next_deadline());
        }
        Self {
            settings,
            limits,
            machines,
            deadlines,
            batches: VecDeque::new(),
            flying: false,
            waiting: 0,
            waiting_bytes: 0,
            decided: 0,
            next_id: 1,
            applied,
        }
    }

    /// Takes one input; what it comes to, in order.
    pub fn step(&mut self, now: Now, context: &M::Context, input: Input<M>) -> Vec<Output<M>> {
        let mut out = Vec::new();
        match input {
            Input::Request { token, name, event } => {
                match self.full().filter(|_| !M::is_sign_of_life(&event)) {
                    Some(limit) => out.push(self.throttled(token, limit)),
                    None => self.decide(now, context, name, event, Some(token), &mut out),
                }
            }
            Input::Event { name, event } => {
                self.decide(now, context, name, event, None, &mut out);
            }
            Input::All(event) => {
                for name in self.machines.keys().cloned().collect::<Vec<_>>() {
                    self.decide(now, context, name, event.clone(), None, &mut out);
                }
            }
            Input::Barrier { token, seal } => match self.full() {
                Some(limit) => out.push(self.throttled(token, limit)),
                None => self.barrier(token, seal, &mut out),
            },
            Input::Tick => self.tick(now, context, &mut out),
            Input::Appended { id, last_offset } => self.on_appended(id, last_offset, &mut out),
            Input::NotAppended { id } => self.on_not_appended(now, id, &mut out),
        }
        self.fly(&mut out);
        debug_assert_eq!(self.check(), Ok(()));
        out
    }

    /// Gives everything up; who waits is told so.
    pub fn lose(self) -> Vec<Output<M>> {
        let batches = self.batches.into_iter();
        let decisions = batches.flat_map(|batch| batch.decisions);
        decisions
            .filter_map(|decision| decision.refuse(Outcome::Lost))
            .collect()
    }

    fn full(&self) -> Option<usize> {
        let Limits {
            waiting,
            waiting_bytes,
            ..
        } = self.limits;
        (self.waiting >= waiting || self.waiting_bytes >= waiting_bytes).then_some(waiting)
    }

    fn throttled(&self, token: u64, limit: usize) -> Output<M> {
        Output::Answer {
            token,
            number: self.decided,
            wrote: false,
            outcome: Outcome::Throttled { limit },
        }
    }

    fn decide(
        &mut self,
        now: Now,
        context: &M::Context,
        name: Arc<str>,
        event: M::Event,
        token: Option<u64>,
        out: &mut Vec<Output<M>>,
    ) {
        let settings = self.settings;
        let entry = self.machines.entry(Arc::clone(&name));
        let machine = entry.or_insert_with(|| M::new(settings));
        let alive = M::is_sign_of_life(&event);
        let step = machine.step(now, context, event);
        self.decided += 1;
        let number = self.decided;
        let records = step.records.into_iter();
        let records: Vec<Encoded> = records.map(|record| M::encode(&name, record)).collect();
        let bytes: usize = records.iter().map(Encoded::batch_bytes).sum();
        let limit = self.limits.append_bytes;
        if bytes > limit {
            machine.undo(now, step.undo);
            let pause = now.monotonic.plus(OVERSIZED_PAUSE_MS);
            self.settle(&name, Some(pause));
            out.push(match token {
                Some(token) => Output::Answer {
                    token,
                    number,
                    wrote: false,
                    outcome: Outcome::TooLarge { bytes, limit },
                },
                None => Output::Oversized { name, bytes },
            });
            return;
        }
        self.settle(&name, None);
        let silent = records.is_empty() && step.effects.is_empty();
        if silent && token.is_none() {
            return;
        }
        let at_once = silent && alive && M::rests_on_nothing(&step.answer);
        let full = self.full().filter(|_| alive && !at_once);
        if let (Some(token), Some(limit)) = (token, full) {
            return out.push(self.throttled(token, limit));
        }
        let decision = Decision::Step {
            name,
            number,
            token,
            answer: step.answer,
            effects: step.effects,
            undo: (!records.is_empty()).then_some(step.undo),
        };
        match at_once {
            // However long the log takes: who is heard must not count as silent.
            true => decision.release(self.applied, out),
            false => self.enqueue(records, bytes, decision, out),
        }
    }

    /// After a change of a machine: its deadline, not before `at_least`; a machine
    /// of which nothing is left goes (and comes back if that is undone).
    fn settle(&mut self, name: &Arc<str>, at_least: Option<MonotonicMs>) {
        let Some(machine) = self.machines.get(name) else {
            return;
        };
        if machine.is_gone() {
            self.machines.remove(name);
            return self.deadlines.set(name, None);
        }
        let due = machine.next_deadline();
        let due = due.map(|due| at_least.map_or(due, |least| due.max(least)));
        self.deadlines.set(name, due);
    }

    fn enqueue(
        &mut self,
        records: Vec<Encoded>,
        bytes: usize,
        decision: Decision<M>,
        out: &mut Vec<Output<M>>,
    ) {
        if records.is_empty() {
            match self.batches.back_mut() {
                Some(last) => {
                    last.decisions.push(decision);
                    self.waiting += 1;
                }
                None => decision.release(self.applied, out),
            }
            return;
        }
        let flying_only = self.flying && self.batches.len() == 1;
        let limit = self.limits.append_bytes;
        let most = limits::BATCH_RECORDS_MAX as usize;
        let open = self.batches.back_mut().filter(|last| {
            !flying_only
                && !last.sealed
                && last.bytes + bytes <= limit
                && last.records.len() + records.len() <= most
        });
        self.waiting += 1;
        self.waiting_bytes += bytes;
        match open {
            Some(last) => {
                last.records.extend(records);
                last.bytes += bytes;
                last.decisions.push(decision);
            }
            None => {
                self.batches.push_back(Batch {
                    id: self.next_id,
                    records,
                    bytes,
                    decisions: vec![decision],
                    sealed: false,
                });
                self.next_id += 1;
            }
        }
    }

    fn barrier(&mut self, token: u64, seal: bool, out: &mut Vec<Output<M>>) {
        let number = self.decided;
        let decision = Decision::Barrier { token, number };
        if let Some(last) = self.batches.back_mut() {
            last.sealed |= seal;
        }
        self.enqueue(Vec::new(), 0, decision, out);
    }

    fn tick(&mut self, now: Now, context: &M::Context, out: &mut Vec<Output<M>>) {
        for name in self.deadlines.due(now.monotonic) {
            let before = out.len();
            self.decide(now, context, Arc::clone(&name), M::tick(), None, out);
            let oversized = out[before..]
                .iter()
                .any(|output| matches!(output, Output::Oversized { .. }));
            if !oversized {
                self.settle(&name, Some(now.monotonic.plus(TICK_PAUSE_MS)));
            }
        }
    }

    fn on_appended(&mut self, id: u64, last_offset: Offset, out: &mut Vec<Output<M>>) {
        // A late word about an append that was settled before.
        if !self.flying || self.batches.front().is_none_or(|batch| batch.id != id) {
            return;
        }
        let Some(batch) = self.batches.pop_front() else {
            return;
        };
        self.flying = false;
        self.waiting -= batch.decisions.len();
        self.waiting_bytes -= batch.bytes;
        self.applied = self.applied.max(last_offset.plus(1));
        out.push(Output::Applied {
            records: batch.records,
            applied: self.applied,
        });
        for decision in batch.decisions {
            decision.release(self.applied, out);
        }
    }

    /// All that waits was decided on what is not in the log.
    fn on_not_appended(&mut self, now: Now, id: u64, out: &mut Vec<Output<M>>) {
        if !self.flying || self.batches.front().is_none_or(|batch| batch.id != id) {
            return;
        }
        self.flying = false;
        (self.waiting, self.waiting_bytes) = (0, 0);
        let batches = std::mem::take(&mut self.batches).into_iter();
        let mut decisions: Vec<_> = batches.flat_map(|batch| batch.decisions).collect();
        let mut touched = BTreeSet::new();
        for decision in decisions.iter_mut().rev() {
            let Decision::Step { name, undo, .. } = decision else {
                continue;
            };
            if let Some(undo) = undo.take() {
                let entry = self.machines.entry(Arc::clone(name));
                let machine = entry.or_insert_with(|| M::new(self.settings));
                machine.undo(now, undo);
                touched.insert(Arc::clone(name));
            }
        }
        for name in touched {
            self.settle(&name, Some(now.monotonic.plus(TICK_PAUSE_MS)));
        }
        let refused = decisions.into_iter();
        out.extend(refused.filter_map(|decision| decision.refuse(Outcome::NotDone)));
    }

    fn fly(&mut self, out: &mut Vec<Output<M>>) {
        if self.flying {
            return;
        }
        if let Some(first) = self.batches.front() {
            self.flying = true;
            out.push(Output::Append {
                id: first.id,
                records: first.records.clone(),
            });
        }
    }

    /// Decided, not yet committed, included.
    pub fn machine(&self, name: &str) -> Option<&M> {
        self.machines.get(name)
    }

    /// In name order.
    pub fn machines(&self) -> impl Iterator<Item = (&Arc<str>, &M)> {
        self.machines.iter()
    }

    /// When [`Input::Tick`] is due.
    pub fn next_deadline(&self) -> Option<MonotonicMs> {
        self.deadlines.next()
    }

    /// Committed up to here, exclusive.
    pub fn applied(&self) -> Offset {
        self.applied
    }

    /// Decisions that wait for an append.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// The same for the same records, in every process of one build.
    pub fn state_hash(&self) -> u64 {
        let hashes = self.machines.iter();
        shard_hash(hashes.map(|(name, machine)| (name.as_ref(), machine.state_hash())))
    }

    /// The invariant.
    pub fn check(&self) -> Result<(), &'static str> {
        let decisions: usize = self.batches.iter().map(|b| b.decisions.len()).sum();
        let bytes: usize = self.batches.iter().map(|b| b.bytes).sum();
        if self.batches.iter().any(|batch| batch.records.is_empty()) {
            return Err("a batch has no records");
        }
        if (decisions, bytes) != (self.waiting, self.waiting_bytes) {
            return Err("what waits is counted wrong");
        }
        if self.flying == self.batches.is_empty() {
            return Err("something waits and nothing is in flight");
        }
        let ids = self.batches.iter().map(|batch| batch.id);
        if !ids.is_sorted() {
            return Err("appends are out of order");
        }
        Ok(())
    }
}
