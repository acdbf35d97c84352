//! The metastore of one node: the embedded state of [`talweg_metastore::mvcc`],
//! made durable by RocksDB.
//!
//! A change is written to RocksDB's log and flushed before anyone can read it,
//! so what was acknowledged or read survives kill -9 and power loss. Reads come
//! from memory. One thread owns the database and makes every change; the
//! tokio threads never wait for the disk.
//!
//! What does not survive a reopen, as with etcd's compaction: old versions and
//! the log of changes (a watch from before is answered `Compacted`), and
//! leases (their keys are deleted when the store opens).
//!
//! Fails: a write that RocksDB refuses ends the store, because whether it is in
//! the log is not known. Every call is answered `Failed` until it is reopened.
//! A torn end of the log is cut at open: it was never acknowledged.

mod disk;
mod format;
mod writer;

use async_trait::async_trait;
use disk::Disk;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use talweg_metastore::{
    KeyRange, Lease, LeaseId, Metastore, MetastoreError, Ranged, Revision, Txn, TxnOutcome,
    WatchStream,
    mvcc::{HISTORY_REVISIONS, Mvcc, Shared},
};
use thiserror::Error;
use writer::{Request, Writer};

/// Why a store did not open.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("cannot open the metadata store {path}: {reason}")]
    Database { path: PathBuf, reason: String },
    #[error("{path} holds metadata of format {found}; this version reads up to {newest}")]
    Format {
        path: PathBuf,
        found: u8,
        newest: u8,
    },
    #[error("the metadata store {path} is damaged: {reason}")]
    Damaged { path: PathBuf, reason: String },
}

pub struct RocksMetastore {
    shared: Arc<Shared>,
    writer: Writer,
}

impl RocksMetastore {
    /// Opens the store in the folder `path`, creating it if need be. The folder
    /// is locked until the store is dropped.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = path.as_ref().to_owned();
        let opening = path.clone();
        tokio::task::spawn_blocking(move || Self::open_blocking(&opening))
            .await
            .map_err(|e| OpenError::Database {
                path,
                reason: e.to_string(),
            })?
    }

    /// As [`RocksMetastore::open`], on the calling thread.
    pub fn open_blocking(path: &Path) -> Result<Self, OpenError> {
        let disk = Disk::open(path)?;
        let stored = disk.load()?;
        let mut mvcc = Mvcc::load(HISTORY_REVISIONS, stored.revision, stored.entries);
        let failed = |reason: String| OpenError::Database {
            path: path.to_owned(),
            reason,
        };
        if let Some(commit) = mvcc.prepare_orphans() {
            disk.commit(&commit).map_err(failed)?;
            mvcc.apply(commit);
        }
        let shared = Shared::new(mvcc);
        let writer = Writer::start(disk, shared.clone()).map_err(|e| failed(e.to_string()))?;
        Ok(Self { shared, writer })
    }
}

impl Drop for RocksMetastore {
    /// Watches end; when it returns the folder is free to be opened again.
    fn drop(&mut self) {
        self.shared.end(MetastoreError::Unavailable {
            reason: "the store was closed".into(),
        });
        self.writer.stop();
    }
}

#[async_trait]
impl Metastore for RocksMetastore {
    async fn range(
        &self,
        range: KeyRange,
        at: Option<Revision>,
        limit: usize,
    ) -> Result<Ranged, MetastoreError> {
        self.shared.with(|mvcc| mvcc.range(&range, at, limit))
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, MetastoreError> {
        txn.check()?;
        self.writer
            .call(|answer| Request::Txn { txn, answer })
            .await
    }

    async fn watch(&self, range: KeyRange, from: Revision) -> Result<WatchStream, MetastoreError> {
        self.shared.watch(range, from)
    }

    async fn grant(&self, ttl: Duration) -> Result<Lease, MetastoreError> {
        self.writer
            .call(|answer| Request::Grant { ttl, answer })
            .await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), MetastoreError> {
        self.writer
            .call(|answer| Request::KeepAlive { lease, answer })
            .await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), MetastoreError> {
        self.writer
            .call(|answer| Request::Revoke { lease, answer })
            .await
    }

    async fn compact(&self, revision: Revision) -> Result<(), MetastoreError> {
        self.shared.with(|mvcc| mvcc.compact(revision))
    }
}
