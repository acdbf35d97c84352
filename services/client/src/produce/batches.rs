//! Encoded batches, through a gateway or straight to the leaders: a task that
//! owns an [`Upstream`], behind a bounded mailbox.

use super::{Delivery, GatewayRoutes, Outcome, ProducerConfig, Via};
use crate::{
    client::Client,
    clock::Clock,
    delivery::{Batch, Numbering, Routes, Settled, Upstream, UpstreamConfig},
    view::{View, unknown},
    watch::MetadataWatch,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use talweg_batch::BatchHeader;
use talweg_kit::errors::Refusal;
use talweg_types::{Acks, PartitionIndex, TopicId, TopicPartition};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Batches between callers and the task.
const MAILBOX: usize = 64;
/// How long a topic may stay unknown to the view before it is asked for.
const VIEW_WAIT: Duration = Duration::from_secs(5);
/// How long a name is believed to lead to the same topic.
const NAME_LIFE: Duration = Duration::from_secs(10);

struct Job {
    partition: TopicPartition,
    acks: Acks,
    bytes: Bytes,
    header: BatchHeader,
    reply: oneshot::Sender<Outcome>,
    permit: OwnedSemaphorePermit,
}

/// Sends encoded batches. Clones share the stream; when the last one is
/// dropped, what is unanswered is given up.
#[derive(Clone)]
pub struct BatchProducer {
    jobs: mpsc::Sender<Job>,
    in_flight: Arc<Semaphore>,
    limit: u32,
    acks: Option<Acks>,
    names: Names,
}

/// From names to ids.
#[derive(Clone)]
enum Names {
    Watched(Arc<MetadataWatch>),
    Asked {
        client: Client,
        known: Arc<Mutex<BTreeMap<String, Known>>>,
    },
}

/// What a name led to, and when it was asked.
#[derive(Clone, Copy)]
struct Known {
    id: TopicId,
    default_acks: Acks,
    asked: Instant,
}

impl BatchProducer {
    /// Opens a producer; its streams open with the first batch.
    pub async fn open(client: &Client, config: ProducerConfig) -> Result<Self, Refusal> {
        let (names, routes): (Names, Arc<dyn Routes>) = match config.via {
            Via::Gateway => {
                let known = Arc::default();
                let names = Names::Asked {
                    client: client.clone(),
                    known,
                };
                (names, Arc::new(GatewayRoutes::new(client.clone())))
            }
            Via::Leaders => {
                let watch = Arc::new(client.watch_metadata().await?);
                let view = watch.view().clone();
                (Names::Watched(watch), Arc::new(view))
            }
        };
        let clock = Clock::default();
        let upstream = Upstream::new(
            routes,
            client.pool().clone(),
            UpstreamConfig {
                client_id: client.config().client_id.clone(),
                delivery_timeout: config.delivery_timeout,
            },
            clock,
            rand::random(),
        );
        let (jobs, mailbox) = mpsc::channel(MAILBOX);
        tokio::spawn(run(upstream, mailbox, clock, config.delivery_timeout));
        let limit = config.in_flight_bytes.max(1);
        let in_flight = Arc::new(Semaphore::new(limit as usize));
        Ok(Self {
            jobs,
            in_flight,
            limit,
            acks: config.acks,
            names,
        })
    }

    /// Sends one encoded batch; waits while too many bytes are unanswered.
    /// Refused at once: not one batch by its header, an unknown topic.
    pub async fn send(
        &self,
        topic: &str,
        partition: u32,
        batch: Bytes,
    ) -> Result<Delivery, Refusal> {
        let header = BatchHeader::parse(&batch)?;
        let (topic_id, default_acks) = self.names.find(topic).await?;
        let partition = TopicPartition {
            topic_id,
            partition: PartitionIndex(partition),
        };
        let permits = u32::try_from(batch.len())
            .unwrap_or(u32::MAX)
            .min(self.limit);
        let closed = |_| Refusal::internal("the producer has ended");
        let permit = self
            .in_flight
            .clone()
            .acquire_many_owned(permits)
            .await
            .map_err(|_| closed(()))?;
        let (reply, outcome) = oneshot::channel();
        let acks = self.acks.unwrap_or(default_acks);
        let job = Job {
            partition,
            acks,
            bytes: batch,
            header,
            reply,
            permit,
        };
        self.jobs.send(job).await.map_err(|_| closed(()))?;
        Ok(Delivery(outcome))
    }

    /// Waits until nothing is unanswered.
    pub async fn flush(&self) {
        // All permits are back only when all answers are in.
        drop(self.in_flight.acquire_many(self.limit).await);
    }
}

impl Names {
    async fn find(&self, name: &str) -> Result<(TopicId, Acks), Refusal> {
        match self {
            Self::Watched(watch) => {
                let known = |view: &View| view.by_name(name).is_some();
                watch.view().wait(VIEW_WAIT, known).await;
                let view = watch.view().get();
                let topic = view.by_name(name).ok_or_else(|| unknown(&name))?;
                Ok((topic.id, topic.config.default_acks))
            }
            Self::Asked { client, known } => {
                let fresh = |it: &&Known| it.asked.elapsed() < NAME_LIFE;
                if let Some(it) = known.lock().get(name).filter(fresh) {
                    return Ok((it.id, it.default_acks));
                }
                let mut view = View::default();
                view.apply(client.metadata(vec![name.to_owned()]).await?);
                let topic = view.by_name(name).ok_or_else(|| unknown(&name))?;
                let (id, default_acks) = (topic.id, topic.config.default_acks);
                let found = Known {
                    id,
                    default_acks,
                    asked: Instant::now(),
                };
                known.lock().insert(name.to_owned(), found);
                Ok((id, default_acks))
            }
        }
    }
}

async fn run(
    mut upstream: Upstream,
    mut mailbox: mpsc::Receiver<Job>,
    clock: Clock,
    timeout: Duration,
) {
    let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    let mut waiting = BTreeMap::new();
    let mut next_ticket = 0;
    loop {
        tokio::select! {
            biased;
            () = upstream.next() => {
                let settled = upstream.take_settled();
                settled.into_iter().for_each(|it| answer(&mut waiting, it));
            }
            job = mailbox.recv() => {
                let Some(job) = job else { return };
                let deadline_ms = clock.now_ms().saturating_add(timeout_ms);
                take(&mut upstream, &mut waiting, next_ticket, job, deadline_ms);
                next_ticket += 1;
            }
        }
    }
}

type Waiting = BTreeMap<
    u64,
    (
        PartitionIndex,
        oneshot::Sender<Outcome>,
        OwnedSemaphorePermit,
    ),
>;

fn take(upstream: &mut Upstream, waiting: &mut Waiting, ticket: u64, job: Job, deadline_ms: u64) {
    let numbering = match job.header.producer_id.0 {
        id if id >= 0 => Numbering::Client(id),
        _ => Numbering::Plain,
    };
    let records = u32::try_from(job.header.record_count).unwrap_or(0);
    let batch = Batch {
        ticket,
        bytes: job.bytes,
        records,
        numbering,
        deadline_ms,
    };
    waiting.insert(ticket, (job.partition.partition, job.reply, job.permit));
    upstream.offer(job.partition, job.acks, batch);
}

fn answer(waiting: &mut Waiting, settled: Settled) {
    if let Some((partition, reply, permit)) = waiting.remove(&settled.ticket) {
        drop(permit);
        // Whoever dropped the receipt does not want to know.
        drop(reply.send(Outcome::of(partition, settled.outcome)));
    }
}
