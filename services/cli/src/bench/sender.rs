//! Groups of records on their way, in either form, through a gateway or
//! straight to the leaders.

use super::topic::now;
use crate::{
    args::{BenchForm, Load},
    failure::Failure,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use std::iter;
use talweg_batch::BatchBuilder;
use talweg_client::{BatchProducer, Client, Outcome, ProducerConfig, RecordProducer, Via};
use talweg_kit::errors::Refusal;
use talweg_proto::v1;

/// Resolves when the group is answered: why it was refused, or nothing.
pub type Answer = BoxFuture<'static, Option<Refusal>>;

/// One producer.
pub enum Sender {
    /// Each record a message.
    Thin(RecordProducer),
    /// A group is a batch.
    Batch(BatchProducer, Box<BatchBuilder>),
}

impl Sender {
    /// As the options say.
    pub async fn open(client: &Client, load: &Load) -> Result<Self, Failure> {
        let config = ProducerConfig {
            acks: Some(load.acks),
            compression: Some(load.compression),
            via: via(load),
            ..ProducerConfig::default()
        };
        Ok(match load.form {
            BenchForm::Thin => Self::Thin(RecordProducer::open(client, config)),
            BenchForm::Batch => {
                let builder = Box::new(BatchBuilder::new(load.compression));
                Self::Batch(BatchProducer::open(client, config).await?, builder)
            }
        })
    }

    /// Hands over one group of records without keys; waits for room, not for the answer.
    pub async fn send(
        &mut self,
        topic: &str,
        partition: u32,
        values: impl Iterator<Item = Bytes>,
    ) -> Result<Answer, Refusal> {
        match self {
            Self::Thin(producer) => {
                let group = values.map(|value| thin(value, partition)).collect();
                let receipts = producer.send(topic, group).await?;
                Ok(Box::pin(async move {
                    receipts.await.into_iter().find_map(refusal)
                }))
            }
            Self::Batch(producer, builder) => {
                let now = now();
                for value in values {
                    builder.push(now, None, Some(&value), iter::empty())?;
                }
                let delivery = producer.send(topic, partition, builder.build()?).await?;
                Ok(Box::pin(async move { refusal(delivery.await) }))
            }
        }
    }
}

/// Which way the options say.
pub fn via(load: &Load) -> Via {
    if load.direct {
        Via::Leaders
    } else {
        Via::Gateway
    }
}

fn thin(value: Bytes, partition: u32) -> v1::Record {
    v1::Record {
        value: Some(value),
        partition: Some(partition),
        ..v1::Record::default()
    }
}

fn refusal(outcome: Outcome) -> Option<Refusal> {
    outcome.into_result().err()
}
