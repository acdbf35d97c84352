//! Versions, the change log and transactions. See the module above for what is
//! always true; [`Mvcc::check`] says it in code.

use super::{HISTORY_EVENTS, lease::Leases};
use crate::{
    Event, KeyRange, KeyValue, Lease, LeaseId, MetastoreError, Op, Ranged, Revision, Txn,
    TxnOutcome, WatchItem,
};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    time::Duration,
};

#[derive(Debug)]
struct Version {
    at: Revision,
    /// `None`: deleted.
    entry: Option<KeyValue>,
}

#[derive(Debug)]
pub struct Mvcc {
    /// The newest revision; only ever grows.
    revision: Revision,
    /// Reads at it and above are answered; only ever grows.
    oldest: Revision,
    /// Events of revisions above it are in `log`; only ever grows.
    log_base: Revision,
    keys: BTreeMap<Bytes, Vec<Version>>,
    /// Entry i holds revision `log_base + 1 + i`.
    log: VecDeque<Vec<Event>>,
    /// Events in `log`.
    logged: usize,
    history: usize,
    leases: Leases,
}

/// A prepared change: made durable first, then given to [`Mvcc::apply`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    pub revision: Revision,
    pub events: Vec<Event>,
}

/// What a transaction comes to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Nothing changes; this is the answer.
    Answer(TxnOutcome),
    /// To be applied before any other change is prepared.
    Commit(Commit),
}

impl Mvcc {
    /// An empty store that keeps `history` revisions (at least one).
    pub fn new(history: usize) -> Self {
        Self::load(history, Revision::FIRST, Vec::new())
    }

