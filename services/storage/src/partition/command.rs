//! What can be asked of a loop, and the door through which it is asked.
//!
//! Batches wait in the mailbox only as far as their bytes fit its budget: a
//! stream reserves first, and waits for that on its own task. Other commands
//! are few (one per partition and change) and are never held back.

use super::{
    completion::Completions,
    handle::PartitionHandle,
    internal::InternalAppend,
    rounds::{FlushKind, Flushed},
};
use crate::{
    replicate::{Outbox, ReplicaFrame},
    rewrites::Given,
};
use bytes::Bytes;
use crossbeam_channel::Sender;
use parking_lot::RwLock;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use talweg_batch::CheckedBatch;
use talweg_log::{Compaction, LogConfig, LogError, PartitionLog, Repair, Rewrite};
use talweg_replication::{
    Contacts, FetchEnded, FetchOpened, Fetched, InSync, LeaderSettings, ProposalId, Report,
    SessionTag,
};
use talweg_types::{
    Acks, Incarnation, LeaderEpoch, NodeId, Offset, PartitionEpoch, TimestampMs, TopicId,
    TopicPartition,
};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Batches of one frame, all of one partition, with consecutive stream sequences.
pub struct AppendRequest {
    pub tp: TopicPartition,
    /// The epoch that the producer believes in.
    pub expected_epoch: Option<LeaderEpoch>,
    pub acks: Acks,
    /// With the stream sequence of each.
    pub batches: Vec<(u64, CheckedBatch)>,
    /// Who is answered, and the stream's number for the partition.
    pub stream: Arc<Completions>,
    pub slot: u32,
    /// Given back when the batches are written.
    pub reservation: Reservation,
}

/// A leadership that the controller gave to this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leadership {
    pub epoch: LeaderEpoch,
    pub incarnation: Incarnation,
    pub partition_epoch: PartitionEpoch,
    pub in_sync: BTreeSet<NodeId>,
    /// All that hold a replica or are being added.
    pub replicas: BTreeSet<NodeId>,
}

/// Another node leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Following {
    pub leader: NodeId,
    pub epoch: LeaderEpoch,
    /// This process's.
    pub incarnation: Incarnation,
    /// The newest epoch that began with less than was promised, or NONE.
    pub recovered: LeaderEpoch,
}

/// What the controller made of a change of the in-sync set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProposalAnswer {
    Confirmed(InSync),
    Refused {
        id: ProposalId,
        partition_epoch: PartitionEpoch,
    },
    /// Nobody knows.
    TimedOut {
        id: ProposalId,
    },
}

/// A log that is ready to be owned by a loop.
pub struct Opened {
    pub log: PartitionLog,
    pub handle: Arc<PartitionHandle>,
    pub node: NodeId,
    /// Index of its folder among the node's.
    pub folder: usize,
    pub settings: LeaderSettings,
    /// For what it has to say to other nodes.
    pub outbox: Arc<Outbox>,
    /// Whom the node has heard.
    pub contacts: Arc<RwLock<Contacts>>,
    /// What batches are stamped with as their append time.
    pub wall_clock: fn() -> TimestampMs,
}

/// By partition that this node leads: followers, and how many milliseconds ago
/// each last held all.
pub type CaughtUp = BTreeMap<TopicPartition, Vec<(NodeId, u64)>>;

