//! `bench fetch`: how fast records are read. Bytes are payload as it travels.

use super::{cpu::CpuMeter, pace::share, report::Report, sender::via, topic::Partitions};
use crate::{
    args::{BenchForm, FetchBench, Globals, Load, Start},
    connect,
    failure::Failure,
};
use serde_json::json;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use talweg_client::{
    Fetcher, FetcherConfig,
    fetch::{FetchData, FetchEvent},
};
use talweg_kit::errors::Refusal;
use talweg_proto::v1;
use talweg_types::TopicPartition;
use tokio::task::JoinSet;

/// Runs the measurement.
pub async fn run(globals: &Globals, args: &FetchBench) -> Result<Report, Failure> {
    let load = &args.load;
    load.check().map_err(Failure::Usage)?;
    let partitions =
        Partitions::find(&connect::client(globals)?, &load.topic, &load.partition).await?;
    let mut readers = Vec::new();
    for index in 0..load.streams {
        let starts = partitions.starts(args.from.into());
        let fetcher =
            Fetcher::open(&connect::client(globals)?, fetcher_config(load), starts).await?;
        readers.push(Reader::new(
            fetcher,
            args,
            partitions.indexes().len(),
            u64::from(index),
        ));
    }
    let meter = CpuMeter::start(&load.server_pid);
    let begun = Instant::now();
    let mut streams = JoinSet::new();
    for reader in readers {
        streams.spawn(reader.run(begun));
    }
    let (mut records, mut bytes) = (0, 0);
    for totals in streams.join_all().await {
        let totals = totals?;
        records += totals.0;
        bytes += totals.1;
    }
    let more = vec![
        ("streams", json!(load.streams)),
        ("direct", json!(load.direct)),
    ];
    let (elapsed, cpu) = (begun.elapsed(), Some(meter.stop()));
    Ok(Report {
        name: "fetch",
        records: Some(records),
        bytes,
        elapsed,
        latencies: vec![],
        cpu,
        more,
    })
}

/// In the form and by the way that the options say.
pub fn fetcher_config(load: &Load) -> FetcherConfig {
    let form = match load.form {
        BenchForm::Thin => v1::Form::Records,
        BenchForm::Batch => v1::Form::Batches,
    };
    FetcherConfig {
        via: via(load),
        form,
        ..FetcherConfig::default()
    }
}

/// One stream over all partitions.
struct Reader {
    fetcher: Fetcher,
    /// Stop here.
    limit: u64,
    duration: Option<Duration>,
    /// Records per second.
    rate: Option<f64>,
    /// Ends of the partitions that are not at theirs; `None`: tail for ever.
    ends: Option<Ends>,
    records: u64,
    bytes: u64,
}

/// Where each partition ends, as of the beginning.
struct Ends {
    partitions: usize,
    ends: BTreeMap<TopicPartition, i64>,
    reached: usize,
}

impl Reader {
    fn new(fetcher: Fetcher, args: &FetchBench, partitions: usize, index: u64) -> Self {
        let load = &args.load;
        let streams = u64::from(load.streams);
        let limit = load
            .records
            .map_or(u64::MAX, |records| share(records, streams, index));
        let tails = args.from == Start::Latest;
        Self {
            fetcher,
            limit,
            duration: load.duration,
            rate: load.rate.map(|rate| rate as f64 / streams as f64),
            ends: (!tails).then(|| Ends {
                partitions,
                ends: BTreeMap::new(),
                reached: 0,
            }),
            records: 0,
            bytes: 0,
        }
    }

    /// Records and bytes.
    async fn run(mut self, begun: Instant) -> Result<(u64, u64), Refusal> {
        let duration = self.duration;
        let over = async move {
            match duration {
                Some(duration) => tokio::time::sleep_until((begun + duration).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(over);
        while self.records < self.limit && !self.ends.as_ref().is_some_and(Ends::all_reached) {
            let event = tokio::select! {
                biased;
                () = &mut over => break,
                event = self.fetcher.next() => event,
            };
            match event {
                FetchEvent::Started(position) | FetchEvent::Position(position) => {
                    self.on_position(&position)
                }
                FetchEvent::Data(data) => self.on_data(&data, begun).await,
                FetchEvent::Stopped { refusal, .. } => return Err(refusal),
            }
        }
        Ok((self.records, self.bytes))
    }

    async fn on_data(&mut self, data: &FetchData, begun: Instant) {
        self.records += data.records.unsigned_abs();
        self.bytes += data.payload_bytes.unsigned_abs();
        self.on_position(&data.position);
        if let Some(rate) = self.rate {
            let due = begun + Duration::from_secs_f64(self.records as f64 / rate);
            tokio::time::sleep_until(due.into()).await;
        }
    }

    fn on_position(&mut self, position: &v1::PartitionPosition) {
        if let Some(ends) = &mut self.ends {
            ends.on_position(position);
        }
    }
}

impl Ends {
    fn on_position(&mut self, position: &v1::PartitionPosition) {
        let Some(topic_id) = talweg_types::TopicId::from_slice(&position.topic_id) else {
            return;
        };
        let partition = TopicPartition {
            topic_id,
            partition: talweg_types::PartitionIndex(position.partition),
        };
        let end = self
            .ends
            .entry(partition)
            .or_insert(position.high_watermark);
        if position.next_offset >= *end && *end != i64::MAX {
            // Reached once.
            *end = i64::MAX;
            self.reached += 1;
        }
    }

    fn all_reached(&self) -> bool {
        self.reached == self.partitions
    }
}
