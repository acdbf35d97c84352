//! Leases. A backend may grant more time than asked; the cases wait for what
//! was granted.

use super::{Store, commit, get, next_events, put, within};
use crate::{Compare, Event, KeyRange, LeaseId, MetastoreError, Op, Txn};
use std::time::Duration;

const ASKED: Duration = Duration::from_millis(500);

fn put_with(key: &'static str, lease: LeaseId) -> Txn {
    Txn::new().then(Op::put_with_lease(key, "leased", lease))
}

/// The election story: the holder falls silent, its key goes, and the standby
/// that watches can take it.
pub async fn an_expired_lease_deletes_its_keys_and_watches_see_it(store: Store) {
    let lease = store.grant(ASKED).await.expect("grant");
    assert!(lease.ttl >= ASKED);
    put(&store, "other", "stays").await;
    commit(&store, put_with("election", lease.id)).await;
    let held = commit(&store, put_with("also", lease.id)).await;
    assert_eq!(get(&store, "election").await.expect("held").lease, lease.id);

    let mut watch = store
        .watch(KeyRange::all(), held.next())
        .await
        .expect("watch");
    let mut deleted = Vec::new();
    while deleted.len() < 2 {
        let (_, events) = next_events(&mut watch).await.expect("events");
        deleted.extend(events.into_iter().map(|event| match event {
            Event::Delete { key, .. } => key,
            Event::Put(entry) => panic!("{entry:?}"),
        }));
    }
    deleted.sort();
    assert_eq!(deleted, ["also", "election"]);
    assert!(get(&store, "other").await.is_some());
    let takeover = Txn::new()
        .when(Compare::absent("election"))
        .then(Op::put("election", "next"));
    commit(&store, takeover).await;
    let error = store.keep_alive(lease.id).await.expect_err("expired");
    assert_eq!(error, MetastoreError::LeaseNotFound { lease: lease.id });
}

/// Kept alive five times at a third of its time: longer than it alone lasts.
pub async fn a_lease_kept_alive_outlives_its_time(store: Store) {
    let lease = store.grant(ASKED).await.expect("grant");
    commit(&store, put_with("k", lease.id)).await;
    for _ in 0..5 {
        tokio::time::sleep(lease.ttl / 3).await;
        store.keep_alive(lease.id).await.expect("alive");
    }
    assert!(get(&store, "k").await.is_some());
    within("expiry once nobody keeps it", async {
        while get(&store, "k").await.is_some() {
            tokio::time::sleep(lease.ttl / 10).await;
        }
    })
    .await;
}

/// A clean stop gives the key back without waiting.
pub async fn a_revoked_lease_deletes_its_keys_at_once(store: Store) {
    let lease = store.grant(Duration::from_secs(3600)).await.expect("grant");
    commit(&store, put_with("k", lease.id)).await;
    store.revoke(lease.id).await.expect("revoke");
    assert_eq!(get(&store, "k").await, None);
    let error = store.revoke(lease.id).await.expect_err("revoked");
    assert_eq!(error, MetastoreError::LeaseNotFound { lease: lease.id });
}

/// Put again without the lease, or with another, a key outlives the first.
pub async fn a_key_leaves_its_lease_when_put_without(store: Store) {
    let first = store.grant(Duration::from_secs(3600)).await.expect("grant");
    let second = store.grant(Duration::from_secs(3600)).await.expect("grant");
    assert_ne!(first.id, second.id);
    commit(&store, put_with("freed", first.id)).await;
    commit(&store, put_with("moved", first.id)).await;
    put(&store, "freed", "v").await;
    commit(&store, put_with("moved", second.id)).await;
    store.revoke(first.id).await.expect("revoke");
    assert_eq!(
        get(&store, "freed").await.expect("there").lease,
        LeaseId::NONE
    );
    assert_eq!(get(&store, "moved").await.expect("there").lease, second.id);
    store.revoke(second.id).await.expect("revoke");
    assert_eq!(get(&store, "moved").await, None);
}

/// A put with a lease that is not there does nothing.
pub async fn an_unknown_lease_is_refused(store: Store) {
    let lease = LeaseId(0x0dd1_ea5e);
    let error = store.txn(put_with("k", lease)).await.expect_err("unknown");
    assert_eq!(error, MetastoreError::LeaseNotFound { lease });
    assert_eq!(get(&store, "k").await, None);
    let error = store.keep_alive(lease).await.expect_err("unknown");
    assert_eq!(error, MetastoreError::LeaseNotFound { lease });
}
