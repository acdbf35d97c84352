//! gRPC servers and channels (and the HTTP server) with the settings that long-lived streams need,
//! the same on both sides: large windows and frames, keep-alive, TCP_NODELAY,
//! and a shutdown that ends.

mod builtin;
mod calls;
mod channel;
mod connection;
mod counted;
mod http;
mod listen;
mod methods;
mod server;

#[cfg(test)]
mod tests;

pub use builtin::add_builtin;
pub use calls::CallOptions;
pub use channel::{ChannelOptions, InvalidUrl, channel};
pub use connection::{Connection, Grant};
pub use http::{HttpServer, serve_http};
pub use listen::StopReport;
pub use server::{ServerHandle, ServerOptions, serve};

use std::{io, time::Duration};
use tokio::net::TcpListener;

/// SETTINGS_MAX_FRAME_SIZE that we announce: one frame carries a whole payload,
/// which the receiver then slices without a copy. A quarter of the CPU per byte
/// of the default 16 KiB.
pub const HTTP2_FRAME_BYTES: u32 = 1024 * 1024;

/// Receive window of one stream. Above the largest Produce grant, so that
/// credit, not HTTP/2, is what holds a sender back.
pub const STREAM_WINDOW_BYTES: u32 = 16 * 1024 * 1024;

/// Receive window of one connection. Above [`CONNECTION_GRANT_BYTES`], so that
/// one stream that is not read never stops the others; below 2^31 - 1, which
/// some peers miscount.
pub const CONNECTION_WINDOW_BYTES: u32 = 1536 * 1024 * 1024;

/// All grants of credit on one connection together.
pub const CONNECTION_GRANT_BYTES: u64 = 1024 * 1024 * 1024;

/// Streams that a server allows on one connection. Our clients open another
/// connection at 100.
pub const STREAMS_PER_CONNECTION: u32 = 1000;

/// Bytes of headers in one request or response.
pub const HEADER_LIST_BYTES: u32 = 16 * 1024;

/// A silent peer is pinged after this, on idle connections too, ...
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// ... and given up when it has not answered after this.
pub const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Binds a listening socket. `addr` is "host:port"; port 0 picks a free one.
///
/// # Errors
/// Names the address.
pub async fn bind(addr: &str) -> io::Result<TcpListener> {
    TcpListener::bind(addr)
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {addr}: {error}")))
}
