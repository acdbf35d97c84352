//! What goes in and what comes out.

use crate::{Committed, FailureKind, MemberEpoch, MemberMeta, Refusal, ResetChange};
use std::collections::{BTreeMap, BTreeSet};
use talweg_types::{LeaderEpoch, MemberId, Offset, TopicId, TopicPartition};

/// A member as its gateway knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    pub member: MemberId,
    pub epoch: MemberEpoch,
}

/// A request or a fact. Each but `Join`, `Tick` and those of operators may come
/// late, repeated or out of order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    Join(Join),
    /// The member is alive and its stream open. After a load it says that the
    /// stream has outlived the coordinator's move.
    Heartbeat(Caller),
    /// The member's stream ended without a leave. `in_flight` are partitions with
    /// records sent and not committed: empty after a close by the client, none if
    /// the gateway cannot say.
    StreamBroken {
        caller: Caller,
        in_flight: Option<BTreeSet<TopicPartition>>,
    },
    /// The link to the gateway of these members broke: nobody can say whether their
    /// streams live. As after a load, each has a while to be heard again.
    LinkBroken(BTreeSet<MemberId>),
    Leave(Caller),
    /// The member has given these up. Others are ignored. To be repeated until the
    /// view says so.
    Revoked {
        caller: Caller,
        partitions: BTreeSet<TopicPartition>,
    },
    /// The gateway saw these partitions' deliveries outlast the processing time.
    Overran {
        caller: Caller,
        partitions: BTreeSet<TopicPartition>,
    },
    /// An HTTP member asks for records: it is alive and done with what it was asked
    /// to give up. Without an epoch only from the shared member.
    Poll {
        member: MemberId,
        epoch: Option<MemberEpoch>,
    },
    /// What an HTTP member was sent: the next positions.
    Returned {
        member: MemberId,
        epoch: Option<MemberEpoch>,
        next: BTreeMap<TopicPartition, Offset>,
    },
    Commit(Commit),
    /// Time has passed.
    Tick,
    /// The topics given with this step differ from the earlier ones.
    TopicsChanged,
    /// These ids are deleted for good, offsets and all.
    TopicsDeleted(BTreeSet<TopicId>),
    /// Moves offsets of a group without members; see [`crate::resolve_reset`].
    Reset {
        changes: Vec<ResetChange>,
        /// False: only asks whether it would be allowed.
        execute: bool,
    },
    DeleteOffsets(BTreeSet<TopicPartition>),
    DeleteGroup,
    /// Drops the offsets of a group without a sign of life for `retention_ms`.
    /// Only sent while the wall clock is trusted.
    Expire {
        retention_ms: i64,
    },
}

/// A member comes or comes back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Join {
    /// Fresh, made by the caller; the member's if it is new. A repeat of the same
    /// join carries the same.
    pub new_id: MemberId,
    /// From a resume token, or the member's own id.
    pub claim: Option<MemberId>,
    pub meta: MemberMeta,
}

/// Offsets to store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    pub by: Committer,
    pub kind: CommitKind,
    pub items: Vec<CommitItem>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Committer {
    Member(Caller),
    /// A client that assigns partitions itself, or an HTTP caller without member
    /// id: allowed only while no member streams.
    Standalone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitKind {
    /// Never below what is stored.
    Commit,
    /// Anywhere within the log.
    Seek,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommitItem {
    pub at: TopicPartition,
    /// The next offset to read.
    pub offset: Offset,
    /// Of the last batch that the reader holds.
    pub leader_epoch: LeaderEpoch,
    pub metadata: String,
    pub bounds: Bounds,
}

/// What the offset is checked against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bounds {
    /// The gateway compared it with what it delivered to this streaming member.
    Delivered,
    /// As the leader says; an offset outside is refused, so a caller with cached
    /// bounds asks the leader first. Both ends are allowed.
    Log {
        log_start: Offset,
        high_watermark: Offset,
    },
}

/// The good answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    Done,
    /// A part is done, as much as fits one decision: say it again.
    More,
    /// To a join, a poll, a confirmation, and a heartbeat by which a stream is known
    /// again.
    View(View),
    /// In the order of the request.
    Committed(Vec<Result<Committed, Refusal>>),
}

/// All that a member holds. The gateway makes its stream agree with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    pub member: MemberId,
    pub epoch: MemberEpoch,
    pub assigned: BTreeMap<TopicPartition, Given>,
    /// To be given up; deliveries end, commits are still taken.
    pub revoking: BTreeSet<TopicPartition>,
    /// Until the first of `revoking` is taken; 0 if there is none.
    pub revoke_within_ms: u64,
}

/// One assigned partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Given {
    /// A higher epoch than before: given anew, start again from `next`.
    pub given_epoch: MemberEpoch,
    /// Where to begin; none: by the member's reset policy.
    pub next: Option<Offset>,
    /// Of the batch before `next`.
    pub leader_epoch: LeaderEpoch,
    pub delivery: Delivery,
}

/// How the partition's records are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    Normal,
    /// One record at a time until a commit has passed the next one.
    OneByOne,
    /// The next record goes to the dead-letter topic; then commit past it.
    DeadLetter {
        attempts: u32,
        reason: FailureKind,
    },
    /// Nothing is sent until an operator seeks or resets.
    Paused {
        attempts: u32,
        reason: FailureKind,
    },
}

/// To be done once the step's records are committed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The member's view changed.
    Tell(View),
    /// The member is out; its stream ends with the reason.
    Removed { member: MemberId, why: Removal },
}

/// Why a member is out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removal {
    Left,
    SessionExpired,
    /// Its processing time was over; it may join again.
    Overran,
    /// Another took over its instance id.
    Replaced {
        by: MemberId,
    },
}
