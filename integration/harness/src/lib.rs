//! Real processes for the integration tests: start, stop, kill, pause, wait,
//! and the checker that has the last word on what was lost.

mod eventually;
pub mod history;
pub mod http;
mod load;
mod poller;
mod ports;
mod process;
pub mod prometheus;
pub mod raw;
mod stack;
mod writer;

pub use eventually::eventually;
pub use load::{Finished, Load};
pub use poller::{Ends, FIRST_READER, Poller};
pub use ports::free_port;
pub use process::{Process, binary};
pub use stack::{Dev, Stack, StackBuilder};
pub use writer::{Writer, WriterPlan, Written};
