//! What the stories share: writers that go on through failures, and what a
//! watch has seen, compared with what etcd has.

use crate::etcd::DEADLINE;
use futures::StreamExt;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use talweg_metastore::{
    Event, KeyRange, Metastore, MetastoreError, Op, Revision, Txn, WatchItem, WatchStream,
};
use talweg_metastore_etcd::EtcdMetastore;
use tokio::task::JoinHandle;

const END: &str = "end";

pub type Stream = WatchStream;
pub type Seen = Vec<(Revision, Vec<Event>)>;

pub async fn within<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, wait)
        .await
        .unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

pub async fn put(store: &EtcdMetastore, key: &str, value: &str) -> Revision {
    let txn = Txn::new().then(Op::put(key.to_owned(), value.to_owned()));
    let outcome = store.txn(txn).await.expect("put");
    outcome.committed().expect("no compares")
}

/// Puts again until it is certain that it was done.
pub async fn put_surely(store: &EtcdMetastore, key: &str, value: &str) -> Revision {
    within("a put", async {
        loop {
            let txn = Txn::new().then(Op::put(key.to_owned(), value.to_owned()));
            match store.txn(txn).await {
                Ok(outcome) => return outcome.committed().expect("no compares"),
                Err(error) => assert!(error.is_retriable(), "{error}"),
            }
        }
    })
    .await
}

pub async fn watch(store: &EtcdMetastore, from: Revision) -> WatchStream {
    store.watch(KeyRange::all(), from).await.expect("watch")
}

pub async fn newest(store: &EtcdMetastore) -> Revision {
    let ranged = store.range(KeyRange::all(), None, 1).await.expect("range");
    ranged.revision
}

/// The next item that is not progress.
pub async fn next_events(
    watch: &mut WatchStream,
) -> Result<(Revision, Vec<Event>), MetastoreError> {
    within("events", async {
        loop {
            let item = watch.next().await.expect("a watch ends with an error");
            if let WatchItem::Events { revision, events } = item? {
                return Ok((revision, events));
            }
        }
    })
    .await
}

/// Writers that put until they are told to stop, whatever happens meanwhile.
pub struct Writers {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Vec<(Revision, String)>>>,
}

impl Writers {
    pub fn start(store: &EtcdMetastore, count: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = (0..count)
            .map(|i| tokio::spawn(write(store.clone(), i, stop.clone())))
            .collect();
        Self { stop, tasks }
    }

    /// The revision and value of every put that was acknowledged.
    pub async fn stop(self) -> Vec<(Revision, String)> {
        self.stop.store(true, Ordering::Relaxed);
        let mut acknowledged = Vec::new();
        for task in self.tasks {
            acknowledged.extend(within("a writer", task).await.expect("join"));
        }
        acknowledged
    }
}

async fn write(store: EtcdMetastore, id: usize, stop: Arc<AtomicBool>) -> Vec<(Revision, String)> {
    let mut acknowledged = Vec::new();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let value = format!("{id}-{number}");
        // Some revisions have two events, so that a split one would show.
        let txn = Txn::new()
            .then(Op::put(format!("w{id}/a"), value.clone()))
            .then(Op::put(format!("w{id}/b"), value.clone()));
        match store.txn(txn).await {
            Ok(outcome) => {
                acknowledged.push((outcome.committed().expect("no compares"), value));
            }
            Err(error) => assert!(error.is_retriable(), "{error}"),
        }
    }
    acknowledged
}

/// A watch that is followed in the background until the end key is put.
pub struct Watcher {
    pub from: Revision,
    count: Arc<AtomicUsize>,
    task: JoinHandle<Seen>,
}

impl Watcher {
    pub async fn start(store: &EtcdMetastore, from: Revision) -> Self {
        let count = Arc::new(AtomicUsize::new(0));
        let stream = watch(store, from).await;
        let task = tokio::spawn(follow(stream, count.clone()));
        Self { from, count, task }
    }

    /// Revisions seen so far.
    pub fn seen(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Waits until it has seen `more` revisions from now; for stories in which
    /// writers go on.
    pub async fn until_seen(&self, more: usize) {
        self.until(self.seen() + more).await;
    }

    /// Waits until it has seen `target` revisions in all.
    pub async fn until(&self, target: usize) {
        within("more changes", async {
            while self.seen() < target {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    /// Ends the story: what it saw is exactly what etcd has, in order, and holds
    /// every acknowledged put once.
    pub async fn check(self, store: &EtcdMetastore, acknowledged: &[(Revision, String)]) -> Seen {
        put_surely(store, END, "").await;
        let seen = within("the end", self.task).await.expect("join");
        let replay = follow(watch(store, self.from).await, Arc::default());
        let truth = within("the replay", replay).await;
        let ascending = seen.windows(2).all(|pair| pair[0].0 < pair[1].0);
        assert!(ascending, "each revision once and in order");
        assert_eq!(seen, truth);
        for (revision, value) in acknowledged {
            let found = seen.binary_search_by_key(revision, |(at, _)| *at);
            let (_, events) = &seen[found.expect("acknowledged, not seen")];
            let right = events
                .iter()
                .all(|event| matches!(event, Event::Put(entry) if entry.value == *value));
            assert!(right && events.len() == 2, "{revision}: {events:?}");
        }
        seen
    }
}

async fn follow(mut stream: WatchStream, count: Arc<AtomicUsize>) -> Seen {
    let mut seen = Vec::new();
    while let Some(item) = stream.next().await {
        if let WatchItem::Events { revision, events } = item.expect("no error") {
            count.fetch_add(1, Ordering::Relaxed);
            let end = events.iter().any(|event| event.key() == END.as_bytes());
            seen.push((revision, events));
            if end {
                break;
            }
        }
    }
    seen
}
