//! The unary services and the metadata watch.

mod cluster;
mod offsets;
mod producers;
mod replicas;
mod topics;
mod unstable;

pub use cluster::Cluster;
pub use offsets::Offsets;
pub use producers::Producers;
pub use topics::Topics;
pub use unstable::{Groups, Subscribe, Transactions};
