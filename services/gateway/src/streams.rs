//! What the streams share.

use crate::node::Drain;
use std::time::Duration;
use talweg_kit::{
    data_stream::Closed,
    errors::{ErrorCode, Refusal},
};
use tokio::{sync::watch, time::Instant};
use tonic::Status;

/// Why a stream ended before its client ended it.
pub enum Ended {
    /// The client has gone.
    Gone,
    Refused(Status),
}

impl From<Closed> for Ended {
    fn from(_: Closed) -> Self {
        Self::Gone
    }
}

impl From<Refusal> for Ended {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal.into())
    }
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

/// After the drain deadline, for the last answers and the `closing` frame.
pub const CLOSING_TIME: Duration = Duration::from_millis(400);
/// A stream whose client does not open it within this is ended.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// A frame that must not come now.
pub fn violation(what: &str) -> Refusal {
    Refusal::new(ErrorCode::ProtocolViolation, what)
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

/// Resolves when the process begins to stop.
pub async fn begun(stops: &mut watch::Receiver<Option<Drain>>) -> Drain {
    match stops.wait_for(Option::is_some).await.map(|drain| *drain) {
        Ok(Some(drain)) => drain,
        // The process is gone, and whoever waits soon is.
        Ok(None) | Err(_) => std::future::pending().await,
    }
}

/// Resolves when streams must end, whatever their clients do.
pub async fn forced(mut stops: watch::Receiver<Option<Drain>>) {
    let drain = begun(&mut stops).await;
    tokio::time::sleep_until(drain.deadline + CLOSING_TIME).await;
}
