//! What a client stream reads from the leaders, up to the point where a frame
//! is due: shared by Fetch, where the client names the partitions, and
//! Subscribe, where the group does.
//!
//! One budget for all partitions: [`Reading::set_target`] lets no more come than
//! the client has credit for and is not held here.

use super::{
    outgoing::{self, Frame as DataFrame, Next, Outgoing, Payload},
    readers::{Reader, Readers},
    thin,
};
use crate::node::Node;
use bytes::Bytes;
use futures::future::BoxFuture;
use std::{sync::Arc, time::Duration};
use talweg_batch::{BatchError, BatchHeader};
use talweg_client::fetch::{FetchCoreConfig, FetchEvent, FetchUpstream, Interest};
use talweg_kit::{errors::Refusal, fetch_credit::FetchCredit};
use talweg_proto::v1::{self, FetchedRecord, Form, Isolation, PartitionPosition};
use talweg_types::{PartitionIndex, TopicId, TopicPartition, limits};
use tokio::time::Instant;

/// Positions in one frame; keeps it below the message limit.
const POSITIONS_A_FRAME: usize = 2_000;
/// A position that moved without data is told after this.
const POSITIONS_PAUSE: Duration = Duration::from_millis(100);
/// Larger batches, and compressed ones above the second, are unpacked on a worker.
const INLINE_BYTES: usize = 256 * 1024;
const INLINE_COMPRESSED_BYTES: usize = 8 * 1024;

/// A batch that is being unpacked on a worker.
struct Unpacking {
    partition: TopicPartition,
    due: i64,
    work: BoxFuture<'static, Result<Vec<FetchedRecord>, BatchError>>,
}

/// What leaders said about one partition, besides data.
#[derive(Debug)]
pub enum Heard {
    /// Reading begins here. To be told to the client: see [`Reading::told`].
    Started(TopicPartition, PartitionPosition),
    /// Nothing more comes; what came before still goes out.
    Stopped(TopicPartition, Refusal),
}

/// What is due to the client.
#[derive(Debug)]
pub enum Due {
    /// It fits the credit; [`Reading::send`] spends it.
    Frame(DataFrame),
    /// The partition ends here.
    Stopped(TopicPartition, Refusal),
}

/// A data frame in the client's terms.
#[derive(Debug)]
pub enum Sent {
    Records(v1::FetchedRecords),
    Batches(v1::FetchedBatches),
}

/// How a stream reads, for its whole life.
#[derive(Clone, Debug)]
pub struct ReadingConfig {
    pub client_id: String,
    pub thin: bool,
    pub isolation: Isolation,
    pub rack: String,
}

/// The partitions of one client stream.
pub struct Reading {
    node: Arc<Node>,
    thin: bool,
    pub credit: FetchCredit,
    pub readers: Readers,
    outgoing: Outgoing,
    unpacking: Option<Unpacking>,
    upstream: FetchUpstream,
    next_positions: Option<Instant>,
}

impl Reading {
    /// Without partitions.
    pub fn new(node: Arc<Node>, config: ReadingConfig, credit: FetchCredit) -> Self {
        let core = FetchCoreConfig {
            client_id: config.client_id,
            form: Form::Batches,
            isolation: config.isolation,
            rack: config.rack,
            patience_ms: node.config.leader_patience_ms,
            leaders_may_lag: true,
        };
        let upstream = FetchUpstream::new(Arc::new(node.view.clone()), node.pool.clone(), core);
        Self {
            node,
            thin: config.thin,
            credit,
            readers: Readers::default(),
            outgoing: Outgoing::default(),
            unpacking: None,
            upstream,
            next_positions: None,
        }
    }

    /// Begins to read, or to read from elsewhere.
    pub fn start(&mut self, reader: Reader, interest: Interest) {
        self.drop_held(interest.partition);
        self.readers.insert(interest.partition, reader);
        self.upstream.add(interest);
    }

    /// Drops everything about a partition.
    pub fn remove(&mut self, partition: TopicPartition) -> Option<Reader> {
        self.drop_held(partition);
        self.upstream.remove(partition);
        self.readers.remove(partition)
    }

