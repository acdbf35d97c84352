//! One controller at a time: whoever puts the election key, under a lease.
//!
//! Time decides only who may try; it is the key's revision, compared in every
//! write, that keeps a deposed controller from changing anything.

use crate::{store::StoreError, successor};
use futures::StreamExt;
use parking_lot::Mutex;
use prost::{Message, bytes::Bytes};
use std::{sync::Arc, time::Duration};
use talweg_metastore::{
    Compare, Event, KeyRange, KeyValue, LeaseId, Metastore, MetastoreError, Op, Revision, Txn,
    TxnOutcome, WatchItem, keys::Key,
};
use talweg_proto::records::v1::ElectionRecord;
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use uuid::Uuid;

const RETRY: Duration = Duration::from_millis(200);
/// A goodbye may take this long.
const RESIGN_TIMEOUT: Duration = Duration::from_secs(1);

/// A process that may become the controller.
pub struct Candidate {
    pub store: Arc<dyn Metastore>,
    /// Random per process.
    pub id: Uuid,
    /// URL at which others reach it.
    pub address: String,
    pub ttl: Duration,
}

/// The right to write, until it is lost.
pub struct Leadership {
    record: Bytes,
    lease: LeaseId,
    /// Of the election key as we put it last.
    revision: Mutex<Revision>,
    /// Cancelled when the lease is known to be over.
    pub lost: CancellationToken,
    /// Taken when it resigns.
    keep_alive: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Candidate {
    /// Waits until it is elected. `other` hears of the address of whoever is
    /// meanwhile.
    ///
    /// # Errors
    /// The store has failed for good.
    pub async fn campaign(&self, other: impl Fn(String)) -> Result<Leadership, MetastoreError> {
        loop {
            match self.attempt().await {
                Ok(Ok(leadership)) => return Ok(leadership),
                Ok(Err(holder)) => {
                    let address = address_of(&holder);
                    other(address.clone());
                    tokio::select! {
                        () = self.until_gone(&holder) => {}
                        () = successor::until_dead(&address) => self.depose(&holder).await,
                    }
                }
                Err(error) if error.is_retriable() => {
                    tracing::warn!(%error, "cannot stand for election; trying again");
                    tokio::time::sleep(RETRY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn depose(&self, holder: &KeyValue) {
        match successor::depose(self.store.as_ref(), holder).await {
            Ok(true) => tracing::warn!(
                address = address_of(holder),
                "nobody listens at the active controller's address: its election key is deleted"
            ),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "the election key of a dead controller could not be deleted");
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Elected, or the entry of whoever is.
    async fn attempt(&self) -> Result<Result<Leadership, KeyValue>, MetastoreError> {
        let lease = self.store.grant(self.ttl).await?;
        let record = ElectionRecord {
            candidate_id: Bytes::copy_from_slice(self.id.as_bytes()),
            grpc_address: self.address.clone(),
        };
        let record: Bytes = record.encode_to_vec().into();
        let key = Key::Election.encode();
        let txn = Txn::new()
            .when(Compare::absent(key.clone()))
            .then(Op::put_with_lease(key, record.clone(), lease.id));
        let outcome = match self.store.txn(txn).await {
            Ok(outcome) => outcome,
            Err(error) => {
                // The key may have been put: take it back rather than wait for it.
                let _ = self.store.revoke(lease.id).await;
                return Err(error);
            }
        };
        match outcome {
            TxnOutcome::Committed { revision } => {
                let lost = CancellationToken::new();
                let keeping = keep_alive(self.store.clone(), lease.id, lease.ttl, lost.clone());
                Ok(Ok(Leadership {
                    record,
                    lease: lease.id,
                    revision: Mutex::new(revision),
                    lost,
                    keep_alive: Mutex::new(Some(AbortOnDropHandle::new(tokio::spawn(keeping)))),
                }))
            }
            TxnOutcome::Refused { current, .. } => {
                self.store.revoke(lease.id).await?;
                match current.into_iter().flatten().next() {
                    Some(holder) => Ok(Err(holder)),
                    None => Err(MetastoreError::Unavailable {
                        reason: "no holder shown".into(),
                    }),
                }
            }
        }
    }

    /// Returns when the holder's key was deleted, or when that is not known.
    async fn until_gone(&self, holder: &KeyValue) {
        let range = KeyRange::key(&holder.key);
        let Ok(mut watch) = self.store.watch(range, holder.mod_revision.next()).await else {
            return tokio::time::sleep(RETRY).await;
        };
        while let Some(Ok(item)) = watch.next().await {
            if let WatchItem::Events { events, .. } = item
                && events
                    .iter()
                    .any(|event| matches!(event, Event::Delete { .. }))
            {
                return;
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn address_of(holder: &KeyValue) -> String {
    ElectionRecord::decode(holder.value.clone())
        .map(|r| r.grpc_address)
        .unwrap_or_default()
}

/// Three times a lease; gives it up for lost when one whole time has passed
/// without an answer.
async fn keep_alive(
    store: Arc<dyn Metastore>,
    lease: LeaseId,
    ttl: Duration,
    lost: CancellationToken,
) {
    let mut kept = Instant::now();
    while kept.elapsed() < ttl {
        tokio::time::sleep(ttl / 3).await;
        let asked = Instant::now();
        match tokio::time::timeout(ttl, store.keep_alive(lease)).await {
            Ok(Ok(())) => kept = asked,
            Ok(Err(MetastoreError::LeaseNotFound { .. })) => break,
            Ok(Err(error)) => tracing::warn!(%error, "the election lease was not renewed"),
            Err(_) => tracing::warn!("the metastore does not answer the election lease"),
        }
    }
    lost.cancel();
}

impl Leadership {
    /// True only while this process is the elected one.
    pub fn compare(&self) -> Compare {
        Compare::mod_revision(Key::Election.encode(), *self.revision.lock())
    }

    /// Puts the key anew, so that no earlier write of ours can still succeed.
    ///
    /// # Errors
    /// `NotElected` if the key is not ours any more.
    pub async fn renew(&self, store: &dyn Metastore) -> Result<(), StoreError> {
        let key = Key::Election.encode();
        let put = Op::put_with_lease(key.clone(), self.record.clone(), self.lease);
        while !self.lost.is_cancelled() {
            match store
                .txn(Txn::new().when(self.compare()).then(put.clone()))
                .await
            {
                Ok(TxnOutcome::Committed { revision }) => {
                    *self.revision.lock() = revision;
                    return Ok(());
                }
                Ok(TxnOutcome::Refused { current, .. }) => {
                    // An unclear renewal before this one may have been done.
                    let ours =
                        current.into_iter().flatten().next().filter(|entry| {
                            entry.value == self.record && entry.lease == self.lease
                        });
                    let entry = ours.ok_or(StoreError::NotElected)?;
                    *self.revision.lock() = entry.mod_revision;
                }
                Err(MetastoreError::LeaseNotFound { .. }) => return Err(StoreError::NotElected),
                Err(error) if error.is_retriable() => tokio::time::sleep(RETRY).await,
                Err(error) => return Err(error.into()),
            }
        }
        Err(StoreError::NotElected)
    }

    /// Gives the election key back, so that another need not wait. Nothing of
    /// this leadership holds the store when it returns.
    pub async fn resign(&self, store: &dyn Metastore) {
        let keep_alive = self.keep_alive.lock().take();
        if let Some(keep_alive) = keep_alive {
            keep_alive.abort();
            // It was cancelled, or it had ended.
            let _ = keep_alive.await;
        }
        let revoked = tokio::time::timeout(RESIGN_TIMEOUT, store.revoke(self.lease)).await;
        if !matches!(
            revoked,
            Ok(Ok(()) | Err(MetastoreError::LeaseNotFound { .. }))
        ) {
            tracing::warn!("the election key was not given back; it expires by itself");
        }
    }
}
