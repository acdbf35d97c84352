//! Writers and readers under a nemesis, and the checker after them.

use crate::{
    ThinWriter, ThinWritten, Watched, Writer, WriterPlan, Written, eventually,
    history::Recorder,
    poller::{Ends, Poller},
    raw,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use talweg_proto::v1::Acks;
use tokio::{sync::watch, task::JoinHandle};

/// After the end of writing everything sent has its answer within this.
const ANSWERED: Duration = Duration::from_secs(60);

/// What a load came to.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// Records.
    pub acknowledged: usize,
    /// Over all writers.
    pub reconnects: usize,
    /// Between two acknowledgements of one writer.
    pub longest_gap: Duration,
    /// What became of the records of thin writers, if there were any.
    pub thin: ThinWritten,
}

/// Writers at work, one a partition, and perhaps readers.
pub struct Load {
    topic: String,
    partitions: u32,
    recorder: Recorder,
    stop: Arc<AtomicBool>,
    progress: Arc<AtomicU64>,
    writers: Vec<JoinHandle<Written>>,
    thin: Vec<JoinHandle<ThinWritten>>,
    ends: watch::Sender<Option<Ends>>,
    readers: Vec<JoinHandle<()>>,
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
        let recorder = Recorder::default();
        let (stop, progress) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let mut writers = Vec::new();
        for partition in 0..partitions {
            let writer = Writer::new(WriterPlan {
                identities: identities.into(),
                urls: urls.clone(),
                topic: topic.into(),
                partition,
                number: partition,
                acks,
                recorder: recorder.clone(),
            })
            .await;
            let (stop, progress) = (Arc::clone(&stop), Arc::clone(&progress));
            writers.push(tokio::spawn(async move {
                writer.run(&stop, &progress, ANSWERED).await
            }));
        }
        Self {
            topic: topic.into(),
            partitions,
            recorder,
            stop,
            progress,
            writers,
            thin: Vec::new(),
            ends: watch::Sender::new(None),
            readers: Vec::new(),
        }
    }

    /// With one more reader that follows all partitions through `url` to the end.
    #[must_use]
    pub fn read_by(mut self, url: &str) -> Self {
        let poller = Poller {
            url: url.into(),
            topic: self.topic.clone(),
            number: u32::try_from(self.readers.len()).expect("few"),
            partitions: self.partitions,
            recorder: self.recorder.clone(),
            until: self.ends.subscribe(),
        };
        self.readers.push(tokio::spawn(poller.run()));
        self
    }

    /// With one more writer on each partition, through the gateway at `url`, that
    /// sends records and numbers nothing itself.
    #[must_use]
    pub fn written_thinly_by(mut self, url: &str) -> Self {
        for partition in 0..self.partitions {
            let writer = ThinWriter::new(url, &self.topic, partition, self.recorder.clone());
            let stop = Arc::clone(&self.stop);
            let written = async move { writer.run(&stop, ANSWERED).await };
            self.thin.push(tokio::spawn(written));
        }
        self
    }

    /// For a [`crate::Guard`].
    pub fn watched(&self) -> Watched {
        Watched {
            topic: self.topic.clone(),
            partitions: self.partitions,
            recorder: self.recorder.clone(),
        }
    }

    /// Where all calls are written down; others may write theirs beside them.
    pub fn recorder(&self) -> Recorder {
        self.recorder.clone()
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

    /// Waits until what was sent after `since` is acknowledged in `partition`;
    /// the time from `since` to the first acknowledgement.
    pub async fn recovered(&self, partition: u32, since: Duration, deadline: Duration) -> Duration {
        let what = format!("an acknowledgement in partition {partition}");
        let at = eventually(&what, deadline, || async {
            let at = self.recorder.acknowledged_after(partition, since);
            at.ok_or_else(|| "none".to_owned())
        });
        at.await - since
    }

    /// Stops the writers, reads everything back through `url` and lets the
    /// checker speak. Returns the acknowledged records and how often writers reconnected.
    pub async fn finish(self, url: &str) -> (usize, usize) {
        let finished = self.finish_with_gap(url).await;
        (finished.acknowledged, finished.reconnects)
    }

    /// As [`Load::finish`], with the longest silence of any writer.
    pub async fn finish_with_gap(mut self, url: &str) -> Finished {
        let finished = self.stop_writers().await;
        let channel = raw::connect(url).await;
        let mut ends = Ends::new();
        for partition in 0..self.partitions {
            let records = raw::read_all(&channel, &self.topic, partition).await;
            let records = records.into_iter();
            let records: Vec<_> = records
                .map(|r| (r.offset, r.value.unwrap_or_default().to_vec()))
                .collect();
            ends.insert(
                partition,
                records.last().map_or(0, |(offset, _)| offset + 1),
            );
            self.recorder.end(partition, records);
        }
        self.ends.send_replace(Some(ends));
        for reader in self.readers {
            reader.await.expect("the reader ended well");
        }
        let findings = self.recorder.findings();
        assert!(
            findings.is_empty(),
            "{} findings, the first: {:#?}",
            findings.len(),
            &findings[..findings.len().min(5)]
        );
        assert!(finished.acknowledged > 0, "nothing was acknowledged");
        finished
    }

    async fn stop_writers(&mut self) -> Finished {
        self.stop.store(true, Ordering::Relaxed);
        let mut finished = Finished {
            acknowledged: 0,
            reconnects: 0,
            longest_gap: Duration::ZERO,
            thin: ThinWritten::default(),
        };
        for writer in self.writers.drain(..) {
            let written = writer.await.expect("the writer ended well");
            finished.acknowledged += written.acknowledged;
            finished.reconnects += written.reconnects;
            finished.longest_gap = finished.longest_gap.max(written.longest_gap);
        }
        let thin = self.thin.len();
        for writer in self.thin.drain(..) {
            finished.thin += writer.await.expect("the thin writer ended well");
        }
        let nothing = thin > 0 && finished.thin.acknowledged == 0;
        assert!(!nothing, "no record of a thin writer was acknowledged");
        finished
    }
}
