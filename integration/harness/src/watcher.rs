//! Looks at the bounds of every partition twenty times a second, at the gateway
//! and at each replica, and writes down what it is told.

use crate::{
    Process, Stack, eventually,
    history::{Bounds, Recorder},
    raw,
};
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};
use talweg_proto::{
    storage::v1::{
        DescribeReplicasRequest, ReplicaDescription, replica_service_client::ReplicaServiceClient,
    },
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

/// One who looks.
struct Observer {
    name: String,
    /// Rounds in which it was told something.
    rounds: Arc<AtomicU32>,
    task: JoinHandle<()>,
}

/// Watches until it is told to stop.
pub struct Watcher {
    stop: Arc<AtomicBool>,
    began: Instant,
    observers: Vec<Observer>,
}

/// How often each one who looked was told something, and over what time.
#[derive(Clone, Debug)]
pub struct Looks {
    pub rounds: BTreeMap<String, u32>,
    pub over: Duration,
}

/// A watch that was short, or that began with everybody away, may go on for so long.
const ENOUGH: Duration = Duration::from_secs(30);
/// Who is told less has not watched.
const ROUNDS_MIN: u32 = 20;

impl Looks {
    /// One whose calls all failed has seen no step back, and says nothing.
    ///
    /// # Errors
    /// Who was told too little.
    pub fn are_enough(&self) -> Result<(), String> {
        let seconds = u32::try_from(self.over.as_secs()).unwrap_or(u32::MAX);
        let least = ROUNDS_MIN.max(seconds / 2);
        match self.rounds.iter().find(|(_, rounds)| **rounds < least) {
            None => Ok(()),
            Some((name, _)) => Err(format!("fewer than {least} looks at {name}: {self:?}")),
        }
    }
}

impl Watcher {
    /// One task for gateway 0, one for each storage node.
    pub async fn start(stack: &Stack, topic: &str, partitions: u32, recorder: &Recorder) -> Self {
        let gateway = stack.gateway(0);
        let topic_id = topic_id(&gateway, topic).await;
        let stop = Arc::new(AtomicBool::new(false));
        let look = |url: String| Look {
            url,
            recorder: recorder.clone(),
            stop: Arc::clone(&stop),
            rounds: Arc::default(),
        };
        let observer = |name: &str, look: &Look| (name.to_owned(), Arc::clone(&look.rounds));
        let at_gateway = look(gateway);
        let (name, rounds) = observer("gateway", &at_gateway);
        let task = tokio::spawn(at_gateway.gateway(topic.to_owned(), partitions));
        let mut observers = vec![Observer { name, rounds, task }];
        for (i, storage) in stack.storages.iter().enumerate() {
            let at_storage = look(stack.storage(i));
            let (name, rounds) = observer(storage.name(), &at_storage);
            let looks = at_storage.storage(name.clone(), topic_id.clone(), storage.starts());
            let task = tokio::spawn(looks);
            observers.push(Observer { name, rounds, task });
        }
        Self {
            stop,
            began: Instant::now(),
            observers,
        }
    }

    /// So far.
    fn looks(&self) -> Looks {
        let count = |observer: &Observer| {
            let rounds = observer.rounds.load(Ordering::Relaxed);
            (observer.name.clone(), rounds)
        };
        Looks {
            rounds: self.observers.iter().map(count).collect(),
            over: self.began.elapsed(),
        }
    }

    /// Ends it once everybody was told enough; how often that was.
    pub async fn stop(self) -> Looks {
        let looks = eventually("enough looks at everybody", ENOUGH, || async {
            let looks = self.looks();
            looks.are_enough().map(|()| looks)
        })
        .await;
        self.stop.store(true, Ordering::Relaxed);
        for observer in self.observers {
            observer.task.await.expect("the watcher ended well");
        }
        looks
    }
}

async fn topic_id(gateway: &str, topic: &str) -> Bytes {
    let channel = raw::connect(gateway).await;
    let described = eventually("the topic's id", ANSWER * 20, || async {
        raw::describe_topic(&channel, topic).await
    });
    described.await.topic.expect("a topic").topic_id
}

struct Look {
    url: String,
    recorder: Recorder,
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU32>,
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
            let mut told = Vec::new();
            for partition in 0..partitions {
                let bounds = timeout(ANSWER, raw::bounds(&channel, &topic, partition));
                // No leader at the moment, or no answer: nothing is said about bounds.
                if let Ok(Ok(bounds)) = bounds.await {
                    told.push((partition, bounds));
                }
            }
            self.note("gateway", told);
        }
    }

    /// Each life of a node is an observer of its own: a watermark is stored now
    /// and then, so the next life may begin with an older one. So is each replica that
    /// came and went: one that a move has removed begins anew when it is wanted again.
    async fn storage(self, name: String, topic_id: Bytes, starts: Arc<AtomicU32>) {
        let mut replicas = ReplicaServiceClient::new(self.channel());
        let mut ticks = ticks();
        let mut made = Made::default();
        while self.next(&mut ticks).await {
            let life = starts.load(Ordering::Relaxed);
            let asked = replicas.describe_replicas(DescribeReplicasRequest {
                topic_ids: vec![topic_id.clone()],
            });
            let Ok(Ok(told)) = timeout(ANSWER, asked).await else {
                continue;
            };
            if starts.load(Ordering::Relaxed) != life {
                continue;
            }
            let told = told.into_inner().replicas;
            for (replica, anew) in made.look(&told) {
                let observer = format!("{name}, life {life}, replica {anew}");
                self.record(&observer, replica.0, &replica.1);
            }
            self.rounds
                .fetch_add(u32::from(!told.is_empty()), Ordering::Relaxed);
        }
    }

    /// One round.
    fn note(&self, observer: &str, told: Vec<(u32, PartitionBounds)>) {
        self.rounds
            .fetch_add(u32::from(!told.is_empty()), Ordering::Relaxed);
        for (partition, bounds) in told {
            self.record(observer, partition, &bounds);
        }
    }

    fn record(&self, observer: &str, partition: u32, bounds: &PartitionBounds) {
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

/// By partition: how often the replica on a node was made anew, and its last watermark.
#[derive(Default)]
struct Made {
    replicas: BTreeMap<u32, (u32, i64)>,
}

impl Made {
    /// What a node told, and which replica each is.
    fn look(&mut self, told: &[ReplicaDescription]) -> Vec<((u32, PartitionBounds), u32)> {
        let mut looked = Vec::new();
        for replica in told {
            let Some(bounds) = replica.bounds else {
                continue;
            };
            let (made, watermark) = self.replicas.entry(replica.partition).or_default();
            // Committed records have left a log that does not lead: it is another one.
            if !replica.leader && bounds.log_end_offset < *watermark {
                *made += 1;
            }
            *watermark = bounds.high_watermark;
            looked.push(((replica.partition, bounds), *made));
        }
        looked
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

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(rounds: u32, seconds: u64) -> Looks {
        Looks {
            rounds: BTreeMap::from([("gateway".into(), 500), ("storage-0".into(), rounds)]),
            over: Duration::from_secs(seconds),
        }
    }

    #[test]
    fn a_watcher_that_was_told_next_to_nothing_has_not_watched() {
        for seen in [looks(ROUNDS_MIN, 10), looks(50, 100)] {
            seen.are_enough().expect("enough");
        }
        for blind in [looks(0, 10), looks(ROUNDS_MIN - 1, 1), looks(49, 100)] {
            blind.are_enough().expect_err("too few");
        }
    }
}
