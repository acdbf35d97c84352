//! What the metastore holds, as values. One [`Key`] each; nothing else is kept.

use std::collections::{BTreeMap, BTreeSet};
use talweg_metastore::{Revision, keys::Key};
use talweg_types::{
    FolderId, Incarnation, LeaderEpoch, NodeId, Offset, PartitionEpoch, ShardEpoch, TimestampMs,
    TopicId, TopicPartition,
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
    /// At a start log folders were missing or empty, and some partition still
    /// waits for what was in them: that a log is empty now proves nothing.
    pub lost: bool,
    /// Leaders move away, new replicas go elsewhere.
    pub draining: bool,
    /// An operator has removed it; the record keeps its id from being used again.
    pub removed: bool,
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
    /// A retry or dead-letter topic.
    pub derived: Option<Derived>,
}

/// Whose retry or dead-letter topic a topic is. The source may be gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Derived {
    pub source: TopicId,
    pub group: String,
}

/// Who coordinates a shard of an internal topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shard {
    /// [`NodeId::NONE`]: nobody now.
    pub coordinator: NodeId,
    /// The one process that may take it in this epoch; 0 without a coordinator.
    pub incarnation: Incarnation,
    /// Raised each time that it is given out.
    pub epoch: ShardEpoch,
    /// Where its coordinator listens.
    pub grpc_address: String,
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
    /// Left the in-sync set while it was below its minimum.
    pub eligible: Vec<NodeId>,
    /// The newest `in_sync` ∪ `eligible` that had the minimum of members.
    pub last_in_sync: Vec<NodeId>,
    /// The newest election after which something may be missing.
    pub recovered: Option<Recovered>,
    /// A reassignment under way; `replicas` holds old and new ones.
    pub moving: Option<Move>,
    /// Nodes that still have to delete the replica they had.
    pub removed: Vec<NodeId>,
}

/// A leader was elected although acknowledged records may be missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recovered {
    pub epoch: LeaderEpoch,
    /// An operator asked for it.
    pub unclean: bool,
    pub time: TimestampMs,
    /// The leader's log end at its election: what earlier epochs had here and
    /// above may be missing. `None`: an earlier version did not write it down.
    pub from: Option<Offset>,
}

/// A reassignment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Move {
    pub id: Uuid,
    pub from: Vec<NodeId>,
    pub to: Vec<NodeId>,
    /// Bytes per second and destination; 0 is no limit.
    pub throttle: u64,
    pub started: TimestampMs,
}

impl Move {
    pub fn adding(&self) -> impl Iterator<Item = NodeId> {
        let new = |node: &&NodeId| !self.from.contains(node);
        self.to.iter().filter(new).copied()
    }

    pub fn removing(&self) -> impl Iterator<Item = NodeId> {
        let old = |node: &&NodeId| !self.to.contains(node);
        self.from.iter().filter(old).copied()
    }

    /// Both old and new replicas, the new ones first.
    pub fn all(&self) -> Vec<NodeId> {
        self.to.iter().copied().chain(self.removing()).collect()
    }
}

/// The cluster is being balanced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Balance {
    pub id: Uuid,
    /// Bytes per second of all copies together; 0 is no limit.
    pub throttle: u64,
    pub started: TimestampMs,
    /// Planned when it began.
    pub moves_total: u32,
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
    Shard(Shard),
    /// The first id never given out.
    ProducerIds(i64),
    Balance(Balance),
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

    /// The partition that it changes.
    pub fn partition(&self) -> Option<TopicPartition> {
        match &self.key {
            Key::Partition(tp) => Some(*tp),
            _ => None,
        }
    }

    pub fn delete(key: Key) -> Self {
        Self { key, value: None }
    }
}

/// Keys that one transaction can change: each needs a compare and an
/// operation, and one compare is the election key's.
pub const CHANGES_PER_WRITE: usize = (talweg_metastore::MAX_TXN_OPERATIONS - 1) / 2;
