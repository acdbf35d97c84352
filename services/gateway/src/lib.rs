//! The gateway: terminates client streams (gRPC and HTTP/JSON), routes produce
//! and fetch to partition leaders, forwards administration to the controller.
//! It keeps no state: any number of them serve one cluster.
//!
//! What decides is pure: [`produce`] sessions and the delivery core under them,
//! the fetch stream's outgoing queue, credits and answers, a subscriber's session
//! core. What acts: one task per client stream, a watch and a session to the
//! controller, one stream to each coordinator.
//!
//! Fails: without a controller it serves from the view it has; without a leader
//! it waits, for a bounded time; what it cannot deliver it answers, saying
//! whether it may have taken effect.

mod config;
mod fetch;
mod follow;
mod groups;
pub mod http;
mod ids;
mod metadata;
mod metrics;
mod node;
pub mod produce;
mod services;
mod start;
mod streams;
mod subscribe;
mod token;

pub use config::GatewayConfig;
pub use start::{GatewayHandle, StartError, start};
