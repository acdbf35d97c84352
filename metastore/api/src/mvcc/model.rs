//! Random histories against the plainest model there is: a copy of the whole
//! map for every revision.

use super::{Decision, Mvcc};
use crate::{
    Compare, Event, KeyRange, LeaseId, MetastoreError, Op, Revision, Txn, TxnOutcome, WatchItem,
};
use proptest::prelude::*;
use std::{collections::BTreeMap, time::Duration};

const HISTORY: usize = 8;

type Ops = BTreeMap<u8, Option<u8>>;
type Map = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
enum Step {
    /// Only while the key is absent (or, if false, has its current value).
    Txn {
        compare: Option<(u8, bool)>,
        ops: Ops,
        lease: bool,
    },
    EndLease,
    Compact {
        back: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let ops = proptest::collection::btree_map(0u8..6, proptest::option::of(any::<u8>()), 0..4);
    prop_oneof![
        8 => (proptest::option::of((0u8..6, any::<bool>())), ops, any::<bool>())
            .prop_map(|(compare, ops, lease)| Step::Txn { compare, ops, lease }),
        1 => Just(Step::EndLease),
        1 => (0u64..6).prop_map(|back| Step::Compact { back }),
    ]
}

struct World {
    mvcc: Mvcc,
    lease: LeaseId,
    /// The map as of each revision since the first.
    moments: Vec<Map>,
    leased: Vec<Vec<u8>>,
    compacted: Revision,
}

impl World {
    fn new() -> Self {
        let mut mvcc = Mvcc::new(HISTORY);
        let lease = mvcc.grant(Duration::ZERO, Duration::from_secs(1)).id;
        let moments = vec![Map::new()];
        Self {
            mvcc,
            lease,
            moments,
            leased: Vec::new(),
            compacted: Revision::FIRST,
        }
    }

    fn newest(&self) -> &Map {
        self.moments.last().expect("there is a first one")
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Txn {
                compare,
                ops,
                lease,
            } => self.txn(compare, &ops, lease),
            Step::EndLease => self.end_lease(),
            Step::Compact { back } => {
                let to = Revision(self.mvcc.revision().0.saturating_sub(back));
                self.mvcc.compact(to).expect("not in the future");
                self.compacted = self.compacted.max(to);
            }
        }
    }

    fn compare(&self, compare: Option<(u8, bool)>) -> (Option<Compare>, bool) {
        let Some((key, absent)) = compare else {
            return (None, true);
        };
        let there = self.newest().get(&vec![key]);
        let compare = match (absent, there) {
            (true, _) => Compare::absent(vec![key]),
            (false, Some(value)) => Compare::value(vec![key], value.clone()),
            (false, None) => Compare::value(vec![key], "not there"),
        };
        (Some(compare), absent == there.is_none())
    }

    fn txn(&mut self, compare: Option<(u8, bool)>, ops: &Ops, lease: bool) {
        let (compare, holds) = self.compare(compare);
        let id = if lease { self.lease } else { LeaseId::NONE };
        let then = ops.iter().map(|(key, value)| match value {
            Some(value) => Op::put_with_lease(vec![*key], vec![*value], id),
            None => Op::delete(vec![*key]),
        });
        let txn = Txn {
            compares: compare.into_iter().collect(),
            then: then.collect(),
        };
        let mut after = self.newest().clone();
        let mut changes = false;
        for (key, value) in ops.iter().filter(|_| holds) {
            changes |= match value {
                Some(value) => {
                    after.insert(vec![*key], vec![*value]);
                    true
                }
                None => after.remove(&vec![*key]).is_some(),
            };
            self.leased.retain(|held| held != &[*key]);
            if lease && value.is_some() {
                self.leased.push(vec![*key]);
            }
        }
        match self.mvcc.prepare(&txn).expect("well formed") {
            Decision::Answer(TxnOutcome::Refused { .. }) => assert!(!holds),
            Decision::Answer(TxnOutcome::Committed { .. }) => assert!(holds && !changes),
            Decision::Commit(commit) => {
                assert!(holds && changes);
                self.mvcc.apply(commit);
                self.moments.push(after);
            }
        }
    }

