//! What the metastore holds, as values. One [`Key`] each; nothing else is kept.

use std::collections::{BTreeMap, BTreeSet};
use talweg_metastore::{Revision, keys::Key};
use talweg_types::{
    FolderId, Incarnation, LeaderEpoch, NodeId, PartitionEpoch, TimestampMs, TopicId,
};
use uuid::Uuid;

/// A value and the revision that last put it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored<T> {
    pub value: T,
    pub revision: Revision,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cluster {
    pub id: Uuid,
    pub created: TimestampMs,
}

/// A storage node as of its last start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Starts so far; the process that has it is `process`.
    pub incarnation: Incarnation,
    pub process: Uuid,
    /// Processes that had earlier incarnations, newest first, at most
    /// [`EARLIER_PROCESSES`]: if one of them comes back it must stop.
    pub earlier: Vec<Uuid>,
    pub grpc_address: String,
    pub http_address: String,
    pub rack: String,
    pub folders: BTreeSet<FolderId>,
    /// No folder may have lost unflushed bytes before this start.
    pub clean: bool,
    pub version: String,
}

/// Earlier processes of a node that are remembered.
pub const EARLIER_PROCESSES: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// Its partitions are being written; nobody sees it.
    Creating,
    Ready,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topic {
    pub name: String,
    /// Partition keys at and above this number are not in force yet.
    pub partitions: u32,
    pub replication_factor: u32,
    /// Settings that differ from the defaults.
    pub config: BTreeMap<String, String>,
    pub created: TimestampMs,
    pub life: Life,
    /// The request that created it; empty if it named none.
    pub idempotency_key: String,
    /// Counts that were in force before, and until when; oldest first.
    pub earlier: Vec<(u32, TimestampMs)>,
}

/// The atomic unit of leadership.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    /// [`NodeId::NONE`]: no leader now.
    pub leader: NodeId,
    /// The one process that may lead in this epoch; 0 without a leader.
    pub leader_incarnation: Incarnation,
    /// Raised with every change of leader or incarnation.
    pub leader_epoch: LeaderEpoch,
    /// Raised with every change.
    pub partition_epoch: PartitionEpoch,
    /// The first is preferred.
    pub replicas: Vec<NodeId>,
    pub in_sync: Vec<NodeId>,
    pub eligible: Vec<NodeId>,
    pub last_in_sync: Vec<NodeId>,
}

impl Partition {
    /// A new partition with one replica, which leads it if it is alive.
    pub fn new(replica: NodeId, alive: Option<Incarnation>) -> Self {
        Self {
            leader: alive.map_or(NodeId::NONE, |_| replica),
            leader_incarnation: alive.unwrap_or_default(),
            leader_epoch: LeaderEpoch(0),
            partition_epoch: PartitionEpoch(0),
            replicas: vec![replica],
            in_sync: vec![replica],
            eligible: Vec::new(),
            last_in_sync: vec![replica],
        }
    }

    /// The same partition led by `leader` (or none) from a new epoch on.
    #[must_use]
    pub fn led_by(&self, leader: Option<(NodeId, Incarnation)>) -> Self {
        let (leader, leader_incarnation) = leader.unwrap_or_default();
        Self {
            leader,
            leader_incarnation,
            leader_epoch: LeaderEpoch(self.leader_epoch.0.saturating_add(1)),
            partition_epoch: PartitionEpoch(self.partition_epoch.0.saturating_add(1)),
            ..self.clone()
        }
    }
}

/// A deleted topic, kept until every replica's node has confirmed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tombstone {
    pub name: String,
    pub pending: BTreeSet<NodeId>,
    pub deleted: TimestampMs,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    Cluster(Cluster),
    Node(Node),
    Topic(Topic),
    TopicName(TopicId),
    Partition(Partition),
    Tombstone(Tombstone),
    /// The first id never given out.
    ProducerIds(i64),
}

/// One key put, or deleted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    pub key: Key,
    pub value: Option<Value>,
}

impl Change {
    pub fn put(key: Key, value: Value) -> Self {
        Self {
            key,
            value: Some(value),
        }
    }

    pub fn delete(key: Key) -> Self {
        Self { key, value: None }
    }
}

/// Keys that one transaction can change: each needs a compare and an
/// operation, and one compare is the election key's.
pub const CHANGES_PER_WRITE: usize = (talweg_metastore::MAX_TXN_OPERATIONS - 1) / 2;
