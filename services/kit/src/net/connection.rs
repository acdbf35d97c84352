//! What a handler may know about the connection that it is served on, and the
//! credit that all handlers of a connection share.

use super::CONNECTION_GRANT_BYTES;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// One accepted connection; in the extensions of each of its requests as
/// `Arc<Connection>`.
#[derive(Debug)]
pub struct Connection {
    id: u64,
    peer: SocketAddr,
    streams: AtomicUsize,
    /// Bytes granted to the connection's streams now, up to [`CONNECTION_GRANT_BYTES`].
    granted: AtomicU64,
}

impl Connection {
    pub(super) fn new(id: u64, peer: SocketAddr) -> Self {
        Self {
            id,
            peer,
            streams: AtomicUsize::new(0),
            granted: AtomicU64::new(0),
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
    /// included.
    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Credit for one more stream: `most` bytes while few have any, shrinking to
    /// `least` as the connection's budget is used up. `None` when it is: the
    /// client should open another connection. Returned when the grant is dropped.
    pub fn grant(self: &Arc<Self>, most: u64, least: u64) -> Option<Grant> {
        let mut bytes = 0;
        let take = |granted: u64| {
            let left = CONNECTION_GRANT_BYTES.checked_sub(granted)?;
            bytes = (left / GRANT_SHARE).clamp(least, most.max(least));
            (bytes <= left).then(|| granted + bytes)
        };
        let taken = self
            .granted
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.ok().map(|_| Grant {
            bytes,
            connection: self.clone(),
        })
    }
}

/// Each new stream gets this share of what is left: with 8 MiB at most and
/// 1 MiB at least, 394 streams before nothing is left.
const GRANT_SHARE: u64 = 128;

/// Credit that one stream holds of its connection's budget.
#[derive(Debug)]
pub struct Grant {
    bytes: u64,
    connection: Arc<Connection>,
}

impl Grant {
    /// Payload bytes that may be unanswered.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.connection
            .granted
            .fetch_sub(self.bytes, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    /// However many streams ask, all their credit stays below the budget, and
    /// so below the connection's window; none has less than the least.
    #[test]
    fn grants_shrink_and_never_exceed_the_budget() {
        let addr = ([127, 0, 0, 1], 1).into();
        let connection = Arc::new(Connection::new(1, addr));
        let mut held = Vec::new();
        while let Some(grant) = connection.grant(8 * MIB, MIB) {
            assert!((MIB..=8 * MIB).contains(&grant.bytes()));
            held.push(grant);
        }
        let sum: u64 = held.iter().map(Grant::bytes).sum();
        assert!(sum <= CONNECTION_GRANT_BYTES, "{sum}");
        assert!(sum > CONNECTION_GRANT_BYTES - MIB, "{sum}");
        assert!(held.len() > 350, "{} streams", held.len());
        assert_eq!(held[0].bytes(), 8 * MIB);
        assert!(
            held.windows(2)
                .all(|pair| pair[1].bytes() <= pair[0].bytes())
        );
        held.clear();
        assert_eq!(
            connection.grant(8 * MIB, MIB).expect("all is back").bytes(),
            8 * MIB
        );
    }
}
