//! The metastore in etcd (3.4 or later), for clusters of more than one machine.
//!
//! - **Keys** carry the prefix `talweg/<namespace>/` in etcd, so that several
//!   clusters share one etcd. Revisions are etcd's own: with other writers in
//!   the same etcd they grow by more than one. Compaction, too, is for all of
//!   etcd: it takes the history of every namespace.
//! - **Calls** end within `request_timeout`. One that was certainly not done is
//!   made again, a bounded number of times; a transaction that may have been
//!   done never is, and is [`MetastoreError::Unknown`].
//! - **Watches** live through restarts of etcd, leader changes and
//!   disconnections; the `watch` module says how. They are silent while etcd
//!   cannot be reached. They end with `Compacted`, or with `Failed` when another
//!   etcd cluster answers at the address.

mod backoff;
mod config;
mod fault;
mod lease;
mod link;
mod namespace;
mod read;
mod txn;
mod watch;

pub use config::{ConfigError, EtcdConfig};

use crate::{
    fault::Fault,
    link::{Link, Repeat, kv},
    namespace::{Namespace, to_etcd},
};
use async_trait::async_trait;
use std::{sync::Arc, time::Duration};
use talweg_metastore::{
    KeyRange, Lease, LeaseId, Metastore, MetastoreError, Ranged, Revision, Txn, TxnOutcome,
    WatchStream,
};

/// A door to one namespace in etcd. Clones share it.
#[derive(Clone)]
pub struct EtcdMetastore {
    link: Arc<Link>,
    namespace: Namespace,
}

impl EtcdMetastore {
    /// Checks the configuration and makes the door. etcd need not be there yet:
    /// connections are made by the calls.
    ///
    /// # Errors
    /// The configuration cannot work.
    pub async fn connect(config: EtcdConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let namespace = Namespace::new(&config.namespace);
        let endpoint = config.endpoints.join(",");
        let link = Link::new(config).await;
        let link = link.map_err(|fault| ConfigError::Endpoint {
            endpoint,
            reason: fault.of_read().to_string(),
        })?;
        Ok(Self {
            link: Arc::new(link),
            namespace,
        })
    }
}

#[async_trait]
impl Metastore for EtcdMetastore {
    async fn range(
        &self,
        range: KeyRange,
        at: Option<Revision>,
        limit: usize,
    ) -> Result<Ranged, MetastoreError> {
        self.read(range, at, limit).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, MetastoreError> {
        self.transact(txn).await
    }

    async fn watch(&self, range: KeyRange, from: Revision) -> Result<WatchStream, MetastoreError> {
        Ok(watch::start(self.clone(), range, from))
    }

    async fn grant(&self, ttl: Duration) -> Result<Lease, MetastoreError> {
        self.grant_lease(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), MetastoreError> {
        self.renew_lease(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), MetastoreError> {
        self.end_lease(lease).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), MetastoreError> {
        let at = to_etcd(revision);
        let call = |client| async move { kv(&client).compact(at, None).await };
        match self.link.call(Repeat::Free, call).await {
            // Compacted at or above it already.
            Ok(_) | Err(Fault::Compacted) => Ok(()),
            Err(Fault::Future) => Err(self.explain(Fault::Future, Some(revision)).await),
            Err(fault) => Err(fault.of_change()),
        }
    }
}
