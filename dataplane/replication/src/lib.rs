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
pub use talweg_types::MonotonicMs;
pub use throttle::Throttle;
pub use waiters::{Failure, Reached, Waiter};
