//! Between the wire and the group: only here both are known.

use std::collections::{BTreeMap, BTreeSet};
use talweg_group::{
    Assignor, Bounds, Caller, Commit, CommitItem, CommitKind, Committed, Committer,
    DeadLetterPolicy, Delivery, Event, FailureKind, Given, Join, MemberEpoch, MemberKind,
    MemberMeta, Removal, Subscription, Timeouts, View,
};
use talweg_kit::errors::Refusal;
use talweg_proto::coordinator::v1::{self as wire, converse_request::Event as Said};
use talweg_types::{
    LeaderEpoch, MemberId, Offset, PartitionIndex, TopicId, TopicPartition, limits,
};

/// What a gateway said, and for a commit which of its offsets are to be checked
/// against the log first.
pub struct Asked {
    pub event: Event,
    /// Places in the commit's items.
    pub unchecked: BTreeSet<usize>,
}

/// Of every event but `open`.
pub fn event(said: Said) -> Result<Asked, Refusal> {
    let event = match said {
        Said::Open(_) => {
            return Err(Refusal::invalid("event", "open comes first, and once"));
        }
        Said::Commit(said) => return commit(said),
        Said::Join(said) => Event::Join(join(said)?),
        Said::Heartbeat(said) => Event::Heartbeat(caller("heartbeat", &said)?),
        Said::Leave(said) => Event::Leave(caller("leave", &said)?),
        Said::StreamBroken(said) => Event::StreamBroken {
            caller: required_caller(said.caller.as_ref())?,
            in_flight: match said.in_flight_known {
                true => Some(partitions("in_flight", &said.in_flight)?),
                false => None,
            },
        },
        Said::Revoked(said) => Event::Revoked {
            caller: required_caller(said.caller.as_ref())?,
            partitions: partitions("partitions", &said.partitions)?,
        },
        Said::Overran(said) => Event::Overran {
            caller: required_caller(said.caller.as_ref())?,
            partitions: partitions("partitions", &said.partitions)?,
        },
        Said::Poll(said) => Event::Poll {
            member: member("member_id", &said.member_id)?,
            epoch: said.member_epoch.map(MemberEpoch),
        },
        Said::Returned(said) => Event::Returned {
            member: member("member_id", &said.member_id)?,
            epoch: said.member_epoch.map(MemberEpoch),
            next: next_offsets(&said.next)?,
        },
    };
    Ok(Asked {
        event,
        unchecked: BTreeSet::new(),
    })
}

fn commit(said: wire::CommitEvent) -> Result<Asked, Refusal> {
    let by = match &said.caller {
        Some(said) => Committer::Member(caller("caller", said)?),
        None => Committer::Standalone,
    };
    check_count("offsets", said.offsets.len())?;
    let mut unchecked = BTreeSet::new();
    let mut items = Vec::with_capacity(said.offsets.len());
    for (place, offset) in said.offsets.into_iter().enumerate() {
        if !offset.delivered {
            unchecked.insert(place);
        }
        items.push(CommitItem {
            at: partition(&offset.topic_id, offset.partition)?,
            offset: Offset(offset.offset),
            leader_epoch: LeaderEpoch(offset.leader_epoch),
            metadata: offset.metadata,
            bounds: Bounds::Delivered,
        });
    }
    let kind = match said.seek {
        true => CommitKind::Seek,
        false => CommitKind::Commit,
    };
    Ok(Asked {
        event: Event::Commit(Commit { by, kind, items }),
        unchecked,
    })
}

fn join(said: wire::JoinEvent) -> Result<Join, Refusal> {
    let profile = said
        .profile
        .ok_or_else(|| Refusal::invalid("join.profile", "is missing"))?;
    let claim = match said.claim.is_empty() {
        true => None,
        false => Some(member("join.claim", &said.claim)?),
    };
    Ok(Join {
        new_id: member("join.new_member_id", &said.new_member_id)?,
        claim,
        meta: meta(profile)?,
    })
}

fn meta(said: wire::MemberProfile) -> Result<MemberMeta, Refusal> {
    let kind = match wire::MemberKind::try_from(said.kind) {
        Ok(wire::MemberKind::Unspecified | wire::MemberKind::Streaming) => MemberKind::Streaming,
        Ok(wire::MemberKind::Http) => MemberKind::Http,
        Ok(wire::MemberKind::HttpShared) => MemberKind::HttpShared,
        Err(_) => return Err(Refusal::invalid("join.profile.kind", "is not known")),
    };
    let or = |given: u32, default: u32| if given == 0 { default } else { given };
    let session = match kind {
        MemberKind::Streaming => limits::MEMBER_SESSION_MS_DEFAULT,
        MemberKind::Http | MemberKind::HttpShared => limits::MEMBER_SESSION_MS_DEFAULT_HTTP,
    };
    Ok(MemberMeta {
        instance_id: (!said.instance_id.is_empty()).then_some(said.instance_id),
        client_id: said.client_id,
        rack: said.rack,
        kind,
        subscription: Subscription {
            names: said.topics.into_iter().collect(),
            pattern: (!said.pattern.is_empty()).then_some(said.pattern),
        },
        assignor: match said.assignor.as_str() {
            "" => None,
            "sticky" => Some(Assignor::Sticky),
            "range" => Some(Assignor::Range),
            "round-robin" => Some(Assignor::RoundRobin),
            other => {
                let why = format!("{other:?} is none of sticky, range, round-robin");
                return Err(Refusal::invalid("join.profile.assignor", why));
            }
        },
        timeouts: Timeouts {
            session_ms: or(said.session_timeout_ms, session),
            rebalance_ms: or(said.rebalance_timeout_ms, limits::REBALANCE_MS_DEFAULT),
            processing_ms: or(said.processing_timeout_ms, limits::PROCESSING_MS_DEFAULT),
        },
        policy: DeadLetterPolicy {
            attempts: or(said.max_attempts, limits::ATTEMPTS_DEFAULT),
            dead_letters: !said.no_dead_letters,
        },
        reads_committed: said.reads_committed,
    })
}

