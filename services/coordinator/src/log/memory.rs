//! A log in memory, for tests: fences and idempotent producers as a leader keeps
//! them, and faults on demand.

use super::{Place, ShardLog, Sink};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};
use talweg_batch::{BatchHeader, stamp_prefix};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_types::{LeaderEpoch, Offset, ProducerId, ShardEpoch, TopicPartition};

/// What happens to the next append.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Refused; nothing is done.
    NotDone(ErrorCode),
    /// Done, and the answer is lost.
    AnswerLost,
    /// Not done, and the caller cannot know.
    SendLost,
}

/// Any number of partitions. Clones share them.
#[derive(Clone, Default)]
pub struct MemoryLog {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    partitions: Mutex<BTreeMap<TopicPartition, Partition>>,
    faults: Mutex<VecDeque<Fault>>,
    producers: AtomicI64,
    /// Where reads began.
    reads: Mutex<Vec<Offset>>,
}

#[derive(Default)]
struct Partition {
    batches: Vec<Entry>,
    end: i64,
    leader_epoch: i32,
    fence: i32,
    /// By producer: (base sequence, last offset) of the newest batch.
    producers: BTreeMap<i64, (i32, i64)>,
}

struct Entry {
    base: Offset,
    leader_epoch: LeaderEpoch,
    /// None is a fence, which takes one offset.
    batch: Option<Bytes>,
}

impl Partition {
    fn push(&mut self, batch: Option<Bytes>, records: i64) -> Place {
        let leader_epoch = LeaderEpoch(self.leader_epoch);
        self.batches.push(Entry {
            base: Offset(self.end),
            leader_epoch,
            batch,
        });
        self.end += records;
        Place {
            last: Offset(self.end - 1),
            leader_epoch,
        }
    }

    /// The batch below `from` is of this leader epoch.
    fn continues(&self, from: Offset, last_epoch: LeaderEpoch) -> bool {
        let below = self.batches.iter().rev().find(|entry| entry.base < from);
        self.end >= from.0 && below.is_some_and(|entry| entry.leader_epoch == last_epoch)
    }
}

impl MemoryLog {
    /// The next appends meet these, in order.
    pub fn inject(&self, faults: impl IntoIterator<Item = Fault>) {
        self.shared.faults.lock().extend(faults);
    }

    /// Where reads began since the last [`Self::forget_reads`].
    pub fn reads(&self) -> Vec<Offset> {
        self.shared.reads.lock().clone()
    }

    pub fn forget_reads(&self) {
        self.shared.reads.lock().clear();
    }

    /// One past the last offset.
    pub fn end(&self, at: TopicPartition) -> Offset {
        let partitions = self.shared.partitions.lock();
        Offset(partitions.get(&at).map_or(0, |it| it.end))
    }

    /// An election that costs the newest entries: what comes next is of a new epoch.
    pub fn lose(&self, at: TopicPartition, entries: usize) {
        let mut partitions = self.shared.partitions.lock();
        let partition = partitions.entry(at).or_default();
        partition.leader_epoch += 1;
        for _ in 0..entries {
            if let Some(lost) = partition.batches.pop() {
                partition.end = lost.base.0;
            }
        }
        partition.producers.clear();
    }

    fn do_append(
        &self,
        at: TopicPartition,
        epoch: ShardEpoch,
        batch: &Bytes,
    ) -> Result<Place, Refusal> {
        let mut partitions = self.shared.partitions.lock();
        let partition = partitions.entry(at).or_default();
        if epoch.0 != partition.fence {
            return Err(fenced(epoch, partition.fence));
        }
        let header = BatchHeader::parse(batch)?;
        let (id, sequence) = (header.producer_id.0, header.base_sequence.0);
        if let Some((newest, last)) = partition.producers.get(&id)
            && *newest == sequence
        {
            return Ok(Place {
                last: Offset(*last),
                leader_epoch: LeaderEpoch(partition.leader_epoch),
            });
        }
        let (base, epoch) = (Offset(partition.end), LeaderEpoch(partition.leader_epoch));
        let mut bytes = stamp_prefix(&header, base, epoch).to_vec();
        bytes.extend_from_slice(batch.get(bytes.len()..).unwrap_or_default());
        let records = i64::from(header.last_offset_delta) + 1;
        let place = partition.push(Some(bytes.into()), records);
        partition.producers.insert(id, (sequence, place.last.0));
        Ok(place)
    }
}

fn fenced(epoch: ShardEpoch, fence: i32) -> Refusal {
    let message = format!("shard epoch {} beside a fence of {fence}", epoch.0);
    Refusal::new(ErrorCode::ShardFenced, message)
}

#[async_trait]
impl ShardLog for MemoryLog {
    async fn producer_id(&self) -> Result<ProducerId, Refusal> {
        Ok(ProducerId(
            self.shared.producers.fetch_add(1, Ordering::Relaxed),
        ))
    }

    async fn fence(&self, at: TopicPartition, epoch: ShardEpoch) -> Result<Place, Refusal> {
        let mut partitions = self.shared.partitions.lock();
        let partition = partitions.entry(at).or_default();
        if epoch.0 < partition.fence {
            return Err(fenced(epoch, partition.fence));
        }
        partition.fence = epoch.0;
        Ok(partition.push(None, 1))
    }

    async fn append(
        &self,
        at: TopicPartition,
        epoch: ShardEpoch,
        batch: Bytes,
    ) -> Result<Place, Refusal> {
        let fault = self.shared.faults.lock().pop_front();
        match fault {
            None => self.do_append(at, epoch, &batch),
            Some(Fault::NotDone(code)) => Err(Refusal::new(code, "injected")),
            Some(Fault::SendLost) => Err(Refusal::new(ErrorCode::TimedOut, "injected")),
            Some(Fault::AnswerLost) => {
                self.do_append(at, epoch, &batch)?;
                Err(Refusal::new(ErrorCode::TimedOut, "injected"))
            }
        }
    }

    async fn read(
        &self,
        at: TopicPartition,
        from: Offset,
        last_epoch: Option<LeaderEpoch>,
        until: Offset,
        sink: &mut Sink<'_>,
    ) -> Result<(), Refusal> {
        self.shared.reads.lock().push(from);
        let batches = {
            let partitions = self.shared.partitions.lock();
            let Some(partition) = partitions.get(&at) else {
                return Ok(());
            };
            if last_epoch.is_some_and(|epoch| !partition.continues(from, epoch)) {
                return Err(Refusal::new(ErrorCode::LogTruncated, "another history"));
            }
            let entries = partition.batches.iter();
            let below = entries.filter(|entry| entry.base < until);
            Vec::from_iter(below.filter_map(|entry| entry.batch.clone()))
        };
        for batch in batches {
            if BatchHeader::parse(&batch)?.next_offset() > from {
                sink(batch)?;
            }
        }
        Ok(())
    }
}
