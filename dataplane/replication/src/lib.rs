//! Replication of one partition, as pure state machines: an event and the time
//! go in, effects come out. Nothing here does IO, reads a clock or awaits; the
//! storage node's loops, the property tests and the simulator step the same code.
//!
//! - [`Leader`]: who is in sync, how far the high watermark goes, which produces
//!   are answered. A leader alone in its in-sync set is the case of replication
//!   factor 1; followers are events like any other.
//! - [`Follower`]: where it fetches from, what it cuts, what it reports.
//! - [`check_position`]: the leader's answer to the position of a fetch.
//!
//! A replica has both cores; the controller's word about the partition makes one
//! of them active and tells the other that it is not.

mod check;
#[cfg(test)]
mod cluster;
mod contact;
mod divergence;
#[doc(hidden)]
pub mod fault;
mod follower;
mod leader;
mod replica;
mod throttle;
mod waiters;

pub use check::{Broken, Positions};
pub use contact::Contacts;
pub use divergence::{History, Position, check_position};
pub use follower::{
    Fetched, FetchedBody, Follow, Follower, FollowerCheck, FollowerEffect, FollowerEvent,
    FollowerFailure, OpenFetch,
};
pub use leader::{
    Bounds, Effect, Event, FetchEnded, FetchOpened, InSync, Lead, Leader, LeaderCheck,
    LeaderSettings, Member, NotAdmitted, Proposal, ProposalId, Role, Timings,
};
pub use replica::{ReplicaEnds, Report, SessionTag};
pub use throttle::Throttle;
pub use waiters::{Failure, Reached, Waiter};

/// A monotonic clock's milliseconds, counting suspend; never a wall clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct MonotonicMs(pub u64);

impl MonotonicMs {
    /// This many milliseconds later; saturates.
    #[must_use]
    pub fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to here; 0 if it is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
