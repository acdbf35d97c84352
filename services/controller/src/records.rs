//! Stored bytes to values and back: the only place that knows what is in the
//! metastore. One protobuf message a key, see `talweg.records.v1`.

use crate::core::{
    Balance, Change, Cluster, Derived, Life, Move, Node, Partition, Recovered, Shard, Tombstone,
    Topic, Value,
};
use prost::{Message, bytes::Bytes};
use std::collections::BTreeSet;
use talweg_metastore::keys::Key;
use talweg_proto::records::v1 as stored;
use talweg_types::{
    FolderId, Incarnation, LeaderEpoch, NodeId, Offset, PartitionEpoch, ShardEpoch, TimestampMs,
    TopicId,
};
use thiserror::Error;
use uuid::Uuid;

/// A stored record that cannot be read. Nothing is guessed: the controller
/// does not start on it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("the metadata record {key:?} is damaged: {reason}")]
pub struct DamagedRecord {
    pub key: String,
    pub reason: String,
}

/// The bytes of a value under its key.
pub fn encode(value: &Value, key: &Key) -> Bytes {
    match value {
        Value::Cluster(cluster) => stored::ClusterRecord {
            cluster_id: uuid(cluster.id),
            created_ms: cluster.created.0,
        }
        .encode_to_vec(),
        Value::Node(node) => encode_node(node, key).encode_to_vec(),
        Value::Topic(topic) => encode_topic(topic, key).encode_to_vec(),
        Value::TopicName(id) => return Bytes::copy_from_slice(id.as_bytes()),
        Value::Partition(partition) => encode_partition(partition).encode_to_vec(),
        Value::Tombstone(tombstone) => stored::TombstoneRecord {
            topic_id: topic_of(key),
            name: tombstone.name.clone(),
            pending_nodes: tombstone.pending.iter().map(|node| node.0).collect(),
            deleted_ms: tombstone.deleted.0,
        }
        .encode_to_vec(),
        Value::Shard(shard) => stored::ShardRecord {
            coordinator: shard.coordinator.0,
            coordinator_incarnation: shard.incarnation.0,
            shard_epoch: shard.epoch.0,
            grpc_address: shard.grpc_address.clone(),
        }
        .encode_to_vec(),
        Value::Balance(balance) => stored::BalanceRecord {
            id: uuid(balance.id),
            throttle_bytes_per_second: balance.throttle,
            started_ms: balance.started.0,
            moves_total: balance.moves_total,
        }
        .encode_to_vec(),
        Value::ProducerIds(next) => stored::ProducerIdsRecord { next: *next }.encode_to_vec(),
    }
    .into()
}

fn uuid(id: Uuid) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

fn topic_of(key: &Key) -> Bytes {
    match key {
        Key::Topic(id) | Key::Tombstone(id) => Bytes::copy_from_slice(id.as_bytes()),
        _ => Bytes::new(),
    }
}

fn encode_node(node: &Node, key: &Key) -> stored::NodeRecord {
    let node_id = if let Key::Node(id) = key { id.0 } else { 0 };
    stored::NodeRecord {
        node_id,
        incarnation: node.incarnation.0,
        process_id: uuid(node.process),
        grpc_address: node.grpc_address.clone(),
        http_address: node.http_address.clone(),
        rack: node.rack.clone(),
        folder_ids: node.folders.iter().map(|id| uuid(id.0)).collect(),
        version: node.version.clone(),
        clean: node.clean,
        earlier_process_ids: node.earlier.iter().map(|id| uuid(*id)).collect(),
        draining: node.draining,
        removed: node.removed,
        lost: node.lost,
    }
}

fn encode_topic(topic: &Topic, key: &Key) -> stored::TopicRecord {
    let life = match topic.life {
        Life::Creating => stored::TopicLife::Creating,
        Life::Ready => stored::TopicLife::Ready,
    };
    let earlier = topic
        .earlier
        .iter()
        .map(|(partitions, until)| stored::EarlierCount {
            partitions: *partitions,
            until_ms: until.0,
        });
    stored::TopicRecord {
        topic_id: topic_of(key),
        name: topic.name.clone(),
        partitions: topic.partitions,
        replication_factor: topic.replication_factor,
        config: topic.config.clone().into_iter().collect(),
        created_ms: topic.created.0,
        life: life.into(),
        idempotency_key: topic.idempotency_key.clone(),
        earlier_counts: earlier.collect(),
        derived_from: topic
            .derived
            .as_ref()
            .map_or_else(Bytes::new, |of| uuid(of.source.0)),
        derived_for_group: topic
            .derived
            .as_ref()
            .map_or_else(String::new, |of| of.group.clone()),
    }
}

