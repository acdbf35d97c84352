//! The metastore: a small, ordered, revisioned key-value store that holds what
//! a cluster must agree on. etcd's semantics are the model.
//!
//! - Every committed transaction that changes something has its own
//!   **revision**, one higher than the one before; where others share the store,
//!   as in etcd, their changes lie between. A key carries the revision
//!   that created it, the one that last changed it, and a version counted
//!   from 1 since it was created.
//! - A transaction is atomic: all compares hold at one moment and then all
//!   operations are done, or nothing is done and the current entries come back.
//! - A watch shows every change of a range exactly once, in revision order and
//!   without a gap, or says [`MetastoreError::Compacted`].
//!
//! Backends: `talweg-metastore-mem` (tests), `talweg-metastore-rocks` (one
//! node, embedded), both thin doors around [`mvcc`], and
//! `talweg-metastore-etcd` (clusters). All pass [`conformance`].

mod error;
mod range;
mod txn;
mod types;

pub mod conformance;
pub mod keys;
pub mod mvcc;

use async_trait::async_trait;
use std::time::Duration;

pub use error::{Happened, MetastoreError};
pub use range::KeyRange;
pub use txn::{Compare, MAX_KEY_BYTES, MAX_TXN_BYTES, MAX_TXN_OPERATIONS, Op, Txn, TxnOutcome};
pub use types::{
    Event, KeyValue, Lease, LeaseId, PROGRESS_INTERVAL, Ranged, Revision, WatchItem, WatchStream,
};

/// One store. Cheap to share as `Arc<dyn Metastore>`; all methods are safe to
/// call from any task and to cancel (a cancelled `txn` may have happened).
#[async_trait]
pub trait Metastore: Send + Sync + 'static {
    /// The entries of `range` in key order, at most `limit` (0: all), as of
    /// revision `at` (`None`: the latest).
    ///
    /// # Errors
    /// `Compacted` below the oldest kept revision, `FutureRevision` above the
    /// newest.
    async fn range(
        &self,
        range: KeyRange,
        at: Option<Revision>,
        limit: usize,
    ) -> Result<Ranged, MetastoreError>;

    /// The entry of one key as of revision `at` (`None`: the latest).
    ///
    /// # Errors
    /// As [`Metastore::range`].
    async fn get(
        &self,
        key: &[u8],
        at: Option<Revision>,
    ) -> Result<Option<KeyValue>, MetastoreError> {
        let ranged = self.range(KeyRange::key(key), at, 1).await?;
        Ok(ranged.entries.into_iter().next())
    }

    /// Compares, then changes or answers what is there. Acknowledged changes
    /// survive the process.
    ///
    /// # Errors
    /// Malformed transactions are refused before anything is looked at. After
    /// an error with [`Happened::Unknown`] the change may or may not be there.
    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, MetastoreError>;

    /// Every change in `range` from revision `from` on (inclusive; it may lie
    /// in the future). To follow what was read at revision r, watch from r + 1.
    ///
    /// The stream ends after its first error. `Compacted` comes as an item when
    /// the watcher has fallen behind the history; it must read again.
    ///
    /// # Errors
    /// `Compacted` when `from` lies before the oldest kept revision.
    async fn watch(&self, range: KeyRange, from: Revision) -> Result<WatchStream, MetastoreError>;

    /// A new lease. Keys put with it are deleted when it expires. A backend may
    /// grant a longer time to live than asked for; the answer says which.
    async fn grant(&self, ttl: Duration) -> Result<Lease, MetastoreError>;

    /// Starts the lease's time to live anew.
    ///
    /// # Errors
    /// `LeaseNotFound` once it has expired; its keys are gone then.
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), MetastoreError>;

    /// Ends the lease now and deletes its keys.
    ///
    /// # Errors
    /// `LeaseNotFound` when there is none, or no more.
    async fn revoke(&self, lease: LeaseId) -> Result<(), MetastoreError>;

    /// Forgets superseded entries before `revision`: reads and watches below it
    /// are answered `Compacted` from now on, above it never. A watch from
    /// exactly `revision` may be answered either way. Compacting again at or
    /// below an earlier point changes nothing.
    ///
    /// # Errors
    /// `FutureRevision` above the newest revision.
    async fn compact(&self, revision: Revision) -> Result<(), MetastoreError>;
}
