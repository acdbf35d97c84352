//! Group records to bytes.

use crate::Encoded;
use bytes::Bytes;
use prost::Message;
use talweg_group::{Assignor, FailureKind, Key, MemberKind, MemberMeta, Record, Value};
use talweg_proto::records::v1::{self as stored, group_key::About};
use talweg_types::{MemberId, TopicPartition};

/// A record of the group `name`. The key's bytes are those of its fields in number
/// order, so that one key has one encoding.
pub fn encode_record(name: &str, record: &Record) -> Encoded {
    Encoded {
        key: key(name, record.key).encode_to_vec().into(),
        value: record
            .value
            .as_ref()
            .map(|value| Bytes::from(encode_value(value))),
    }
}

fn key(name: &str, key: Key) -> stored::GroupKey {
    let about = match key {
        Key::Group => About::Itself(stored::GroupItself {}),
        Key::Member(id) => About::Member(member(id)),
        Key::Target(id) => About::Target(member(id)),
        Key::Current(id) => About::Current(member(id)),
        Key::Offset(at) => About::Offset(partition(at)),
        Key::Failures(at) => About::Failures(partition(at)),
    };
    stored::GroupKey {
        group: name.into(),
        about: Some(about),
    }
}

fn member(id: MemberId) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

fn partition(at: TopicPartition) -> stored::StoredPartition {
    stored::StoredPartition {
        topic_id: Bytes::copy_from_slice(at.topic_id.as_bytes()),
        partition: at.partition.0,
    }
}

fn encode_value(value: &Value) -> Vec<u8> {
    match value {
        Value::Group(meta) => stored::GroupRecord {
            group_epoch: meta.group_epoch.0,
            target_epoch: meta.target_epoch.0,
            topics_hash: meta.topics_hash,
            empty_since_ms: meta.empty_since.map(|since| since.0),
        }
        .encode_to_vec(),
        Value::Member(meta) => member_record(meta).encode_to_vec(),
        Value::Target(partitions) => stored::TargetRecord {
            partitions: partitions.iter().copied().map(partition).collect(),
        }
        .encode_to_vec(),
        Value::Current(current) => stored::CurrentRecord {
            member_epoch: current.member_epoch.0,
            attach_epoch: current.attach_epoch.0,
            owned: current
                .owned
                .iter()
                .map(|(at, owned)| stored::OwnedRecord {
                    partition: Some(partition(*at)),
                    given_epoch: owned.given_epoch.0,
                    revoking: owned.revoking,
                })
                .collect(),
        }
        .encode_to_vec(),
        Value::Offset(committed) => stored::CommittedRecord {
            offset: committed.offset.0,
            leader_epoch: committed.leader_epoch.0,
            metadata: committed.metadata.clone(),
            committed_ms: committed.committed_at.0,
            moved_ms: (committed.moved_at != committed.committed_at)
                .then_some(committed.moved_at.0),
        }
        .encode_to_vec(),
        Value::Failures(failures) => stored::FailuresRecord {
            next_offset: failures.next.map(|next| next.0),
            deaths: failures.deaths,
            overruns: failures.overruns,
            last: match failures.last {
                FailureKind::Crashed => 1,
                FailureKind::TimedOut => 2,
            },
        }
        .encode_to_vec(),
    }
}

fn member_record(meta: &MemberMeta) -> stored::MemberRecord {
    stored::MemberRecord {
        instance_id: meta.instance_id.clone(),
        client_id: meta.client_id.clone(),
        rack: meta.rack.clone(),
        kind: match meta.kind {
            MemberKind::Streaming => 1,
            MemberKind::Http => 2,
            MemberKind::HttpShared => 3,
        },
        topics: meta.subscription.names.iter().cloned().collect(),
        pattern: meta.subscription.pattern.clone(),
        assignor: match meta.assignor {
            None => 0,
            Some(Assignor::Sticky) => 1,
            Some(Assignor::Range) => 2,
            Some(Assignor::RoundRobin) => 3,
        },
        session_ms: meta.timeouts.session_ms,
        rebalance_ms: meta.timeouts.rebalance_ms,
        processing_ms: meta.timeouts.processing_ms,
        attempts: meta.policy.attempts,
        dead_letters: meta.policy.dead_letters,
        reads_committed: meta.reads_committed,
    }
}