fn encode_partition(partition: &Partition) -> stored::PartitionRecord {
    let ids = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect::<Vec<_>>();
    stored::PartitionRecord {
        leader: partition.leader.0,
        leader_incarnation: partition.leader_incarnation.0,
        leader_epoch: partition.leader_epoch.0,
        partition_epoch: partition.partition_epoch.0,
        replicas: ids(&partition.replicas),
        in_sync: ids(&partition.in_sync),
        eligible: ids(&partition.eligible),
        last_in_sync: ids(&partition.last_in_sync),
        recovered: partition
            .recovered
            .map(|recovered| stored::RecoveredRecord {
                leader_epoch: recovered.epoch.0,
                unclean: recovered.unclean,
                time_ms: recovered.time.0,
                from_offset: recovered.from.map(|from| from.0),
            }),
        r#move: partition.moving.as_ref().map(|moving| stored::MoveRecord {
            id: uuid(moving.id),
            from: ids(&moving.from),
            to: ids(&moving.to),
            throttle_bytes_per_second: moving.throttle,
            started_ms: moving.started.0,
        }),
        removed: ids(&partition.removed),
    }
}

/// A stored entry as a change of the view; `None` for keys that the view does
/// not hold.
///
/// # Errors
/// The key is not ours, or its value cannot be read.
pub fn decode(key: &[u8], value: &Bytes) -> Result<Option<Change>, DamagedRecord> {
    let damaged = |reason: &str| DamagedRecord {
        key: String::from_utf8_lossy(key).into_owned(),
        reason: reason.to_owned(),
    };
    let parsed = Key::parse(key).ok_or_else(|| damaged("unknown key"))?;
    let value = match &parsed {
        Key::Election => return Ok(None),
        Key::Cluster => message(value).and_then(decode_cluster),
        Key::Node(_) => message(value).and_then(decode_node),
        Key::Topic(_) => message(value).and_then(decode_topic),
        Key::TopicName(_) => TopicId::from_slice(value)
            .map(Value::TopicName)
            .ok_or("not an id"),
        Key::Partition(_) => message(value).and_then(decode_partition),
        Key::Tombstone(_) => message(value).map(decode_tombstone),
        Key::Shard(_) => message(value).map(decode_shard),
        Key::Balance => message(value).and_then(decode_balance),
        Key::ProducerIds => {
            message(value).map(|record: stored::ProducerIdsRecord| Value::ProducerIds(record.next))
        }
    };
    let value = value.map_err(damaged)?;
    Ok(Some(Change::put(parsed, value)))
}

type Decoded<T> = Result<T, &'static str>;

fn message<M: Message + Default>(bytes: &Bytes) -> Decoded<M> {
    M::decode(bytes.clone()).map_err(|_| "not the message that belongs here")
}

fn read_uuid(bytes: &Bytes) -> Decoded<Uuid> {
    Uuid::from_slice(bytes).map_err(|_| "an id has not 16 bytes")
}

fn decode_cluster(record: stored::ClusterRecord) -> Decoded<Value> {
    let id = read_uuid(&record.cluster_id)?;
    Ok(Value::Cluster(Cluster {
        id,
        created: TimestampMs(record.created_ms),
    }))
}

fn decode_node(record: stored::NodeRecord) -> Decoded<Value> {
    let folders = record
        .folder_ids
        .iter()
        .map(|id| read_uuid(id).map(FolderId));
    let earlier = record.earlier_process_ids.iter().map(read_uuid);
    Ok(Value::Node(Node {
        incarnation: Incarnation(record.incarnation),
        process: read_uuid(&record.process_id)?,
        earlier: earlier.collect::<Decoded<_>>()?,
        grpc_address: record.grpc_address,
        http_address: record.http_address,
        rack: record.rack,
        folders: folders.collect::<Decoded<BTreeSet<_>>>()?,
        clean: record.clean,
        version: record.version,
        draining: record.draining,
        removed: record.removed,
        lost: record.lost,
    }))
}

