//! Where a partition's batches and fetches go.

use std::sync::Arc;
use talweg_kit::errors::Refusal;
use talweg_types::{NodeId, TopicPartition};
use tokio::sync::watch;

/// A server that takes data streams.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Target {
    /// `NodeId::NONE` for a gateway.
    pub node: NodeId,
    /// URL.
    pub address: Arc<str>,
}

/// The way to a partition now.
#[derive(Clone, PartialEq, Debug)]
pub enum Route {
    To(Target),
    /// Wait for a change; the refusal is what a caller is told who cannot.
    Wait(Refusal),
    /// There is nothing to wait for: the topic or partition is gone.
    Gone(Refusal),
}

/// Who leads what. Implementations serve from what they have and never wait.
pub trait Routes: Send + Sync + 'static {
    /// The way to a partition now.
    fn route(&self, partition: TopicPartition) -> Route;

    /// An in-sync replica in this rack that is not the leader, while the leader is
    /// in another: a reader of the rack is served there. `None` at targets that
    /// see to it themselves.
    fn near(&self, _partition: TopicPartition, _rack: &str) -> Option<Target> {
        None
    }

    /// Changes whenever an answer of [`Self::route`] or [`Self::near`] may have.
    fn changes(&self) -> watch::Receiver<u64>;

    /// The target refused a connection, drained or broke: prefer another, if
    /// there is one.
    fn avoid(&self, _target: &Target) {}

    /// True if the targets are leaders, which may hear of a new topic later
    /// than we do; false if they are gateways.
    fn to_leaders(&self) -> bool;
}
