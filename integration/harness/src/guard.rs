//! What every fault test is held to. From before the faults on the bounds of its
//! topics are watched; afterwards all replicas are in sync, each process holds no
//! more than before, no bound has stepped back, and the replicas' digests agree.

use crate::{
    Cluster, Level, Stack, Watcher,
    cluster::replicas_agree,
    history::{Finding, Recorder},
};

/// A topic that is watched.
#[derive(Clone, Debug)]
pub struct Watched {
    pub topic: String,
    pub partitions: u32,
    /// Where the bounds are written down.
    pub recorder: Recorder,
}

impl Watched {
    /// For a test whose clients write nothing down.
    pub fn alone(topic: &str, partitions: u32) -> Self {
        Self {
            topic: topic.into(),
            partitions,
            recorder: Recorder::default(),
        }
    }
}

/// Watches until [`Guard::end`].
#[must_use = "what is not ended has judged nothing"]
pub struct Guard {
    topics: Vec<(Watched, Watcher)>,
    level: Level,
}

impl Guard {
    /// Before the first fault, with everything at work.
    pub async fn begin(stack: &mut Stack, topics: impl IntoIterator<Item = Watched>) -> Self {
        let mut watched = Vec::new();
        for topic in topics {
            let Watched {
                topic: name,
                partitions,
                recorder,
            } = &topic;
            let watcher = Watcher::start(stack, name, *partitions, recorder).await;
            watched.push((topic, watcher));
        }
        Self {
            topics: watched,
            level: Level::of(stack).await,
        }
    }

    /// After the last fault, with everything still at work.
    pub async fn end(self, stack: &mut Stack) -> Settled {
        let url = stack.gateway(0);
        let mut clusters = Vec::new();
        for (watched, _) in &self.topics {
            let cluster = Cluster::connect(&url, &watched.topic).await;
            cluster.whole().await;
            clusters.push(cluster);
        }
        self.level.is_back(stack).await;
        for (watched, watcher) in self.topics {
            let looks = watcher.stop().await;
            println!("{}: {looks:?}", watched.topic);
            let steps: Vec<Finding> = watched.recorder.bound_findings();
            assert!(steps.is_empty(), "{}: {:#?}", watched.topic, steps);
        }
        Settled { clusters }
    }
}

/// Only the replicas are left to compare, once nobody writes any more.
#[must_use = "the replicas were not compared"]
pub struct Settled {
    clusters: Vec<Cluster>,
}

impl Settled {
    /// Stops the storage nodes and compares the digests of all replicas up to the
    /// watermarks.
    pub async fn replicas_agree(self, stack: &mut Stack) {
        let clusters: Vec<_> = self.clusters.iter().collect();
        replicas_agree(stack, &clusters).await;
    }
}
