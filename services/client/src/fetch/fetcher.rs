//! The reader for applications: credit is granted again as events are taken.

use super::core::FetchCoreConfig;
use super::event::{Data, FetchData, FetchEvent, Interest, StartAt};
use super::upstream::FetchUpstream;
use crate::{
    client::Client,
    delivery::Routes,
    produce::{GatewayRoutes, Via},
    view::{View, no_partition, unknown},
    watch::MetadataWatch,
};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};
use talweg_batch::{BatchError, BatchHeader, decode_records, split_batches};
use talweg_kit::errors::Refusal;
use talweg_proto::v1;
use talweg_types::{LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicPartition};

/// Settings of a [`Fetcher`].
#[derive(Clone, Debug)]
pub struct FetcherConfig {
    /// Which way: leaders serve the batch form only.
    pub via: Via,
    pub form: v1::Form,
    pub isolation: v1::Isolation,
    /// Payload on its way here or not yet taken.
    pub credit_bytes: i64,
    /// How long a partition may be without a leader before it is stopped.
    pub patience: Duration,
    /// The reader's rack: it is served by in-sync replicas there; empty: by leaders.
    pub rack: String,
}

impl Default for FetcherConfig {
    fn default() -> Self {
        Self {
            via: Via::Gateway,
            form: v1::Form::Batches,
            isolation: v1::Isolation::ReadUncommitted,
            credit_bytes: 16 * 1024 * 1024,
            patience: Duration::from_secs(30),
            rack: String::new(),
        }
    }
}

/// A partition by name, and where to begin.
#[derive(Clone, Debug)]
pub struct FetchStart {
    pub topic: String,
    pub partition: u32,
    pub start: StartAt,
}

/// A record with its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FetchedRecord {
    pub partition: TopicPartition,
    pub offset: Offset,
    pub timestamp: TimestampMs,
    pub key: Option<Bytes>,
    pub value: Option<Bytes>,
    /// Names are UTF-8.
    pub headers: Vec<(Bytes, Option<Bytes>)>,
    pub leader_epoch: LeaderEpoch,
}

/// Reads any number of partitions.
pub struct Fetcher {
    client: Client,
    upstream: FetchUpstream,
    credit_bytes: i64,
    events: VecDeque<FetchEvent>,
    /// Payload in `events`.
    held_bytes: i64,
    positions: BTreeMap<TopicPartition, v1::PartitionPosition>,
    /// Keeps the view of the leaders alive.
    _watch: Option<MetadataWatch>,
}

impl Fetcher {
    /// Opens a reader. Refused: the thin form straight from leaders, a topic or
    /// partition that does not exist.
    pub async fn open(
        client: &Client,
        config: FetcherConfig,
        starts: Vec<FetchStart>,
    ) -> Result<Self, Refusal> {
        let (watch, routes): (_, Arc<dyn Routes>) = match config.via {
            Via::Gateway => (None, Arc::new(GatewayRoutes::new(client.clone()))),
            Via::Leaders if config.form != v1::Form::Batches => {
                return Err(Refusal::not_built(
                    "storage nodes serve the batch form only",
                ));
            }
            Via::Leaders => {
                let watch = client.watch_metadata().await?;
                let view = watch.view().clone();
                (Some(watch), Arc::new(view))
            }
        };
        let core = FetchCoreConfig {
            client_id: client.config().client_id.clone(),
            form: config.form,
            isolation: config.isolation,
            rack: config.rack,
            patience_ms: u64::try_from(config.patience.as_millis()).unwrap_or(u64::MAX),
            leaders_may_lag: routes.to_leaders(),
        };
        let mut fetcher = Self {
            client: client.clone(),
            upstream: FetchUpstream::new(routes, client.pool().clone(), core),
            credit_bytes: config.credit_bytes,
            events: VecDeque::new(),
            held_bytes: 0,
            positions: BTreeMap::new(),
            _watch: watch,
        };
        fetcher.add(starts).await?;
        Ok(fetcher)
    }

