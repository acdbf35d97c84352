//! What a handler may know about the connection that it is served on.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// One accepted connection; in the extensions of each of its requests as
/// `Arc<Connection>`.
#[derive(Debug)]
pub struct Connection {
    id: u64,
    peer: SocketAddr,
    streams: AtomicUsize,
}

impl Connection {
    pub(super) fn new(id: u64, peer: SocketAddr) -> Self {
        Self {
            id,
            peer,
            streams: AtomicUsize::new(0),
        }
    }

    /// Unique within the server, from 1.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The client's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Requests of this connection that are being served now, the caller's
    /// included. Grants of credit shrink with it.
    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }
}

/// Counts one request while it lives.
#[derive(Debug)]
pub(super) struct StreamGuard(Arc<Connection>);

impl StreamGuard {
    pub(super) fn new(connection: &Arc<Connection>) -> Self {
        connection.streams.fetch_add(1, Ordering::Relaxed);
        Self(connection.clone())
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}