fn decode_topic(record: stored::TopicRecord) -> Decoded<Value> {
    let life = match record.life() {
        stored::TopicLife::Creating => Life::Creating,
        stored::TopicLife::Ready => Life::Ready,
        stored::TopicLife::Unspecified => return Err("a state of life that is not known"),
    };
    let derived = match record.derived_from.is_empty() {
        true => None,
        false => Some(Derived {
            source: TopicId(read_uuid(&record.derived_from)?),
            group: record.derived_for_group,
        }),
    };
    let earlier = record.earlier_counts.iter();
    Ok(Value::Topic(Topic {
        earlier: earlier
            .map(|count| (count.partitions, TimestampMs(count.until_ms)))
            .collect(),
        name: record.name,
        partitions: record.partitions,
        replication_factor: record.replication_factor,
        config: record.config.into_iter().collect(),
        created: TimestampMs(record.created_ms),
        life,
        idempotency_key: record.idempotency_key,
        derived,
    }))
}

fn decode_partition(record: stored::PartitionRecord) -> Decoded<Value> {
    let ids = |nodes: Vec<u32>| nodes.into_iter().map(NodeId).collect();
    let moving = record.r#move.map(|moving| -> Decoded<Move> {
        Ok(Move {
            id: read_uuid(&moving.id)?,
            from: ids(moving.from),
            to: ids(moving.to),
            throttle: moving.throttle_bytes_per_second,
            started: TimestampMs(moving.started_ms),
        })
    });
    Ok(Value::Partition(Partition {
        moving: moving.transpose()?,
        recovered: record.recovered.map(|recovered| Recovered {
            epoch: LeaderEpoch(recovered.leader_epoch),
            unclean: recovered.unclean,
            time: TimestampMs(recovered.time_ms),
            from: recovered.from_offset.map(Offset),
        }),
        removed: ids(record.removed),
        leader: NodeId(record.leader),
        leader_incarnation: Incarnation(record.leader_incarnation),
        leader_epoch: LeaderEpoch(record.leader_epoch),
        partition_epoch: PartitionEpoch(record.partition_epoch),
        replicas: ids(record.replicas),
        in_sync: ids(record.in_sync),
        eligible: ids(record.eligible),
        last_in_sync: ids(record.last_in_sync),
    }))
}

fn decode_tombstone(record: stored::TombstoneRecord) -> Value {
    Value::Tombstone(Tombstone {
        name: record.name,
        pending: record.pending_nodes.into_iter().map(NodeId).collect(),
        deleted: TimestampMs(record.deleted_ms),
    })
}

fn decode_shard(record: stored::ShardRecord) -> Value {
    Value::Shard(Shard {
        coordinator: NodeId(record.coordinator),
        incarnation: Incarnation(record.coordinator_incarnation),
        epoch: ShardEpoch(record.shard_epoch),
        grpc_address: record.grpc_address,
    })
}

