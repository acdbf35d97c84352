//! A node as its driver would be: the log and the two cores.

use super::log::{Log, Record};
use crate::{Follower, Leader, LeaderSettings, SessionTag, Timings};
use std::collections::{BTreeMap, VecDeque};
use talweg_types::NodeId;

/// What a produce waits with.
pub(super) type Token = (i64, Record);

/// A follower's session, at its leader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subscription {
    pub epoch: i32,
    pub incarnation: u64,
    pub session: SessionTag,
    pub next: i64,
}

pub(super) struct Node {
    pub id: NodeId,
    pub alive: bool,
    pub incarnation: u64,
    /// It lost what it counted, and the controller does not know yet.
    pub lost: bool,
    pub log: Log,
    pub leader: Leader<Token>,
    pub follower: Follower,
    /// Frames whose write has not returned.
    pub writing: VecDeque<Vec<Record>>,
    pub subscriptions: BTreeMap<NodeId, Subscription>,
    /// The controller's newest word.
    pub seen: i64,
}

impl Node {
    pub(super) fn new(id: NodeId, settings: LeaderSettings) -> Self {
        Self {
            id,
            alive: false,
            incarnation: 0,
            lost: false,
            log: Log::default(),
            leader: Leader::new(id, settings),
            follower: Follower::new(id),
            writing: VecDeque::new(),
            subscriptions: BTreeMap::new(),
            seen: 0,
        }
    }

    /// A new process over the log that the last one left.
    pub(super) fn start(&mut self, incarnation: u64, settings: LeaderSettings) {
        let log = std::mem::take(&mut self.log);
        *self = Self {
            log,
            alive: true,
            incarnation,
            ..Self::new(self.id, settings)
        };
        let timings = Timings {
            lag_ms: 1_000,
            session_ms: 3_000,
            retry_ms: 20,
            retry_max_ms: 200,
        };
        self.leader
            .step(crate::MonotonicMs(0), crate::Event::TimingsChanged(timings));
    }
}