pub fn member(field: &str, bytes: &[u8]) -> Result<MemberId, Refusal> {
    MemberId::from_slice(bytes)
        .ok_or_else(|| Refusal::invalid(field, format!("has {} bytes, 16 are needed", bytes.len())))
}

fn caller(field: &str, said: &wire::Caller) -> Result<Caller, Refusal> {
    Ok(Caller {
        member: member(&format!("{field}.member_id"), &said.member_id)?,
        epoch: MemberEpoch(said.member_epoch),
    })
}

fn required_caller(said: Option<&wire::Caller>) -> Result<Caller, Refusal> {
    let said = said.ok_or_else(|| Refusal::invalid("caller", "is missing"))?;
    caller("caller", said)
}

pub fn partition(topic_id: &[u8], partition: u32) -> Result<TopicPartition, Refusal> {
    let topic_id = TopicId::from_slice(topic_id).ok_or_else(|| {
        let bytes = topic_id.len();
        Refusal::invalid("topic_id", format!("has {bytes} bytes, 16 are needed"))
    })?;
    Ok(TopicPartition {
        topic_id,
        partition: PartitionIndex(partition),
    })
}

pub fn check_count(field: &'static str, count: usize) -> Result<(), Refusal> {
    let limit = limits::COMMIT_OFFSETS_MAX;
    if count <= limit {
        return Ok(());
    }
    let message = format!("{field} has {count} entries, the limit is {limit}");
    Err(
        Refusal::new(talweg_kit::errors::ErrorCode::LimitExceeded, message).with_limit(
            field,
            limit as u64,
            count as u64,
            "partitions",
        ),
    )
}

fn partitions(
    field: &'static str,
    said: &[wire::PartitionRef],
) -> Result<BTreeSet<TopicPartition>, Refusal> {
    check_count(field, said.len())?;
    let said = said.iter();
    said.map(|it| partition(&it.topic_id, it.partition))
        .collect()
}

fn next_offsets(
    said: &[wire::PartitionOffset],
) -> Result<BTreeMap<TopicPartition, Offset>, Refusal> {
    check_count("next", said.len())?;
    let said = said.iter();
    said.map(|it| Ok((partition(&it.topic_id, it.partition)?, Offset(it.offset))))
        .collect()
}

fn id(of: &[u8; 16]) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(of)
}

fn partition_ref(at: TopicPartition) -> wire::PartitionRef {
    wire::PartitionRef {
        topic_id: id(at.topic_id.as_bytes()),
        partition: at.partition.0,
    }
}

pub fn reason(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Crashed => "crashed",
        FailureKind::TimedOut => "timed out",
    }
}

/// `sequence`: see `MemberView`.
pub fn view(of: &View, shard_epoch: i32, sequence: u64) -> wire::MemberView {
    let assigned = of.assigned.iter();
    wire::MemberView {
        member_id: id(of.member.as_bytes()),
        member_epoch: of.epoch.0,
        assigned: assigned
            .map(|(at, given)| assigned_partition(*at, given))
            .collect(),
        revoking: of.revoking.iter().copied().map(partition_ref).collect(),
        revoke_within_ms: of.revoke_within_ms,
        shard_epoch,
        sequence,
        // `assigned` says where to go on already.
        positions: Vec::new(),
    }
}

fn assigned_partition(at: TopicPartition, given: &Given) -> wire::AssignedPartition {
    use wire::DeliveryMode as Mode;
    let (mode, attempts, why) = match given.delivery {
        Delivery::Normal => (Mode::Normal, 0, ""),
        Delivery::OneByOne => (Mode::OneByOne, 0, ""),
        Delivery::DeadLetter {
            attempts,
            reason: why,
        } => (Mode::DeadLetter, attempts, reason(why)),
        Delivery::Paused {
            attempts,
            reason: why,
        } => (Mode::Paused, attempts, reason(why)),
    };
    wire::AssignedPartition {
        topic_id: id(at.topic_id.as_bytes()),
        partition: at.partition.0,
        given_epoch: given.given_epoch.0,
        next_offset: given.next.map(|next| next.0),
        leader_epoch: given.leader_epoch.0,
        delivery: mode.into(),
        attempts,
        reason: why.into(),
    }
}

pub fn commit_result(of: &Result<Committed, Refusal>) -> wire::CommitResult {
    match of {
        Ok(stored) => wire::CommitResult {
            offset: stored.offset.0,
            error: None,
        },
        Err(refusal) => wire::CommitResult {
            offset: 0,
            error: Some(refusal.detail()),
        },
    }
}

pub fn removed(who: MemberId, why: Removal) -> wire::MemberRemoved {
    use wire::RemovalReason as Reason;
    let (reason, replaced_by) = match why {
        Removal::Left => (Reason::Left, None),
        Removal::SessionExpired => (Reason::SessionExpired, None),
        Removal::Overran => (Reason::Overran, None),
        Removal::Replaced { by } => (Reason::Replaced, Some(by)),
    };
    wire::MemberRemoved {
        member_id: id(who.as_bytes()),
        reason: reason.into(),
        replaced_by: replaced_by.map(|by| id(by.as_bytes())).unwrap_or_default(),
    }
}

pub fn kind_name(kind: MemberKind) -> &'static str {
    match kind {
        MemberKind::Streaming => "streaming",
        MemberKind::Http => "http",
        MemberKind::HttpShared => "http-shared",
    }
}