    /// A store as it was left at `revision`, without its history.
    pub fn load(history: usize, revision: Revision, entries: Vec<KeyValue>) -> Self {
        let keys = entries
            .into_iter()
            .map(|kv| {
                (
                    kv.key.clone(),
                    vec![Version {
                        at: kv.mod_revision,
                        entry: Some(kv),
                    }],
                )
            })
            .collect();
        Self {
            revision,
            oldest: revision,
            log_base: revision,
            keys,
            log: VecDeque::new(),
            logged: 0,
            history: history.max(1),
            leases: Leases::default(),
        }
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    fn current(&self, key: &[u8]) -> Option<&KeyValue> {
        self.keys.get(key)?.last()?.entry.as_ref()
    }

    /// See [`crate::Metastore::range`].
    pub fn range(
        &self,
        range: &KeyRange,
        at: Option<Revision>,
        limit: usize,
    ) -> Result<Ranged, MetastoreError> {
        let at = at.unwrap_or(self.revision);
        if at > self.revision {
            return Err(MetastoreError::FutureRevision {
                asked: at,
                newest: self.revision,
            });
        }
        if at < self.oldest {
            return Err(MetastoreError::Compacted {
                oldest: self.oldest,
            });
        }
        let take = if limit == 0 {
            usize::MAX
        } else {
            limit.saturating_add(1)
        };
        let mut entries: Vec<_> = self
            .versions_in(range)
            .filter_map(|versions| versions.iter().rev().find(|v| v.at <= at)?.entry.clone())
            .take(take)
            .collect();
        let more = limit != 0 && entries.len() > limit;
        if more {
            entries.truncate(limit);
        }
        Ok(Ranged {
            revision: self.revision,
            entries,
            more,
        })
    }

    fn versions_in(&self, range: &KeyRange) -> impl Iterator<Item = &Vec<Version>> {
        // BTreeMap::range panics on crossed bounds; an empty range has no keys.
        let start = Bound::Included(range.start().clone());
        let end = match range.end() {
            _ if range.is_empty() => Bound::Included(range.start().clone()),
            Some(end) => Bound::Excluded(end.clone()),
            None => Bound::Unbounded,
        };
        let inside = self
            .keys
            .range((start, end))
            .filter(|(key, _)| range.contains(key));
        inside.map(|(_, versions)| versions)
    }

    /// Decides a transaction without changing anything.
    pub fn prepare(&self, txn: &Txn) -> Result<Decision, MetastoreError> {
        txn.check()?;
        if !txn
            .compares
            .iter()
            .all(|compare| compare.holds(self.current(compare.key())))
        {
            let current = txn
                .compares
                .iter()
                .map(|c| self.current(c.key()).cloned())
                .collect();
            return Ok(Decision::Answer(TxnOutcome::Refused {
                revision: self.revision,
                current,
            }));
        }
        for op in &txn.then {
            if let Op::Put { lease, .. } = op {
                self.leases.check(*lease)?;
            }
        }
        Ok(match self.commit_of(&txn.then) {
            Some(commit) => Decision::Commit(commit),
            None => Decision::Answer(TxnOutcome::Committed {
                revision: self.revision,
            }),
        })
    }

    /// The end of a lease as a change; `None` if it holds no key. Apply it,
    /// then [`Mvcc::remove_lease`].
    pub fn prepare_lease_end(&self, lease: LeaseId) -> Result<Option<Commit>, MetastoreError> {
        self.leases.check(lease)?;
        let deletes: Vec<_> = self.leases.keys(lease).cloned().map(Op::delete).collect();
        Ok(self.commit_of(&deletes))
    }

    /// The deletion of every key whose lease is not live; for a store that was
    /// opened anew and knows no lease.
    pub fn prepare_orphans(&self) -> Option<Commit> {
        let current = self
            .keys
            .values()
            .filter_map(|versions| versions.last()?.entry.as_ref());
        let orphans = current.filter(|entry| self.leases.check(entry.lease).is_err());
        let deletes: Vec<_> = orphans.map(|entry| Op::delete(entry.key.clone())).collect();
        self.commit_of(&deletes)
    }

    fn commit_of(&self, ops: &[Op]) -> Option<Commit> {
        let revision = self.revision.next();
        let events: Vec<_> = ops
            .iter()
            .filter_map(|op| self.event_of(op, revision))
            .collect();
        (!events.is_empty()).then_some(Commit { revision, events })
    }

    fn event_of(&self, op: &Op, revision: Revision) -> Option<Event> {
        let before = self.current(op.key());
        match op {
            Op::Put { key, value, lease } => Some(Event::Put(KeyValue {
                key: key.clone(),
                value: value.clone(),
                create_revision: before.map_or(revision, |entry| entry.create_revision),
                mod_revision: revision,
                version: before.map_or(1, |entry| entry.version + 1),
                lease: *lease,
            })),
            Op::Delete { key } => before.map(|_| Event::Delete {
                key: key.clone(),
                revision,
            }),
        }
    }

    /// Makes a prepared change visible. It must be the next one.
    pub fn apply(&mut self, commit: Commit) {
        debug_assert_eq!(
            commit.revision,
            self.revision.next(),
            "changes are applied in order"
        );
        for event in &commit.events {
            let before = self
                .keys
                .get(event.key())
                .and_then(|v| v.last()?.entry.as_ref());
            self.leases.on_change(before, event);
            let entry = match event {
                Event::Put(entry) => Some(entry.clone()),
                Event::Delete { .. } => None,
            };
            let version = Version {
                at: commit.revision,
                entry,
            };
            self.keys
                .entry(event.key().clone())
                .or_default()
                .push(version);
        }
        self.revision = commit.revision;
        self.logged += commit.events.len();
        self.log.push_back(commit.events);
        let full = |mvcc: &Self| mvcc.log.len() > mvcc.history || mvcc.logged > HISTORY_EVENTS;
        while self.log.len() > 1 && full(self) {
            self.forget_before(self.log_base.next().next());
        }
    }

    /// Changes in `range` from revision `from` on, looking at no more than
    /// `limit` revisions. Also the first revision not looked at yet.
    pub fn changes(
        &self,
        range: &KeyRange,
        from: Revision,
        limit: usize,
    ) -> Result<(Vec<WatchItem>, Revision), MetastoreError> {
        if from <= self.log_base {
            return Err(MetastoreError::Compacted {
                oldest: self.log_base.next(),
            });
        }
        let skip = usize::try_from(from.0 - self.log_base.0 - 1).unwrap_or(usize::MAX);
        let mut next = from;
        let mut items = Vec::new();
        for logged in self.log.iter().skip(skip).take(limit) {
            let events: Vec<_> = logged
                .iter()
                .filter(|e| range.contains(e.key()))
                .cloned()
                .collect();
            if !events.is_empty() {
                items.push(WatchItem::Events {
                    revision: next,
                    events,
                });
            }
            next = next.next();
        }
        Ok((items, next))
    }

    /// See [`crate::Metastore::compact`].
    pub fn compact(&mut self, revision: Revision) -> Result<(), MetastoreError> {
        if revision > self.revision {
            return Err(MetastoreError::FutureRevision {
                asked: revision,
                newest: self.revision,
            });
        }
        self.forget_before(revision);
        Ok(())
    }

    /// Drops events below `oldest` and what they superseded.
    fn forget_before(&mut self, oldest: Revision) {
        if oldest <= self.oldest {
            return;
        }
        self.oldest = oldest;
        while self.log_base.next() < oldest
            && let Some(events) = self.log.pop_front()
        {
            self.log_base = self.log_base.next();
            self.logged -= events.len();
            events.iter().for_each(|event| self.prune(event.key()));
        }
        // The log keeps the oldest revision itself; what it superseded goes.
        let superseded: Vec<_> = self
            .log
            .front()
            .into_iter()
            .flatten()
            .map(|event| event.key().clone())
            .collect();
        superseded.iter().for_each(|key| self.prune(key));
    }

    /// Keeps of a key's versions the last at or below `oldest` (unless it is a
    /// deletion) and all above.
    fn prune(&mut self, key: &Bytes) {
        let Some(versions) = self.keys.get_mut(key) else {
            return;
        };
        let readable = versions.iter().rposition(|v| v.at <= self.oldest);
        if let Some(keep) = readable {
            let from = if versions[keep].entry.is_some() {
                keep
            } else {
                keep + 1
            };
            versions.drain(..from);
        }
        if versions.is_empty() {
            self.keys.remove(key);
        }
    }

    pub fn grant(&mut self, now: Duration, ttl: Duration) -> Lease {
        self.leases.grant(now, ttl)
    }

    pub fn keep_alive(&mut self, now: Duration, lease: LeaseId) -> Result<(), MetastoreError> {
        self.leases.keep_alive(now, lease)
    }

    /// The lease that runs out first, and when.
    pub fn next_deadline(&self) -> Option<(Duration, LeaseId)> {
        self.leases.next_deadline()
    }

    /// When a live lease runs out.
    pub fn deadline(&self, lease: LeaseId) -> Option<Duration> {
        self.leases.deadline(lease)
    }

    /// Forgets a lease whose keys are gone.
    pub fn remove_lease(&mut self, lease: LeaseId) {
        self.leases.remove(lease);
    }

    /// Names the first broken invariant.
    pub fn check(&self) -> Result<(), String> {
        let logged = self.log_base.0 + self.log.len() as u64;
        if logged != self.revision.0 || self.oldest > self.revision {
            return Err(format!(
                "log ends at {logged}, the newest revision is {}",
                self.revision
            ));
        }
        if self.logged != self.log.iter().map(Vec::len).sum::<usize>() {
            return Err(format!("{} events counted", self.logged));
        }
        for (key, versions) in &self.keys {
            let ascending = versions.windows(2).all(|pair| pair[0].at < pair[1].at);
            if versions.is_empty() || !ascending {
                return Err(format!("the versions of {key:?} do not ascend"));
            }
        }
        for (lease, key) in self.leases.attached() {
            if self.current(key).is_none_or(|entry| entry.lease != lease) {
                return Err(format!(
                    "lease {lease} holds {key:?}, which does not name it"
                ));
            }
        }
        Ok(())
    }
}
