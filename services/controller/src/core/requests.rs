//! Requests and their answers. A request is decided when its turn comes, so
//! that it sees what earlier ones did.

use super::{AlterInSync, Change, Core, InSyncResult, Now, Refusal, Value, jobs::Progress};
use std::collections::{BTreeMap, BTreeSet};
use talweg_metastore::keys::Key;
use talweg_types::{
    Incarnation, LeaderEpoch, NodeId, PartitionIndex, TopicId, TopicPartition,
    limits::DERIVED_PRODUCER_ID_BASE,
};
use uuid::Uuid;

/// Names a caller that waits, for as long as this controller lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CallId(pub u64);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CreateTopic {
    pub name: String,
    /// `None`: the cluster's default.
    pub partitions: Option<i32>,
    pub replication_factor: Option<i32>,
    pub config: BTreeMap<String, String>,
    pub idempotency_key: String,
    /// The id that the topic gets, random.
    pub id: TopicId,
}

/// A retry or dead-letter topic of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeriveTopic {
    pub name: String,
    pub source: TopicId,
    pub group: String,
    /// The id that the topic gets if it is new, random.
    pub id: TopicId,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlterTopic {
    pub name: String,
    pub partitions: Option<i32>,
    pub set: BTreeMap<String, String>,
    pub reset: BTreeSet<String>,
}

/// At least one of the two is there; both must agree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeleteTopic {
    pub name: Option<String>,
    pub id: Option<TopicId>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    Create(CreateTopic),
    /// Answered `Created`, also if it was there.
    Derive(DeriveTopic),
    Alter(AlterTopic),
    Delete(DeleteTopic),
    /// A block of this many producer ids.
    Allocate {
        count: u32,
    },
    /// A node holds nothing of these deleted topics.
    ConfirmDeleted {
        node: NodeId,
        incarnation: Incarnation,
        topics: BTreeSet<TopicId>,
        partitions: BTreeSet<TopicPartition>,
    },
    AlterInSync(AlterInSync),
    Drain {
        node: NodeId,
        draining: bool,
    },
    RemoveNode {
        node: NodeId,
    },
    Elect(ElectLeader),
    Reassign(Reassign),
    CancelMove {
        id: Uuid,
    },
    Balance(BalanceCluster),
}

/// To begin a balancing, to join the one that goes on, or to stop it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BalanceCluster {
    /// Bytes per second of all copies together, 0 is no limit; `None`: stop.
    pub throttle: Option<u64>,
    /// Names a new one, random.
    pub id: Uuid,
}

/// Which partition needs a leader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ElectLeader {
    pub topic: String,
    pub partition: PartitionIndex,
    pub unclean: bool,
}

/// Which replicas a partition shall have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reassign {
    pub topic: String,
    pub partition: PartitionIndex,
    pub to: Vec<NodeId>,
    /// Bytes per second and destination; 0 is no limit.
    pub throttle: u64,
    /// Names the move, random.
    pub id: Uuid,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicAnswer {
    pub id: TopicId,
    pub topic: super::Topic,
    /// For people.
    pub warnings: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    Created(TopicAnswer),
    Altered(TopicAnswer),
    Deleted(TopicId),
    /// The first id of the block.
    Allocated {
        first: i64,
    },
    Confirmed,
    /// One result for each proposal.
    InSync(Vec<InSyncResult>),
    /// Partitions that the node still leads.
    Drained {
        leaders_left: usize,
    },
    Removed,
    Elected {
        leader: NodeId,
        epoch: LeaderEpoch,
    },
    Moving(Uuid),
    MoveCancelled,
    Balancing,
}

/// Ids in one request.
const ALLOCATE_MAX: u32 = 100_000;

impl Core {
    pub(super) fn plan_request(
        &mut self,
        now: Now,
        request: &Request,
        progress: &mut Progress,
    ) -> Result<Next, Refusal> {
        match request {
            Request::Create(create) => self.plan_create(now, create, None, progress),
            Request::Derive(derive) => self.plan_derive(now, derive, progress),
            Request::Alter(alter) => self.plan_alter(now, alter, progress),
            Request::Delete(delete) => self.plan_delete(now, delete, progress),
            Request::Allocate { count } => self.plan_allocate(*count, progress),
            Request::ConfirmDeleted {
                node,
                incarnation,
                topics,
                partitions,
            } => self.plan_confirm(*node, *incarnation, topics, partitions),
            // They have a queue of their own.
            Request::AlterInSync(_) => Ok(Next::Reply(Reply::InSync(Vec::new()))),
            Request::Drain { node, draining } => self.plan_drain(now, *node, *draining),
            Request::RemoveNode { node } => self.plan_remove_node(*node, progress),
            Request::Elect(elect) => self.plan_elect(now, elect, progress),
            Request::Reassign(reassign) => self.plan_reassign(now, reassign),
            Request::CancelMove { id } => self.plan_cancel(*id, progress),
            Request::Balance(asked) => self.plan_balance_request(now, asked, progress),
        }
    }

    fn plan_allocate(&self, count: u32, progress: &mut Progress) -> Result<Next, Refusal> {
        if !(1..=ALLOCATE_MAX).contains(&count) {
            let reason = format!("must be between 1 and {ALLOCATE_MAX}, not {count}");
            return Err(Refusal::InvalidArgument {
                field: "count",
                reason,
            });
        }
        let count = i64::from(count);
        let next = self
            .view
            .producer_ids
            .as_ref()
            .map_or(0, |stored| stored.value);
        // Only this job writes the key until it is done, so the block is ours
        // exactly when the stored next id is the block's end.
        if *progress == (Progress::Allocating { end: next }) {
            return Ok(Next::Reply(Reply::Allocated {
                first: next - count,
            }));
        }
        let end = next.saturating_add(count);
        if end > DERIVED_PRODUCER_ID_BASE {
            return Err(Refusal::LimitExceeded {
                name: "producer ids",
                limit: DERIVED_PRODUCER_ID_BASE.unsigned_abs(),
                actual: end.unsigned_abs(),
                unit: "ids",
                reason: "all producer ids have been given out".into(),
            });
        }
        *progress = Progress::Allocating { end };
        Ok(Next::Write(vec![Change::put(
            Key::ProducerIds,
            Value::ProducerIds(end),
        )]))
    }
}

/// What a request wants next.
pub(super) enum Next {
    Write(Vec<Change>),
    Reply(Reply),
    /// To be asked again when something has happened.
    Wait,
}