    /// Begins to read more partitions.
    pub async fn add(&mut self, starts: Vec<FetchStart>) -> Result<(), Refusal> {
        let mut names: Vec<String> = starts.iter().map(|start| start.topic.clone()).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return Ok(());
        }
        let mut view = View::default();
        view.apply(self.client.metadata(names).await?);
        for start in starts {
            self.upstream.add(interest(&view, &start)?);
        }
        Ok(())
    }

    /// Moves a partition; events from before it are dropped.
    pub fn seek(&mut self, partition: TopicPartition, start: StartAt) {
        self.forget_events(partition);
        self.upstream.seek(partition, start, None);
    }

    /// Stops reading a partition.
    pub fn remove(&mut self, partition: TopicPartition) {
        self.forget_events(partition);
        self.positions.remove(&partition);
        self.upstream.remove(partition);
    }

    fn forget_events(&mut self, partition: TopicPartition) {
        let held = &mut self.held_bytes;
        self.events.retain(|event| match event {
            FetchEvent::Data(data) if data.partition == partition => {
                *held -= data.payload_bytes;
                false
            }
            FetchEvent::Started(at) | FetchEvent::Position(at) => key_of(at) != Some(partition),
            FetchEvent::Data(_) | FetchEvent::Stopped { .. } => true,
        });
    }

    /// The next event; asking for it grants the credit of the one before.
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> FetchEvent {
        loop {
            if let Some(event) = self.events.pop_front() {
                self.note(&event);
                return event;
            }
            self.upstream
                .set_target(self.credit_bytes - self.held_bytes);
            for event in self.upstream.next().await {
                if let FetchEvent::Data(data) = &event {
                    self.held_bytes += data.payload_bytes;
                }
                self.events.push_back(event);
            }
        }
    }

    fn note(&mut self, event: &FetchEvent) {
        match event {
            FetchEvent::Data(data) => {
                self.held_bytes -= data.payload_bytes;
                self.positions.insert(data.partition, data.position.clone());
            }
            FetchEvent::Started(at) | FetchEvent::Position(at) => {
                if let Some(key) = key_of(at) {
                    self.positions.insert(key, at.clone());
                }
            }
            FetchEvent::Stopped { partition, .. } => drop(self.positions.remove(partition)),
        }
    }

    /// Where the reader stands, as of the events taken so far.
    pub fn position(&self, partition: TopicPartition) -> Option<&v1::PartitionPosition> {
        self.positions.get(&partition)
    }

    /// All positions known.
    pub fn positions(&self) -> &BTreeMap<TopicPartition, v1::PartitionPosition> {
        &self.positions
    }
}

fn key_of(position: &v1::PartitionPosition) -> Option<TopicPartition> {
    let topic_id = talweg_types::TopicId::from_slice(&position.topic_id)?;
    Some(TopicPartition {
        topic_id,
        partition: PartitionIndex(position.partition),
    })
}

fn interest(view: &View, start: &FetchStart) -> Result<Interest, Refusal> {
    let topic = view
        .by_name(&start.topic)
        .ok_or_else(|| unknown(&start.topic))?;
    if start.partition as usize >= topic.partitions.len() {
        return Err(no_partition(topic, start.partition));
    }
    Ok(Interest {
        partition: TopicPartition {
            topic_id: topic.id,
            partition: PartitionIndex(start.partition),
        },
        topic: start.topic.as_str().into(),
        start: start.start,
        leader_epoch: None,
        last_epoch: None,
        largest_batch: topic.config.max_message_bytes,
    })
}

/// The records of a frame in either form: those below the offset that was due
/// and control batches are left out.
pub fn decode_frame(
    frame: &FetchData,
    max_unpacked: usize,
) -> Result<Vec<FetchedRecord>, BatchError> {
    let mut records = Vec::new();
    match &frame.data {
        Data::Batches {
            first_offset,
            bytes,
        } => {
            for batch in split_batches(bytes.clone()) {
                decode_batch(
                    frame.partition,
                    *first_offset,
                    &batch?,
                    max_unpacked,
                    &mut records,
                )?;
            }
        }
        Data::Records(thin) => records.extend(thin.iter().map(|it| from_thin(frame.partition, it))),
    }
    Ok(records)
}

fn decode_batch(
    partition: TopicPartition,
    first_offset: i64,
    batch: &Bytes,
    max_unpacked: usize,
    records: &mut Vec<FetchedRecord>,
) -> Result<(), BatchError> {
    let header = BatchHeader::parse(batch)?;
    if header.is_control() || header.next_offset().0 <= first_offset {
        return Ok(());
    }
    for record in decode_records(batch, max_unpacked)? {
        let offset = header.base_offset.plus(record.offset_delta.into());
        if offset.0 >= first_offset {
            records.push(FetchedRecord {
                partition,
                offset,
                timestamp: record.timestamp,
                key: record.key,
                value: record.value,
                headers: record.headers,
                leader_epoch: header.leader_epoch,
            });
        }
    }
    Ok(())
}

fn from_thin(partition: TopicPartition, record: &v1::FetchedRecord) -> FetchedRecord {
    let header = |it: &v1::Header| (Bytes::from(it.name.clone()), it.value.clone());
    FetchedRecord {
        partition,
        offset: Offset(record.offset),
        timestamp: TimestampMs(record.timestamp_ms),
        key: record.key.clone(),
        value: record.value.clone(),
        headers: record.headers.iter().map(header).collect(),
        leader_epoch: LeaderEpoch(record.leader_epoch),
    }
}
