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

/// One fetch session of a follower for one partition. The follower's process
/// counts them up; across processes only (incarnation, tag) is an order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SessionTag(pub u64);

/// What a follower says after its write or flush has returned, and once when
/// its session has found that the histories agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    pub node: NodeId,
    /// The leader epoch in which the follower fetched.
    pub epoch: LeaderEpoch,
    /// The follower's process; an older one's word counts no more.
    pub incarnation: Incarnation,
    /// The session in which it fetched; an older one's word counts no more.
    pub session: SessionTag,
    pub ends: ReplicaEnds,
}

/// What the leader knows of a replica; only forwards within an incarnation.
#[derive(Clone, Debug)]
pub(crate) struct Replica {
    incarnation: Incarnation,
    session: SessionTag,
    ends: ReplicaEnds,
    counted: Offset,
    /// The last time at which it certainly counted all that the leader had.
    caught_up: MonotonicMs,
    /// A time and the leader's end then: once it counts that end, it was caught
    /// up as of that time. Not replaced before it is reached, so that a slow
    /// flush under load is no lag as long as it goes on.
    mark: Option<(MonotonicMs, Offset)>,
    /// The leader's end as of its last report.
    previous: Option<Offset>,
    /// Its last report had reached the leader's end as of the one before.
    reached_previous: bool,
    /// Its session is over, and no other one has begun.
    gone: bool,
}

impl Replica {
    pub(crate) fn new(incarnation: Incarnation, session: SessionTag, now: MonotonicMs) -> Self {
        Self {
            incarnation,
            session,
            ends: ReplicaEnds::default(),
            counted: Offset::ZERO,
            caught_up: now,
            mark: None,
            previous: None,
            reached_previous: false,
            gone: false,
        }
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    pub(crate) fn session(&self) -> SessionTag {
        self.session
    }

    pub(crate) fn set_session(&mut self, session: SessionTag) {
        self.gone &= session <= self.session;
        self.session = self.session.max(session);
    }

    /// Its session is over; it was heard last at `heard`.
    pub(crate) fn gone(&mut self, heard: MonotonicMs, leader_end: Offset) {
        if self.counted >= leader_end {
            self.caught_up = self.caught_up.max(heard);
        }
        self.gone = true;
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone
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

    pub(crate) fn reached_previous(&self) -> bool {
        self.reached_previous
    }

    /// Entering the in-sync set counts as caught up: it has a whole lag time.
    pub(crate) fn entered(&mut self, now: MonotonicMs) {
        self.caught_up = self.caught_up.max(now);
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

    /// After a report: when it was last caught up, as Kafka reckons it.
    pub(crate) fn observe(&mut self, now: MonotonicMs, leader_end: Offset) {
        let counted = self.counted;
        let at_end = counted >= leader_end;
        self.reached_previous = at_end || self.previous.is_some_and(|end| counted >= end);
        self.previous = Some(leader_end);
        let reached = self.mark.filter(|(_, end)| counted >= *end);
        let as_of = if at_end {
            Some(now)
        } else {
            reached.map(|(then, _)| then)
        };
        self.caught_up = self.caught_up.max(as_of.unwrap_or_default());
        if as_of.is_some() || self.mark.is_none() {
            self.mark = Some((now, leader_end));
        }
    }

    /// The leader's end moves at `now`: whoever stood there stood there until now.
    pub(crate) fn leader_moves(&mut self, now: MonotonicMs, from: Offset, to: Offset) {
        if self.counted >= from && !self.gone {
            self.caught_up = self.caught_up.max(now);
            self.mark = Some((now, to));
        }
    }
}
