//! How far one replica has got.
//!
//! ```text
//! flushed end ≤ log end,   counted end never falls
//! ```
//! The *counted end* is what the replica counts for the high watermark: its
//! flushed end on `synced` partitions, else its log end. It keeps its height
//! when the setting changes, so that a watermark that rests on it still does.

use crate::MonotonicMs;
use talweg_types::{Durability, Incarnation, LeaderEpoch, NodeId, Offset};

/// Positions of a replica, exclusive ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplicaEnds {
    pub log_end: Offset,
    pub flushed_end: Offset,
}

/// What a follower says after its write or flush has returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    pub node: NodeId,
    /// The leader epoch in which the follower fetched.
    pub epoch: LeaderEpoch,
    /// The follower's process; an older one's word counts no more.
    pub incarnation: Incarnation,
    pub ends: ReplicaEnds,
}

/// What the leader knows of a replica; only forwards within an incarnation.
#[derive(Clone, Debug)]
pub(crate) struct Replica {
    incarnation: Incarnation,
    ends: ReplicaEnds,
    counted: Offset,
    /// When it last stood at the leader's log end.
    caught_up: MonotonicMs,
}

impl Replica {
    pub(crate) fn new(incarnation: Incarnation, now: MonotonicMs) -> Self {
        Self {
            incarnation,
            ends: ReplicaEnds::default(),
            counted: Offset::ZERO,
            caught_up: now,
        }
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    pub(crate) fn ends(&self) -> ReplicaEnds {
        self.ends
    }

    pub(crate) fn counted(&self) -> Offset {
        self.counted
    }

    pub(crate) fn caught_up(&self) -> MonotonicMs {
        self.caught_up
    }

    pub(crate) fn set_caught_up(&mut self, now: MonotonicMs) {
        self.caught_up = now;
    }

    /// Moves forward; what lies behind is an older word and changes nothing.
    pub(crate) fn advance(&mut self, ends: ReplicaEnds, durability: Durability) {
        self.ends.log_end = self.ends.log_end.max(ends.log_end);
        self.ends.flushed_end = self
            .ends
            .flushed_end
            .max(ends.flushed_end.min(self.ends.log_end));
        let counted = match durability {
            Durability::Synced => self.ends.flushed_end,
            Durability::Replicated => self.ends.log_end,
        };
        self.counted = self.counted.max(counted);
    }
}
