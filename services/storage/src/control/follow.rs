//! Keeps the view: one watch stream to a controller, begun again whenever it
//! breaks, falls silent or skips something.

use super::controllers::{BackOff, Controllers};
use crate::{
    node::Node,
    view::{Gap, ViewUpdate},
};
use std::{sync::Arc, time::Duration};
use talweg_kit::net::ChannelOptions;
use talweg_proto::controller::v1::{
    WatchClusterRequest, controller_service_client::ControllerServiceClient,
};
use talweg_types::limits;
use tonic::Status;

/// A watch that says nothing, not even that it lives, for this long is begun anew.
const SILENCE: Duration = Duration::from_secs(30);

/// Follows for as long as the process lives.
pub async fn follow(node: Arc<Node>, controllers: Arc<Controllers>) {
    let mut back_off = BackOff::default();
    loop {
        let before = node.view.get().revision;
        let status = watch(&node, &controllers).await;
        tracing::debug!(%status, "the watch of the cluster ended");
        if node.view.get().revision != before {
            back_off.reset();
        }
        back_off.wait().await;
    }
}

async fn watch(node: &Node, controllers: &Controllers) -> Status {
    let options = ChannelOptions {
        connect_timeout: Duration::from_secs(1),
        ..ChannelOptions::default()
    };
    let channel = match controllers.channel(&options) {
        Ok(channel) => channel,
        Err(refusal) => return refusal.into(),
    };
    let mut client = ControllerServiceClient::new(channel)
        .max_decoding_message_size(limits::GRPC_MESSAGE_BYTES as usize);
    let mut stream = match client
        .watch_cluster(WatchClusterRequest { node_id: node.id() })
        .await
    {
        Ok(stream) => stream.into_inner(),
        Err(status) => {
            controllers.failed(&status);
            return status;
        }
    };
    let mut update = ViewUpdate::new(node.view.get());
    loop {
        let message = match tokio::time::timeout(SILENCE, stream.message()).await {
            Ok(Ok(Some(message))) => message,
            Ok(Ok(None)) => return Status::unavailable("the controller ended the watch"),
            Ok(Err(status)) => return status,
            Err(_) => return Status::unavailable("the watch fell silent"),
        };
        let Some(message) = message.update else {
            continue;
        };
        match update.apply(message) {
            Ok(Some(view)) => node.view.set(view),
            Ok(None) => {}
            Err(gap) => {
                let status = Status::data_loss(gap.to_string());
                if matches!(gap, Gap::Back { .. }) {
                    // Another one knows more.
                    controllers.failed(&status);
                }
                return status;
            }
        }
    }
}
