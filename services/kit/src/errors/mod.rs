//! Refusals: one catalogue ([`ErrorCode`] in the proto), one table that says
//! for each code its gRPC status, its HTTP status, whether trying again makes
//! sense and whether the request may have taken effect.
//!
//! A [`Refusal`] is what every layer passes upwards. It becomes a gRPC status
//! with a typed detail, a frame on a stream, or a JSON body; it can be read
//! back from the first two without loss.

mod convert;
mod json;
mod status;
mod table;

#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;

pub use table::{Row, all_codes, name, row};

use std::fmt;
use talweg_proto::v1::{self, error_detail::Details};
pub use talweg_proto::v1::{Effect, ErrorCode};

/// One refusal: a code, a sentence for people, and facts for programs.
#[derive(Clone, PartialEq, Debug)]
pub struct Refusal {
    /// What kind of refusal this is.
    pub code: ErrorCode,
    /// A sentence. Its wording may change.
    pub message: String,
    /// Facts; which kind depends on the code.
    pub details: Option<Details>,
    /// Wait at least this long before trying again; 0 is "no advice".
    pub retry_after_ms: u32,
    /// What the sender said where the table cannot speak for it: a code from a
    /// newer peer, or a failure of the transport, whose effect is unknown.
    seen: Option<(bool, Effect)>,
}

impl Refusal {
    /// A refusal without details.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: None,
            retry_after_ms: 0,
            seen: None,
        }
    }

    /// A feature that this version does not have. `sentence` says so to people.
    pub fn not_built(sentence: impl Into<String>) -> Self {
        Self::new(ErrorCode::NotBuilt, sentence)
    }

    /// A field of the request with a value that is not allowed.
    pub fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Self {
        let (field, reason) = (field.into(), reason.into());
        Self::new(ErrorCode::InvalidArgument, format!("{field}: {reason}"))
            .with_field(field, reason)
    }

    /// A defect on our side. The message is shown to the caller: no secrets.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Internal, message)
    }

    /// The process cannot serve now; nothing was done.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Unavailable, message)
    }

    /// A transport failed under a request: it may have been served.
    pub(crate) fn transport(message: impl Into<String>, effect: Effect) -> Self {
        Self {
            seen: Some((true, effect)),
            ..Self::unavailable(message)
        }
    }

    /// The limit that was hit; `limit` is the largest value allowed, `unit` is
    /// "bytes", "records", ...
    #[must_use]
    pub fn with_limit(
        self,
        name: impl Into<String>,
        limit: impl TryInto<i64>,
        actual: impl TryInto<i64>,
        unit: &str,
    ) -> Self {
        self.with_details(Details::Limit(v1::LimitDetail {
            name: name.into(),
            limit: limit.try_into().unwrap_or(i64::MAX),
            actual: actual.try_into().unwrap_or(i64::MAX),
            unit: unit.into(),
        }))
    }

    /// The field at fault, as a path in the .proto file, and why.
    #[must_use]
    pub fn with_field(self, field: impl Into<String>, reason: impl Into<String>) -> Self {
        self.with_details(Details::Field(v1::FieldDetail {
            field: field.into(),
            reason: reason.into(),
        }))
    }

    /// The readable range: log start inclusive, high watermark exclusive.
    #[must_use]
    pub fn with_bounds(self, log_start_offset: i64, high_watermark: i64) -> Self {
        self.with_details(Details::Bounds(v1::OffsetBounds {
            log_start_offset,
            high_watermark,
        }))
    }

    /// Where to go instead.
    #[must_use]
    pub fn with_leader(self, hint: v1::LeaderHint) -> Self {
        self.with_details(Details::Leader(hint))
    }

    /// What the leader waits for from this producer, and what came.
    #[must_use]
    pub fn with_sequence(self, partition: u32, expected: i32, actual: i32) -> Self {
        self.with_details(Details::Sequence(v1::SequenceDetail {
            partition,
            expected_sequence: expected,
            actual_sequence: actual,
        }))
    }

    /// The damaged range: first unreadable offset, next readable one.
    #[must_use]
    pub fn with_damage(self, from_offset: i64, next_good_offset: i64) -> Self {
        self.with_details(Details::Damage(v1::DamageDetail {
            from_offset,
            next_good_offset,
        }))
    }

    /// The end of the history that reader and log share, exclusive.
    #[must_use]
    pub fn with_truncation(self, common_epoch: i32, end_offset: i64) -> Self {
        self.with_details(Details::Truncation(v1::TruncationDetail {
            common_epoch,
            end_offset,
        }))
    }

    /// The configuration key at fault.
    #[must_use]
    pub fn with_config(
        self,
        key: impl Into<String>,
        value: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        self.with_details(Details::Config(v1::ConfigDetail {
            key: key.into(),
            value: value.into(),
            reason: reason.into(),
        }))
    }

    /// The topic that has the name already: its id, 16 bytes.
    #[must_use]
    pub fn with_existing_topic(self, topic_id: impl Into<bytes::Bytes>) -> Self {
        self.with_details(Details::ExistingTopic(v1::ExistingTopic {
            topic_id: topic_id.into(),
        }))
    }

    /// Facts of any kind; replaces earlier ones.
    #[must_use]
    pub fn with_details(mut self, details: Details) -> Self {
        self.details = Some(details);
        self
    }

    /// Asks the caller to wait this long, in milliseconds.
    #[must_use]
    pub fn retry_after(mut self, ms: u32) -> Self {
        self.retry_after_ms = ms;
        self
    }

    /// True if the same request may succeed later or elsewhere.
    pub fn is_retriable(&self) -> bool {
        self.seen.map_or(row(self.code).retriable, |(it, _)| it)
    }

    /// Whether the request may have taken effect.
    pub fn effect(&self) -> Effect {
        self.seen.map_or(row(self.code).effect, |(_, it)| it)
    }

    /// The code's name without its prefix: "OFFSET_OUT_OF_RANGE".
    pub fn name(&self) -> &'static str {
        name(self.code)
    }

    /// The HTTP status of the code.
    pub fn http_status(&self) -> u16 {
        row(self.code).http
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name(), self.message)
    }
}

impl std::error::Error for Refusal {}
