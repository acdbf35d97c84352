//! Replication of one partition, as pure state machines: an event and the time
//! go in, effects come out. Nothing here does IO, reads a clock or awaits; the
//! storage node's loops, the property tests and the simulator step the same code.
//!
//! Present: the [`Leader`]. A leader alone in its in-sync set is the case of
//! replication factor 1; followers are events like any other.

mod leader;
mod replica;
mod waiters;

pub use leader::{
    Effect, Event, InSync, Lead, Leader, LeaderCheck, LeaderSettings, NotAdmitted, Role,
};
pub use replica::{ReplicaEnds, Report};
pub use waiters::{Failure, Reached, Waiter};

/// A monotonic clock's milliseconds, counting suspend; never a wall clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct MonotonicMs(pub u64);