fn decode_balance(record: stored::BalanceRecord) -> Decoded<Value> {
    Ok(Value::Balance(Balance {
        id: read_uuid(&record.id)?,
        throttle: record.throttle_bytes_per_second,
        started: TimestampMs(record.started_ms),
        moves_total: record.moves_total,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use talweg_types::{PartitionIndex, TopicPartition};

    fn samples() -> Vec<(Key, Value)> {
        let id = TopicId(Uuid::from_u128(7));
        let node = Node {
            incarnation: Incarnation(3),
            process: Uuid::from_u128(1),
            earlier: vec![Uuid::from_u128(2), Uuid::from_u128(3)],
            grpc_address: "http://a:1".into(),
            http_address: "http://a:2".into(),
            rack: "r".into(),
            folders: BTreeSet::from([FolderId(Uuid::from_u128(4))]),
            clean: true,
            version: "0.1.0".into(),
            draining: true,
            removed: true,
            lost: true,
        };
        let topic = Topic {
            name: "t".into(),
            partitions: 12,
            replication_factor: 1,
            config: BTreeMap::from([("retention.ms".into(), "-1".into())]),
            created: TimestampMs(5),
            life: Life::Creating,
            idempotency_key: "k".into(),
            earlier: vec![(3, TimestampMs(4))],
            derived: Some(Derived {
                source: TopicId(Uuid::from_u128(6)),
                group: "g".into(),
            }),
        };
        let partition = Partition {
            leader: NodeId(1),
            leader_incarnation: Incarnation(3),
            leader_epoch: LeaderEpoch(9),
            partition_epoch: PartitionEpoch(11),
            replicas: vec![NodeId(1), NodeId(2)],
            in_sync: vec![NodeId(1)],
            eligible: vec![NodeId(2)],
            last_in_sync: vec![NodeId(1), NodeId(2)],
            recovered: Some(Recovered {
                epoch: LeaderEpoch(8),
                unclean: true,
                time: TimestampMs(7),
                from: Some(Offset(6)),
            }),
            moving: Some(Move {
                id: Uuid::from_u128(5),
                from: vec![NodeId(2)],
                to: vec![NodeId(1)],
                throttle: 1 << 20,
                started: TimestampMs(8),
            }),
            removed: vec![NodeId(9)],
        };
        let tombstone = Tombstone {
            name: "t".into(),
            pending: BTreeSet::from([NodeId(1)]),
            deleted: TimestampMs(6),
        };
        let cluster = Cluster {
            id: Uuid::from_u128(8),
            created: TimestampMs(1),
        };
        let tp = TopicPartition {
            topic_id: id,
            partition: PartitionIndex(2),
        };
        vec![
            (Key::Cluster, Value::Cluster(cluster)),
            (Key::Node(NodeId(1)), Value::Node(node)),
            (Key::Topic(id), Value::Topic(topic.clone())),
            (
                Key::Topic(id),
                Value::Topic(Topic {
                    life: Life::Ready,
                    ..topic
                }),
            ),
            (Key::TopicName("t".into()), Value::TopicName(id)),
            (Key::Partition(tp), Value::Partition(partition)),
            (Key::Tombstone(id), Value::Tombstone(tombstone)),
            (
                Key::Shard(tp),
                Value::Shard(Shard {
                    coordinator: NodeId(1_000_001),
                    incarnation: Incarnation(77),
                    epoch: ShardEpoch(4),
                    grpc_address: "http://c:1".into(),
                }),
            ),
            (Key::ProducerIds, Value::ProducerIds(1000)),
            (
                Key::Balance,
                Value::Balance(Balance {
                    id: Uuid::from_u128(9),
                    throttle: 1 << 20,
                    started: TimestampMs(3),
                    moves_total: 12,
                }),
            ),
        ]
    }

    #[test]
    fn every_kind_of_record_comes_back_as_it_was() {
        for (key, value) in samples() {
            let bytes = encode(&value, &key);
            let change = decode(&key.encode(), &bytes).expect("reads");
            assert_eq!(change, Some(Change::put(key, value)));
        }
    }

    /// A record of a version that knew neither moves nor recovered elections.
    #[test]
    fn records_of_earlier_versions_are_read() {
        let tp = TopicPartition {
            topic_id: TopicId(Uuid::from_u128(7)),
            partition: PartitionIndex(0),
        };
        // leader 1, incarnation 2, replicas, in-sync and last in-sync sets of node 1.
        let old = [8, 1, 16, 2, 42, 1, 1, 50, 1, 1, 66, 1, 1];
        let change = decode(&Key::Partition(tp).encode(), &Bytes::copy_from_slice(&old));
        let expected = Partition::new(vec![NodeId(1)], Some((NodeId(1), Incarnation(2))));
        let expected = Change::put(Key::Partition(tp), Value::Partition(expected));
        assert_eq!(change, Ok(Some(expected)));
    }

    #[test]
    fn what_cannot_be_read_is_said_and_not_guessed() {
        for (key, value) in samples() {
            let cut = encode(&value, &key).slice(1..);
            if let Ok(Some(change)) = decode(&key.encode(), &cut) {
                assert_ne!(
                    change.value,
                    Some(value),
                    "{key:?} read the same from fewer bytes"
                );
            }
        }
        let bad: [(&[u8], &[u8]); 4] = [
            (b"no-such-key", b""),
            (b"topic-name/t", b"short"),
            (b"cluster", b"\x0a\x01x"),
            (b"producer-ids", b"\xff\xff"),
        ];
        for (key, value) in bad {
            let value = Bytes::copy_from_slice(value);
            assert!(
                decode(key, &value).is_err(),
                "{}",
                String::from_utf8_lossy(key)
            );
        }
    }
}
