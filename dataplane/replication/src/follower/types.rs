//! What goes into a follower and what comes out. `F` is the driver's frame of
//! batches; the core looks at its positions only.

use crate::{
    MonotonicMs,
    check::Broken,
    replica::{ReplicaEnds, Report, SessionTag},
};
use talweg_types::{Incarnation, LeaderEpoch, NodeId, Offset};
use thiserror::Error;

/// Another node leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Follow {
    pub leader: NodeId,
    pub epoch: LeaderEpoch,
    /// This process's.
    pub incarnation: Incarnation,
    /// The newest `recovered` or unclean epoch of the partition, or NONE. A log
    /// without a batch of it or a later one may be cut below its watermark.
    pub recovered: LeaderEpoch,
    /// The log as it is, writes that are under way not included.
    pub log_start: Offset,
    /// As stored with the log; exclusive.
    pub high_watermark: Offset,
    pub ends: ReplicaEnds,
}

/// What a fetch session brought.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FetchedBody<F> {
    /// Batches that follow each other.
    Batches {
        /// The position that the leader read at: where the frame before ended.
        from: Offset,
        /// One past the last offset.
        end: Offset,
        /// The leader epochs of the first and the last batch.
        first_epoch: LeaderEpoch,
        last_epoch: LeaderEpoch,
        frame: F,
    },
    /// The position is good; bounds only.
    Nothing,
    /// The leader's end (exclusive) of its largest epoch at or below the one asked.
    Diverged { epoch: LeaderEpoch, end: Offset },
    /// The position is below the leader's log start, or cannot be compared with its log.
    BelowStart,
}

/// One answer in a fetch session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetched<F> {
    pub session: SessionTag,
    /// The leader's epoch.
    pub epoch: LeaderEpoch,
    pub body: FetchedBody<F>,
    /// `None` while the leader does not know it.
    pub high_watermark: Option<Offset>,
    pub log_start: Offset,
}

/// What happens to a follower.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FollowerEvent<F> {
    Follow(Follow),
    /// This node leads in `epoch`, or nobody does. Before it leads, the writes
    /// under way have returned.
    Unfollow {
        epoch: LeaderEpoch,
    },
    /// The session could not be opened, was refused, or has ended.
    Broken {
        session: SessionTag,
    },
    Fetched(Fetched<F>),
    /// Writes of handed frames have returned up to here, or none was under way.
    Written {
        log_end: Offset,
    },
    /// A write failed and the log ends here; nothing is under way any more.
    WriteFailed {
        log_end: Offset,
    },
    Flushed {
        flushed_end: Offset,
    },
    /// The log was cut; it may end lower than asked, at a batch's start.
    Truncated {
        ends: ReplicaEnds,
    },
    /// The log was dropped and is empty at this offset.
    Restarted {
        at: Offset,
    },
}

/// Where to fetch from. It ends every earlier session of this partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenFetch {
    pub session: SessionTag,
    pub leader: NodeId,
    /// The leader epoch that the follower believes in; another one refuses.
    pub epoch: LeaderEpoch,
    pub incarnation: Incarnation,
    /// One past what the log holds.
    pub next: Offset,
    /// The epoch of the log's last batch, or NONE.
    pub last_epoch: LeaderEpoch,
    pub not_before: MonotonicMs,
}

/// Why the replica cannot follow; it waits for a later epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum FollowerFailure {
    #[error(
        "the leader of epoch {epoch} asks to cut to {to}, below the stored high watermark {high_watermark}"
    )]
    RefusedTruncation {
        epoch: LeaderEpoch,
        to: Offset,
        high_watermark: Offset,
    },
    #[error(
        "the leader of epoch {epoch} starts at {at} with another history, below the stored high watermark {high_watermark}"
    )]
    RefusedRestart {
        epoch: LeaderEpoch,
        at: Offset,
        high_watermark: Offset,
    },
    #[error(
        "the leader of epoch {epoch} names an end of the common history, {end}, that is not below the log end {log_end}"
    )]
    NoProgress {
        epoch: LeaderEpoch,
        end: Offset,
        log_end: Offset,
    },
}

/// What the driver does about it, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FollowerEffect<F> {
    OpenFetch(OpenFetch),
    /// Append, then say `Written` or `WriteFailed`.
    Append {
        frame: F,
    },
    /// Cut, then say `Truncated`. `below_watermark`: the epoch allows to lower
    /// the stored watermark to the cut first.
    Truncate {
        to: Offset,
        below_watermark: bool,
    },
    /// Drop the log, take `sessions` as of `at` from the leader, begin there
    /// with log start and watermark `at`, then say `Restarted`. `below_watermark`: the
    /// epoch allows to begin below the stored watermark.
    DropAndRestart {
        at: Offset,
        below_watermark: bool,
    },
    /// Tell the log, then the readers.
    SetHighWatermark(Offset),
    SetLogStart(Offset),
    /// Send to the leader.
    Report(Report),
    /// Loudly.
    Failed(FollowerFailure),
}

/// The broken part of the invariant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum FollowerCheck {
    #[error(transparent)]
    Positions(#[from] Broken),
    #[error("{handed} was handed to a log that ends at {log_end}")]
    HandedBelowEnd { handed: Offset, log_end: Offset },
    #[error("more was reported than is held")]
    ReportedAboveEnds,
    #[error("a session is open although nobody is followed or the log moves")]
    SessionWithoutLeader,
}
