//! The controller on a metastore that fails, and on one that is reopened.

mod common;

use async_trait::async_trait;
use common::{Controller, Session, create, register, within};
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use talweg_metastore::{
    KeyRange, Lease, LeaseId, Metastore, MetastoreError, Ranged, Revision, Txn, TxnOutcome,
    WatchStream,
};
use talweg_metastore_mem::MemMetastore;
use talweg_proto::{controller::v1::AllocateProducerIdsRequest, v1};
use uuid::Uuid;

/// Of every five transactions one is done without an answer, one is not done
/// and without an answer, one is certainly not done.
#[derive(Default)]
struct Unreliable {
    store: MemMetastore,
    count: AtomicU64,
}

#[async_trait]
impl Metastore for Unreliable {
    async fn range(
        &self,
        range: KeyRange,
        at: Option<Revision>,
        limit: usize,
    ) -> Result<Ranged, MetastoreError> {
        self.store.range(range, at, limit).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, MetastoreError> {
        let reason = || "as the test wants it".to_owned();
        match self.count.fetch_add(1, Ordering::Relaxed) % 5 {
            1 => {
                self.store.txn(txn).await?;
                Err(MetastoreError::Unknown { reason: reason() })
            }
            2 => Err(MetastoreError::Unknown { reason: reason() }),
            3 => Err(MetastoreError::Unavailable { reason: reason() }),
            _ => self.store.txn(txn).await,
        }
    }

    async fn watch(&self, range: KeyRange, from: Revision) -> Result<WatchStream, MetastoreError> {
        self.store.watch(range, from).await
    }

    async fn grant(&self, ttl: Duration) -> Result<Lease, MetastoreError> {
        self.store.grant(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), MetastoreError> {
        self.store.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), MetastoreError> {
        self.store.revoke(lease).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), MetastoreError> {
        self.store.compact(revision).await
    }
}

/// Callers see whole answers only: each topic once, no producer id twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unclear_writes_are_cleared_up_before_anyone_is_answered() {
    let controller = Controller::start(Arc::new(Unreliable::default())).await;
    within("election", controller.handle.wait_active()).await;
    let _node = Session::fresh(&controller).await;
    for i in 0..5 {
        controller.topic(&format!("t{i}"), 30).await;
    }
    let mut ids = BTreeSet::new();
    for _ in 0..10 {
        let block = AllocateProducerIdsRequest { count: 100 };
        let block = controller
            .client()
            .allocate_producer_ids(block)
            .await
            .expect("a block");
        let first = block.into_inner().first;
        assert!(
            (first..first + 100).all(|id| ids.insert(id)),
            "{first} twice"
        );
    }
    let delete = v1::DeleteTopicRequest {
        name: "t0".into(),
        ..Default::default()
    };
    controller
        .topics()
        .delete_topic(delete)
        .await
        .expect("deleted");
    let watch = controller.watch().await;
    assert_eq!(watch.seen.topics.len(), 4);
    assert_eq!(watch.seen.partitions.len(), 120);
    assert!(
        watch
            .seen
            .partitions
            .values()
            .all(|p| p.leader == 1 && p.leader_epoch == 0)
    );
    controller.stop().await;
}

/// A lease that expires behind the controller's back ends its term; it is
/// elected again and goes on with what is stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_election_ends_the_term_only() {
    let store = Arc::new(MemMetastore::default());
    let controller = Controller::start(store.clone()).await;
    let asking = register(Uuid::new_v4(), Uuid::new_v4());
    let mut node = Session::begin(&controller, asking.clone())
        .await
        .expect("in");
    controller.topic("t", 2).await;
    let key = talweg_metastore::keys::Key::Election.encode();
    let held = store.get(&key, None).await.expect("get").expect("elected");
    store.revoke(held.lease).await.expect("revoked");

    node.next()
        .await
        .expect_err("the session ends with the term");
    let again = within("another term", async {
        loop {
            match Session::begin(&controller, asking.clone()).await {
                Ok(session) => return session,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    })
    .await;
    assert_eq!(again.registered.incarnation, 1);
    controller.topic("u", 2).await;
    controller.stop().await;
}

/// The embedded store reopened: topics, ids and incarnations go on.
#[cfg(feature = "rocks")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_goes_on_with_what_was_stored() {
    let folder = tempfile::tempdir().expect("folder");
    let config = talweg_controller::ControllerConfig {
        data_dir: folder.path().join("not/there/yet"),
        ..common::config()
    };
    let log_folder = Uuid::new_v4();
    let mut cluster = None;
    for start in 1..=3 {
        let began = std::time::Instant::now();
        let store = talweg_controller::open_store(&config).await.expect("open");
        let held = store.clone();
        let controller = Controller::with(config.clone(), store).await;
        within("election", controller.handle.wait_active()).await;
        println!("active after {:?}", began.elapsed());
        let asking = register(Uuid::new_v4(), log_folder);
        let node = Session::begin(&controller, asking).await.expect("in");
        assert_eq!(
            (node.registered.node_id, node.registered.incarnation),
            (1, start)
        );
        let id = cluster.get_or_insert_with(|| node.registered.cluster_id.clone());
        assert_eq!(*id, node.registered.cluster_id);
        let began = std::time::Instant::now();
        controller
            .create(create(&format!("t{start}"), 1_000))
            .await
            .expect("created");
        println!("1,000 partitions created in {:?}", began.elapsed());
        let watch = controller.watch().await;
        assert_eq!(watch.seen.topics.len() as u64, start);
        assert!(
            watch
                .seen
                .partitions
                .values()
                .all(|p| p.leader_incarnation == start)
        );
        drop(node);
        if start == 2 {
            // Killed: nothing is said to anybody.
            drop(controller);
            within("the end of its tasks", async {
                while Arc::strong_count(&held) > 1 {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        } else {
            controller.stop().await;
        }
    }
}
