//! The coordinator: consumer groups and committed offsets, in shards. It keeps
//! nothing that the log cannot give back.
//!
//! ```text
//! gateway ──Converse, Ask──▶ service ──▶ shard task ──▶ append ──▶ leader of the shard's partition
//!                                            │  pure: talweg-coordinator-runtime, talweg-group
//!                                            └─▶ kept view (RocksDB), lazily, behind the log
//! ```
//!
//! The controller gives shards out; one is **taken** by a fence in its log, a
//! replay up to it, and only then served ([`shard`]). From the fence on no earlier
//! holder can append. A shard that is lost is dropped whole.
//!
//! Fails: without the leader of a shard's partition its requests wait, for a
//! bounded time; what is certainly not in the log is answered "not done"; while
//! the outcome of an append is unknown the same bytes are sent again.

mod append;
mod ask;
mod bounds;
mod config;
mod convert;
mod kept;
mod lag;
mod leaders;
mod link;
pub mod log;
mod metrics;
mod node;
mod producer;
mod refusals;
mod service;
mod session;
mod shard;
mod shards;
mod start;
mod topics;

pub use config::CoordinatorConfig;
pub use start::{Handle, StartError, start, start_on};
