//! etcd dies and comes back; a leader dies and another takes over.

use crate::{
    etcd::{Etcd, connect},
    story::{Watcher, Writers, newest, next_events, put, put_surely, watch, within},
};
use std::time::Duration;
use talweg_metastore::{KeyRange, Metastore, MetastoreError, Revision};
use talweg_metastore_etcd::EtcdMetastore;

/// Killed with SIGKILL and restarted in the middle of writers and a watch: the
/// watch shows every committed change once and in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_and_writers_outlive_a_restart_of_etcd() {
    let mut etcd = Etcd::one().await;
    let store = etcd.store().await;
    let watcher = Watcher::start(&store, newest(&store).await.next()).await;
    let writers = Writers::start(&store, 4);
    for _ in 0..2 {
        watcher.until_seen(50).await;
        etcd.members[0].kill();
        etcd.members[0].restart();
        watcher.until_seen(50).await;
    }
    let acknowledged = writers.stop().await;
    let seen = watcher.check(&store, &acknowledged).await;
    assert!(seen.len() >= 200, "{}", seen.len());
}

/// The leader of three is killed, twice with a restart between: the others go
/// on, and so do watches and transactions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_and_writers_outlive_the_leader() {
    let mut etcd = Etcd::start(3).await;
    let store = etcd.store().await;
    let watcher = Watcher::start(&store, newest(&store).await.next()).await;
    let writers = Writers::start(&store, 4);
    for _ in 0..2 {
        watcher.until_seen(20).await;
        let leader = etcd.leader().await;
        etcd.members[leader].kill();
        watcher.until_seen(20).await;
        etcd.members[leader].restart();
    }
    let acknowledged = writers.stop().await;
    watcher.check(&store, &acknowledged).await;
}

/// Two of three are killed: every call ends in time with an error that may be
/// tried again, and once they are back the watch has lost nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_quorum_is_an_error_in_time_and_no_loss() {
    let mut etcd = Etcd::start(3).await;
    let store = impatient(&etcd).await;
    let watcher = Watcher::start(&store, newest(&store).await.next()).await;
    let writers = Writers::start(&store, 2);
    watcher.until_seen(20).await;
    for member in &mut etcd.members[1..] {
        member.kill();
    }
    // The writers check every error that they get.
    within("an error", async {
        while store.range(KeyRange::all(), None, 1).await.is_ok() {}
    })
    .await;
    for member in &mut etcd.members[1..] {
        member.restart();
    }
    watcher.until_seen(20).await;
    let acknowledged = writers.stop().await;
    watcher.check(&store, &acknowledged).await;
}

/// A member that hangs, with its connections open, is left for another, by calls
/// and by watches, whichever it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_member_is_left() {
    let etcd = Etcd::start(3).await;
    let store = impatient(&etcd).await;
    let watcher = Watcher::start(&store, newest(&store).await.next()).await;
    for member in &etcd.members {
        let before = watcher.seen();
        member.hang();
        for value in ["1", "2", "3"] {
            put_surely(&store, "k", value).await;
        }
        watcher.until(before + 3).await;
        member.go_on();
        // The next one hangs when this one is a full member again.
        let endpoint = format!("http://127.0.0.1:{}", member.client_port);
        let this = connect(talweg_metastore_etcd::EtcdConfig::new([endpoint], "test")).await;
        within("a full member", async {
            while this.range(KeyRange::all(), None, 1).await.is_err() {}
        })
        .await;
    }
    watcher.check(&store, &[]).await;
}

async fn impatient(etcd: &Etcd) -> EtcdMetastore {
    let mut config = etcd.config();
    config.request_timeout = Duration::from_secs(1);
    config.connect_timeout = Duration::from_millis(300);
    config.watch_silence = Duration::from_secs(1);
    connect(config).await
}

/// Behind the same address stands another etcd, whose revisions mean something
/// else: the watch says so and does not wait for revisions that may never come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_does_not_go_on_in_another_cluster() {
    let mut etcd = Etcd::one().await;
    let store = etcd.store().await;
    let first = put(&store, "k", "0").await;
    let mut stream = watch(&store, Revision::FIRST).await;
    assert_eq!(next_events(&mut stream).await.expect("events").0, first);
    etcd.members[0].become_another_cluster();
    let error = next_events(&mut stream).await.expect_err("another cluster");
    assert!(matches!(error, MetastoreError::Failed { .. }), "{error}");
}
