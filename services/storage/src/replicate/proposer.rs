//! Asks the controller for changes of in-sync sets, many partitions in one call.

use super::outbox::Outbox;
use crate::{
    control::{BackOff, Controllers},
    node::Node,
    partition::{Command, ProposalAnswer},
};
use std::{sync::Arc, time::Duration};
use talweg_kit::net::ChannelOptions;
use talweg_proto::controller::v1::{
    AlterInSyncRequest, InSyncMember, InSyncProposal, InSyncResult,
    controller_service_client::ControllerServiceClient,
};
use talweg_replication::{InSync, Proposal};
use talweg_types::{LeaderEpoch, NodeId, PartitionEpoch, TopicPartition};
use tokio::time::timeout;
use tonic::Status;

/// In one call.
const PROPOSALS_MAX: usize = 1_000;
/// For the controller's answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs for as long as the process does.
pub async fn propose(node: Arc<Node>, outbox: Arc<Outbox>, controllers: Arc<Controllers>) {
    let mut back_off = BackOff::default();
    loop {
        outbox.proposed().await;
        let all: Vec<_> = outbox.take_proposals().into_iter().collect();
        for some in all.chunks(PROPOSALS_MAX) {
            let answered = ask(&node, &controllers, some).await;
            match &answered {
                Ok(_) => back_off.reset(),
                Err(status) => {
                    tracing::info!(%status, "in-sync sets could not be changed; asked again later");
                    controllers.failed(status);
                    back_off.wait().await;
                }
            }
            let mut results = answered.unwrap_or_default().into_iter();
            for (tp, proposal) in some {
                tell(&node, *tp, proposal, results.next());
            }
        }
    }
}

async fn ask(
    node: &Node,
    controllers: &Controllers,
    proposals: &[(TopicPartition, Proposal)],
) -> Result<Vec<InSyncResult>, Status> {
    let incarnation = node
        .incarnation()
        .ok_or_else(|| Status::unavailable("not registered"))?;
    let request = AlterInSyncRequest {
        node_id: node.id(),
        incarnation: incarnation.0,
        proposals: proposals.iter().map(|(tp, p)| proposal(tp, p)).collect(),
    };
    let channel = controllers
        .channel(&ChannelOptions {
            connect_timeout: Duration::from_secs(1),
            ..ChannelOptions::default()
        })
        .map_err(Status::from)?;
    let mut client = ControllerServiceClient::new(channel);
    let answered = timeout(CALL_TIMEOUT, client.alter_in_sync(request)).await;
    let answered =
        answered.map_err(|_| Status::deadline_exceeded("the controller did not answer"))?;
    Ok(answered?.into_inner().results)
}

fn proposal(tp: &TopicPartition, proposal: &Proposal) -> InSyncProposal {
    InSyncProposal {
        topic_id: super::wire::id(tp),
        partition: tp.partition.0,
        leader_epoch: proposal.epoch.0,
        partition_epoch: proposal.partition_epoch.0,
        members: proposal
            .members
            .iter()
            .map(|member| InSyncMember {
                node_id: member.node.0,
                incarnation: member.incarnation.map_or(0, |incarnation| incarnation.0),
            })
            .collect(),
        attempt: proposal.id.0,
    }
}

/// Tells the loop what came of it; without a result nobody knows.
fn tell(node: &Node, tp: TopicPartition, proposal: &Proposal, result: Option<InSyncResult>) {
    let answer = match result {
        None => ProposalAnswer::TimedOut { id: proposal.id },
        Some(InSyncResult { refused, state }) => match state {
            Some(state) if refused.is_empty() => ProposalAnswer::Confirmed(InSync {
                epoch: LeaderEpoch(state.leader_epoch),
                partition_epoch: PartitionEpoch(state.partition_epoch),
                members: state.in_sync.iter().copied().map(NodeId).collect(),
            }),
            state => {
                tracing::info!(partition = %tp, why = %refused, "a change of the in-sync set was refused");
                ProposalAnswer::Refused {
                    id: proposal.id,
                    partition_epoch: PartitionEpoch(
                        state.map_or(-1, |state| state.partition_epoch),
                    ),
                }
            }
        },
    };
    let owner = &node.loops[node.owner_of(&tp)];
    // A loop that has ended needs no answer.
    let _ = owner.send(Command::ProposalAnswered { tp, answer });
}
