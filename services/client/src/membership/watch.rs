//! The cluster's metadata, from whichever controller has it.

use super::{Member, RETRY, go_on};
use crate::{Refusal, backoff::Backoff, pool::Traffic, view::ClusterFollower};
use std::{sync::Arc, time::Duration};
use talweg_proto::controller::v1::{
    WatchClusterRequest, controller_service_client::ControllerServiceClient,
};

/// The watch says something at least this often, or is given up.
const SILENCE: Duration = Duration::from_secs(30);

/// Keeps the view at the controller's; never ends.
pub async fn watch<M: Member>(member: Arc<M>) {
    let mut backoff = Backoff::new(RETRY.0, RETRY.1);
    loop {
        let server = member.controller().server();
        let mut heard = false;
        let ended = once(&*member, &server, &mut heard).await;
        if heard {
            backoff.reset();
        }
        let refusal = ended.err();
        go_on(
            member.controller(),
            &server,
            refusal,
            &mut backoff,
            "metadata watch",
        )
        .await;
    }
}

async fn once(member: &impl Member, server: &str, heard: &mut bool) -> Result<(), Refusal> {
    let lease = member.pool().lease(server, Traffic::Control)?;
    let request = WatchClusterRequest {
        node_id: member.node_id(),
    };
    let mut updates = ControllerServiceClient::new(lease.channel().clone())
        .max_decoding_message_size(64 << 20)
        .watch_cluster(request)
        .await
        .map_err(|status| Refusal::from_status(&status))?
        .into_inner();
    let mut follower = ClusterFollower::not_before(member.view().get().revision);
    loop {
        let next = tokio::time::timeout(SILENCE, updates.message()).await;
        let next = next.map_err(|_| Refusal::unavailable("the watch is silent"))?;
        let Some(update) = next.map_err(|status| Refusal::from_status(&status))? else {
            return Ok(());
        };
        member.on_update(&update);
        let view = follower.apply(update)?;
        *heard = true;
        if let Some(view) = view {
            let revision = view.revision;
            member.view().set(view);
            member.on_view(revision);
        }
    }
}
