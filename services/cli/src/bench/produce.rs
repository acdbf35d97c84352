//! `bench produce`: how fast records are taken and acknowledged.
//!
//! Each stream has a client of its own, hence connections of its own, and a
//! task that makes batches or groups of records; another one collects outcomes.
//! Latency is from the moment at which a group was due (at a rate) or begun
//! (without) to its acknowledgement, counted once for each group.

use super::{
    cpu::CpuMeter,
    pace::{Pace, share},
    payload::Payloads,
    report::{Latencies, Report},
    sender::{Answer, Sender},
    topic::Partitions,
};
use crate::{
    args::{BenchForm, Globals, Load, ProduceBench},
    connect,
    failure::Failure,
};
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use serde_json::json;
use std::time::{Duration, Instant};
use talweg_client::Client;
use talweg_kit::errors::Refusal;
use tokio::{sync::mpsc, task::JoinSet};

/// Records that leave together in the thin form.
const THIN_GROUP_BYTES: u64 = 64 * 1024;
/// Groups whose outcome is not known; credit bounds them further.
const UNANSWERED_MAX: usize = 1_024;
/// What a record takes in a batch beside its value, at most.
const RECORD_OVERHEAD_BYTES: u32 = 24;

/// Runs the measurement.
pub async fn run(globals: &Globals, args: &ProduceBench) -> Result<Report, Failure> {
    let load = &args.load;
    load.check().map_err(Failure::Usage)?;
    let client = connect::client(globals)?;
    let partitions = Partitions::find(&client, &load.topic, &load.partition).await?;
    let mut workers = Vec::new();
    for index in 0..load.streams {
        workers.push(
            Worker::open(
                connect::client(globals)?,
                load,
                &partitions,
                u64::from(index),
            )
            .await?,
        );
    }
    let meter = CpuMeter::start(&load.server_pid);
    let begun = Instant::now();
    let mut streams = JoinSet::new();
    for worker in workers {
        let pace = pace(load, begun, worker.index, group_max(args));
        streams.spawn(worker.run(pace));
    }
    let mut total = Totals::default();
    for totals in streams.join_all().await {
        total.merge(totals?);
    }
    if let Some(refusal) = total.first_refusal {
        return Err(refusal.into());
    }
    let acknowledged = begun.elapsed();
    if args.until_flushed {
        partitions.until_flushed(&client).await?;
    }
    Ok(Report {
        name: "produce",
        records: Some(total.records),
        bytes: total.bytes,
        elapsed: begun.elapsed(),
        latencies: vec![("group_ms", total.latencies)],
        cpu: Some(meter.stop()),
        more: vec![
            ("streams", json!(load.streams)),
            ("acks", json!(load.acks.as_str())),
            ("direct", json!(load.direct)),
            ("acknowledged_ms", json!(acknowledged.as_millis() as u64)),
        ],
    })
}

/// Records of a full group.
fn group_max(args: &ProduceBench) -> u64 {
    let record = u64::from(args.load.record_size + RECORD_OVERHEAD_BYTES);
    let group_bytes = match args.load.form {
        BenchForm::Batch => u64::from(args.batch_bytes),
        BenchForm::Thin => THIN_GROUP_BYTES,
    };
    (group_bytes / record).max(1)
}

/// The schedule of one of the load's streams.
fn pace(load: &Load, begun: Instant, index: u64, group_max: u64) -> Pace {
    let streams = u64::from(load.streams);
    let rate = load.rate.map(|rate| rate as f64 / streams as f64);
    Pace::new(
        begun,
        rate,
        share(load.record_limit(), streams, index),
        group_max,
        load.duration,
    )
}

/// What one stream did.
#[derive(Default)]
struct Totals {
    records: u64,
    bytes: u64,
    latencies: Latencies,
    first_refusal: Option<Refusal>,
}

impl Totals {
    fn merge(&mut self, other: Self) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.latencies.merge(&other.latencies);
        self.first_refusal = self.first_refusal.take().or(other.first_refusal);
    }

    fn count(&mut self, answered: Answered) {
        match answered.refusal {
            None => {
                self.records += answered.records;
                self.bytes += answered.bytes;
                self.latencies.record(answered.time);
            }
            Some(refusal) => self.first_refusal = self.first_refusal.take().or(Some(refusal)),
        }
    }
}

/// A group with its outcome.
struct Answered {
    records: u64,
    bytes: u64,
    time: Duration,
    refusal: Option<Refusal>,
}

/// One stream.
struct Worker {
    index: u64,
    topic: String,
    record_size: u32,
    payloads: Payloads,
    partitions: Vec<u32>,
    next_partition: usize,
    sender: Sender,
}

impl Worker {
    async fn open(
        client: Client,
        load: &Load,
        partitions: &Partitions,
        index: u64,
    ) -> Result<Self, Failure> {
        let partitions = partitions.indexes();
        Ok(Self {
            index,
            topic: load.topic.clone(),
            record_size: load.record_size,
            payloads: Payloads::new(load.seed + index, load.record_size as usize),
            // Streams begin at different partitions, so that they do not march in step.
            next_partition: index as usize * partitions.len() / load.streams as usize,
            partitions,
            sender: Sender::open(&client, load).await?,
        })
    }

    async fn run(mut self, mut pace: Pace) -> Result<Totals, Failure> {
        let (answers, collected) = mpsc::channel(UNANSWERED_MAX);
        let collecting = tokio::spawn(collect(collected));
        let mut sent = Ok(());
        while let Some(due) = pace.next_group(Instant::now()) {
            // A sleep until now or the past still takes up to the timer's millisecond.
            if due.at > Instant::now() {
                tokio::time::sleep_until(due.at.into()).await;
            }
            match self.send(due.records).await {
                // The collector takes everything until we are done.
                Ok(answer) => drop(
                    answers
                        .send(self.answered(answer, due.at, due.records))
                        .await,
                ),
                Err(refusal) => {
                    sent = Err(refusal);
                    break;
                }
            }
        }
        drop(answers);
        let totals = collecting
            .await
            .map_err(|error| Refusal::internal(error.to_string()))?;
        // A refused group comes first: it says more than the end of the stream that it caused.
        if totals.first_refusal.is_none() {
            sent?;
        }
        Ok(totals)
    }

    async fn send(&mut self, records: u64) -> Result<Answer, Refusal> {
        let partition = self.partitions[self.next_partition % self.partitions.len()];
        self.next_partition += 1;
        let values = (0..records).map(|_| self.payloads.next_value());
        self.sender.send(&self.topic, partition, values).await
    }

    fn answered(&self, answer: Answer, due: Instant, records: u64) -> BoxFuture<'static, Answered> {
        let bytes = records * u64::from(self.record_size);
        answer
            .map(move |refusal| Answered {
                records,
                bytes,
                time: due.elapsed(),
                refusal,
            })
            .boxed()
    }
}

async fn collect(mut answers: mpsc::Receiver<BoxFuture<'static, Answered>>) -> Totals {
    let mut totals = Totals::default();
    let mut pending = FuturesUnordered::new();
    let mut open = true;
    while open || !pending.is_empty() {
        tokio::select! {
            biased;
            Some(answered) = pending.next() => totals.count(answered),
            answer = answers.recv(), if open && pending.len() < UNANSWERED_MAX => match answer {
                Some(answer) => pending.push(answer),
                None => open = false,
            },
        }
    }
    totals
}
