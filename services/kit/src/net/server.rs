//! A gRPC server over a socket that is already bound.
//!
//! One task accepts, one task per connection serves. A failure to accept is
//! logged and never ends the loop. Stopping is bounded: connections are told to
//! finish (GOAWAY), get `drain` to do so, and are then dropped, because HTTP/2's
//! own graceful shutdown waits as long as any stream lives.

use super::{
    CONNECTION_WINDOW_BYTES, Connection, HEADER_LIST_BYTES, HTTP2_FRAME_BYTES, KEEP_ALIVE_INTERVAL,
    KEEP_ALIVE_TIMEOUT, STREAM_WINDOW_BYTES, STREAMS_PER_CONNECTION,
    calls::{CallOptions, Calls},
    counted::ConnectionService,
};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::{
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{service::Routes, transport::server::TcpConnectInfo};

/// After a failure to accept for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A client that has connected must say something within this.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(20);

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

/// How a server's connections ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StopReport {
    /// Open when the server was told to stop.
    pub open: usize,
    /// Of these, dropped at the end of the drain time.
    pub forced: usize,
}

/// A running server. Dropping it without [`stop`](Self::stop) ends it at once.
#[derive(Debug)]
pub struct ServerHandle {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<tokio::task::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    options: ServerOptions,
    calls: Arc<Calls>,
    connections: TaskTracker,
    open: AtomicUsize,
    /// Stop accepting, send GOAWAY.
    draining: CancellationToken,
    /// Drop what is left.
    force: CancellationToken,
}

/// Serves `routes` on `listener` until the handle is stopped or dropped.
///
/// # Errors
/// The listener's own address could not be read.
pub fn serve(
    listener: TcpListener,
    routes: Routes,
    options: ServerOptions,
) -> io::Result<ServerHandle> {
    let addr = listener.local_addr()?;
    let shared = Arc::new(Shared {
        calls: Arc::new(Calls::new(&options.calls)),
        options,
        connections: TaskTracker::new(),
        open: AtomicUsize::new(0),
        draining: CancellationToken::new(),
        force: CancellationToken::new(),
    });
    let accepting = tokio::spawn(accept(listener, routes.prepare(), shared.clone()));
    Ok(ServerHandle {
        addr,
        shared,
        accepting: Some(accepting),
    })
}

impl ServerHandle {
    /// Where it listens; the real port where 0 was asked for.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// Stops accepting and closes the listening socket, tells connections to
    /// finish, waits for them at most `drain`, drops what is left. Tell the
    /// handlers of long streams before: they end only when these do.
    pub async fn stop(mut self, drain: Duration) -> StopReport {
        self.shared.draining.cancel();
        if let Some(accepting) = self.accepting.take() {
            // It has no way to fail but a panic, which was reported by then.
            drop(accepting.await);
        }
        let connections = &self.shared.connections;
        let open = connections.len();
        connections.close();
        let forced = match tokio::time::timeout(drain, connections.wait()).await {
            Ok(()) => 0,
            Err(_) => connections.len(),
        };
        self.shared.force.cancel();
        connections.wait().await;
        StopReport { open, forced }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.shared.draining.cancel();
        self.shared.force.cancel();
    }
}

async fn accept(listener: TcpListener, routes: Routes, shared: Arc<Shared>) {
    let mut next_id = 1;
    loop {
        let accepted = tokio::select! {
            biased;
            () = shared.draining.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection = Arc::new(Connection::new(next_id, peer));
                next_id += 1;
                start(stream, connection, &routes, &shared);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                if !is_about_one_connection(&error) {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// The client went before it was accepted; the next one may be fine.
fn is_about_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionAborted | Kind::ConnectionReset | Kind::ConnectionRefused
    )
}

fn start(stream: TcpStream, connection: Arc<Connection>, routes: &Routes, shared: &Arc<Shared>) {
    if shared.open.load(Ordering::Relaxed) >= shared.options.connections_max {
        tracing::warn!(
            peer = %connection.peer(),
            limit = shared.options.connections_max,
            "connection refused: too many are open"
        );
        return;
    }
    shared.open.fetch_add(1, Ordering::Relaxed);
    let open = OpenGuard(shared.clone());
    let service = ConnectionService {
        routes: routes.clone(),
        calls: shared.calls.clone(),
        tcp: TcpConnectInfo {
            local_addr: stream.local_addr().ok(),
            remote_addr: Some(connection.peer()),
        },
        connection,
    };
    shared.connections.spawn(serve_one(stream, service, open));
}

struct OpenGuard(Arc<Shared>);

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn serve_one(stream: TcpStream, service: ConnectionService, open: OpenGuard) {
    let shared = &open.0;
    let peer = service.connection.peer();
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "TCP_NODELAY refused");
    }
    let spoke = tokio::select! {
        biased;
        () = shared.draining.cancelled() => return,
        spoke = tokio::time::timeout(FIRST_BYTE_TIMEOUT, stream.readable()) => spoke,
    };
    if !matches!(spoke, Ok(Ok(()))) {
        tracing::debug!(%peer, "connection closed: it said nothing");
        return;
    }
    let mut serving =
        pin!(builder(&shared.options).serve_connection(TokioIo::new(stream), service));
    let mut draining = pin!(shared.draining.cancelled());
    let mut told = false;
    let served = loop {
        tokio::select! {
            biased;
            () = shared.force.cancelled() => return,
            () = &mut draining, if !told => {
                told = true;
                serving.as_mut().graceful_shutdown();
            }
            served = &mut serving => break served,
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "connection ended");
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
