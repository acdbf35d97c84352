//! The way to etcd is cut, or stalls without being closed.

use crate::{
    etcd::{Etcd, connect},
    proxy::{Mode, Proxy},
    story::{self, Watcher, newest, next_events, put, watch, within},
};
use futures::StreamExt;
use std::time::Duration;
use talweg_metastore::{
    Event, Happened, KeyRange, LeaseId, Metastore, MetastoreError, Op, Revision, Txn,
};
use talweg_metastore_etcd::{EtcdConfig, EtcdMetastore};
use tokio::time::Instant;

const CALL: Duration = Duration::from_millis(700);
/// What a busy machine may add to a time-out.
const SLACK: Duration = Duration::from_secs(2);

async fn through(proxy: &Proxy) -> EtcdMetastore {
    let mut config = EtcdConfig::new([proxy.url()], "test");
    config.request_timeout = CALL;
    config.connect_timeout = CALL / 2;
    config.watch_silence = CALL;
    connect(config).await
}

/// Cut off while the next revisions are compacted: the watch says so and ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_cut_off_past_a_compaction_is_told() {
    let etcd = Etcd::one().await;
    let (near, proxy) = (
        etcd.store().await,
        Proxy::before(etcd.members[0].client_port).await,
    );
    let first = put(&near, "k", "0").await;
    let mut stream = watch(&through(&proxy).await, first).await;
    assert_eq!(next_events(&mut stream).await.expect("events").0, first);

    proxy.set(Mode::Cut);
    for value in ["1", "2", "3"] {
        put(&near, "k", value).await;
    }
    let last = newest(&near).await;
    near.compact(last).await.expect("compact");
    proxy.set(Mode::Pass);
    let error = next_events(&mut stream).await.expect_err("compacted");
    assert_eq!(error, MetastoreError::Compacted { oldest: last });
    assert!(stream.next().await.is_none(), "it ends after its error");
}

/// Cut off while only what it has seen is compacted: nothing is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_cut_off_before_a_compaction_below_it_goes_on() {
    let etcd = Etcd::one().await;
    let (near, proxy) = (
        etcd.store().await,
        Proxy::before(etcd.members[0].client_port).await,
    );
    let first = put(&near, "k", "0").await;
    let mut stream = watch(&through(&proxy).await, first).await;
    assert_eq!(next_events(&mut stream).await.expect("events").0, first);

    proxy.set(Mode::Cut);
    near.compact(first).await.expect("compact");
    let second = put(&near, "k", "1").await;
    proxy.set(Mode::Pass);
    assert_eq!(next_events(&mut stream).await.expect("events").0, second);
}

/// Cut off while a deletion that it has not seen becomes the oldest revision: some
/// versions of etcd forget that event without a word. It comes, or the watch
/// says that history is missing; it is not passed over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_at_the_compacted_revision_is_not_passed_over() {
    let etcd = Etcd::one().await;
    let (near, proxy) = (
        etcd.store().await,
        Proxy::before(etcd.members[0].client_port).await,
    );
    let first = put(&near, "k", "0").await;
    let mut stream = watch(&through(&proxy).await, first).await;
    assert_eq!(next_events(&mut stream).await.expect("events").0, first);

    proxy.set(Mode::Cut);
    let delete = Txn::new().then(Op::delete("k"));
    let deleted = near.txn(delete).await.expect("txn").committed();
    let deleted = deleted.expect("no compares");
    near.compact(deleted).await.expect("compact");
    put(&near, "l", "0").await;
    proxy.set(Mode::Pass);
    match next_events(&mut stream).await {
        Ok((at, _)) => assert_eq!(at, deleted),
        Err(error) => assert_eq!(error, MetastoreError::Compacted { oldest: deleted }),
    }
}

