//! Channels: our side of a client connection.

use super::{
    CONNECTION_WINDOW_BYTES, HEADER_LIST_BYTES, HTTP2_FRAME_BYTES, KEEP_ALIVE_INTERVAL,
    KEEP_ALIVE_TIMEOUT, STREAM_WINDOW_BYTES,
};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// Settings of a channel.
#[derive(Clone, Debug)]
pub struct ChannelOptions {
    /// For TCP's handshake.
    pub connect_timeout: Duration,
    /// Silence after which the server is pinged, on idle connections too.
    pub keep_alive_interval: Duration,
    /// Wait for the answer to the ping.
    pub keep_alive_timeout: Duration,
    /// Deadline of calls that set none, until the head of the response. `None`
    /// is no deadline: then every call must set its own.
    pub timeout: Option<Duration>,
    /// Sent as `user-agent`.
    pub user_agent: String,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            keep_alive_interval: KEEP_ALIVE_INTERVAL,
            keep_alive_timeout: KEEP_ALIVE_TIMEOUT,
            timeout: Some(Duration::from_secs(60)),
            user_agent: concat!("talweg/", env!("CARGO_PKG_VERSION")).into(),
        }
    }
}

/// The URL of a peer cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{url:?} is not a URL of the form http://host:port: {reason}")]
pub struct InvalidUrl {
    url: String,
    reason: String,
}

/// One HTTP/2 connection to `url` ("http://host:port"), made at the first
/// request and again after it was lost. Clones share it.
///
/// # Errors
/// The URL is malformed or not `http`.
pub fn channel(url: &str, options: &ChannelOptions) -> Result<Channel, InvalidUrl> {
    let invalid = |reason: String| InvalidUrl {
        url: url.into(),
        reason,
    };
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|e| invalid(e.to_string()))?;
    match (endpoint.uri().scheme_str(), endpoint.uri().host()) {
        (Some("http"), Some(_)) => {}
        (Some("https"), _) => return Err(invalid("TLS is not built yet".into())),
        _ => return Err(invalid("the scheme must be http".into())),
    }
    let mut endpoint = endpoint
        .user_agent(options.user_agent.clone())
        .map_err(|e| invalid(e.to_string()))?
        .connect_timeout(options.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(options.keep_alive_interval)
        .keep_alive_timeout(options.keep_alive_timeout)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(HTTP2_FRAME_BYTES)
        .http2_max_header_list_size(HEADER_LIST_BYTES);
    if let Some(timeout) = options.timeout {
        endpoint = endpoint.timeout(timeout);
    }
    Ok(endpoint.connect_lazy())
}
