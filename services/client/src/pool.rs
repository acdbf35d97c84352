//! Connections to peers: several per address, apart by kind of traffic, so
//! that a stalled stream never stands in the way of a control call, and
//! another one whenever all of a kind carry 100 streams.
//!
//! Connections are made on first use and come back by themselves; one that
//! nothing uses any more is dropped when the next lease of its kind finds it.

use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use talweg_kit::{errors::Refusal, net};
use tonic::transport::Channel;

/// Streams that one connection carries before another is made.
pub const STREAMS_PER_CONNECTION: usize = 100;

/// What a connection is for; kinds never share one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Traffic {
    /// Unary calls, watches and sessions.
    Control,
    Produce,
    Fetch,
}

/// Connections to any number of peers. Cheap to clone.
#[derive(Clone)]
pub struct ChannelPool {
    shared: Arc<Shared>,
}

struct Shared {
    options: net::ChannelOptions,
    peers: Mutex<BTreeMap<(String, Traffic), Vec<Connection>>>,
}

struct Connection {
    channel: Channel,
    streams: Arc<AtomicUsize>,
}

/// A connection in use by one stream, until this is dropped.
#[derive(Debug)]
pub struct Lease {
    channel: Channel,
    streams: Arc<AtomicUsize>,
}

impl Lease {
    /// The connection.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ChannelPool {
    /// An empty pool.
    pub fn new(connect_timeout: Duration) -> Self {
        let options = net::ChannelOptions {
            connect_timeout,
            ..Default::default()
        };
        Self {
            shared: Arc::new(Shared {
                options,
                peers: Mutex::default(),
            }),
        }
    }

    /// A connection to `address` ("http://host:port") with room for one more
    /// stream. Fails only if the address is not a URL: connecting happens on use.
    pub fn lease(&self, address: &str, traffic: Traffic) -> Result<Lease, Refusal> {
        let mut peers = self.shared.peers.lock();
        let connections = peers.entry((address.to_owned(), traffic)).or_default();
        let free = connections
            .iter()
            .find(|c| c.streams.load(Ordering::Relaxed) < STREAMS_PER_CONNECTION);
        let connection = match free {
            Some(connection) => connection,
            None => {
                let channel = net::channel(address, &self.shared.options)
                    .map_err(|error| Refusal::invalid("address", error.to_string()))?;
                connections.push(Connection {
                    channel,
                    streams: Arc::default(),
                });
                &connections[connections.len() - 1]
            }
        };
        connection.streams.fetch_add(1, Ordering::Relaxed);
        let lease = Lease {
            channel: connection.channel.clone(),
            streams: Arc::clone(&connection.streams),
        };
        drop_unused(connections);
        Ok(lease)
    }

    /// Connections to `address` of this kind, for tests and metrics.
    pub fn connections(&self, address: &str, traffic: Traffic) -> usize {
        let peers = self.shared.peers.lock();
        peers
            .get(&(address.to_owned(), traffic))
            .map_or(0, Vec::len)
    }
}

/// Keeps one unused connection, so that a peer in light use is not dialled
/// again and again.
fn drop_unused(connections: &mut Vec<Connection>) {
    let mut spare = 0;
    connections.retain(|c| {
        let unused = c.streams.load(Ordering::Relaxed) == 0;
        spare += usize::from(unused);
        !unused || spare <= 1
    });
}
