//! What operators ask of the cluster.

use super::requests::uuid;
use crate::core::{BalanceCluster, ElectLeader, Reassign, Request};
use talweg_kit::errors::Refusal;
use talweg_proto::v1;
use talweg_types::{NodeId, PartitionIndex, limits};
use uuid::Uuid;

pub fn elect(request: v1::ElectLeaderRequest) -> Request {
    Request::Elect(ElectLeader {
        topic: request.topic,
        partition: PartitionIndex(request.partition),
        unclean: request.unclean,
    })
}

pub fn reassign(request: v1::ReassignPartitionRequest) -> Result<Request, Refusal> {
    let (count, limit) = (request.to.len(), limits::REPLICATION_FACTOR_MAX as usize);
    if count > limit {
        let reason = format!("at most {limit} nodes, not {count}");
        return Err(Refusal::invalid("to", reason));
    }
    Ok(Request::Reassign(Reassign {
        topic: request.topic,
        partition: PartitionIndex(request.partition),
        to: request.to.into_iter().map(NodeId).collect(),
        throttle: request.throttle_bytes_per_second,
        id: Uuid::new_v4(),
    }))
}

pub fn cancel(request: &v1::CancelReassignmentRequest) -> Result<Request, Refusal> {
    let id = uuid("reassignment_id", &request.reassignment_id)?;
    Ok(Request::CancelMove { id })
}

pub fn balance(request: &v1::BalanceClusterRequest) -> Request {
    Request::Balance(BalanceCluster {
        throttle: Some(request.throttle_bytes_per_second),
        id: Uuid::new_v4(),
    })
}

pub fn stop_balance() -> Request {
    Request::Balance(BalanceCluster {
        throttle: None,
        id: Uuid::nil(),
    })
}
