//! The gateway as a member of the cluster: what the session and the watch ask of
//! it, and tell it.

use crate::{node::Node, streams::begun};
use talweg_client::{Client, membership::Member, pool::ChannelPool, view::SharedView};
use talweg_proto::{
    controller::v1::{NodeRegistered, WatchClusterResponse},
    v1::Plane,
};

impl Member for Node {
    fn plane(&self) -> Plane {
        Plane::Gateway
    }

    fn controller(&self) -> &Client {
        &self.controller
    }

    fn pool(&self) -> &ChannelPool {
        &self.pool
    }

    fn view(&self) -> &SharedView {
        &self.view
    }

    fn node_id(&self) -> u32 {
        self.id()
    }

    fn rack(&self) -> &str {
        &self.config.rack
    }

    fn on_registered(&self, registered: &NodeRegistered) {
        self.set_id(registered.node_id);
        self.metrics.controller_connected.set(1);
        tracing::info!(node_id = registered.node_id, "registered");
    }

    fn on_disconnected(&self) {
        self.metrics.controller_connected.set(0);
    }

    fn on_update(&self, _: &WatchClusterResponse) {
        self.metrics.metadata.heard();
    }

    fn on_view(&self, revision: i64) {
        self.metrics.view_revision.set(revision);
    }

    async fn leaving(&self) {
        begun(&mut self.watch_drain()).await;
    }
}
