//! The suite that every backend passes. A backend's test file holds one line:
//!
//! ```text
//! talweg_metastore::conformance_suite!(fresh);
//! ```
//!
//! where `async fn fresh() -> Fresh` opens an empty store. A case panics when a
//! promise is broken. Waits have a deadline and end as soon as they can.

mod leases;
mod limits;
mod reads;
mod txns;
mod watches;

pub use leases::*;
pub use limits::*;
pub use reads::*;
pub use txns::*;
pub use watches::*;

use crate::{
    KeyValue, Metastore, MetastoreError, Op, Revision, Txn, TxnOutcome, WatchItem, WatchStream,
};
use futures::StreamExt;
use std::{any::Any, sync::Arc, time::Duration};

/// An empty store, and what must live as long (a folder, a server process).
pub struct Fresh {
    pub store: Arc<dyn Metastore>,
    pub keep: Box<dyn Any + Send + Sync>,
}

impl Fresh {
    pub fn new(store: impl Metastore) -> Self {
        Self {
            store: Arc::new(store),
            keep: Box::new(()),
        }
    }
}

/// Longer than any wait of the suite needs.
const DEADLINE: Duration = Duration::from_secs(20);

/// One `#[tokio::test]` per case.
#[macro_export]
macro_rules! conformance_suite {
    ($fresh:path) => {
        $crate::conformance_suite! { $fresh:
            absent_keys_and_empty_ranges_are_empty_answers
            entries_carry_their_revisions_and_versions
            a_read_at_a_revision_sees_that_moment
            limited_reads_are_in_order_and_continue_without_gap
            prefixes_end_where_they_should
            reads_below_a_compaction_say_so
            compaction_keeps_what_is_current
            a_transaction_is_all_or_nothing
            a_refused_transaction_brings_what_is_there
            every_kind_of_compare_decides
            nothing_changed_is_no_revision
            of_many_racing_writers_exactly_one_wins
            counting_by_compare_and_set_loses_nothing
            too_many_operations_are_refused
            malformed_transactions_are_refused_and_change_nothing
            a_watch_from_an_old_revision_replays_in_order_without_gap
            a_watch_never_splits_a_revision
            a_watch_sees_only_its_range
            a_watch_joins_replay_and_live_changes
            a_watch_from_the_future_waits_for_it
            a_watch_below_a_compaction_says_so
            a_watch_makes_progress_past_foreign_changes
            many_watches_see_the_same
            an_expired_lease_deletes_its_keys_and_watches_see_it
            a_lease_kept_alive_outlives_its_time
            a_revoked_lease_deletes_its_keys_at_once
            a_key_leaves_its_lease_when_put_without
            an_unknown_lease_is_refused
        }
    };
    ($fresh:path: $($case:ident)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let fresh = $fresh().await;
                $crate::conformance::$case(fresh.store.clone()).await;
                drop(fresh);
            }
        )+
    };
}

type Store = Arc<dyn Metastore>;

async fn within<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, wait)
        .await
        .unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

/// Commits one put and returns its revision.
async fn put(store: &Store, key: &str, value: &str) -> Revision {
    commit(
        store,
        Txn::new().then(Op::put(key.to_owned(), value.to_owned())),
    )
    .await
}

async fn delete(store: &Store, key: &str) -> Revision {
    commit(store, Txn::new().then(Op::delete(key.to_owned()))).await
}

async fn commit(store: &Store, txn: Txn) -> Revision {
    match store.txn(txn).await.expect("txn") {
        TxnOutcome::Committed { revision } => revision,
        TxnOutcome::Refused { current, .. } => panic!("refused, found {current:?}"),
    }
}

async fn refused(store: &Store, txn: Txn) -> Vec<Option<KeyValue>> {
    match store.txn(txn).await.expect("txn") {
        TxnOutcome::Refused { current, .. } => current,
        TxnOutcome::Committed { revision } => panic!("committed as {revision}"),
    }
}

async fn get(store: &Store, key: &str) -> Option<KeyValue> {
    store.get(key.as_bytes(), None).await.expect("get")
}

/// The next item that is not progress.
async fn next_events(
    watch: &mut WatchStream,
) -> Result<(Revision, Vec<crate::Event>), MetastoreError> {
    within("events", async {
        loop {
            match watch
                .next()
                .await
                .expect("a watch ends with an error only")?
            {
                WatchItem::Events { revision, events } => return Ok((revision, events)),
                WatchItem::Progress { .. } => {}
            }
        }
    })
    .await
}
