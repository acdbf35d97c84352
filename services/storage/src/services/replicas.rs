//! `ReplicaService`: bounds and epochs of the replicas that this node holds.

use crate::{node::Node, partition::PartitionHandle};
use bytes::Bytes;
use std::sync::Arc;
use talweg_kit::errors::Refusal;
use talweg_proto::{
    storage::v1::{
        DescribeReplicasRequest, DescribeReplicasResponse, ReplicaDescription,
        replica_service_server::ReplicaService,
    },
    v1::PartitionBounds,
};
use talweg_types::{LeaderEpoch, LogBounds, TopicId};
use tonic::{Request, Response, Status};

pub struct Replicas {
    pub node: Arc<Node>,
}

#[tonic::async_trait]
impl ReplicaService for Replicas {
    /// INVALID_ARGUMENT for an id that has not 16 bytes; topics that this node
    /// does not hold have no entry.
    async fn describe_replicas(
        &self,
        request: Request<DescribeReplicasRequest>,
    ) -> Result<Response<DescribeReplicasResponse>, Status> {
        let ids = request.into_inner().topic_ids;
        let id = |bytes: &Bytes| {
            TopicId::from_slice(bytes)
                .ok_or_else(|| Refusal::invalid("topic_ids", "must have 16 bytes each"))
        };
        let wanted = ids.iter().map(id).collect::<Result<Vec<_>, _>>()?;
        let all = self.node.partitions.all();
        let chosen = all
            .iter()
            .filter(|handle| wanted.is_empty() || wanted.contains(&handle.tp.topic_id));
        let replicas = chosen.map(|handle| describe(&self.node, handle)).collect();
        Ok(Response::new(DescribeReplicasResponse { replicas }))
    }
}

fn describe(node: &Node, handle: &PartitionHandle) -> ReplicaDescription {
    let leads = handle.leads();
    let known = node
        .view
        .get()
        .partition(&handle.tp)
        .map_or(LeaderEpoch::NONE.0, |(_, state)| state.leader_epoch);
    ReplicaDescription {
        topic_id: Bytes::copy_from_slice(handle.tp.topic_id.as_bytes()),
        partition: handle.tp.partition.0,
        leader: leads.is_some(),
        leader_epoch: leads.map_or(known, |epoch| epoch.0),
        bounds: Some(bounds(handle.reader.bounds())),
        failure: handle.failure().unwrap_or_default(),
    }
}

/// Bounds as they travel.
pub fn bounds(bounds: LogBounds) -> PartitionBounds {
    PartitionBounds {
        log_start_offset: bounds.log_start.0,
        last_stable_offset: bounds.last_stable.0,
        high_watermark: bounds.high_watermark.0,
        log_end_offset: bounds.log_end.0,
        flushed_end_offset: bounds.flushed_end.0,
    }
}
