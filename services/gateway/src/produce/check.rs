//! The check of a thin record, before it is numbered: by the limits and rules
//! that the leader applies to the batch it will be in. A property holds the two
//! together: what passes here, the leader takes.

use talweg_batch::{HeaderRef, ValidationLimits, record_bytes};
use talweg_client::view::TopicView;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1;
use talweg_types::{Acks, TimestampMs, limits};

/// The rules of one topic at one moment.
pub struct Rules<'a> {
    pub topic: &'a TopicView,
    pub limits: ValidationLimits,
    /// Wall clock, for records without a timestamp.
    pub now: TimestampMs,
}

impl<'a> Rules<'a> {
    pub fn new(topic: &'a TopicView, now: TimestampMs) -> Self {
        Self {
            topic,
            limits: ValidationLimits::for_topic(&topic.config, now),
            now,
        }
    }

    /// The record's timestamp.
    pub fn timestamp(&self, record: &v1::Record) -> TimestampMs {
        record.timestamp_ms.map_or(self.now, TimestampMs)
    }

    /// NOT_BUILT, INVALID_RECORD, INVALID_TIMESTAMP, RECORD_TOO_LARGE,
    /// UNKNOWN_PARTITION, INVALID_IDEMPOTENCY_KEY.
    pub fn check(&self, index: usize, record: &v1::Record) -> Result<(), Refusal> {
        if record.due_time_ms.is_some() {
            return Err(Refusal::not_built(
                "Delayed delivery is not built in this version; leave due_time_ms out.",
            ));
        }
        self.check_key(index, record)?;
        self.check_headers(index, record)?;
        self.check_timestamp(index, record)?;
        self.check_size(index, record)?;
        if let Some(partition) = record.partition
            && partition as usize >= self.topic.partitions.len()
        {
            return Err(talweg_client::view::no_partition(self.topic, partition));
        }
        let length = record.idempotency_key.len();
        if length > limits::IDEMPOTENCY_KEY_BYTES_MAX {
            let message = format!("the idempotency key has {length} bytes");
            return Err(
                Refusal::new(ErrorCode::InvalidIdempotencyKey, message).with_limit(
                    "idempotency_key",
                    limits::IDEMPOTENCY_KEY_BYTES_MAX as u64,
                    length as u64,
                    "bytes",
                ),
            );
        }
        Ok(())
    }

    fn check_key(&self, index: usize, record: &v1::Record) -> Result<(), Refusal> {
        if self.limits.takes_key(record.key.as_deref()) {
            return Ok(());
        }
        let field = format!("records[{index}].key");
        let reason = "is missing, and every record of a compacted topic needs one (cleanup.policy)";
        Err(
            Refusal::new(ErrorCode::InvalidRecord, format!("{field}: {reason}"))
                .with_field(field, reason.to_owned()),
        )
    }

    fn check_headers(&self, index: usize, record: &v1::Record) -> Result<(), Refusal> {
        let own = usize::from(!record.idempotency_key.is_empty());
        let (count, limit) = (record.headers.len() + own, self.limits.max_headers);
        if count > limit as usize {
            return Err(Refusal::new(
                ErrorCode::InvalidRecord,
                format!("records[{index}] has {count} headers"),
            )
            .with_limit("record headers", limit, count as u64, "headers"));
        }
        if record
            .headers
            .iter()
            .any(|header| header.name == limits::IDEMPOTENCY_HEADER)
        {
            let field = format!("records[{index}].headers");
            let reason = format!(
                "{} is set by gateways; use idempotency_key",
                limits::IDEMPOTENCY_HEADER
            );
            return Err(
                Refusal::new(ErrorCode::InvalidRecord, format!("{field}: {reason}"))
                    .with_field(field, reason),
            );
        }
        Ok(())
    }

    fn check_timestamp(&self, index: usize, record: &v1::Record) -> Result<(), Refusal> {
        let (timestamp, max) = (self.timestamp(record), self.limits.max_timestamp);
        let reason = if timestamp.0 < 0 {
            format!("{timestamp} is negative")
        } else if timestamp > max {
            format!("{timestamp} is too far ahead; the latest accepted now is {max}")
        } else {
            return Ok(());
        };
        let field = format!("records[{index}].timestamp_ms");
        Err(
            Refusal::new(ErrorCode::InvalidTimestamp, format!("{field}: {reason}"))
                .with_field(field, reason),
        )
    }

    fn check_size(&self, index: usize, record: &v1::Record) -> Result<(), Refusal> {
        let (size, limit) = (
            record_bytes(
                record.key.as_deref(),
                record.value.as_deref(),
                headers(record),
            ),
            self.limits.max_record_bytes,
        );
        if size > limit as usize {
            let message = format!("records[{index}] has {size} bytes of key, value and headers");
            return Err(Refusal::new(ErrorCode::RecordTooLarge, message).with_limit(
                "max.record.bytes",
                limit,
                size as u64,
                "bytes",
            ));
        }
        Ok(())
    }
}

/// ACKS_TOO_WEAK, or the acks in force.
pub fn acks(topic: &TopicView, stream: Option<Acks>) -> Result<Acks, Refusal> {
    let acks = stream.unwrap_or(topic.config.default_acks);
    if acks < topic.config.min_acks {
        let message = format!(
            "acks {acks} are weaker than the topic's min.acks {}",
            topic.config.min_acks
        );
        return Err(Refusal::new(ErrorCode::AcksTooWeak, message));
    }
    Ok(acks)
}

/// INTERNAL_TOPIC for Talweg's own topics.
pub fn writable(name: &str) -> Result<(), Refusal> {
    if talweg_types::is_internal(name) {
        let message = format!("{name:?} is one of Talweg's own topics; clients do not write to it");
        return Err(Refusal::new(ErrorCode::InternalTopic, message));
    }
    Ok(())
}

/// The headers as they are stored: the idempotency key is the last one.
pub fn headers(record: &v1::Record) -> impl Iterator<Item = HeaderRef<'_>> + Clone {
    let key = Some(record.idempotency_key.as_bytes()).filter(|key| !key.is_empty());
    let own = key.map(|key| (limits::IDEMPOTENCY_HEADER.as_bytes(), Some(key)));
    record
        .headers
        .iter()
        .map(|header| (header.name.as_bytes(), header.value.as_deref()))
        .chain(own)
}
