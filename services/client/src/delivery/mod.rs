//! Delivery of batches to partition leaders, in order, at most five unanswered
//! per session: the lower half of a gateway's Produce stream and of our own
//! producers.
//!
//! [`DeliveryCore`] decides (pure, tested by tables and properties);
//! [`Upstream`] acts on real streams.

mod batch;
mod core;
mod lane;
mod link;
mod routes;
mod upstream;
mod verdict;

#[cfg(test)]
mod tests;

pub use batch::{Batch, Done, Freed, LinkId, Numbering, Outcome, Settled};
pub use core::{DeliveryCore, Want};
pub use routes::{Route, Routes, Target};
pub use upstream::{Upstream, UpstreamConfig};
