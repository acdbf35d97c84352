//! Looks at the bounds of every partition twenty times a second, at the gateway
//! and at each replica, and writes down what it is told.

use crate::{
    Process, Stack,
    history::{Bounds, Recorder},
    raw,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};
use talweg_proto::{
    storage::v1::{DescribeReplicasRequest, replica_service_client::ReplicaServiceClient},
    v1::PartitionBounds,
};
use tokio::{
    task::JoinHandle,
    time::{Interval, MissedTickBehavior, interval, timeout},
};
use tonic::transport::{Channel, Endpoint};

const EVERY: Duration = Duration::from_millis(50);
/// An answer that takes longer is not waited for.
const ANSWER: Duration = Duration::from_secs(1);

/// Watches until it is told to stop.
pub struct Watcher {
    stop: Arc<AtomicBool>,
    looks: Arc<AtomicU32>,
    tasks: Vec<JoinHandle<()>>,
}

impl Watcher {
    /// One task for gateway 0, one for each storage node.
    pub fn start(stack: &Stack, topic: &str, partitions: u32, recorder: &Recorder) -> Self {
        let (stop, looks) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let look = |url: String| Look {
            url,
            recorder: recorder.clone(),
            stop: Arc::clone(&stop),
            looks: Arc::clone(&looks),
        };
        let at_gateway = look(stack.gateway(0)).gateway(topic.to_owned(), partitions);
        let mut tasks = vec![tokio::spawn(at_gateway)];
        for (i, storage) in stack.storages.iter().enumerate() {
            let at_storage =
                look(stack.storage(i)).storage(storage.name().into(), storage.starts());
            tasks.push(tokio::spawn(at_storage));
        }
        Self { stop, looks, tasks }
    }

    /// Ends it; how many bounds it was told.
    pub async fn stop(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("the watcher ended well");
        }
        self.looks.load(Ordering::Relaxed)
    }
}

struct Look {
    url: String,
    recorder: Recorder,
    stop: Arc<AtomicBool>,
    looks: Arc<AtomicU32>,
}

impl Look {
    fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(self.url.clone()).expect("a url");
        endpoint.connect_timeout(ANSWER).connect_lazy()
    }

    /// The next look is due; false: there is none.
    async fn next(&self, ticks: &mut Interval) -> bool {
        ticks.tick().await;
        !self.stop.load(Ordering::Relaxed)
    }

    async fn gateway(self, topic: String, partitions: u32) {
        let channel = self.channel();
        let mut ticks = ticks();
        while self.next(&mut ticks).await {
            for partition in 0..partitions {
                let bounds = timeout(ANSWER, raw::bounds(&channel, &topic, partition));
                // No leader at the moment, or no answer: nothing is said about bounds.
                if let Ok(Ok(bounds)) = bounds.await {
                    self.note("gateway", partition, &bounds);
                }
            }
        }
    }

    /// Each life of a node is an observer of its own: a watermark is stored now
    /// and then, so the next life may begin with an older one.
    async fn storage(self, name: String, starts: Arc<AtomicU32>) {
        let mut replicas = ReplicaServiceClient::new(self.channel());
        let mut ticks = ticks();
        while self.next(&mut ticks).await {
            let life = starts.load(Ordering::Relaxed);
            let asked = replicas.describe_replicas(DescribeReplicasRequest::default());
            let Ok(Ok(told)) = timeout(ANSWER, asked).await else {
                continue;
            };
            if starts.load(Ordering::Relaxed) != life {
                continue;
            }
            let observer = format!("{name}, life {life}");
            for replica in told.into_inner().replicas {
                if let Some(bounds) = replica.bounds {
                    self.note(&observer, replica.partition, &bounds);
                }
            }
        }
    }

    fn note(&self, observer: &str, partition: u32, bounds: &PartitionBounds) {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.recorder.bounds(Bounds {
            observer: observer.into(),
            partition,
            log_start: bounds.log_start_offset,
            last_stable: bounds.last_stable_offset,
            high_watermark: bounds.high_watermark,
            at: self.recorder.now(),
        });
    }
}

fn ticks() -> Interval {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Process {
    /// How often it was started; counts on while it is watched.
    pub(crate) fn starts(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.starts)
    }
}
