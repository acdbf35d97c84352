//! What every process shares: refusals, the codec of the data streams, server
//! and channel builders, configuration, telemetry, health and shutdown.

#![warn(missing_docs)]

pub mod clock;
pub mod config;
pub mod data_stream;
pub mod errors;
pub mod fetch_credit;
pub mod health;
pub mod metrics;
pub mod net;
pub mod process;
pub mod shutdown;
pub mod telemetry;
