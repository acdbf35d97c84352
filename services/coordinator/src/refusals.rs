//! From the group's refusals to those that travel.

use talweg_group::Refusal as Group;
use talweg_kit::errors::{ErrorCode, Refusal};

pub fn refusal(of: &Group) -> Refusal {
    let message = of.to_string();
    let new = |code| Refusal::new(code, message.clone());
    match of {
        Group::Invalid { field, reason } => {
            new(ErrorCode::InvalidArgument).with_field(*field, reason.clone())
        }
        Group::Limit {
            field,
            limit,
            actual,
        } => new(ErrorCode::LimitExceeded).with_limit(*field, *limit, *actual, ""),
        Group::UnknownMember(_) => new(ErrorCode::UnknownMember),
        Group::Fenced { .. } | Group::NotOwner { .. } | Group::StreamingMembers => {
            new(ErrorCode::Fenced)
        }
        Group::InstanceInUse { retry_after_ms, .. } => {
            let ms = u32::try_from(*retry_after_ms).unwrap_or(u32::MAX);
            new(ErrorCode::InstanceInUse).retry_after(ms)
        }
        Group::NotEmpty(_) => new(ErrorCode::GroupNotEmpty),
        Group::UnknownGroup => new(ErrorCode::UnknownGroup),
        Group::UnknownTopic(_) => new(ErrorCode::UnknownTopic),
        Group::UnknownPartition(_) => new(ErrorCode::UnknownPartition),
        Group::OutOfRange {
            log_start,
            high_watermark,
            ..
        } => new(ErrorCode::OffsetOutOfRange).with_bounds(log_start.0, high_watermark.0),
        Group::BelowCommitted { .. } => new(ErrorCode::BelowCommitted),
        Group::EpochsExhausted => new(ErrorCode::Internal),
    }
}

/// The shard is somebody else's, or nobody's.
pub fn not_coordinator(shard: u32) -> Refusal {
    let message = format!("this coordinator does not hold shard {shard}");
    Refusal::new(ErrorCode::NotCoordinator, message)
}

/// Nobody can say whether the shard is still ours.
pub fn no_session() -> Refusal {
    let message = "this coordinator has no news from a controller that is younger than its session \
                   time-out";
    Refusal::new(ErrorCode::NotCoordinator, message).retry_after(200)
}

/// The shard is on its way up.
pub fn loading(shard: u32) -> Refusal {
    Refusal::new(ErrorCode::Loading, format!("shard {shard} is being loaded")).retry_after(50)
}

/// The append of what was decided failed.
pub fn not_done() -> Refusal {
    Refusal::unavailable("the shard's log did not take it; nothing was done").retry_after(100)
}

pub fn too_large(bytes: usize, limit: usize) -> Refusal {
    let message =
        format!("what this changes takes {bytes} bytes of log at once, at most {limit} fit");
    Refusal::new(ErrorCode::LimitExceeded, message).with_limit(
        "max.message.bytes of the internal topic",
        limit as u64,
        bytes as u64,
        "bytes",
    )
}

pub fn throttled(limit: usize) -> Refusal {
    let message = format!("{limit} requests wait for this shard's log already");
    Refusal::new(ErrorCode::Throttled, message)
        .with_limit(
            "waiting requests of a shard",
            limit as u64,
            limit as u64 + 1,
            "requests",
        )
        .retry_after(100)
}

/// The mailbox of a shard is full.
pub fn busy() -> Refusal {
    let message = "too many requests wait for this shard";
    Refusal::new(ErrorCode::Throttled, message).retry_after(50)
}
