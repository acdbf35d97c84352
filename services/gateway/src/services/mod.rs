//! The unary services and the metadata watch.

mod cluster;
mod groups;
mod lag;
mod offsets;
mod producers;
mod replicas;
mod topics;
mod unstable;

pub use cluster::Cluster;
pub use groups::Groups;
pub use lag::lag;
pub use offsets::Offsets;
pub use producers::Producers;
pub use topics::Topics;
pub use unstable::Transactions;
