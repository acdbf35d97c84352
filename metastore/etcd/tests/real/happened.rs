//! Whether a failed transaction may have been done.

use crate::{
    etcd::{Etcd, connect},
    proxy::{Mode, Proxy},
    story::within,
};
use std::{net::TcpListener, time::Duration};
use talweg_metastore::{Happened, KeyValue, Metastore, MetastoreError, Op, Txn};
use talweg_metastore_etcd::{EtcdConfig, EtcdMetastore};

fn txn() -> Txn {
    Txn::new().then(Op::put("k", "v"))
}

async fn until_there(store: &EtcdMetastore) -> KeyValue {
    within("the key", async {
        loop {
            if let Some(entry) = store.get(b"k", None).await.expect("get") {
                return entry;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}

/// Cut after it was sent and done: unknown, and not done a second time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_cut_in_flight_is_unknown() {
    let etcd = Etcd::one().await;
    let near = etcd.store().await;
    let proxy = Proxy::before(etcd.members[0].client_port).await;
    let far = connect(EtcdConfig::new([proxy.url()], "test")).await;
    assert_eq!(far.get(b"k", None).await, Ok(None), "connected");

    proxy.set(Mode::HoldAnswers);
    let sent = tokio::spawn({
        let far = far.clone();
        async move { far.txn(txn()).await }
    });
    until_there(&near).await;
    // A second attempt would get through.
    proxy.cut_once();
    let error = within("the answer", sent).await.expect("join");
    let error = error.expect_err("cut");
    assert!(matches!(error, MetastoreError::Unknown { .. }), "{error}");
    assert_eq!(error.happened(), Happened::Unknown);
    assert_eq!(until_there(&near).await.version, 1, "done once");
}

/// Nobody listens: certainly not done, and soon said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_connection_is_not_done() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let address = listener.local_addr().expect("address");
    drop(listener);
    let store = connect(EtcdConfig::new([format!("http://{address}")], "test")).await;
    let error = within("the answer", store.txn(txn())).await;
    let error = error.expect_err("refused");
    assert!(
        matches!(error, MetastoreError::Unavailable { .. }),
        "{error}"
    );
    assert_eq!(error.happened(), Happened::No);
    assert!(error.is_retriable());
}

/// One endpoint is dead: no call fails for it as long as another answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_member_among_living_ones_is_stepped_over() {
    let etcd = Etcd::one().await;
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let dead = format!("http://{}", listener.local_addr().expect("address"));
    drop(listener);
    let mut endpoints = etcd.endpoints();
    endpoints.push(dead);
    let store = connect(EtcdConfig::new(endpoints, "test")).await;
    for i in 0..20 {
        let put = Txn::new().then(Op::put(format!("k{i}"), "v"));
        store.txn(put).await.expect("the living member answers");
    }
}
