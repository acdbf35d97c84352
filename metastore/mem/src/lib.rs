//! The metastore in memory, for tests and simulations: nothing outlives it.
//! Time comes from tokio, so a paused clock moves leases and progress too.

use async_trait::async_trait;
use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use talweg_metastore::{
    KeyRange, Lease, LeaseId, Metastore, MetastoreError, Ranged, Revision, Txn, TxnOutcome,
    WatchStream,
    mvcc::{Decision, HISTORY_REVISIONS, Mvcc, Shared},
};
use tokio::time::Instant;

pub struct MemMetastore {
    shared: Arc<Shared>,
    /// Lease deadlines count from here.
    started: Instant,
}

impl Default for MemMetastore {
    fn default() -> Self {
        Self::new(HISTORY_REVISIONS)
    }
}

impl MemMetastore {
    /// An empty store that keeps `history` revisions.
    pub fn new(history: usize) -> Self {
        Self {
            shared: Shared::new(Mvcc::new(history)),
            started: Instant::now(),
        }
    }
}

#[async_trait]
impl Metastore for MemMetastore {
    async fn range(
        &self,
        range: KeyRange,
        at: Option<Revision>,
        limit: usize,
    ) -> Result<Ranged, MetastoreError> {
        self.shared.with(|mvcc| mvcc.range(&range, at, limit))
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, MetastoreError> {
        self.shared.with(|mvcc| {
            Ok(match mvcc.prepare(&txn)? {
                Decision::Answer(outcome) => outcome,
                Decision::Commit(commit) => {
                    let revision = commit.revision;
                    mvcc.apply(commit);
                    TxnOutcome::Committed { revision }
                }
            })
        })
    }

    async fn watch(&self, range: KeyRange, from: Revision) -> Result<WatchStream, MetastoreError> {
        self.shared.watch(range, from)
    }

    async fn grant(&self, ttl: Duration) -> Result<Lease, MetastoreError> {
        let now = self.started.elapsed();
        let lease = self.shared.with(|mvcc| Ok(mvcc.grant(now, ttl)))?;
        tokio::spawn(expire(
            Arc::downgrade(&self.shared),
            self.started,
            lease.id,
            now + ttl,
        ));
        Ok(lease)
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), MetastoreError> {
        let now = self.started.elapsed();
        self.shared.with(|mvcc| {
            end_due(mvcc, now);
            mvcc.keep_alive(now, lease)
        })
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), MetastoreError> {
        self.shared.with(|mvcc| end_lease(mvcc, lease))
    }

    async fn compact(&self, revision: Revision) -> Result<(), MetastoreError> {
        self.shared.with(|mvcc| mvcc.compact(revision))
    }
}

/// Ends `lease` when its deadline has passed without being moved.
async fn expire(shared: Weak<Shared>, started: Instant, lease: LeaseId, first: Duration) {
    let mut deadline = first;
    loop {
        tokio::time::sleep_until(started + deadline).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let next = shared.with(|mvcc| {
            end_due(mvcc, started.elapsed());
            Ok(mvcc.deadline(lease))
        });
        match next {
            Ok(Some(next)) => deadline = next,
            Ok(None) | Err(_) => return,
        }
    }
}

fn end_due(mvcc: &mut Mvcc, now: Duration) {
    while let Some((deadline, lease)) = mvcc.next_deadline()
        && deadline <= now
    {
        if end_lease(mvcc, lease).is_err() {
            return;
        }
    }
}

fn end_lease(mvcc: &mut Mvcc, lease: LeaseId) -> Result<(), MetastoreError> {
    if let Some(commit) = mvcc.prepare_lease_end(lease)? {
        mvcc.apply(commit);
    }
    mvcc.remove_lease(lease);
    Ok(())
}
