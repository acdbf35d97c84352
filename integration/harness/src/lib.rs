//! Real processes for the integration tests: start, stop, kill, pause, wait,
//! and the checker that has the last word on what was lost.

mod check;
mod eventually;
mod ports;
mod process;
mod stack;

pub use check::{Acked, Finding, Seen, check};
pub use eventually::eventually;
pub use ports::free_port;
pub use process::{Process, binary};
pub use stack::{Stack, StackBuilder};
