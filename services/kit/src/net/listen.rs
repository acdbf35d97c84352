//! Accepting connections and ending them, whatever is spoken on them.
//!
//! One task accepts, one task per connection serves. A failure to accept is
//! logged and never ends the loop. Stopping is bounded: connections are told to
//! finish, get `drain` to do so, and are then dropped, because the graceful
//! shutdown of HTTP/2 waits as long as any stream lives.

use super::Connection;
use std::{
    future::Future,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// After a failure to accept for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A client that has connected must say something within this.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(20);

/// What is spoken on the connections of a listener.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// Serves one connection until it ends; when `draining` is cancelled it
    /// takes no new requests and ends after those it has. Dropped when forced.
    fn serve(
        &self,
        stream: TcpStream,
        connection: Arc<Connection>,
        draining: CancellationToken,
    ) -> impl Future<Output = ()> + Send;
}

/// How a server's connections ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StopReport {
    /// Open when the server was told to stop.
    pub open: usize,
    /// Of these, dropped at the end of the drain time.
    pub forced: usize,
}

/// A listener that is being served. Dropping it ends everything at once.
#[derive(Debug)]
pub(crate) struct Listening {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<tokio::task::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    connections_max: usize,
    tasks: TaskTracker,
    open: AtomicUsize,
    /// Stop accepting; tell connections to finish.
    draining: CancellationToken,
    /// Drop what is left.
    force: CancellationToken,
}

/// Serves `listener`.
pub(crate) fn listen<P: Protocol>(
    listener: TcpListener,
    protocol: P,
    connections_max: usize,
) -> io::Result<Listening> {
    let addr = listener.local_addr()?;
    let shared = Arc::new(Shared {
        connections_max,
        tasks: TaskTracker::new(),
        open: AtomicUsize::new(0),
        draining: CancellationToken::new(),
        force: CancellationToken::new(),
    });
    let accepting = tokio::spawn(accept(listener, Arc::new(protocol), shared.clone()));
    Ok(Listening {
        addr,
        shared,
        accepting: Some(accepting),
    })
}

impl Listening {
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Connections open now.
    pub(crate) fn connections(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// Ends it within `drain`, see the head of this file.
    pub(crate) async fn stop(mut self, drain: Duration) -> StopReport {
        self.shared.draining.cancel();
        if let Some(accepting) = self.accepting.take() {
            // It has no way to fail but a panic, which was reported by then.
            drop(accepting.await);
        }
        let tasks = &self.shared.tasks;
        let open = tasks.len();
        tasks.close();
        let forced = match tokio::time::timeout(drain, tasks.wait()).await {
            Ok(()) => 0,
            Err(_) => tasks.len(),
        };
        self.shared.force.cancel();
        tasks.wait().await;
        StopReport { open, forced }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.shared.draining.cancel();
        self.shared.force.cancel();
    }
}

async fn accept<P: Protocol>(listener: TcpListener, protocol: Arc<P>, shared: Arc<Shared>) {
    let mut next_id = 1;
    loop {
        let accepted = tokio::select! {
            biased;
            () = shared.draining.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                start(stream, Connection::new(next_id, peer), &protocol, &shared);
                next_id += 1;
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

fn start<P: Protocol>(
    stream: TcpStream,
    connection: Connection,
    protocol: &Arc<P>,
    shared: &Arc<Shared>,
) {
    let (peer, limit) = (connection.peer(), shared.connections_max);
    if shared.open.load(Ordering::Relaxed) >= limit {
        tracing::warn!(%peer, limit, "connection refused: too many are open");
        return;
    }
    shared.open.fetch_add(1, Ordering::Relaxed);
    let open = OpenGuard(shared.clone());
    let protocol = protocol.clone();
    shared.tasks.spawn(async move {
        serve_one(stream, Arc::new(connection), &*protocol, &open.0).await;
    });
}

struct OpenGuard(Arc<Shared>);

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn serve_one<P: Protocol>(
    stream: TcpStream,
    connection: Arc<Connection>,
    protocol: &P,
    shared: &Shared,
) {
    let peer = connection.peer();
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
    tokio::select! {
        biased;
        () = shared.force.cancelled() => {}
        () = protocol.serve(stream, connection, shared.draining.clone()) => {}
    }
}
