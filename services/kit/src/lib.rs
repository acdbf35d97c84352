//! What every process shares: refusals, the codec of the data streams, server
//! and channel builders, configuration, telemetry, health and shutdown.

#![warn(missing_docs)]

pub mod data_stream;
pub mod errors;
pub mod net;
pub mod shutdown;