/// A message to a loop.
pub enum Command {
    Append(AppendRequest),
    /// A coordinator's.
    AppendInternal(InternalAppend),
    Open(Box<Opened>),
    Lead {
        tp: TopicPartition,
        leadership: Leadership,
    },
    /// Follows another node.
    Follow {
        tp: TopicPartition,
        following: Following,
    },
    /// Appends no more in this epoch, so that followers can get all that was:
    /// the next leader then has it too. Answered when it holds.
    HandOver {
        tp: TopicPartition,
        epoch: LeaderEpoch,
        held: oneshot::Sender<()>,
    },
    /// Neither leads nor follows.
    Resign {
        tp: TopicPartition,
        epoch: LeaderEpoch,
    },
    /// What the leader that it follows has sent.
    Fetched {
        tp: TopicPartition,
        fetched: Box<Fetched<ReplicaFrame>>,
    },
    /// Producer state for a replica that begins anew; comes before its `Fetched`.
    SessionsSent {
        tp: TopicPartition,
        sessions: Bytes,
    },
    /// A fetch session has ended.
    FetchBroken {
        tp: TopicPartition,
        session: SessionTag,
    },
    /// A follower fetches from here.
    FollowerOpened {
        tp: TopicPartition,
        opened: FetchOpened,
    },
    /// A follower fetches from here no more.
    FollowerEnded {
        tp: TopicPartition,
        ended: FetchEnded,
    },
    /// A follower has written or flushed.
    Reported {
        tp: TopicPartition,
        report: Report,
    },
    ProposalAnswered {
        tp: TopicPartition,
        answer: ProposalAnswer,
    },
    Configure {
        tp: TopicPartition,
        log: LogConfig,
        settings: LeaderSettings,
    },
    /// Deletes the log; answered when it is gone.
    Delete {
        tp: TopicPartition,
        done: oneshot::Sender<Result<(), LogError>>,
    },
    /// Moves the log start; `None` is the high watermark. Answered with the new one, durable.
    DeleteRecords {
        tp: TopicPartition,
        before: Option<Offset>,
        done: oneshot::Sender<Result<Offset, LogError>>,
    },
    /// Results of flushes.
    Flushed {
        folder: usize,
        kind: FlushKind,
        results: Vec<Flushed>,
    },
    /// When the followers of these topics' partitions (none named: of all) last held
    /// all that this node held as their leader.
    CaughtUp {
        topics: BTreeSet<TopicId>,
        done: oneshot::Sender<CaughtUp>,
    },
    /// A round of compaction, if one is due: for the compactor.
    Compact {
        tp: TopicPartition,
        give: Given<Compaction>,
    },
    /// A repair of a damaged segment, if one is ready for it: for the repairer.
    Repair {
        tp: TopicPartition,
        give: Given<Repair>,
    },
    /// Rewritten segments are back; answered when readers see them.
    Rewritten {
        tp: TopicPartition,
        rewrite: Box<Rewrite>,
        done: Sender<()>,
    },
    /// The time index was rebuilt as far as it went.
    IndexRebuilt {
        tp: TopicPartition,
    },
    /// Append no more, flush and close everything, answer, end. True: all is clean.
    Close {
        done: oneshot::Sender<bool>,
    },
    /// End now, as if the process had died.
    Abort,
}

/// The loop has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the partition loop has ended")]
pub struct Stopped;

/// Room in a mailbox.
pub struct Reservation {
    _permit: Option<OwnedSemaphorePermit>,
}

/// The way to a loop.
#[derive(Clone)]
pub struct LoopHandle {
    sender: Sender<Command>,
    budget: Arc<Semaphore>,
    budget_bytes: u32,
}

impl LoopHandle {
    pub(super) fn new(sender: Sender<Command>, budget_bytes: u32) -> Self {
        let budget = Arc::new(Semaphore::new(budget_bytes as usize));
        Self {
            sender,
            budget,
            budget_bytes,
        }
    }

    /// Waits until the mailbox has room for `bytes`. One request larger than the
    /// whole budget waits until it is alone.
    pub async fn reserve(&self, bytes: usize) -> Result<Reservation, Stopped> {
        let bytes = u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min(self.budget_bytes);
        let permit = Arc::clone(&self.budget)
            .acquire_many_owned(bytes)
            .await
            .map_err(|_| Stopped)?;
        Ok(Reservation {
            _permit: Some(permit),
        })
    }

    /// Room for `bytes`, if there is some now.
    pub fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        let bytes = u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min(self.budget_bytes);
        let permit = Arc::clone(&self.budget)
            .try_acquire_many_owned(bytes)
            .ok()?;
        Some(Reservation {
            _permit: Some(permit),
        })
    }

    pub fn send(&self, command: Command) -> Result<(), Stopped> {
        self.sender.send(command).map_err(|_| Stopped)
    }

    /// The loop has ended: nobody waits for room any more.
    pub(super) fn close(&self) {
        self.budget.close();
    }

    /// Bytes that wait in the mailbox.
    pub fn queued_bytes(&self) -> usize {
        (self.budget_bytes as usize).saturating_sub(self.budget.available_permits())
    }
}

impl Reservation {
    /// For whoever steps what lies behind the mailbox.
    pub fn none() -> Self {
        Self { _permit: None }
    }
}
