//! What the tests of the storage node share: a controller made of a few tables,
//! a node in a temporary folder, and clients of its streams.

#![allow(dead_code)]

pub mod client;
pub mod controller;

use client::{Fetch, Produce, partition};
use controller::FakeController;
use std::{path::PathBuf, time::Duration};
use talweg_proto::v1::{Acks, fetch_partition::Start};
use talweg_storage::{Handle, StorageConfig, start};
use tempfile::TempDir;
use tonic::transport::Channel;

/// Longer than anything takes, shorter than a test may hang.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A controller and one storage node.
pub struct Bench {
    pub controller: FakeController,
    pub config: StorageConfig,
    node: Option<Handle>,
    _folder: TempDir,
}

impl Bench {
    /// Starts both; `change` has the last word on the node's settings.
    pub async fn start_with(change: impl FnOnce(&mut StorageConfig)) -> Self {
        let controller = FakeController::start().await;
        let folder = TempDir::new().expect("folder");
        let mut config = StorageConfig {
            data_dirs: vec![folder.path().join("data")],
            controllers: vec![controller.url()],
            grpc: "127.0.0.1:0".into(),
            http: "127.0.0.1:0".into(),
            disk_reserve_bytes: Some(0),
            ..StorageConfig::default()
        };
        change(&mut config);
        let mut bench = Self {
            controller,
            config,
            node: None,
            _folder: folder,
        };
        bench.start_node().await;
        bench
    }

    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub async fn start_node(&mut self) {
        let node = start(self.config.clone()).await.expect("started");
        tokio::time::timeout(PATIENCE, node.wait_ready())
            .await
            .expect("ready");
        self.node = Some(node);
    }

    pub fn node(&self) -> &Handle {
        self.node.as_ref().expect("the node runs")
    }

    /// Stops the node; true if everything was closed.
    pub async fn stop_node(&mut self, drain: Duration) -> bool {
        self.take_node().stop(drain).await
    }

    pub fn take_node(&mut self) -> Handle {
        self.node.take().expect("the node runs")
    }

    pub async fn kill_node(&mut self) {
        assert!(
            self.take_node().kill().await,
            "its files are free for the next process"
        );
    }

    pub fn channel(&self) -> Channel {
        let url = format!("http://{}", self.node().grpc_addr());
        talweg_kit::net::channel(&url, &Default::default()).expect("url")
    }

    pub fn data(&self) -> PathBuf {
        self.config.data_dirs[0].clone()
    }
}

/// A test that ends leaves nobody inside RocksDB: its static destructors run when
/// the process of the tests exits, and a thread that is in it then takes the whole
/// process down with a signal.
impl Drop for Bench {
    fn drop(&mut self) {
        let Some(node) = self.node.take() else { return };
        let killed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .expect("runtime");
            runtime.block_on(node.kill())
        });
        let released = killed.join().expect("killed");
        assert!(
            released || std::thread::panicking(),
            "the node holds its index"
        );
    }
}

/// Asks again until it is so.
pub async fn eventually<F: AsyncFnMut() -> bool>(what: &str, mut hope: F) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !hope().await {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Until the node leads partition 0 of a topic.
pub async fn ready(channel: &Channel, topic: &str) {
    eventually("the partition is led", async || {
        let fetch = Fetch::open(channel, vec![partition(topic, 0, Start::Earliest(true))]).await;
        !fetch.positions.is_empty()
    })
    .await;
}

/// A topic that is led, and a connection.
pub async fn topic(
    bench: &Bench,
    name: &str,
    partitions: u32,
    config: &[(&str, &str)],
) -> (uuid::Uuid, Channel) {
    let id = bench.controller.create_topic(name, partitions, config);
    let channel = bench.channel();
    eventually("all partitions are led", async || {
        let all = (0..partitions)
            .map(|p| partition(name, p, Start::Earliest(true)))
            .collect();
        Fetch::open(&channel, all).await.positions.len() == partitions as usize
    })
    .await;
    (id, channel)
}

/// Produces each batch and waits for it.
pub async fn fill(channel: &Channel, topic: &str, partition: u32, batches: &[bytes::Bytes]) {
    let mut produce = Produce::open(channel, Acks::All).await;
    for batch in batches {
        produce.one(topic, partition, batch.clone()).await;
    }
}
