//! The numbers of one taking's appends: a producer id of its own, sequences from 0.

use bytes::Bytes;
use talweg_batch::{BatchBuilder, BatchError};
use talweg_coordinator_runtime::Encoded;
use talweg_types::{Compression, ProducerEpoch, ProducerId, Sequence, TimestampMs};

pub struct Producer {
    id: ProducerId,
    next: Sequence,
    /// Records of the batch that was made last; in the log or not.
    records: i32,
}

impl Producer {
    pub fn new(id: ProducerId) -> Self {
        Self {
            id,
            next: Sequence(0),
            records: 0,
        }
    }

    /// The next batch. One that is not appended gives its sequences to the next.
    pub fn batch(&mut self, records: &[Encoded]) -> Result<Bytes, BatchError> {
        let builder = BatchBuilder::new(Compression::None);
        let mut builder = builder.with_producer(self.id, ProducerEpoch(0), self.next);
        let now = TimestampMs(talweg_client::clock::Clock::wall_ms());
        for Encoded { key, value } in records {
            let headers = std::iter::empty::<talweg_batch::HeaderRef<'_>>();
            builder.push(now, Some(&key[..]), value.as_deref(), headers)?;
        }
        let batch = builder.build()?;
        self.records = i32::try_from(records.len()).unwrap_or(i32::MAX);
        Ok(batch)
    }

    /// The last batch is in the log.
    pub fn appended(&mut self) {
        self.next = self.next.plus(self.records);
        self.records = 0;
    }
}
