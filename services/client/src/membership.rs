//! A process as a member of the cluster: the watch that fills its view, and the
//! session that makes it known. Both come back by themselves; what was known stays
//! in use while no controller is there.

mod session;
mod watch;

pub use session::session;
pub use watch::watch;

use crate::{Client, Refusal, backoff::Backoff, pool::ChannelPool, view::SharedView};
use std::{future::Future, time::Duration};
use talweg_proto::{
    controller::v1::{NodeRegistered, WatchClusterResponse},
    v1::{Plane, error_detail::Details},
};
use talweg_types::TimestampMs;

const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// What is needed of a process, and what it is told.
pub trait Member: Send + Sync + 'static {
    fn plane(&self) -> Plane;
    fn controller(&self) -> &Client;
    /// For the watch.
    fn pool(&self) -> &ChannelPool;
    fn view(&self) -> &SharedView;
    /// 0 before the controller has given one.
    fn node_id(&self) -> u32;
    fn rack(&self) -> &str;
    fn on_registered(&self, registered: &NodeRegistered);
    /// The session is over; another one is tried.
    fn on_disconnected(&self) {}
    /// The controller has heard what was sent so long ago; by then it had told watchers
    /// what `revision` names.
    fn on_heard(&self, _sent: Duration, _revision: i64) {}
    /// The controller's wall clock, as it was about now.
    fn on_controller_time(&self, _time: TimestampMs) {}
    /// Before the view shows it.
    fn on_update(&self, _update: &WatchClusterResponse) {}
    /// The view was replaced.
    fn on_view(&self, _revision: i64) {}
    /// Resolves when the process begins to stop.
    fn leaving(&self) -> impl Future<Output = ()> + Send;
}

/// How others reach this process.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// URL of its gRPC address.
    pub grpc: String,
    /// URL of its HTTP address.
    pub http: String,
}

/// Waits, and turns to the controller that a refusal names or to the next one.
async fn go_on(
    controller: &Client,
    server: &str,
    refusal: Option<Refusal>,
    backoff: &mut Backoff,
    what: &str,
) {
    let hint = refusal.as_ref().and_then(|refusal| match &refusal.details {
        Some(Details::Leader(hint)) => hint.addresses.first(),
        _ => None,
    });
    match hint {
        Some(hint) => controller.prefer(hint),
        None => drop(controller.avoid(server)),
    }
    tracing::debug!(?refusal, %server, "{what} ended");
    tokio::time::sleep(backoff.pause(refusal.map_or(0, |it| it.retry_after_ms))).await;
}
