//! `ReplicaService`: bounds and epochs of the replicas that this node holds.

use crate::{
    clock,
    fetch::on_reader,
    node::Node,
    partition::{CaughtUp, Command, Cuts, LogCut, LoopHandle, PartitionHandle},
    resolve,
};
use bytes::Bytes;
use futures::future::join_all;
use std::{sync::Arc, time::Duration};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_log::{RepairPart, RepairWish};
use talweg_proto::{
    storage::v1::{
        DescribeReplicasRequest, DescribeReplicasResponse, FollowerDescription, ReadReplicaRequest,
        ReadReplicaResponse, ReplicaDescription, replica_service_server::ReplicaService,
    },
    v1::{PartitionBounds, Truncation, Truncations},
};
use talweg_types::{LeaderEpoch, LogBounds, NodeId, Offset, TopicId};
use tokio::{sync::oneshot, time::timeout};
use tonic::{Request, Response, Status};

/// A loop that takes longer waits for its disk.
const LOOP_TIMEOUT: Duration = Duration::from_millis(500);
/// Batches of one answer, unless one alone is larger.
const READ_BYTES: usize = 1 << 20;

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
        let caught_up = caught_up(&self.node, &wanted).await;
        let replicas = chosen.map(|handle| describe(&self.node, handle, &caught_up));
        Ok(Response::new(DescribeReplicasResponse {
            replicas: replicas.collect(),
        }))
    }

    /// INVALID_ARGUMENT; UNKNOWN_TOPIC, UNKNOWN_PARTITION; NOT_LEADER where this node
    /// holds no replica that is close enough; OFFSET_NOT_AVAILABLE where it is not
    /// compacted as far, or just now; OFFSET_OUT_OF_RANGE, DATA_DAMAGED.
    async fn read_replica(
        &self,
        request: Request<ReadReplicaRequest>,
    ) -> Result<Response<ReadReplicaResponse>, Status> {
        let part = read(&self.node, &request.into_inner()).await?;
        Ok(Response::new(ReadReplicaResponse {
            cleaned_end_offset: part.cleaned_end.map(|end| end.0),
            revision: part.revision,
            batches: part.batches,
        }))
    }
}

async fn read(node: &Node, request: &ReadReplicaRequest) -> Result<RepairPart, Refusal> {
    if request.topic_id.is_empty() {
        return Err(Refusal::invalid("topic_id", "must have 16 bytes"));
    }
    if request.from_offset < 0 || request.from_offset >= request.end_offset {
        let reason = format!(
            "must be from 0 to below `end_offset`, {}",
            request.end_offset
        );
        return Err(Refusal::invalid("from_offset", reason));
    }
    let topic = resolve::topic(node, "", &request.topic_id)?;
    let handle = match resolve::followed_partition(node, &topic, request.partition) {
        Some((handle, _)) => handle,
        None => resolve::readable_partition(node, &topic, request.partition)?.0,
    };
    let wish = RepairWish {
        from: Offset(request.from_offset),
        end: Offset(request.end_offset),
        cleaned_end: request.cleaned_end_offset.map(Offset),
    };
    let reader = Arc::clone(&handle.reader);
    let read = on_reader(node, move || reader.read_for_repair(wish, READ_BYTES)).await?;
    read.ok_or_else(|| {
        let message = "this replica is not compacted as far as the one that asks, or was just now";
        Refusal::new(ErrorCode::OffsetNotAvailable, message)
    })
}

/// What the loops know of followers. One that waits for its disk is left out.
async fn caught_up(node: &Node, topics: &[TopicId]) -> CaughtUp {
    let ask = |owner: &LoopHandle| {
        let (done, answer) = oneshot::channel();
        let topics = topics.iter().copied().collect();
        let sent = owner.send(Command::CaughtUp { topics, done });
        async move {
            sent.ok()?;
            timeout(LOOP_TIMEOUT, answer).await.ok()?.ok()
        }
    };
    let all = join_all(node.loops.iter().map(ask)).await;
    all.into_iter().flatten().flatten().collect()
}

fn describe(node: &Node, handle: &PartitionHandle, caught_up: &CaughtUp) -> ReplicaDescription {
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
        size_bytes: handle.reader.size_bytes(),
        truncations: Some(truncations(handle.cuts())),
        followers: followers(caught_up.get(&handle.tp)),
    }
}

fn truncations(cuts: Cuts) -> Truncations {
    let newest = |cut: LogCut| Truncation {
        from_offset: cut.from.0,
        to_offset: cut.to.0,
        bytes: cut.bytes,
        time_ms: cut.time.0,
        below_watermark: cut.below_watermark,
    };
    Truncations {
        count: cuts.count,
        newest: cuts.newest.map(newest),
    }
}

fn followers(ago: Option<&Vec<(NodeId, u64)>>) -> Vec<FollowerDescription> {
    let now = clock::wall_now().0;
    let described = |(node, ago): &(NodeId, u64)| FollowerDescription {
        node_id: node.0,
        last_caught_up_ms: now.saturating_sub(i64::try_from(*ago).unwrap_or(i64::MAX)),
    };
    ago.into_iter().flatten().map(described).collect()
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
