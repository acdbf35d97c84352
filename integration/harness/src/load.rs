//! Writers under a nemesis, and the checker after them.

use crate::{Acked, Seen, Writer, Written, check, eventually, raw};
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use talweg_proto::v1::Acks;
use tokio::task::JoinHandle;

/// What a load came to.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// Records.
    pub acknowledged: usize,
    /// Over all writers.
    pub reconnects: usize,
    /// Between two acknowledgements of one writer.
    pub longest_gap: Duration,
}

/// Writers at work, one a partition.
pub struct Load {
    topic: String,
    partitions: u32,
    stop: Arc<AtomicBool>,
    progress: Arc<AtomicU64>,
    writers: Vec<JoinHandle<Written>>,
}

impl Load {
    /// Starts one numbered writer on each partition.
    pub async fn start(urls: Vec<String>, topic: &str, partitions: u32, acks: Acks) -> Self {
        let identities = urls[0].clone();
        Self::start_direct(&identities, urls, topic, partitions, acks).await
    }

    /// The same, with producer ids from the gateway at `identities`: storage
    /// nodes, which give out none, may be among `urls`.
    pub async fn start_direct(
        identities: &str,
        urls: Vec<String>,
        topic: &str,
        partitions: u32,
        acks: Acks,
    ) -> Self {
        let (stop, progress) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let mut writers = Vec::new();
        for partition in 0..partitions {
            let writer =
                Writer::new(identities, urls.clone(), topic, partition, partition, acks).await;
            let (stop, progress) = (Arc::clone(&stop), Arc::clone(&progress));
            writers.push(tokio::spawn(async move {
                writer.run(&stop, &progress, Duration::from_secs(60)).await
            }));
        }
        Self {
            topic: topic.into(),
            partitions,
            stop,
            progress,
            writers,
        }
    }

    /// Records acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Waits until `records` more are acknowledged than at `since`.
    pub async fn advance(&self, since: u64, records: u64, deadline: Duration) {
        eventually("progress", deadline, || async {
            let now = self.acknowledged();
            if now >= since + records {
                Ok(())
            } else {
                Err(format!("{now} of {}", since + records))
            }
        })
        .await;
    }

    /// Stops the writers, reads everything back through `url` and lets the
    /// checker speak. Returns the acknowledged records and how often writers reconnected.
    pub async fn finish(self, url: &str) -> (usize, usize) {
        let finished = self.finish_with_gap(url).await;
        (finished.acknowledged, finished.reconnects)
    }

    /// As [`Load::finish`], with the longest silence of any writer.
    pub async fn finish_with_gap(self, url: &str) -> Finished {
        let mut longest_gap = Duration::ZERO;
        self.stop.store(true, Ordering::Relaxed);
        let (mut acked, mut sent, mut reconnects): (Vec<Acked>, BTreeSet<_>, usize) =
            Default::default();
        for writer in self.writers {
            let written = writer.await.expect("the writer ended well");
            acked.extend(written.acked);
            sent.extend(written.sent);
            reconnects += written.reconnects;
            longest_gap = longest_gap.max(written.longest_gap);
        }
        let channel = raw::connect(url).await;
        let mut seen = Vec::new();
        for partition in 0..self.partitions {
            let records = raw::read_all(&channel, &self.topic, partition).await;
            seen.extend(records.into_iter().map(|r| Seen {
                partition,
                offset: r.offset,
                value: r.value.unwrap_or_default().to_vec(),
            }));
        }
        let findings = check(&acked, &seen, &sent);
        assert!(
            findings.is_empty(),
            "{} findings, the first: {:#?}",
            findings.len(),
            &findings[..findings.len().min(5)]
        );
        assert!(!acked.is_empty(), "nothing was acknowledged");
        Finished {
            acknowledged: acked.len(),
            reconnects,
            longest_gap,
        }
    }
}
