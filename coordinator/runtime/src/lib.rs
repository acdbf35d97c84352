//! One shard of a coordinator: many small state machines whose records go to one
//! partition of an internal topic. Pure: requests, acknowledgements and time go
//! in; appends, answers and effects come out.
//!
//! ```text
//! applied ≤ what is in flight ≤ what is decided
//! ```
//!
//! - Requests are **decided** at once and in order, on a state that includes all
//!   that was decided before. Their records wait in batches; **one** append is in
//!   flight. The records of one decision stay in one batch.
//! - What was decided is **released** by the acknowledgement of its own append;
//!   what has no records, by that of the last append decided before it.
//! - An append that certainly **failed** takes back all that waits, newest first;
//!   it is answered with "not done, retry". One whose outcome is unknown is sent
//!   again by the shell, same bytes, until it is known or the shard is lost.
//! - A shard that is **lost** to another coordinator drops everything; who waits
//!   is told to ask there.
//! - **Loading** replays the log up to and including this coordinator's fence, all
//!   or nothing ([`Loading`]).
//!
//! [`Machine`] is what a shard runs; [`groups`] makes a consumer group one.

mod batch;
mod deadlines;
pub mod groups;
mod loading;
mod machine;
mod output;
mod shard;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

pub use loading::{LoadError, Loading, shard_hash};
pub use machine::{Decided, DecodeError, Encoded, Machine};
pub use output::{Input, Outcome, Output};
pub use shard::{Limits, Shard};
pub use talweg_group::Now;
