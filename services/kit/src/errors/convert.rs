//! Refusals from the errors of the pure crates.

use super::Refusal;
use talweg_batch::{BatchError, BatchErrorKind as Kind};
use talweg_proto::v1::ErrorCode;
use talweg_types::{NameError, topic_config::ConfigError};

impl From<BatchError> for Refusal {
    fn from(error: BatchError) -> Self {
        let message = error.to_string();
        let new = |code| Self::new(code, message.clone());
        let record = |index: usize| format!("records[{index}]");
        match error.kind() {
            Kind::Corrupt => new(ErrorCode::CorruptBatch),
            Kind::UnsupportedMagic => new(ErrorCode::UnsupportedMagic),
            Kind::UnsupportedCodec => new(ErrorCode::UnsupportedCodec),
            Kind::NotAllowed if error == BatchError::Transactional => new(ErrorCode::NotBuilt),
            Kind::NotAllowed => {
                new(ErrorCode::InvalidRecord).with_field("batches.attributes", message.clone())
            }
            Kind::TooLarge { limit, actual } => new(ErrorCode::BatchTooLarge).with_limit(
                "max.message.bytes",
                limit,
                actual,
                "bytes",
            ),
            Kind::TooManyRecords { limit, actual } => new(ErrorCode::LimitExceeded).with_limit(
                "records in a batch",
                limit,
                actual,
                "records",
            ),
            Kind::RecordTooLarge { limit, actual, .. } => new(ErrorCode::RecordTooLarge)
                .with_limit("max.record.bytes", limit, actual, "bytes"),
            // Unpacking stopped at the limit: the real size is not known.
            Kind::UnpacksTooLarge { limit } => new(ErrorCode::UnpacksTooLarge).with_limit(
                "max.unpacked.batch.bytes",
                limit,
                limit.saturating_add(1),
                "bytes",
            ),
            Kind::TimestampOutOfRange { index } => new(ErrorCode::InvalidTimestamp)
                .with_field(format!("{}.timestamp_ms", record(index)), message.clone()),
            Kind::InvalidRecord { index } => {
                new(ErrorCode::InvalidRecord).with_field(record(index), message.clone())
            }
        }
    }
}

impl From<NameError> for Refusal {
    fn from(error: NameError) -> Self {
        let code = match error {
            NameError::Reserved => ErrorCode::InternalTopic,
            NameError::Empty
            | NameError::TooLong(_)
            | NameError::Dots
            | NameError::Character(_) => ErrorCode::InvalidName,
        };
        Self::new(code, error.to_string()).with_field("name", error.to_string())
    }
}

impl From<ConfigError> for Refusal {
    fn from(error: ConfigError) -> Self {
        let message = error.to_string();
        let (code, key, value, reason) = match error {
            ConfigError::Unknown { key } => (
                ErrorCode::InvalidConfig,
                key,
                String::new(),
                "unknown key".to_owned(),
            ),
            ConfigError::Invalid { key, value, reason } => {
                (ErrorCode::InvalidConfig, key, value, reason)
            }
            ConfigError::NotBuilt { key, reason } => {
                (ErrorCode::NotBuilt, key, String::new(), reason)
            }
        };
        Self::new(code, message).with_config(key, value, reason)
    }
}
