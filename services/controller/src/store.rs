//! The core's view and writes on a metastore.
//!
//! Every write compares the election key and every key that it changes. After
//! a write whose outcome is unclear the election key is put anew first: a late
//! arrival of that write is then refused, and what is read next is what counts.

use crate::{
    core::{Change, View},
    election::Leadership,
    records::{self, DamagedRecord},
};
use std::time::Duration;
use talweg_metastore::{
    Compare, KeyRange, Metastore, MetastoreError, Op, Ranged, Revision, Txn, TxnOutcome, keys::Key,
};
use thiserror::Error;

/// Entries of one read.
const PAGE: usize = 1_000;
const RETRY: Duration = Duration::from_millis(100);

/// Why a controller cannot go on with its store.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another is elected, or nobody.
    #[error("no longer the elected controller")]
    NotElected,
    #[error(transparent)]
    Damaged(#[from] DamagedRecord),
    #[error(transparent)]
    Metastore(#[from] MetastoreError),
}

/// Everything as of one revision.
pub async fn load(store: &dyn Metastore) -> Result<View, StoreError> {
    loop {
        match load_once(store).await {
            // History was compacted between two pages.
            Err(StoreError::Metastore(MetastoreError::Compacted { .. })) => {}
            Err(StoreError::Metastore(error)) if error.is_retriable() => {
                tracing::warn!(%error, "the metastore does not answer; trying again");
                tokio::time::sleep(RETRY).await;
            }
            result => return result,
        }
    }
}

async fn load_once(store: &dyn Metastore) -> Result<View, StoreError> {
    let mut view = View::default();
    let mut range = KeyRange::all();
    let mut at = None;
    loop {
        let Ranged {
            revision,
            entries,
            more,
        } = store.range(range.clone(), at, PAGE).await?;
        let at = *at.get_or_insert(revision);
        let last = entries.last().map(|entry| entry.key.clone());
        for entry in entries {
            if let Some(change) = records::decode(&entry.key, &entry.value)? {
                view.apply(entry.mod_revision, vec![change]);
            }
        }
        match last.filter(|_| more) {
            Some(last) => range = range.after(&last),
            None => {
                view.apply(at, Vec::new());
                return Ok(view);
            }
        }
    }
}

/// What became of a write.
#[derive(Debug)]
pub enum Written {
    Committed(Revision),
    /// Refused or unclear; this is what is stored now.
    Reloaded(Box<View>),
}

/// Commits `changes`, which were decided on the state that `guards` are of.
pub async fn write(
    store: &dyn Metastore,
    leadership: &Leadership,
    changes: &[Change],
    guards: Vec<Compare>,
) -> Result<Written, StoreError> {
    let txn = Txn {
        compares: [vec![leadership.compare()], guards].concat(),
        then: changes.iter().map(op).collect(),
    };
    match store.txn(txn).await {
        Ok(TxnOutcome::Committed { revision }) => return Ok(Written::Committed(revision)),
        Ok(TxnOutcome::Refused { .. }) => {
            tracing::warn!("a write was refused: the store is not as this controller knew it");
        }
        Err(error) if error.is_retriable() => {
            tracing::warn!(%error, "a write broke off; reading what is stored");
        }
        Err(error) => return Err(error.into()),
    }
    leadership.renew(store).await?;
    Ok(Written::Reloaded(Box::new(load(store).await?)))
}

/// Each key must be as the view has it.
pub fn guards(view: &View, changes: &[Change]) -> Vec<Compare> {
    let guard = |change: &Change| match view.revision_of(&change.key) {
        Some(revision) => Compare::mod_revision(change.key.encode(), revision),
        None => Compare::absent(change.key.encode()),
    };
    changes.iter().map(guard).collect()
}

fn op(change: &Change) -> Op {
    let key: &Key = &change.key;
    match &change.value {
        Some(value) => Op::put(key.encode(), records::encode(value, key)),
        None => Op::delete(key.encode()),
    }
}
