//! The state behind the embedded backends: every kept version of every key, the
//! log of changes, and leases. [`Mvcc`] is pure: a change is *prepared*
//! against it, made durable by the backend as it likes, and then *applied*, so
//! that nobody reads what could still be lost. [`Shared`] adds the lock and the
//! watches.
//!
//! Always true: the log's revisions follow each other without a gap up to the
//! newest; a key's versions ascend and the last one is its current state; a key
//! is attached to a lease exactly when its current entry names it.

mod lease;
#[cfg(test)]
mod model;
mod shared;
mod store;

pub use shared::Shared;
pub use store::{Commit, Decision, Mvcc};

/// Revisions whose superseded entries and events are kept; older ones are
/// answered `Compacted`.
pub const HISTORY_REVISIONS: usize = 10_000;

/// Events that are kept, whatever the number of revisions: it is events that
/// take memory. At least the newest revision's are.
pub const HISTORY_EVENTS: usize = 20_000;