    fn end_lease(&mut self) {
        let commit = self.mvcc.prepare_lease_end(self.lease).expect("live");
        let mut after = self.newest().clone();
        self.leased.iter().for_each(|key| drop(after.remove(key)));
        assert_eq!(commit.is_some(), !self.leased.is_empty());
        if let Some(commit) = commit {
            self.mvcc.apply(commit);
            self.moments.push(after);
        }
        self.leased.clear();
        self.mvcc.remove_lease(self.lease);
        self.lease = self.mvcc.grant(Duration::ZERO, Duration::from_secs(1)).id;
    }

    /// Revisions from here on must be readable.
    fn must_keep(&self) -> Revision {
        let by_history = self.mvcc.revision().0.saturating_sub(HISTORY as u64 - 1);
        Revision(by_history).max(self.compacted)
    }

    fn check(&self) {
        self.mvcc.check().expect("invariant");
        assert_eq!(self.mvcc.revision().0, self.moments.len() as u64);
        for (moment, at) in self.moments.iter().zip(1u64..) {
            match self.mvcc.range(&KeyRange::all(), Some(Revision(at)), 0) {
                Ok(seen) => {
                    let seen: Map = seen
                        .entries
                        .iter()
                        .map(|e| (e.key.to_vec(), e.value.to_vec()))
                        .collect();
                    assert_eq!(&seen, moment, "as of {at}");
                    assert!(at >= self.compacted.0, "{at} was compacted");
                }
                Err(MetastoreError::Compacted { oldest }) => {
                    assert!(
                        at < oldest.0 && Revision(at) < self.must_keep(),
                        "{at} is kept"
                    );
                }
                Err(error) => panic!("{error}"),
            }
            self.check_replay(Revision(at));
        }
    }

    /// Replaying every change from `at` on over the state before it gives now.
    fn check_replay(&self, at: Revision) {
        let Ok((items, next)) = self.mvcc.changes(&KeyRange::all(), at, usize::MAX) else {
            let may_be_gone = at < self.must_keep() || at == Revision::FIRST;
            assert!(
                may_be_gone || at == self.compacted,
                "changes from {at} are kept"
            );
            return;
        };
        assert_eq!(next, self.mvcc.revision().next());
        let before = usize::try_from(at.0).expect("small") - 2;
        let mut map = self.moments[before].clone();
        for item in items {
            let WatchItem::Events { events, .. } = item else {
                panic!("{item:?}")
            };
            for event in events {
                match event {
                    Event::Put(entry) => drop(map.insert(entry.key.to_vec(), entry.value.to_vec())),
                    Event::Delete { key, .. } => drop(map.remove(key.as_ref())),
                }
            }
        }
        assert_eq!(&map, self.newest());
    }
}

proptest! {
    #[test]
    fn any_history_reads_and_replays_as_the_model_does(
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let mut world = World::new();
        for step in steps {
            world.run(step);
            world.check();
        }
    }
}

/// Revisions of many events: the history is bounded by what it takes, and
/// what is current stays.
#[test]
fn the_history_is_bounded_in_events_too() {
    let mut mvcc = Mvcc::new(10_000);
    for round in 0..300 {
        let puts = (0..100).map(|i| Op::put(format!("k{i}"), format!("{round}")));
        let txn = Txn {
            compares: vec![],
            then: puts.collect(),
        };
        let Ok(Decision::Commit(commit)) = mvcc.prepare(&txn) else {
            panic!("commits")
        };
        mvcc.apply(commit);
    }
    mvcc.check().expect("invariant");
    let newest = mvcc.revision();
    let kept = Revision(newest.0 - super::HISTORY_EVENTS as u64 / 100 + 1);
    assert!(mvcc.changes(&KeyRange::all(), kept, 0).is_ok());
    let before = mvcc.changes(&KeyRange::all(), Revision(kept.0 - 1), 0);
    assert_eq!(before, Err(MetastoreError::Compacted { oldest: kept }));
    let now = mvcc.range(&KeyRange::all(), None, 0).expect("now");
    assert!(now.entries.len() == 100 && now.entries.iter().all(|entry| entry.value == "299"));
}
