//! A whole cluster in one thread, from one seed.
//!
//! Stepped here is what runs in production: the controller's core and its
//! conversions, the storage node's decisions from the view, its replicas (both
//! cores and what they do to the log), and the log on the power-loss file system
//! with the index in memory. Made here is what surrounds them: time, network,
//! disks, processes, the metastore, clients. What production does in tasks
//! (Replicate streams, sessions, flush rounds, proposals) is mirrored in
//! [`replicate`], [`session`] and [`process`], in the same order.
//!
//! ```text
//! plan ─▶ world: one queue of events in virtual time ─▶ oracle after every event
//!           │ node: process ─ replicas ─ disk          shadows of all logs, what was
//!           │ control: terms of controllers, store     committed, shown, acknowledged
//!           └ clients: producers, consumers
//! ```
//! No clock, no thread, no real file, no map with a random order.

mod client;
mod control;
mod coverage;
mod disk;
mod faults;
mod heal;
mod net;
mod node;
mod observe;
mod oracle;
mod plan;
mod process;
mod replicate;
mod rng;
mod run;
mod session;
mod shrink;
mod truth;
mod world;

pub use coverage::{Coverage, Happened};
pub use plan::Plan;
pub use run::{Failure, Many, Report, run, run_many, run_without};
pub use shrink::shrink;

/// What an oracle found wrong.
pub type Checked<T = ()> = Result<T, String>;
