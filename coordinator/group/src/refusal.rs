//! Why a request was refused. Nothing of it was done.

use crate::MemberEpoch;
use talweg_types::{MemberId, Offset, TopicPartition};
use thiserror::Error;

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Refusal {
    /// INVALID_ARGUMENT.
    #[error("{field}: {reason}")]
    Invalid { field: &'static str, reason: String },
    /// LIMIT_EXCEEDED.
    #[error("{field} has {actual}, the limit is {limit}")]
    Limit {
        field: &'static str,
        limit: usize,
        actual: usize,
    },
    /// UNKNOWN_MEMBER: join again.
    #[error("the group has no member {0}; join again")]
    UnknownMember(MemberId),
    /// FENCED.
    #[error("epoch {sent} of member {member} is not its current life's; it is at {current}")]
    Fenced {
        member: MemberId,
        sent: MemberEpoch,
        current: MemberEpoch,
    },
    /// FENCED, for one partition.
    #[error("{at} is not in member {member}'s hands at epoch {sent}")]
    NotOwner {
        member: MemberId,
        at: TopicPartition,
        sent: MemberEpoch,
    },
    /// FENCED.
    #[error("the group has streaming members; commit as one of them")]
    StreamingMembers,
    /// INSTANCE_IN_USE.
    #[error("a live member holds instance id {instance:?}")]
    InstanceInUse {
        instance: String,
        /// When the holder's stream may be known to be gone; 0: it lives.
        retry_after_ms: u64,
    },
    /// GROUP_NOT_EMPTY.
    #[error("the group has {0} active members")]
    NotEmpty(usize),
    /// UNKNOWN_GROUP.
    #[error("nothing is stored for this group")]
    UnknownGroup,
    /// UNKNOWN_TOPIC.
    #[error("no topic has the id of {0}")]
    UnknownTopic(TopicPartition),
    /// UNKNOWN_PARTITION.
    #[error("the topic has no partition {0}")]
    UnknownPartition(TopicPartition),
    /// OFFSET_OUT_OF_RANGE.
    #[error("offset {offset} of {at} is outside {log_start}..={high_watermark}")]
    OutOfRange {
        at: TopicPartition,
        offset: Offset,
        log_start: Offset,
        high_watermark: Offset,
    },
    /// Lower than the stored one: a late repeat, or a seek that does not say so.
    #[error("offset {offset} of {at} is below the committed {stored}; only a seek goes back")]
    BelowCommitted {
        at: TopicPartition,
        offset: Offset,
        stored: Offset,
    },
    /// INTERNAL: two thousand million rebalances.
    #[error("the group has used up its epochs; delete it")]
    EpochsExhausted,
}

impl Refusal {
    pub(crate) fn invalid(field: &'static str, reason: &str) -> Self {
        Self::Invalid {
            field,
            reason: reason.to_owned(),
        }
    }

    pub(crate) fn limit(field: &'static str, actual: usize, limit: usize) -> Result<(), Self> {
        if actual <= limit {
            return Ok(());
        }
        Err(Self::Limit {
            field,
            limit,
            actual,
        })
    }
}
