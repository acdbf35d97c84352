//! What goes into a leader and what comes out.

use crate::{
    check::Broken,
    replica::{ReplicaEnds, Report, SessionTag},
    waiters::{Failure, Reached, Waiter},
};
use std::collections::BTreeSet;
use talweg_types::{Durability, Incarnation, LeaderEpoch, NodeId, Offset, PartitionEpoch};
use thiserror::Error;

/// Whether this replica leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Another node does, or nobody.
    NotLeader,
    Leader {
        epoch: LeaderEpoch,
        incarnation: Incarnation,
    },
}

/// The in-sync set as the controller confirmed it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InSync {
    /// The partition's leader epoch; the word is for its leader only.
    pub epoch: LeaderEpoch,
    /// An equal or lower one than what is known is an older word.
    pub partition_epoch: PartitionEpoch,
    /// The leader included.
    pub members: BTreeSet<NodeId>,
}

/// What the topic asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaderSettings {
    pub durability: Durability,
    pub replication_factor: u32,
    pub min_insync_replicas: u32,
}

/// Spans of time, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timings {
    /// `replica.lag.time.max.ms`: a follower behind for longer leaves the in-sync set.
    pub lag_ms: u64,
    /// The node session time-out: with nobody heard for longer nothing is appended.
    pub session_ms: u64,
    /// The wait after the first unanswered or refused proposal; it doubles.
    pub retry_ms: u64,
    pub retry_max_ms: u64,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            lag_ms: 10_000,
            session_ms: 3_000,
            retry_ms: 100,
            retry_max_ms: 10_000,
        }
    }
}

/// A leadership as the controller decided it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lead {
    pub epoch: LeaderEpoch,
    pub incarnation: Incarnation,
    /// The controller's count of changes of the partition, in which this one is the last.
    pub partition_epoch: PartitionEpoch,
    /// The leader's own ends, after recovery.
    pub ends: ReplicaEnds,
    /// The watermark stored with the log.
    pub high_watermark: Offset,
    pub in_sync: BTreeSet<NodeId>,
    /// All that the partition is assigned to; nobody else's word counts.
    pub replicas: BTreeSet<NodeId>,
    pub settings: LeaderSettings,
}

/// A follower's fetch whose position was found good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FetchOpened {
    pub node: NodeId,
    pub epoch: LeaderEpoch,
    pub incarnation: Incarnation,
    pub session: SessionTag,
}

/// A follower's fetch that is over: its stream has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FetchEnded {
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub session: SessionTag,
    /// When the follower was last heard on it.
    pub heard: crate::MonotonicMs,
}

/// Which attempt at a change of the in-sync set an answer is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ProposalId(pub u64);

/// A member of a proposed in-sync set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Member {
    pub node: NodeId,
    /// The process that is meant. `None` for a member that stays and has not
    /// spoken in this epoch: as the controller has it.
    pub incarnation: Option<Incarnation>,
}

/// A change of the in-sync set, to be compared and set at the controller on
/// (epoch, partition epoch).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    pub id: ProposalId,
    pub epoch: LeaderEpoch,
    pub partition_epoch: PartitionEpoch,
    /// The whole new set, the leader included.
    pub members: BTreeSet<Member>,
}

/// What a follower is told beside data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// `None` while an earlier leader may have published a higher one.
    pub high_watermark: Option<Offset>,
    pub log_start: Offset,
}

/// What happens to a leader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<W> {
    Lead(Lead),
    /// Leadership ended; `epoch` is the one that the controller is at.
    Resign {
        epoch: LeaderEpoch,
    },
    /// A write of the leader has returned.
    Appended {
        log_end: Offset,
        waiters: Vec<Waiter<W>>,
    },
    /// A flush of the leader has returned.
    Flushed {
        flushed_end: Offset,
    },
    /// A follower fetches from here on.
    FetchOpened(FetchOpened),
    /// A follower fetches no more.
    FetchEnded(FetchEnded),
    /// A follower has written or flushed.
    Reported(Report),
    /// The controller has confirmed a set, asked for or not.
    InSyncChanged(InSync),
    /// The controller, which is at that partition epoch, has not applied this
    /// attempt. A higher epoch than the leader knows leaves the outcome open: a
    /// repeat on the way may have been refused for what its twin has done.
    ProposalRefused {
        id: ProposalId,
        partition_epoch: PartitionEpoch,
    },
    /// No answer: it may have been applied, or be applied later.
    ProposalTimedOut {
        id: ProposalId,
    },
    /// A controller has answered this node, about whatever.
    ControllerHeard,
    /// The assignment changed within the epoch.
    ReplicasChanged(BTreeSet<NodeId>),
    SettingsChanged(LeaderSettings),
    TimingsChanged(Timings),
    /// Time has passed; see `Leader::next_tick`.
    Tick,
}

/// What the driver does about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect<W> {
    /// Tell the log, then the readers. Comes before the answers that rest on it.
    HighWatermark(Offset),
    /// Answer: done.
    Done { token: W, reached: Reached },
    /// Answer: outcome unknown.
    Failed { token: W, why: Failure },
    /// Ask the controller, once; report what became of it as an event.
    ProposeInSync(Proposal),
}

/// Why a batch may not be appended. Nothing happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NotAdmitted {
    #[error("this node does not lead the partition")]
    NotLeader,
    #[error("{in_sync} replicas are in sync, {needed} are needed")]
    NotEnoughReplicas { in_sync: u32, needed: u32 },
    /// It may have been replaced without knowing it.
    #[error(
        "no controller and {heard} of {needed} in-sync replicas were heard for a session time-out"
    )]
    NoQuorumContact { heard: u32, needed: u32 },
}

/// The broken part of the invariant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum LeaderCheck {
    #[error("high watermark {high_watermark} is above the counted end {counted} of node {}", node.0)]
    WatermarkAboveCounted {
        node: NodeId,
        high_watermark: Offset,
        counted: Offset,
    },
    #[error("flushed or counted end of node {} is above its log end", node.0)]
    EndsCrossed { node: NodeId },
    #[error(transparent)]
    Positions(#[from] Broken),
    #[error("a waiter was not released although its bound has passed")]
    WaiterOverdue,
    #[error("produces wait although nobody leads")]
    WaitersWithoutLeader,
}
