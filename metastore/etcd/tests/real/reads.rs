//! What is larger than one message, and namespaces beside each other.

use crate::{
    etcd::{Etcd, connect},
    story::{newest, next_events, put, watch, within},
};
use futures::StreamExt;
use std::time::Duration;
use talweg_metastore::{Compare, KeyRange, Metastore, Op, Revision, Txn, TxnOutcome, WatchItem};
use talweg_metastore_etcd::{EtcdConfig, EtcdMetastore};
use tokio_util::task::AbortOnDropHandle;

const ENTRIES: usize = 10_500;
const AT_ONCE: usize = 100;

fn key(i: usize) -> String {
    format!("k{i:06}")
}

/// Puts entries `from..from + AT_ONCE`, of one kilobyte each.
async fn fill(store: &EtcdMetastore, from: usize, byte: u8) {
    let value = vec![byte; 1024];
    let puts = (from..from + AT_ONCE).map(|i| Op::put(key(i), value.clone()));
    let txn = Txn {
        compares: Vec::new(),
        then: puts.collect(),
    };
    store.txn(txn).await.expect("fill");
}

/// More than ten thousand entries of one kilobyte, which writers change all the
/// while, are read whole and as of one revision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_range_is_read_at_one_revision() {
    let etcd = Etcd::one().await;
    let store = etcd.store().await;
    for from in (0..ENTRIES).step_by(AT_ONCE) {
        fill(&store, from, 0).await;
    }
    let before = newest(&store).await;
    let writer = store.clone();
    let writing = AbortOnDropHandle::new(tokio::spawn(async move {
        for round in 1.. {
            for from in (0..ENTRIES).step_by(AT_ONCE) {
                fill(&writer, from, round).await;
            }
        }
    }));
    within("a first change", async {
        while newest(&store).await == before {}
    })
    .await;
    let read = store.range(KeyRange::all(), None, 0).await.expect("range");
    let now = newest(&store).await;
    drop(writing);

    assert_eq!((read.entries.len(), read.more), (ENTRIES, false));
    assert!(before < read.revision && read.revision < now, "{now}");
    let again = store.range(KeyRange::all(), Some(read.revision), 0).await;
    assert_eq!(again.expect("range").entries, read.entries);
    for (i, entry) in read.entries.iter().enumerate() {
        assert_eq!(
            (&entry.key[..], entry.value.len()),
            (key(i).as_bytes(), 1024)
        );
        assert!(entry.mod_revision <= read.revision);
    }
    let part = store.range(KeyRange::prefix(b"k"), None, 5000).await;
    let part = part.expect("range");
    assert_eq!((part.entries.len(), part.more), (5000, true));
}

/// Revisions near the limit of a transaction, replayed together: etcd sends them
/// in fragments, and each comes whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_revisions_are_replayed_whole() {
    let etcd = Etcd::one().await;
    let store = etcd.store().await;
    let mut revisions = Vec::new();
    for byte in 0..10u8 {
        let puts = (0..9).map(|i| Op::put(key(i), vec![byte; 110_000]));
        let txn = Txn {
            compares: Vec::new(),
            then: puts.collect(),
        };
        let outcome = store.txn(txn).await.expect("txn");
        revisions.push(outcome.committed().expect("no compares"));
    }
    let mut stream = watch(&store, revisions[0]).await;
    for revision in revisions {
        let (at, events) = next_events(&mut stream).await.expect("events");
        assert_eq!((at, events.len()), (revision, 9));
    }
}

/// A refused transaction brings back more than one ordinary message holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_brings_large_entries() {
    let etcd = Etcd::one().await;
    let store = etcd.store().await;
    let mut txn = Txn::new();
    for i in 0..8 {
        let large = Op::put(key(i), vec![1; 1_000_000]);
        store.txn(Txn::new().then(large)).await.expect("put");
        txn = txn.when(Compare::absent(key(i)));
    }
    let TxnOutcome::Refused { current, .. } = store.txn(txn).await.expect("txn") else {
        panic!("committed");
    };
    assert_eq!(current.iter().flatten().count(), 8);
    let all = store.range(KeyRange::all(), None, 0).await.expect("range");
    assert_eq!(all.entries.len(), 8);
}

/// Two namespaces in one etcd: neither reads nor watches show the other's keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_do_not_meet() {
    let etcd = Etcd::one().await;
    let ours = connect(EtcdConfig::new(etcd.endpoints(), "a")).await;
    let theirs = connect(EtcdConfig::new(etcd.endpoints(), "ab")).await;
    let first = put(&ours, "k", "ours").await;
    put(&theirs, "k", "theirs").await;
    let last = put(&ours, "l", "ours").await;
    assert!(last > first.next(), "revisions are shared");

    let read = ours.range(KeyRange::all(), None, 0).await.expect("range");
    let keys: Vec<_> = read.entries.iter().map(|entry| &entry.key[..]).collect();
    assert_eq!(keys, [b"k", b"l"]);
    let mut stream = watch(&ours, first).await;
    assert_eq!(next_events(&mut stream).await.expect("events").0, first);
    assert_eq!(next_events(&mut stream).await.expect("events").0, last);
}

/// Progress that is asked for while the replay is still to come names only what
/// has come. (etcd before 3.4.25 answers with its newest revision.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_does_not_overtake_events() {
    let etcd = Etcd::one().await;
    let mut config = etcd.config();
    // Asks every 50 ms; etcd begins a replay within 100.
    config.watch_silence = Duration::from_millis(150);
    let store = connect(config).await;
    let first = put(&store, "k", "first").await;
    for from in 0..20 {
        put(&store, "k", &format!("{from}")).await;
    }
    // One after another, so that each begins just after etcd's last round.
    for _ in 0..5 {
        replayed(&store, first, first.0 + 20).await;
    }
}

async fn replayed(store: &EtcdMetastore, first: Revision, last: u64) {
    let mut stream = watch(store, first).await;
    let mut next = first.0;
    while next <= last {
        let item = within("events", stream.next()).await;
        match item.expect("goes on").expect("no error") {
            WatchItem::Events { revision, .. } => {
                assert_eq!(revision.0, next, "no gap");
                next += 1;
            }
            WatchItem::Progress { revision } => assert!(revision.0 < next, "{revision}"),
        }
    }
}

/// A watcher that does not listen while more is written than its queue and its
/// connection hold finds all of it afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_watcher_misses_nothing() {
    let etcd = Etcd::one().await;
    let store = etcd.store().await;
    let value = "v".repeat(40_000);
    let first = put(&store, "k", &value).await;
    let mut stream = watch(&store, first).await;
    assert_eq!(next_events(&mut stream).await.expect("events").0, first);
    for _ in 0..600 {
        put(&store, "k", &value).await;
    }
    for i in 1..=600 {
        let (revision, _) = next_events(&mut stream).await.expect("events");
        assert_eq!(revision.0, first.0 + i);
    }
}
