//! What a reopened store still knows: everything that was acknowledged.

use futures::StreamExt;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use talweg_metastore::{
    Compare, KeyRange, Metastore, MetastoreError, Op, Revision, Txn, WatchItem,
};
use talweg_metastore_rocks::{OpenError, RocksMetastore};

async fn open(folder: &Path) -> RocksMetastore {
    RocksMetastore::open(folder).await.expect("open")
}

async fn put(store: &RocksMetastore, key: &str, value: &str) -> Revision {
    let txn = Txn::new().then(Op::put(key.to_owned(), value.to_owned()));
    store
        .txn(txn)
        .await
        .expect("put")
        .committed()
        .expect("committed")
}

async fn all(store: &RocksMetastore) -> Vec<talweg_metastore::KeyValue> {
    store
        .range(KeyRange::all(), None, 0)
        .await
        .expect("range")
        .entries
}

/// RocksDB's write-ahead logs in `folder`, oldest first.
fn logs(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .expect("list")
        .map(|entry| entry.expect("entry").path());
    let mut logs: Vec<_> = entries
        .filter(|p| p.extension().is_some_and(|e| e == "log"))
        .collect();
    logs.sort();
    logs
}

/// The folder as a killed process leaves it: copied while the store is open.
fn as_killed(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("folder");
    for entry in fs::read_dir(folder).expect("list") {
        let from = entry.expect("entry").path();
        let to = copy.path().join(from.file_name().expect("name"));
        fs::copy(&from, &to).expect("copy");
    }
    copy
}

/// Entries, revisions and versions are those of before; the next revision
/// follows; history and leases are gone.
#[tokio::test]
async fn a_reopened_store_continues_where_it_was() {
    let folder = tempfile::tempdir().expect("folder");
    let store = open(folder.path()).await;
    let first = put(&store, "a", "1").await;
    put(&store, "a", "2").await;
    put(&store, "b", "1").await;
    let delete = Txn::new().then(Op::delete("b"));
    let newest = store
        .txn(delete)
        .await
        .expect("delete")
        .committed()
        .expect("committed");
    let before = all(&store).await;
    drop(store);

    let store = open(folder.path()).await;
    assert_eq!(all(&store).await, before);
    let watch = store.watch(KeyRange::all(), first).await.map(|_| ());
    assert_eq!(
        watch,
        Err(MetastoreError::Compacted {
            oldest: newest.next()
        })
    );
    let at = put(&store, "c", "1").await;
    assert_eq!(at, newest.next());
    let mut watch = store.watch(KeyRange::all(), at).await.expect("watch");
    let item = watch.next().await.expect("item").expect("events");
    assert!(matches!(item, WatchItem::Events { revision, .. } if revision == at));
}

/// A key of a lease is gone after a reopen, in a revision of its own.
#[tokio::test]
async fn leases_end_with_the_process() {
    let folder = tempfile::tempdir().expect("folder");
    let store = open(folder.path()).await;
    let lease = store.grant(Duration::from_secs(3600)).await.expect("grant");
    let held = Txn::new()
        .when(Compare::absent("election"))
        .then(Op::put_with_lease("election", "me", lease.id))
        .then(Op::put("stays", "1"));
    let at = store
        .txn(held.clone())
        .await
        .expect("txn")
        .committed()
        .expect("committed");
    drop(store);

    let store = open(folder.path()).await;
    let keys: Vec<_> = all(&store)
        .await
        .into_iter()
        .map(|entry| entry.key)
        .collect();
    assert_eq!(keys, ["stays"]);
    let again = Txn::new()
        .when(Compare::absent("election"))
        .then(Op::put("election", "next"));
    let next = store
        .txn(again)
        .await
        .expect("txn")
        .committed()
        .expect("committed");
    assert_eq!(
        next,
        Revision(at.0 + 2),
        "the end of the lease was a revision"
    );
}

/// Killed without a close after each of fifty acknowledged writes, the store
/// opens with exactly those.
#[tokio::test]
async fn a_killed_store_keeps_every_acknowledged_write() {
    let folder = tempfile::tempdir().expect("folder");
    let store = open(folder.path()).await;
    for i in 0..50 {
        put(&store, &format!("k{i:02}"), "v").await;
        if i % 10 == 9 {
            let killed = as_killed(folder.path());
            let reopened = open(killed.path()).await;
            assert_eq!(all(&reopened).await, all(&store).await, "after write {i}");
        }
    }
}

/// The log torn at any byte of its last writes, or followed by garbage, opens
/// with a prefix of the history: whole revisions, none skipped.
#[tokio::test]
async fn a_torn_log_opens_with_a_prefix() {
    let folder = tempfile::tempdir().expect("folder");
    let store = open(folder.path()).await;
    for i in 1..=6 {
        let both = Txn::new()
            .then(Op::put("a", format!("{i}")))
            .then(Op::put("b", format!("{i}")));
        store.txn(both).await.expect("put");
    }
    let length = fs::metadata(&logs(folder.path())[0]).expect("log").len();
    let mut seen = Vec::new();
    for cut in (0..length).rev().step_by(7).take(60) {
        let killed = as_killed(folder.path());
        let log = fs::OpenOptions::new()
            .write(true)
            .open(&logs(killed.path())[0])
            .expect("log");
        log.set_len(cut).expect("cut");
        seen.push(state_after(killed.path()).await);
    }
    assert!(
        seen.windows(2).all(|pair| pair[0] >= pair[1]),
        "shorter logs hold less: {seen:?}"
    );
    assert!(
        seen.contains(&5) && seen.contains(&4),
        "the cuts went through writes: {seen:?}"
    );

    let killed = as_killed(folder.path());
    let path = &logs(killed.path())[0];
    let mut bytes = fs::read(path).expect("log");
    bytes.extend([0xa5; 300]);
    fs::write(path, bytes).expect("garbage");
    assert_eq!(state_after(killed.path()).await, 6);
}

/// Opens, checks that revision and both keys agree, and returns what they say.
async fn state_after(folder: &Path) -> u64 {
    let store = open(folder).await;
    let ranged = store.range(KeyRange::all(), None, 0).await.expect("range");
    let written = ranged.revision.0 - Revision::FIRST.0;
    let values: Vec<_> = ranged
        .entries
        .iter()
        .map(|entry| entry.value.clone())
        .collect();
    let expected: Vec<_> = (0..2)
        .filter(|_| written > 0)
        .map(|_| format!("{written}"))
        .collect();
    assert_eq!(values, expected);
    written
}

/// A folder in use is not opened twice, and is free once dropped.
#[tokio::test]
async fn a_folder_has_one_owner() {
    let folder = tempfile::tempdir().expect("folder");
    let store = open(folder.path()).await;
    let second = RocksMetastore::open(folder.path()).await.map(|_| ());
    assert!(
        matches!(second, Err(OpenError::Database { .. })),
        "{second:?}"
    );
    drop(store);
    open(folder.path()).await;
}

/// Watches of a store that is closed end with an error instead of hanging.
#[tokio::test]
async fn closing_ends_the_watches() {
    let folder = tempfile::tempdir().expect("folder");
    let store = open(folder.path()).await;
    let mut watch = store
        .watch(KeyRange::all(), Revision(2))
        .await
        .expect("watch");
    assert!(matches!(
        watch.next().await,
        Some(Ok(WatchItem::Progress { .. }))
    ));
    drop(store);
    assert!(matches!(
        watch.next().await,
        Some(Err(MetastoreError::Unavailable { .. }))
    ));
    assert!(watch.next().await.is_none());
}
