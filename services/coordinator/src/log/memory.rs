//! A log in memory, for tests: fences and idempotent producers as a leader keeps
//! them, and faults on demand.

use super::{ShardLog, Sink};
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
    /// None is a fence, which takes one offset.
    batches: Vec<(Offset, Option<Bytes>)>,
    end: i64,
    fence: i32,
    /// By producer: (base sequence, last offset) of the newest batch.
    producers: BTreeMap<i64, (i32, i64)>,
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

    fn do_append(
        &self,
        at: TopicPartition,
        epoch: ShardEpoch,
        batch: &Bytes,
    ) -> Result<Offset, Refusal> {
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
            return Ok(Offset(*last));
        }
        let base = Offset(partition.end);
        let mut bytes = stamp_prefix(&header, base, LeaderEpoch(0)).to_vec();
        bytes.extend_from_slice(batch.get(bytes.len()..).unwrap_or_default());
        let last = base.plus(header.last_offset_delta.into());
        partition.batches.push((base, Some(bytes.into())));
        partition.end = last.0 + 1;
        partition.producers.insert(id, (sequence, last.0));
        Ok(last)
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

    async fn fence(&self, at: TopicPartition, epoch: ShardEpoch) -> Result<Offset, Refusal> {
        let mut partitions = self.shared.partitions.lock();
        let partition = partitions.entry(at).or_default();
        if epoch.0 < partition.fence {
            return Err(fenced(epoch, partition.fence));
        }
        partition.fence = epoch.0;
        let base = Offset(partition.end);
        partition.batches.push((base, None));
        partition.end += 1;
        Ok(base)
    }

    async fn append(
        &self,
        at: TopicPartition,
        epoch: ShardEpoch,
        batch: Bytes,
    ) -> Result<Offset, Refusal> {
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
        until: Offset,
        sink: &mut Sink<'_>,
    ) -> Result<(), Refusal> {
        self.shared.reads.lock().push(from);
        let batches = {
            let partitions = self.shared.partitions.lock();
            let partition = partitions.get(&at).map(|it| it.batches.clone());
            partition.unwrap_or_default()
        };
        for (base, batch) in batches {
            let Some(batch) = batch.filter(|_| base < until) else {
                continue;
            };
            if BatchHeader::parse(&batch)?.next_offset() > from {
                sink(batch)?;
            }
        }
        Ok(())
    }
}
