//! A producer that numbers its own batches: exactly once, over broken streams
//! and restarted servers, as long as this value lives.

use super::{BatchProducer, Delivery, ProducerConfig};
use crate::client::Client;
use std::collections::BTreeMap;
use talweg_batch::{BatchBuilder, Record};
use talweg_kit::errors::Refusal;
use talweg_types::{Compression, ProducerEpoch, ProducerId, Sequence};

/// Stamps id, epoch and sequence into the batches it builds. The same bytes
/// are sent again after a broken stream, until the leader has answered.
pub struct NumberedProducer {
    producer: BatchProducer,
    id: ProducerId,
    epoch: ProducerEpoch,
    next: BTreeMap<(String, u32), Sequence>,
    codec: Compression,
}

impl NumberedProducer {
    /// Gets a new identity.
    pub async fn open(client: &Client, config: ProducerConfig) -> Result<Self, Refusal> {
        let codec = config.compression.unwrap_or(Compression::None);
        let identity = client.init_producer(None).await?;
        let epoch = i16::try_from(identity.producer_epoch)
            .map_err(|_| Refusal::internal("the producer epoch is not a 16-bit number"))?;
        Ok(Self {
            producer: BatchProducer::open(client, config).await?,
            id: ProducerId(identity.producer_id),
            epoch: ProducerEpoch(epoch),
            next: BTreeMap::new(),
            codec,
        })
    }

    /// Its id and epoch.
    pub fn identity(&self) -> (ProducerId, ProducerEpoch) {
        (self.id, self.epoch)
    }

    /// The sequence that the next record for this partition gets.
    pub fn next_sequence(&self, topic: &str, partition: u32) -> Sequence {
        self.next
            .get(&(topic.to_owned(), partition))
            .copied()
            .unwrap_or(Sequence(0))
    }

    /// Sends the records as one batch. The outcome's offset is the first one's.
    pub async fn send(
        &mut self,
        topic: &str,
        partition: u32,
        records: &[Record],
    ) -> Result<Delivery, Refusal> {
        let sequence = self.next_sequence(topic, partition);
        let mut builder =
            BatchBuilder::new(self.codec).with_producer(self.id, self.epoch, sequence);
        for record in records {
            builder.push_record(record)?;
        }
        let batch = builder.build()?;
        let delivery = self.producer.send(topic, partition, batch).await?;
        let count = i32::try_from(records.len()).unwrap_or(i32::MAX);
        self.next
            .insert((topic.to_owned(), partition), sequence.plus(count));
        Ok(delivery)
    }

    /// Waits until nothing is unanswered.
    pub async fn flush(&self) {
        self.producer.flush().await;
    }
}
