//! What produce and fetch streams share: how many there may be, and how they
//! end when the process does.

use crate::node::{Drain, Node};
use std::{sync::Arc, time::Duration};
use talweg_kit::{
    data_stream::PeerInfo,
    errors::{ErrorCode, Refusal},
    metrics::IntGauge,
    net::Grant,
};
use talweg_types::limits;
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::Instant,
};

/// After the drain deadline, for the last answers and the `closing` frame.
pub const CLOSING_TIME: Duration = Duration::from_millis(400);
/// Text that names a client.
const CLIENT_ID_BYTES_MAX: usize = 128;
/// A stream whose client does not open it within this is ended.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// A place among the node's streams.
pub fn admit(node: &Node) -> Result<OwnedSemaphorePermit, Refusal> {
    Arc::clone(&node.streams).try_acquire_owned().map_err(|_| {
        let limit = node.config.streams_max;
        let message = format!("this node serves at most {limit} streams");
        Refusal::new(ErrorCode::Throttled, message)
            .with_limit("streams_max", limit as u64, limit as u64 + 1, "streams")
            .retry_after(1_000)
    })
}

/// Counts a stream while it lives.
pub struct Counted(IntGauge);

impl Counted {
    pub fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Unanswered bytes that a produce stream may have: a connection's streams
/// share what a connection may be granted.
///
/// # Errors
/// THROTTLED: the connection's streams hold all of it.
pub fn produce_grant(peer: &PeerInfo) -> Result<(u64, Option<Grant>), Refusal> {
    let Some(connection) = &peer.connection else {
        return Ok((limits::PRODUCE_CREDIT_BYTES, None));
    };
    let grant = connection.grant(
        limits::PRODUCE_CREDIT_BYTES,
        limits::PRODUCE_CREDIT_BYTES_MIN,
    );
    let grant = grant.ok_or_else(|| {
        let why = "the streams of this connection hold all its credit; open another connection";
        Refusal::new(ErrorCode::Throttled, why)
    })?;
    Ok((grant.bytes(), Some(grant)))
}

pub fn check_client_id(client_id: &str) -> Result<(), Refusal> {
    if client_id.len() > CLIENT_ID_BYTES_MAX {
        let reason = format!(
            "has {} bytes, at most {CLIENT_ID_BYTES_MAX} are allowed",
            client_id.len()
        );
        return Err(Refusal::invalid("open.client_id", reason));
    }
    Ok(())
}

/// A frame that must not come now.
pub fn violation(what: &str) -> Refusal {
    Refusal::new(ErrorCode::ProtocolViolation, what)
}

/// Where a stream stands on the way to its end.
pub struct DrainWatch {
    watch: watch::Receiver<Option<Drain>>,
    told: Option<Drain>,
}

impl DrainWatch {
    pub fn new(node: &Node) -> Self {
        Self {
            watch: node.watch_drain(),
            told: None,
        }
    }

    /// Resolves once, when the process begins to stop.
    pub async fn begun(&mut self) -> Drain {
        loop {
            let drain = *self.watch.borrow_and_update();
            if let Some(drain) = drain.filter(|_| self.told.is_none()) {
                self.told = Some(drain);
                return drain;
            }
            if self.watch.changed().await.is_err() {
                // The node is gone; so is this stream, soon.
                std::future::pending::<()>().await;
            }
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.told.map(|drain| drain.deadline)
    }

    /// The client's time is over.
    pub fn is_over(&self) -> bool {
        self.deadline()
            .is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// Milliseconds from now to `deadline`, for a frame.
pub fn ms_until(deadline: Instant) -> u32 {
    u32::try_from(
        deadline
            .saturating_duration_since(Instant::now())
            .as_millis(),
    )
    .unwrap_or(u32::MAX)
}