    fn drop_held(&mut self, partition: TopicPartition) {
        self.outgoing.forget(partition);
        self.unpacking = self.unpacking.take().filter(|it| it.partition != partition);
    }

    /// The partition ends; `None` if it is not read.
    pub fn stop(
        &mut self,
        partition: TopicPartition,
        refusal: &Refusal,
    ) -> Option<v1::FetchPartitionError> {
        self.upstream.remove(partition);
        self.readers.stop(partition, refusal)
    }

    /// What may be on its way here: what the client has left and we do not hold;
    /// nothing while `open` is false.
    pub fn set_target(&mut self, open: bool) {
        let left = self.credit.left();
        let target = match !open || left.records <= 0 {
            true => 0,
            false => left.bytes - self.outgoing.bytes(),
        };
        self.upstream.set_target(target);
    }

    /// Nothing is held and nothing is read.
    pub fn is_empty(&self) -> bool {
        self.readers.is_empty() && self.outgoing.is_empty()
    }

    /// Something is held and waits for credit.
    pub fn is_stuck(&self) -> bool {
        !self.outgoing.is_empty() && self.unpacking.is_none()
    }

    /// What is due now, as far as credit goes.
    pub fn next_due(&mut self) -> Option<Due> {
        while self.unpacking.is_none() {
            match self.outgoing.next(&self.credit) {
                Next::Wait => return None,
                Next::Frame(frame) => return Some(Due::Frame(frame)),
                Next::Unpack {
                    partition,
                    batch,
                    due,
                } => self.unpack(partition, batch, due),
                Next::Passed {
                    partition,
                    position,
                } => self.on_passed(partition, &position),
                Next::Stopped { partition, refusal } => {
                    return Some(Due::Stopped(partition, refusal));
                }
            }
        }
        None
    }

    /// The frame goes out: spends the credit and moves the reader. `None`: the
    /// partition is not read any more.
    pub fn send(&mut self, frame: DataFrame) -> Option<Sent> {
        let reader = self.readers.get_mut(frame.partition)?;
        let position = reader.position_of(&frame.position, frame.next_offset);
        reader.position = Some(position.clone());
        reader.last_epoch = frame.last_epoch;
        reader.changed = false;
        self.credit.spend(frame.payload_bytes, frame.records as u64);
        let metrics = &self.node.metrics;
        metrics.bytes_out.inc_by(frame.payload_bytes as u64);
        let (position, credit_left) = (Some(position), Some(self.credit.left()));
        Some(match frame.payload {
            Payload::Batches {
                first_offset,
                bytes,
            } => Sent::Batches(v1::FetchedBatches {
                position,
                credit_left,
                first_offset,
                batches: outgoing::compact(bytes),
            }),
            Payload::Records(records) => Sent::Records(v1::FetchedRecords {
                position,
                credit_left,
                records,
            }),
        })
    }

    /// Works until leaders have said something. Dropping the future loses nothing.
    pub async fn wait(&mut self) -> Vec<Heard> {
        tokio::select! {
            biased;
            unpacked = wait_for(&mut self.unpacking) => {
                self.on_unpacked(unpacked);
                Vec::new()
            }
            events = self.upstream.next() => self.on_events(events),
        }
    }

    fn on_events(&mut self, events: Vec<FetchEvent>) -> Vec<Heard> {
        events
            .into_iter()
            .filter_map(|event| match event {
                FetchEvent::Started(leader) => self.on_position(&leader, true),
                FetchEvent::Position(leader) => self.on_position(&leader, false),
                FetchEvent::Data(data) => {
                    if let Some(reader) = self.readers.get_mut(data.partition) {
                        reader.held += 1;
                        self.outgoing.push(data, self.thin);
                    }
                    None
                }
                FetchEvent::Stopped { partition, refusal } => {
                    let holds = |reader: &Reader| reader.held > 0;
                    if self.readers.get(partition).is_some_and(holds) {
                        self.outgoing.push_stop(partition, refusal);
                        return None;
                    }
                    Some(Heard::Stopped(partition, refusal))
                }
            })
            .collect()
    }

