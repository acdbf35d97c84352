//! Partitions and the threads that own them.
//!
//! Each partition is a plain struct in one of a few loops (one a core). Nobody
//! else touches it: streams send [`Command`]s through a [`LoopHandle`], whose
//! mailbox is bounded in bytes, and are answered through their [`Completions`].
//! What they may read without asking is in the [`PartitionHandle`].

mod command;
mod completion;
mod event_loop;
mod following;
mod handle;
mod internal;
mod replica;
mod rounds;
mod watchers;

#[cfg(test)]
mod tests;

pub use command::{
    AppendRequest, CaughtUp, Command, Following, Leadership, LoopHandle, Opened, ProposalAnswer,
    Reservation,
};
pub use completion::{AppendRefusal, Completion, Completions, Deliveries, Outcome};
pub use event_loop::{LoopSettings, spawn_loop};
pub use handle::{Cuts, LogCut, PartitionHandle, Registry};
pub use internal::{InternalAppend, InternalBatch};
pub use replica::{AppendedRound, Replica};
pub use rounds::{FlushKind, Flushed, Taken};
pub use watchers::{StreamWaker, Watcher};
