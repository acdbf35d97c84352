//! Refusals as JSON: `{code, message, retriable, effect, retry_after_ms, details}`.
//! The details are flat; 64-bit numbers are JSON numbers.

use super::Refusal;
use serde_json::{Value, json};
use talweg_proto::v1::{Effect, error_detail::Details};
use talweg_types::TopicId;

impl Refusal {
    /// The JSON body of the HTTP API and of the command line's `error`.
    pub fn json(&self) -> Value {
        json!({
            "code": self.name(),
            "message": self.message,
            "retriable": self.is_retriable(),
            "effect": effect_name(self.effect()),
            "retry_after_ms": self.retry_after_ms,
            "details": self.details.as_ref().map_or_else(|| json!({}), details),
        })
    }
}

/// "not_done", "done" or "unknown".
pub(super) fn effect_name(effect: Effect) -> &'static str {
    match effect {
        Effect::NotDone => "not_done",
        Effect::Done => "done",
        Effect::Unknown | Effect::Unspecified => "unknown",
    }
}

fn details(details: &Details) -> Value {
    match details {
        Details::Leader(it) => json!({
            "node_id": it.node_id,
            "addresses": it.addresses,
            "leader_epoch": it.leader_epoch,
        }),
        Details::Bounds(it) => json!({
            "log_start_offset": it.log_start_offset,
            "high_watermark": it.high_watermark,
        }),
        Details::Limit(it) => json!({
            "name": it.name,
            "limit": it.limit,
            "actual": it.actual,
            "unit": it.unit,
        }),
        Details::Field(it) => json!({ "field": it.field, "reason": it.reason }),
        Details::Sequence(it) => json!({
            "partition": it.partition,
            "expected_sequence": it.expected_sequence,
            "actual_sequence": it.actual_sequence,
        }),
        Details::Damage(it) => json!({
            "from_offset": it.from_offset,
            "next_good_offset": it.next_good_offset,
        }),
        Details::Truncation(it) => json!({
            "common_epoch": it.common_epoch,
            "end_offset": it.end_offset,
        }),
        Details::Config(it) => json!({
            "key": it.key,
            "value": it.value,
            "reason": it.reason,
        }),
        Details::ExistingTopic(it) => {
            let id = TopicId::from_slice(&it.topic_id);
            json!({ "topic_id": id.map(|id| id.to_string()) })
        }
    }
}
