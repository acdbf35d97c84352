//! A gRPC server over a socket that is already bound.

use super::{
    CONNECTION_WINDOW_BYTES, Connection, HEADER_LIST_BYTES, HTTP2_FRAME_BYTES, KEEP_ALIVE_INTERVAL,
    KEEP_ALIVE_TIMEOUT, STREAM_WINDOW_BYTES, STREAMS_PER_CONNECTION,
    calls::{CallOptions, Calls},
    counted::ConnectionService,
    listen::{Listening, Protocol, StopReport, listen},
};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tonic::{service::Routes, transport::server::TcpConnectInfo};

/// Settings of a server; the defaults are those of every Talweg process.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Connections at a time; more are closed at once.
    pub connections_max: usize,
    /// Concurrent requests on one connection.
    pub streams_per_connection: u32,
    /// Silence after which a peer is pinged.
    pub keep_alive_interval: Duration,
    /// Wait for the answer to the ping.
    pub keep_alive_timeout: Duration,
    /// Rules for requests.
    pub calls: CallOptions,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            streams_per_connection: STREAMS_PER_CONNECTION,
            keep_alive_interval: KEEP_ALIVE_INTERVAL,
            keep_alive_timeout: KEEP_ALIVE_TIMEOUT,
            calls: CallOptions::default(),
        }
    }
}

/// A running server. Dropping it without [`stop`](Self::stop) ends it at once.
#[derive(Debug)]
pub struct ServerHandle {
    listening: Listening,
}

/// Serves `routes` on `listener` until the handle is stopped or dropped. A
/// failure to accept never ends it.
///
/// # Errors
/// The listener's own address could not be read.
pub fn serve(
    listener: TcpListener,
    routes: Routes,
    options: ServerOptions,
) -> io::Result<ServerHandle> {
    let connections_max = options.connections_max;
    let grpc = Grpc {
        routes: routes.prepare(),
        calls: Arc::new(Calls::new(&options.calls)),
        builder: builder(&options),
    };
    let listening = listen(listener, grpc, connections_max)?;
    Ok(ServerHandle { listening })
}

impl ServerHandle {
    /// Where it listens; the real port where 0 was asked for.
    pub fn addr(&self) -> SocketAddr {
        self.listening.addr()
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.listening.connections()
    }

    /// Stops accepting and closes the listening socket, tells connections to
    /// finish (GOAWAY), waits for them at most `drain`, drops what is left.
    /// Tell the handlers of long streams before: a connection ends only when
    /// its last stream does.
    pub async fn stop(self, drain: Duration) -> StopReport {
        self.listening.stop(drain).await
    }
}

struct Grpc {
    routes: Routes,
    calls: Arc<Calls>,
    builder: http2::Builder<TokioExecutor>,
}

impl Protocol for Grpc {
    async fn serve(
        &self,
        stream: TcpStream,
        connection: Arc<Connection>,
        draining: CancellationToken,
    ) {
        let peer = connection.peer();
        let service = ConnectionService {
            routes: self.routes.clone(),
            calls: self.calls.clone(),
            tcp: TcpConnectInfo {
                local_addr: stream.local_addr().ok(),
                remote_addr: Some(peer),
            },
            connection,
        };
        let serving = self.builder.serve_connection(TokioIo::new(stream), service);
        let mut serving = pin!(serving);
        let served = tokio::select! {
            biased;
            () = draining.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
            served = &mut serving => served,
        };
        if let Err(error) = served {
            tracing::debug!(%peer, %error, "connection ended");
        }
    }
}

fn builder(options: &ServerOptions) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(HTTP2_FRAME_BYTES)
        .max_concurrent_streams(options.streams_per_connection)
        .max_header_list_size(HEADER_LIST_BYTES)
        .keep_alive_interval(options.keep_alive_interval)
        .keep_alive_timeout(options.keep_alive_timeout);
    builder
}
