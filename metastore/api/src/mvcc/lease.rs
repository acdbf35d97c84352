//! Leases: who holds which keys, and until when. Time is handed in, as the time
//! since some fixed moment of a monotonic clock.

use crate::{Event, KeyValue, Lease, LeaseId, MetastoreError};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

#[derive(Debug)]
struct Held {
    ttl: Duration,
    deadline: Duration,
    keys: BTreeSet<Bytes>,
}

#[derive(Debug, Default)]
pub(super) struct Leases {
    granted: i64,
    live: BTreeMap<LeaseId, Held>,
}

impl Leases {
    pub(super) fn grant(&mut self, now: Duration, ttl: Duration) -> Lease {
        self.granted += 1;
        let id = LeaseId(self.granted);
        let held = Held {
            ttl,
            deadline: now.saturating_add(ttl),
            keys: BTreeSet::new(),
        };
        self.live.insert(id, held);
        Lease { id, ttl }
    }

    pub(super) fn keep_alive(&mut self, now: Duration, id: LeaseId) -> Result<(), MetastoreError> {
        let held = self
            .live
            .get_mut(&id)
            .ok_or(MetastoreError::LeaseNotFound { lease: id })?;
        held.deadline = now.saturating_add(held.ttl);
        Ok(())
    }

    pub(super) fn check(&self, id: LeaseId) -> Result<(), MetastoreError> {
        match id.is_none() || self.live.contains_key(&id) {
            true => Ok(()),
            false => Err(MetastoreError::LeaseNotFound { lease: id }),
        }
    }

    pub(super) fn keys(&self, id: LeaseId) -> impl Iterator<Item = &Bytes> {
        self.live.get(&id).into_iter().flat_map(|held| &held.keys)
    }

    /// The lease that runs out first, and when.
    pub(super) fn next_deadline(&self) -> Option<(Duration, LeaseId)> {
        self.live
            .iter()
            .map(|(id, held)| (held.deadline, *id))
            .min()
    }

    pub(super) fn deadline(&self, id: LeaseId) -> Option<Duration> {
        self.live.get(&id).map(|held| held.deadline)
    }

    pub(super) fn remove(&mut self, id: LeaseId) {
        self.live.remove(&id);
    }

    /// Keeps the attachments in step with one change.
    pub(super) fn on_change(&mut self, before: Option<&KeyValue>, event: &Event) {
        if let Some(held) = before.and_then(|entry| self.live.get_mut(&entry.lease)) {
            held.keys.remove(event.key());
        }
        if let Event::Put(entry) = event
            && let Some(held) = self.live.get_mut(&entry.lease)
        {
            held.keys.insert(entry.key.clone());
        }
    }

    /// Every attachment, for `check`.
    pub(super) fn attached(&self) -> impl Iterator<Item = (LeaseId, &Bytes)> {
        self.live
            .iter()
            .flat_map(|(id, held)| held.keys.iter().map(|key| (*id, key)))
    }
}
