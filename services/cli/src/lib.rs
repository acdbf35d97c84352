//! Talweg's command line: everything that `talweg` and the demo do.
//!
//! [`run()`] takes the words of a command line and gives an exit code. Commands
//! are thin: they read options, call the client, and print; what can be decided
//! without IO (lines, formats, proofs, schedules, ends) is apart and pure.

mod admin;
pub mod args;
mod balance;
mod bench;
mod connect;
mod consume;
#[cfg(feature = "dev")]
mod dev;
mod dlq;
mod failure;
pub mod flights;
mod group;
#[cfg(feature = "log")]
mod log;
mod out;
mod produce;
mod progress;
mod run;
mod shapes;
mod text;
mod topic;
pub mod tour;

pub use run::run;
