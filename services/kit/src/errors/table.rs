//! The table itself. The `match` is exhaustive, so a code added to the proto
//! does not compile until it has a row here.
//!
//! How the gRPC codes are chosen: wrong node or wrong state is
//! FAILED_PRECONDITION, because UNAVAILABLE invites blind retries; "not now,
//! nothing happened" is UNAVAILABLE; "it may have happened" is ABORTED, which
//! no library retries by itself.

use talweg_proto::v1::{Effect, ErrorCode};
use tonic::Code;

/// What a code means to callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// gRPC status.
    pub grpc: Code,
    /// HTTP status.
    pub http: u16,
    /// True if the same request may succeed later or elsewhere.
    pub retriable: bool,
    /// Whether the request may have taken effect.
    pub effect: Effect,
}

const fn never(grpc: Code, http: u16) -> Row {
    Row {
        grpc,
        http,
        retriable: false,
        effect: Effect::NotDone,
    }
}

const fn retry(grpc: Code, http: u16) -> Row {
    Row {
        retriable: true,
        ..never(grpc, http)
    }
}

const fn unknown(grpc: Code, http: u16, retriable: bool) -> Row {
    Row {
        grpc,
        http,
        retriable,
        effect: Effect::Unknown,
    }
}

/// The row of a code.
pub const fn row(code: ErrorCode) -> Row {
    use ErrorCode as E;
    match code {
        // Unspecified stands for a code of a newer peer.
        E::Unspecified => unknown(Code::Unknown, 500, false),
        E::Internal => unknown(Code::Internal, 500, false),
        E::TimedOut => unknown(Code::DeadlineExceeded, 504, true),
        E::DeliveryTimeout => unknown(Code::DeadlineExceeded, 504, true),
        E::NotEnoughReplicasAfterAppend | E::LeadershipLost => unknown(Code::Aborted, 503, true),
        // Not idempotent: the same request again might be a duplicate.
        E::OutcomeUnknown => unknown(Code::Aborted, 500, false),

        E::InvalidArgument
        | E::InvalidName
        | E::InvalidPartitions
        | E::InvalidReplicationFactor
        | E::InvalidConfig
        | E::CorruptBatch
        | E::UnsupportedMagic
        | E::UnsupportedCodec
        | E::InvalidTimestamp
        | E::InvalidRecord
        | E::InvalidIdempotencyKey
        | E::CreditTooSmall
        | E::InvalidCredit
        | E::DuplicatePartition
        | E::ProtocolViolation
        | E::InvalidStreamSequence
        | E::InvalidResumeToken => never(Code::InvalidArgument, 400),
        E::BatchTooLarge | E::RecordTooLarge | E::UnpacksTooLarge => {
            never(Code::InvalidArgument, 413)
        }
        E::FrameTooLarge => never(Code::ResourceExhausted, 413),
        E::LimitExceeded => never(Code::ResourceExhausted, 400),
        E::AcksTooWeak => never(Code::FailedPrecondition, 400),
        E::Unauthenticated => never(Code::Unauthenticated, 401),
        E::PermissionDenied | E::InternalTopic => never(Code::PermissionDenied, 403),
        E::UnknownTopic
        | E::UnknownPartition
        | E::UnknownMember
        | E::UnknownGroup
        | E::UnknownNode => never(Code::NotFound, 404),
        E::TopicExists | E::NameConflict | E::InstanceInUse | E::NodeIdConflict => {
            never(Code::AlreadyExists, 409)
        }
        E::TopicIdChanged
        | E::OutOfOrderSequence
        | E::UnknownProducer
        | E::ProducerFenced
        | E::LogTruncated
        | E::FencedLeaderEpoch
        | E::Fenced
        | E::GroupNotEmpty
        | E::ShardFenced
        | E::BelowCommitted
        | E::PartitionPaused
        | E::InvalidTransactionState
        | E::TransactionTimedOut
        | E::ClusterIdMismatch
        | E::StaleIncarnation => never(Code::FailedPrecondition, 409),
        E::OffsetOutOfRange => never(Code::OutOfRange, 416),
        E::DataDamaged => never(Code::DataLoss, 500),
        E::NotBuilt => never(Code::Unimplemented, 501),

        E::EarlierBatchFailed | E::ConcurrentTransaction => retry(Code::Aborted, 409),
        E::Throttled | E::CreditExceeded => retry(Code::ResourceExhausted, 429),
        E::NotLeader | E::NotCoordinator | E::NotController => retry(Code::FailedPrecondition, 503),
        E::Unavailable
        | E::TopicNotReady
        | E::NotEnoughNodes
        | E::NotEnoughReplicas
        | E::NoLeader
        | E::NoQuorumContact
        | E::FolderFailed
        | E::OffsetNotAvailable
        | E::UnknownLeaderEpoch
        | E::Loading => retry(Code::Unavailable, 503),
        E::DeliveryTimeoutNotSent => retry(Code::DeadlineExceeded, 504),
        E::DiskFull => retry(Code::ResourceExhausted, 507),
    }
}

/// The code's name without its prefix: "OFFSET_OUT_OF_RANGE".
pub fn name(code: ErrorCode) -> &'static str {
    let full = code.as_str_name();
    full.strip_prefix("ERROR_CODE_").unwrap_or(full)
}

/// Every code that may be sent, in number order.
pub fn all_codes() -> impl Iterator<Item = ErrorCode> {
    (1..1_000).filter_map(|number| ErrorCode::try_from(number).ok())
}
