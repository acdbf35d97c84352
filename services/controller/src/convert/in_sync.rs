//! In-sync proposals and the ends of logs.

use super::{partition as state, requests::partition};
use crate::core::{AlterInSync, InSyncProposal, InSyncResult, LogEnd, Request};
use prost::bytes::Bytes;
use talweg_kit::errors::Refusal;
use talweg_proto::controller::v1 as wire;
use talweg_types::{Incarnation, LeaderEpoch, NodeId, Offset, PartitionEpoch, TopicPartition};

const PROPOSALS_MAX: usize = 1_000;
/// A set larger than any that can be right.
const MEMBERS_MAX: usize = 64;

pub fn alter_in_sync(request: wire::AlterInSyncRequest) -> Result<AlterInSync, Refusal> {
    let count = request.proposals.len();
    if count > PROPOSALS_MAX {
        let reason = format!("at most {PROPOSALS_MAX} at a time, not {count}");
        return Err(Refusal::invalid("proposals", reason));
    }
    let proposals = request.proposals.into_iter().map(proposal);
    Ok(AlterInSync {
        node: NodeId(request.node_id),
        incarnation: Incarnation(request.incarnation),
        proposals: proposals.collect::<Result<_, _>>()?,
    })
}

fn proposal(proposal: wire::InSyncProposal) -> Result<InSyncProposal, Refusal> {
    let count = proposal.members.len();
    if count > MEMBERS_MAX {
        let reason = format!("at most {MEMBERS_MAX}, not {count}");
        return Err(Refusal::invalid("proposals.members", reason));
    }
    let members = proposal.members.iter();
    Ok(InSyncProposal {
        partition: partition("proposals.topic_id", &proposal.topic_id, proposal.partition)?,
        leader_epoch: LeaderEpoch(proposal.leader_epoch),
        partition_epoch: PartitionEpoch(proposal.partition_epoch),
        members: members
            .map(|member| (NodeId(member.node_id), Incarnation(member.incarnation)))
            .collect(),
        attempt: proposal.attempt,
    })
}

pub fn in_sync_results(
    asked: &[TopicPartition],
    results: Vec<InSyncResult>,
) -> wire::AlterInSyncResponse {
    let results = asked.iter().zip(results);
    let result = |(tp, result): (&TopicPartition, InSyncResult)| wire::InSyncResult {
        refused: result.refused.unwrap_or_default(),
        state: result.state.map(|partition| state(*tp, &partition)),
    };
    wire::AlterInSyncResponse {
        results: results.map(result).collect(),
    }
}

/// What a node has answered; what names no partition is left out.
pub fn replica_ends(ends: wire::ReplicaEnds) -> Vec<(TopicPartition, LogEnd)> {
    let end = |end: wire::ReplicaEnd| {
        let tp = partition("replicas.topic_id", &end.topic_id, end.partition).ok()?;
        Some((
            tp,
            LogEnd {
                epoch: LeaderEpoch(end.last_epoch),
                offset: Offset(end.log_end_offset),
            },
        ))
    };
    ends.replicas.into_iter().filter_map(end).collect()
}

pub fn ask_ends(partitions: &[TopicPartition]) -> wire::AskReplicaEnds {
    let replica = |tp: &TopicPartition| wire::ReplicaEnd {
        topic_id: Bytes::copy_from_slice(tp.topic_id.as_bytes()),
        partition: tp.partition.0,
        ..wire::ReplicaEnd::default()
    };
    wire::AskReplicaEnds {
        replicas: partitions.iter().map(replica).collect(),
    }
}

impl From<AlterInSync> for Request {
    fn from(asked: AlterInSync) -> Self {
        Self::AlterInSync(asked)
    }
}
