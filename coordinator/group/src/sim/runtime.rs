//! The runtime's part: appends that commit, fail, or die with the coordinator;
//! and a shadow that applies what was committed, nothing else.

use crate::{Event, Group, GroupState, Key, Now, Record, Settings, Step, Topics};
use std::collections::BTreeMap;

pub(super) struct Decided {
    pub at: Now,
    pub event: Event,
    pub step: Step,
}

pub(super) struct Runtime {
    pub group: Group,
    settings: Settings,
    log: Vec<Record>,
    shadow: GroupState,
    pending: Vec<Decided>,
}

impl Runtime {
    pub fn new(settings: Settings) -> Self {
        Self {
            group: Group::new(settings),
            settings,
            log: Vec::new(),
            shadow: GroupState::default(),
            pending: Vec::new(),
        }
    }

    pub fn decide(&mut self, at: Now, topics: &Topics, event: Event) -> Result<(), String> {
        let step = self.group.step(at, topics, event.clone());
        self.group
            .check()
            .map_err(|broken| format!("{event:?}: {broken}"))?;
        let keys: Vec<Key> = step.records.iter().map(|record| record.key).collect();
        if keys.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(format!("a key twice in one append: {keys:?}"));
        }
        self.pending.push(Decided { at, event, step });
        Ok(())
    }

    /// All appends succeed; what was decided is released in order.
    pub fn commit(&mut self) -> Result<Vec<Decided>, String> {
        let released = std::mem::take(&mut self.pending);
        for record in released.iter().flat_map(|decided| &decided.step.records) {
            self.log.push(record.clone());
            self.shadow.apply(record.clone());
        }
        if self.group.state() != &self.shadow {
            return Err("after a commit the live state is not the replayed one".into());
        }
        Ok(released)
    }

    /// The first append fails, and with it all that rests on it.
    pub fn fail(&mut self, now: Now) -> Result<(), String> {
        for decided in std::mem::take(&mut self.pending).into_iter().rev() {
            self.group.undo(now, decided.step.undo);
        }
        self.group
            .check()
            .map_err(|broken| format!("after undoing: {broken}"))?;
        self.same_as_shadow("after undoing")
    }

    /// Another coordinator loads the log, compacted or not.
    pub fn fail_over(&mut self, now: Now, compacted: bool) -> Result<(), String> {
        self.pending.clear();
        let records = if compacted {
            newest(&self.log)
        } else {
            self.log.clone()
        };
        let loaded = Group::load(self.settings, now, records);
        self.group = loaded.map_err(|error| error.to_string())?;
        self.group
            .check()
            .map_err(|broken| format!("after a load: {broken}"))?;
        self.same_as_shadow("after a load")
    }

    fn same_as_shadow(&self, when: &str) -> Result<(), String> {
        let (live, shadow) = (self.group.state(), &self.shadow);
        if live.state_hash() == shadow.state_hash() && live == shadow {
            return Ok(());
        }
        Err(format!("{when} the live state is not the replayed one"))
    }
}

/// As compaction leaves it: the newest of each key, in log order.
fn newest(log: &[Record]) -> Vec<Record> {
    let last: BTreeMap<Key, usize> = log
        .iter()
        .enumerate()
        .map(|(n, record)| (record.key, n))
        .collect();
    let kept = log
        .iter()
        .enumerate()
        .filter(|(n, record)| last[&record.key] == *n);
    kept.map(|(_, record)| record.clone()).collect()
}
