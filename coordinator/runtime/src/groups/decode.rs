//! Bytes to group records. What this version would not write itself is refused:
//! serving a group without what a later version stored in it could lose that.

use crate::DecodeError;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use talweg_group::{
    Assignor, Committed, Current, DeadLetterPolicy, FailureKind, Failures, GroupMeta, Key,
    MemberEpoch, MemberKind, MemberMeta, Owned, Record, Subscription, Timeouts, Value,
};
use talweg_proto::records::v1::{self as stored, group_key::About};
use talweg_types::{
    LeaderEpoch, MemberId, Offset, PartitionIndex, TimestampMs, TopicId, TopicPartition,
};

/// The group's name and the record.
pub fn decode_record(key: &[u8], value: Option<&[u8]>) -> Result<(String, Record), DecodeError> {
    let read: stored::GroupKey = exact("key", key)?;
    if read.group.is_empty() {
        return Err(DecodeError::Missing { field: "group" });
    }
    let about = read.about.ok_or(DecodeError::Missing { field: "about" })?;
    let key = match about {
        About::Itself(stored::GroupItself {}) => Key::Group,
        About::Member(id) => Key::Member(member("member", &id)?),
        About::Target(id) => Key::Target(member("target", &id)?),
        About::Current(id) => Key::Current(member("current", &id)?),
        About::Offset(at) => Key::Offset(partition(&at)?),
        About::Failures(at) => Key::Failures(partition(&at)?),
    };
    let value = value.map(|bytes| decode_value(key, bytes)).transpose()?;
    Ok((read.group, Record { key, value }))
}

fn exact<T: Message + Default>(part: &'static str, bytes: &[u8]) -> Result<T, DecodeError> {
    let read = T::decode(bytes).map_err(|error| DecodeError::Malformed {
        part,
        reason: error.to_string(),
    })?;
    // Unknown fields are dropped in reading; so they show.
    if read.encode_to_vec() != bytes {
        return Err(DecodeError::UnknownFields { part });
    }
    Ok(read)
}

fn decode_value(key: Key, bytes: &[u8]) -> Result<Value, DecodeError> {
    const PART: &str = "value";
    match key {
        Key::Group => exact(PART, bytes).map(group),
        Key::Member(_) => member_meta(exact(PART, bytes)?),
        Key::Target(_) => target(&exact(PART, bytes)?),
        Key::Current(_) => current(exact(PART, bytes)?),
        Key::Offset(_) => exact(PART, bytes).map(committed),
        Key::Failures(_) => failures(&exact(PART, bytes)?),
    }
}

fn member(field: &'static str, bytes: &[u8]) -> Result<MemberId, DecodeError> {
    MemberId::from_slice(bytes).ok_or(DecodeError::NotAnId {
        field,
        bytes: bytes.len(),
    })
}

fn partition(at: &stored::StoredPartition) -> Result<TopicPartition, DecodeError> {
    let topic_id = TopicId::from_slice(&at.topic_id).ok_or(DecodeError::NotAnId {
        field: "topic_id",
        bytes: at.topic_id.len(),
    })?;
    Ok(TopicPartition {
        topic_id,
        partition: PartitionIndex(at.partition),
    })
}

fn unknown(field: &'static str, value: u32) -> DecodeError {
    let value = value.into();
    DecodeError::Unknown { field, value }
}

fn group(read: stored::GroupRecord) -> Value {
    Value::Group(GroupMeta {
        group_epoch: MemberEpoch(read.group_epoch),
        target_epoch: MemberEpoch(read.target_epoch),
        topics_hash: read.topics_hash,
        empty_since: read.empty_since_ms.map(TimestampMs),
    })
}

fn member_meta(read: stored::MemberRecord) -> Result<Value, DecodeError> {
    Ok(Value::Member(Box::new(MemberMeta {
        instance_id: read.instance_id,
        client_id: read.client_id,
        rack: read.rack,
        kind: match read.kind {
            1 => MemberKind::Streaming,
            2 => MemberKind::Http,
            3 => MemberKind::HttpShared,
            other => return Err(unknown("kind", other)),
        },
        subscription: Subscription {
            names: read.topics.into_iter().collect(),
            pattern: read.pattern,
        },
        assignor: match read.assignor {
            0 => None,
            1 => Some(Assignor::Sticky),
            2 => Some(Assignor::Range),
            3 => Some(Assignor::RoundRobin),
            other => return Err(unknown("assignor", other)),
        },
        timeouts: Timeouts {
            session_ms: read.session_ms,
            rebalance_ms: read.rebalance_ms,
            processing_ms: read.processing_ms,
        },
        policy: DeadLetterPolicy {
            attempts: read.attempts,
            dead_letters: read.dead_letters,
        },
        reads_committed: read.reads_committed,
    })))
}

fn target(read: &stored::TargetRecord) -> Result<Value, DecodeError> {
    let partitions = read.partitions.iter().map(partition);
    partitions
        .collect::<Result<BTreeSet<_>, _>>()
        .map(Value::Target)
}

fn current(read: stored::CurrentRecord) -> Result<Value, DecodeError> {
    let owned = read.owned.into_iter().map(|owned| {
        let field = "owned.partition";
        let at = owned.partition.ok_or(DecodeError::Missing { field })?;
        let held = Owned {
            given_epoch: MemberEpoch(owned.given_epoch),
            revoking: owned.revoking,
        };
        Ok((partition(&at)?, held))
    });
    Ok(Value::Current(Current {
        member_epoch: MemberEpoch(read.member_epoch),
        attach_epoch: MemberEpoch(read.attach_epoch),
        owned: owned.collect::<Result<BTreeMap<_, _>, DecodeError>>()?,
    }))
}

fn committed(read: stored::CommittedRecord) -> Value {
    Value::Offset(Committed {
        offset: Offset(read.offset),
        leader_epoch: LeaderEpoch(read.leader_epoch),
        metadata: read.metadata,
        committed_at: TimestampMs(read.committed_ms),
        moved_at: TimestampMs(read.moved_ms.unwrap_or(read.committed_ms)),
    })
}

fn failures(read: &stored::FailuresRecord) -> Result<Value, DecodeError> {
    Ok(Value::Failures(Failures {
        next: read.next_offset.map(Offset),
        deaths: read.deaths,
        overruns: read.overruns,
        last: match read.last {
            1 => FailureKind::Crashed,
            2 => FailureKind::TimedOut,
            other => return Err(unknown("last", other)),
        },
    }))
}
