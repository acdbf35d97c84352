//! Every partition by way of the client's gateways.

use crate::{
    client::Client,
    delivery::{Route, Routes, Target},
};
use talweg_types::{NodeId, TopicPartition};
use tokio::sync::watch;

/// Routes to the gateway that the client asks first.
pub struct GatewayRoutes {
    client: Client,
    changed: watch::Sender<u64>,
}

impl GatewayRoutes {
    /// Follows the client's preference and changes it when a gateway drains.
    pub fn new(client: Client) -> Self {
        let (changed, _) = watch::channel(0);
        Self { client, changed }
    }
}

impl Routes for GatewayRoutes {
    fn route(&self, _: TopicPartition) -> Route {
        Route::To(Target {
            node: NodeId::NONE,
            address: self.client.server(),
        })
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn avoid(&self, target: &Target) {
        if self.client.avoid(&target.address) {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    fn to_leaders(&self) -> bool {
        false
    }
}
