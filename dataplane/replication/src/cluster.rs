//! Three replicas, a controller and a network in one process under a seed:
//! messages are lost, repeated and reordered, processes die with and without
//! what they had not flushed, leaders move. After every step the oracles look.

mod actions;
mod controller;
mod faults;
mod heal;
mod log;
mod node;
mod oracle;
mod rng;
mod tests;
mod world;

/// A broken promise, in words.
type Checked = Result<(), String>;
