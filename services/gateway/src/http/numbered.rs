//! Producers that number their records over HTTP: `X-Producer-Id` (a text) and
//! `X-Sequence`. The text is never stored; its numeric id is derived from it, and each
//! record is a batch of its own.

use super::reply::Failure;
use axum::http::HeaderMap;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use talweg_batch::{BatchBuilder, murmur2, partition_for_key};
use talweg_client::{ErrorCode, Refusal, clock::Clock, view::TopicView};
use talweg_proto::v1;
use talweg_types::{
    Compression, PartitionIndex, ProducerEpoch, ProducerId, Sequence, TimestampMs, limits,
};

/// Who sends, and the number of the record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Numbered {
    pub name: String,
    pub sequence: Sequence,
}

impl Numbered {
    /// From both headers; `None` without them.
    pub fn from_headers(headers: &HeaderMap) -> Result<Option<Self>, Failure> {
        let text = |name: &'static str| {
            let value = headers.get(name).map(|v| v.to_str()).transpose();
            value.map_err(|_| Failure::invalid(name, "must be text"))
        };
        let (name, sequence) = match (text("x-producer-id")?, text("x-sequence")?) {
            (None, None) => return Ok(None),
            (Some(name), Some(sequence)) => (name, sequence),
            (Some(_), None) => {
                return Err(Failure::invalid(
                    "X-Sequence",
                    "goes with X-Producer-Id and is missing",
                ));
            }
            (None, Some(_)) => {
                return Err(Failure::invalid(
                    "X-Producer-Id",
                    "goes with X-Sequence and is missing",
                ));
            }
        };
        if name.is_empty() || name.len() > limits::PRODUCER_NAME_BYTES_MAX {
            let reason = format!(
                "has 1 to {} bytes, not {}",
                limits::PRODUCER_NAME_BYTES_MAX,
                name.len()
            );
            return Err(Failure::invalid("X-Producer-Id", reason));
        }
        let sequence = sequence.parse::<i32>().ok().filter(|n| *n >= 0);
        let sequence = sequence
            .ok_or_else(|| Failure::invalid("X-Sequence", "is a number from 0 to 2147483647"))?;
        Ok(Some(Self {
            name: name.into(),
            sequence: Sequence(sequence),
        }))
    }

    /// 2^62 + the first 61 bits of the text's SHA-256; blocks stay below 2^62.
    pub fn producer_id(&self) -> ProducerId {
        let digest = Sha256::digest(self.name.as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        let bits = i64::try_from(u64::from_be_bytes(first) >> 3).unwrap_or(0); // 61 bits always fit
        ProducerId(limits::DERIVED_PRODUCER_ID_BASE + bits)
    }

    /// Explicit, else by key, else by the producer's id, so that a repeat lands
    /// where the first try did. For one idempotency window after the topic grew,
    /// the earlier count decides the last case.
    pub fn partition(&self, record: &v1::Record, topic: &TopicView, now_ms: i64) -> PartitionIndex {
        if let Some(partition) = record.partition {
            return PartitionIndex(partition);
        }
        let now_count = u32::try_from(topic.partitions.len())
            .unwrap_or(u32::MAX)
            .max(1);
        if let Some(key) = &record.key {
            return partition_for_key(key, now_count);
        }
        let window = i64::try_from(topic.config.idempotency_window_ms).unwrap_or(i64::MAX);
        let earlier = topic
            .earlier_counts
            .iter()
            .find(|c| now_ms.saturating_sub(c.until_ms) < window);
        let count = earlier.map_or(now_count, |c| c.partitions.clamp(1, now_count));
        PartitionIndex((murmur2(&self.producer_id().0.to_be_bytes()) & 0x7fff_ffff) % count)
    }

    /// The record as a batch of one.
    pub fn batch(&self, record: &v1::Record) -> Result<Bytes, Refusal> {
        let timestamp = TimestampMs(record.timestamp_ms.unwrap_or_else(Clock::wall_ms));
        let headers = record
            .headers
            .iter()
            .map(|h| (h.name.as_bytes(), h.value.as_deref()));
        let mut builder = BatchBuilder::new(Compression::None).with_producer(
            self.producer_id(),
            ProducerEpoch(0),
            self.sequence,
        );
        builder.push(
            timestamp,
            record.key.as_deref(),
            record.value.as_deref(),
            headers,
        )?;
        Ok(builder.build()?)
    }

    /// A sequence that the leader does not know what to do with is a gap, also
    /// where the producer has never been seen.
    pub fn explain(&self, partition: PartitionIndex, refusal: Refusal) -> Failure {
        if refusal.code != ErrorCode::UnknownProducer {
            return refusal.into();
        }
        let message = format!(
            "expected sequence 0 of producer {:?}, got {}",
            self.name, self.sequence.0
        );
        Refusal::new(ErrorCode::OutOfOrderSequence, message)
            .with_sequence(partition.0, 0, self.sequence.0)
            .into()
    }
}