    fn on_position(&mut self, leader: &PartitionPosition, started: bool) -> Option<Heard> {
        let partition = TopicPartition {
            topic_id: TopicId::from_slice(&leader.topic_id)?,
            partition: PartitionIndex(leader.partition),
        };
        let position = self.readers.on_position(partition, leader)?;
        if started {
            return Some(Heard::Started(partition, position));
        }
        self.tell_later(partition);
        None
    }

    /// The client has been told where the partition stands.
    pub fn told(&mut self, partition: TopicPartition) {
        if let Some(reader) = self.readers.get_mut(partition) {
            reader.changed = false;
        }
    }

    /// The client is told soon where the partition stands, if that changed.
    pub fn tell_later(&mut self, partition: TopicPartition) {
        if self.readers.get(partition).is_some_and(|it| it.changed) {
            self.next_positions
                .get_or_insert_with(|| Instant::now() + POSITIONS_PAUSE);
        }
    }

    /// When positions are to be told.
    pub fn positions_due(&self) -> Option<Instant> {
        self.next_positions
    }

    /// A frame's worth of positions; true: more follow.
    pub fn take_positions(&mut self) -> (v1::FetchPositions, bool) {
        self.next_positions = None;
        let positions = self.readers.take_changed(POSITIONS_A_FRAME);
        let more = positions.len() == POSITIONS_A_FRAME;
        let credit_left = Some(self.credit.left());
        let frame = v1::FetchPositions {
            positions,
            credit_left,
        };
        (frame, more)
    }

    fn on_passed(&mut self, partition: TopicPartition, leader: &PartitionPosition) {
        let Some(reader) = self.readers.get_mut(partition) else {
            return;
        };
        reader.held = reader.held.saturating_sub(1);
        let position = reader.position_of(leader, leader.next_offset);
        if reader.position.as_ref().map(|it| it.next_offset) != Some(position.next_offset) {
            reader.position = Some(position);
            reader.changed = true;
            self.tell_later(partition);
        }
    }

    fn unpack(&mut self, partition: TopicPartition, batch: Bytes, due: i64) {
        let max = self
            .readers
            .get(partition)
            .map_or(limits::UNPACKED_BATCH_BYTES_MAX as usize, |it| {
                it.max_unpacked
            });
        let compressed = BatchHeader::parse(&batch).is_ok_and(|header| header.attributes & 7 != 0);
        let slow =
            batch.len() > INLINE_BYTES || (compressed && batch.len() > INLINE_COMPRESSED_BYTES);
        if !slow {
            let records = thin::unpack(&batch, due, max);
            return self.on_unpacked((partition, due, records));
        }
        let work = Box::pin(async move {
            let work = tokio::task::spawn_blocking(move || thin::unpack(&batch, due, max)).await;
            // The worker panicked or the runtime stops: as good as damaged.
            work.unwrap_or(Err(BatchError::TooShort {
                needed: 1,
                actual: 0,
            }))
        });
        self.unpacking = Some(Unpacking {
            partition,
            due,
            work,
        });
    }

    fn on_unpacked(
        &mut self,
        unpacked: (TopicPartition, i64, Result<Vec<FetchedRecord>, BatchError>),
    ) {
        self.unpacking = None;
        let (partition, due, result) = unpacked;
        match result {
            Ok(records) => drop(self.outgoing.on_unpacked(partition, due, records)),
            Err(error) => {
                let next_offset = due;
                let position = PartitionPosition {
                    next_offset,
                    ..Default::default()
                };
                let refusal = outgoing::damaged(due, &position, &error.to_string());
                self.outgoing.forget(partition);
                self.outgoing.push_stop(partition, refusal);
            }
        }
    }
}

/// The batch that is being unpacked, if there is one; else never.
async fn wait_for(
    unpacking: &mut Option<Unpacking>,
) -> (TopicPartition, i64, Result<Vec<FetchedRecord>, BatchError>) {
    match unpacking {
        Some(it) => {
            let result = it.work.as_mut().await;
            (it.partition, it.due, result)
        }
        None => std::future::pending().await,
    }
}
