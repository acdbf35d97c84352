//! What a client may be told; everything has a default.

use std::time::Duration;

/// Settings of a [`crate::Client`].
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// For logs and metrics of the servers; at most 128 bytes.
    pub client_id: String,
    /// For one TCP connection to come up.
    pub connect_timeout: Duration,
    /// For one attempt of an admin call, as its gRPC deadline.
    pub attempt_timeout: Duration,
    /// For an admin call with all its retries.
    pub call_timeout: Duration,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            client_id: String::new(),
            connect_timeout: Duration::from_secs(5),
            attempt_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(30),
        }
    }
}