/// A stalled way: every call ends with a typed error in time, the lease runs out
/// meanwhile, and afterwards the watch has lost nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_ends_calls_in_time_and_loses_no_change() {
    let etcd = Etcd::one().await;
    let (near, proxy) = (
        etcd.store().await,
        Proxy::before(etcd.members[0].client_port).await,
    );
    let far = through(&proxy).await;
    let watcher = Watcher::start(&far, newest(&near).await.next()).await;
    let lease = far.grant(Duration::from_secs(1)).await.expect("grant");
    let held = Txn::new().then(Op::put_with_lease("held", "v", lease.id));
    far.txn(held).await.expect("txn");
    watcher.until(1).await;

    proxy.set(Mode::Stall);
    calls_end_in_time(&far, lease.id).await;
    for i in 0..200 {
        put(&near, "k", &format!("{i}")).await;
    }
    until_absent(&near, "held").await;
    proxy.set(Mode::Pass);

    watcher.until(202).await;
    let error = renew_surely(&far, lease.id).await.expect_err("expired");
    assert_eq!(error, MetastoreError::LeaseNotFound { lease: lease.id });
    let seen = watcher.check(&near, &[]).await;
    let expiry = |event: &Event| matches!(event, Event::Delete { key, .. } if key == "held");
    let expired = seen
        .iter()
        .flat_map(|(_, events)| events)
        .filter(|e| expiry(e));
    assert_eq!(expired.count(), 1);
}

async fn calls_end_in_time(store: &EtcdMetastore, lease: LeaseId) {
    let started = Instant::now();
    let put = Txn::new().then(Op::put("stalled", "v"));
    let (read, written, granted, kept) = tokio::join!(
        store.range(KeyRange::all(), None, 0),
        store.txn(put),
        store.grant(Duration::from_secs(1)),
        store.keep_alive(lease),
    );
    assert!(started.elapsed() < CALL + SLACK, "{:?}", started.elapsed());
    let read = read.expect_err("stalled");
    assert!(matches!(read, MetastoreError::Unavailable { .. }), "{read}");
    let errors = [
        written.expect_err("stalled"),
        granted.expect_err("stalled"),
        kept.expect_err("stalled"),
    ];
    for error in errors {
        // The first calls hang on the old connection.
        assert_eq!(error.happened(), Happened::Unknown, "{error}");
    }
}

async fn until_absent(store: &EtcdMetastore, key: &str) {
    within("expiry", async {
        while store
            .get(key.as_bytes(), None)
            .await
            .expect("get")
            .is_some()
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

async fn renew_surely(store: &EtcdMetastore, lease: LeaseId) -> Result<(), MetastoreError> {
    within("an answer", async {
        loop {
            match store.keep_alive(lease).await {
                Err(error) if error.is_retriable() => {}
                answer => return answer,
            }
        }
    })
    .await
}

/// A watch whose connection stalls for longer than its silence is made anew, also
/// when there is nothing to show, and says progress again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_watch_is_made_anew() {
    let etcd = Etcd::one().await;
    let (near, proxy) = (
        etcd.store().await,
        Proxy::before(etcd.members[0].client_port).await,
    );
    let first = put(&near, "k", "0").await;
    let mut stream = watch(&through(&proxy).await, first).await;
    assert_eq!(next_events(&mut stream).await.expect("events").0, first);
    progress(&mut stream, first).await;

    proxy.set(Mode::HoldAnswers);
    let quiet = async {
        loop {
            stream.next().await.expect("goes on").expect("no error");
        }
    };
    // What was on its way comes, then nothing for two silences.
    let _ = tokio::time::timeout(CALL * 2, quiet).await;
    let second = put(&near, "k", "1").await;
    proxy.set(Mode::Pass);
    assert_eq!(next_events(&mut stream).await.expect("events").0, second);
    progress(&mut stream, second).await;
}

async fn progress(stream: &mut story::Stream, at: Revision) {
    let item = within("progress", stream.next()).await;
    let item = item.expect("goes on").expect("no error");
    let expected = talweg_metastore::WatchItem::Progress { revision: at };
    assert_eq!(item, expected);
}
