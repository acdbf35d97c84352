//! One consumer group as a deterministic state machine: members and their
//! epochs, assignors, reconciliation, committed offsets. No IO, clock or await:
//! an event, the time and the topics go in; records, an answer and effects come out.
//!
//! **Durable** is [`GroupState`]: one value a key, changed by [`GroupState::apply`]
//! only, live and on replay. **Volatile** are sessions: deadlines, whether a
//! member's stream lives, what HTTP members were sent. After a load each member
//! has a whole session time-out to be heard again.
//!
//! How a runtime drives it:
//!
//! - [`Group::step`] puts its own records in force at once, so that later requests
//!   are decided on them. The runtime appends the records of one step as one batch
//!   and releases answer and effects once they are committed; those of a step
//!   without records once all that was decided before it is committed.
//! - If an append fails, the steps from it on are undone newest first
//!   ([`Group::undo`]) and their requests answered with "not done, retry".
//! - [`Group::load`] is all or nothing; [`GroupState::state_hash`] compares a live
//!   state with a shadow replay.
//! - [`Group::next_deadline`] says when a [`Event::Tick`] is due.
//!
//! Effects carry whole views, not differences: one that is lost, late or repeated
//! is mended by the next.

mod admin;
mod assign;
mod check;
mod commit;
mod deaths;
mod delivery;
mod epoch;
mod event;
mod group;
mod hash;
mod http;
mod join;
mod live;
mod mistake;
mod reconcile;
mod record;
mod refusal;
mod reset;
mod sessions;
#[cfg(test)]
mod sim;
mod state;
mod subscription;
mod targets;
#[cfg(test)]
mod tests;
mod topics;
mod turn;

pub use assign::{Assignment, Assignor, Candidate, Problem, assign};
pub use check::Broken;
pub use epoch::{MemberEpoch, Now};
pub use event::{
    Answer, Bounds, Caller, Commit, CommitItem, CommitKind, Committer, Delivery, Effect, Event,
    Given, Join, Removal, View,
};
pub use group::{Group, GroupStatus, Settings, Step, Undo};
pub use record::{
    Committed, Current, DeadLetterPolicy, FailureKind, Failures, GroupMeta, Key, MemberKind,
    MemberMeta, Owned, Record, Timeouts, Value,
};
pub use refusal::Refusal;
pub use reset::{ResetChange, ResetTo, ResolvedTime, resolve_reset};
pub use state::{GroupState, LoadError};
pub use subscription::Subscription;
pub use topics::{Topic, Topics};
