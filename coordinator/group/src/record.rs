//! What a group keeps: one value a key, as in its compacted topic. A record with
//! a value replaces the key's earlier one; without, it is a tombstone.
//!
//! An instance id has no record of its own: it stands in its member's, and the
//! look-up is derived, so that the two cannot disagree.

use crate::{Assignor, MemberEpoch, Subscription};
use std::collections::{BTreeMap, BTreeSet};
use talweg_types::{LeaderEpoch, MemberId, Offset, TimestampMs, TopicPartition, limits};

/// What a record is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    Group,
    Member(MemberId),
    /// What the member shall own.
    Target(MemberId),
    /// What the member owns.
    Current(MemberId),
    Offset(TopicPartition),
    Failures(TopicPartition),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Value {
    Group(GroupMeta),
    Member(Box<MemberMeta>),
    Target(BTreeSet<TopicPartition>),
    Current(Current),
    Offset(Committed),
    Failures(Failures),
}

/// One key and its new value; none is a tombstone.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    pub key: Key,
    pub value: Option<Value>,
}

/// ```text
/// target epoch ≤ group epoch,   every member epoch ≤ group epoch
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct GroupMeta {
    /// Raised by each change of members, subscriptions or subscribed topics, and
    /// by each fence of a member's earlier life. Member epochs are drawn from it.
    pub group_epoch: MemberEpoch,
    /// The group epoch that the targets were computed for.
    pub target_epoch: MemberEpoch,
    /// Of the subscribed topics when the targets were computed.
    pub topics_hash: u64,
    /// Since when there is no member; none while there are some.
    pub empty_since: Option<TimestampMs>,
}

/// Who may consume without a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MemberKind {
    /// Holds a Subscribe stream.
    Streaming,
    /// Polls over HTTP with its own member id.
    Http,
    /// All HTTP callers that send none.
    HttpShared,
}

/// Milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Timeouts {
    /// Without a sign of life.
    pub session_ms: u32,
    /// To give up revoked partitions.
    pub rebalance_ms: u32,
    /// To process one delivery; measured by the gateway.
    pub processing_ms: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            session_ms: limits::MEMBER_SESSION_MS_DEFAULT,
            rebalance_ms: limits::REBALANCE_MS_DEFAULT,
            processing_ms: limits::PROCESSING_MS_DEFAULT,
        }
    }
}

/// What happens to a record that its consumers do not survive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeadLetterPolicy {
    /// Deaths and overruns until it counts as failed.
    pub attempts: u32,
    /// False: the partition pauses instead.
    pub dead_letters: bool,
}

impl Default for DeadLetterPolicy {
    fn default() -> Self {
        Self {
            attempts: limits::ATTEMPTS_DEFAULT,
            dead_letters: true,
        }
    }
}

/// A member as it presented itself.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MemberMeta {
    /// Static membership.
    pub instance_id: Option<String>,
    pub client_id: String,
    /// Empty: none.
    pub rack: String,
    pub kind: MemberKind,
    pub subscription: Subscription,
    /// None: no wish.
    pub assignor: Option<Assignor>,
    pub timeouts: Timeouts,
    pub policy: DeadLetterPolicy,
    /// It sees committed records only: its partitions end at the last stable offset.
    pub reads_committed: bool,
}

/// ```text
/// attach epoch ≤ member epoch,   every given epoch ≤ member epoch
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Current {
    /// The group epoch of the last partition given or the last attach.
    pub member_epoch: MemberEpoch,
    /// When it joined or came back. Calls with a lower epoch come from an
    /// earlier life of the member and are fenced.
    pub attach_epoch: MemberEpoch,
    pub owned: BTreeMap<TopicPartition, Owned>,
}

/// A partition in a member's hands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owned {
    /// Commits with a lower epoch are from before the partition was given.
    pub given_epoch: MemberEpoch,
    /// Asked back; still the member's until it confirms or its time is over.
    pub revoking: bool,
}

/// A committed offset.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Committed {
    /// The next offset to read.
    pub offset: Offset,
    /// Of the last batch that the reader holds.
    pub leader_epoch: LeaderEpoch,
    pub metadata: String,
    /// The last commit, a repeat by a client without a member too: a sign of life.
    pub committed_at: TimestampMs,
    /// When the offset last became another one: a commit of the same is no progress.
    pub moved_at: TimestampMs,
}

/// How a member was lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FailureKind {
    Crashed,
    TimedOut,
}

/// Members lost while one offset was the next; a commit elsewhere ends the count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Failures {
    /// The committed offset; none: nothing was committed yet.
    pub next: Option<Offset>,
    pub deaths: u32,
    pub overruns: u32,
    pub last: FailureKind,
}

impl Failures {
    pub fn count(&self) -> u32 {
        self.deaths.saturating_add(self.overruns)
    }
}
