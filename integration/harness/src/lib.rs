//! Real processes for the integration tests: start, stop, kill, pause, wait,
//! and the checker that has the last word on what was lost.

mod builder;
mod cluster;
mod dev;
pub mod disk;
mod eventually;
mod figures;
mod guard;
pub mod history;
pub mod http;
mod level;
mod load;
pub mod member;
pub mod nemesis;
pub mod net;
mod on_disk;
mod one_shot;
mod poller;
mod ports;
mod process;
pub mod prometheus;
pub mod raw;
mod seed;
mod stack;
mod system;
mod thin;
mod watcher;
mod writer;

pub use builder::StackBuilder;
pub use cluster::{BACK, Cluster, digest};
pub use dev::Dev;
pub use eventually::eventually;
pub use guard::{Guard, Settled, Watched};
pub use level::Level;
pub use load::{Finished, Load};
pub use member::Member;
pub use on_disk::{flip, replica, segments};
pub use one_shot::{Answered, OneShot};
pub use poller::{Ends, FIRST_READER, Poller};
pub use ports::free_port;
pub use process::{Process, binary};
pub use seed::seed;
pub use stack::Stack;
pub use thin::{ThinWriter, ThinWritten};
pub use watcher::{Looks, Watcher};
pub use writer::{Writer, WriterPlan, Written};
