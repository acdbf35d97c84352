//! Groups and their stored offsets for operators, and for clients that assign
//! partitions themselves: checked here, decided by the group's coordinator.

use crate::{
    groups::{ask, check_group},
    node::Node,
};
use futures::future::join_all;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use talweg_client::pool::Traffic;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    coordinator::v1::{
        ListShardsRequest, ask_request::Question, ask_response::Answer,
        coordinator_service_client::CoordinatorServiceClient,
    },
    v1::{self, Plane, group_service_server::GroupService},
};
use talweg_types::limits;
use tonic::{Request, Response, Status};

/// For a coordinator to list its groups.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves `GroupService`.
pub struct Groups(pub Arc<Node>);

/// An answer to another question.
pub fn odd() -> Refusal {
    Refusal::internal("the coordinator answered another question")
}

/// Asks and takes the one answer that fits.
macro_rules! asked {
    ($node:expr, $group:expr, $kind:ident($request:expr)) => {
        match ask(
            $node,
            &$group,
            Question::$kind($request),
            Node::GROUP_PATIENCE,
        )
        .await?
        {
            Answer::$kind(answer) => Ok(answer),
            _ => Err(odd()),
        }
    };
}
pub(super) use asked;

fn check_count(field: &str, count: usize) -> Result<(), Refusal> {
    let max = limits::COMMIT_OFFSETS_MAX;
    if count <= max {
        return Ok(());
    }
    let message = format!("{field} has {count} entries, at most {max} are allowed");
    Err(Refusal::new(ErrorCode::LimitExceeded, message).with_limit(
        field,
        max as u64,
        count as u64,
        "offsets",
    ))
}

/// Fills in the ids of topics that were named, so that a topic made anew in
/// between is not meant.
fn with_ids(node: &Node, offsets: &mut [v1::CommittedOffset]) -> Result<(), Refusal> {
    let view = node.view.get();
    for offset in offsets {
        let topic = view.resolve(&offset.topic, &offset.topic_id)?;
        offset.topic_id = crate::groups::id_bytes(topic.id);
        offset.topic.clone_from(&topic.topic.name);
    }
    Ok(())
}

pub async fn commit(
    node: &Node,
    mut request: v1::CommitOffsetsRequest,
) -> Result<v1::CommitOffsetsResponse, Refusal> {
    check_count("offsets", request.offsets.len())?;
    with_ids(node, &mut request.offsets)?;
    let group = request.group.clone();
    asked!(node, group, CommitOffsets(request.clone()))
}

pub async fn fetch(
    node: &Node,
    request: v1::FetchOffsetsRequest,
) -> Result<v1::FetchOffsetsResponse, Refusal> {
    let group = request.group.clone();
    asked!(node, group, FetchOffsets(request.clone()))
}

/// A topic must be there: its leaders are asked where to move to.
fn check_topic(node: &Node, topic: &str) -> Result<(), Refusal> {
    node.view.get().resolve(topic, &[]).map(drop)
}

pub async fn reset(
    node: &Node,
    request: v1::ResetOffsetsRequest,
) -> Result<v1::ResetOffsetsResponse, Refusal> {
    use v1::reset_offsets_request::To;
    check_group(&request.group)?;
    check_topic(node, &request.topic)?;
    match &request.to {
        None => return Err(Refusal::invalid("to", "one of its fields must be set")),
        Some(To::Earliest(false) | To::Latest(false)) => {
            return Err(Refusal::invalid("to", "must be true where it is given"));
        }
        Some(To::Offset(offset)) if *offset < 0 => {
            return Err(Refusal::invalid("to.offset", "is negative"));
        }
        Some(_) => {}
    }
    let group = request.group.clone();
    asked!(node, group, ResetOffsets(request.clone()))
}

pub async fn forget(
    node: &Node,
    request: v1::DeleteOffsetsRequest,
) -> Result<v1::DeleteOffsetsResponse, Refusal> {
    check_count("partitions", request.partitions.len())?;
    check_group(&request.group)?;
    check_topic(node, &request.topic)?;
    let group = request.group.clone();
    asked!(node, group, DeleteOffsets(request.clone()))
}

/// All groups, in name order, once each.
async fn list(node: &Node) -> Result<Vec<v1::Group>, Refusal> {
    let view = node.view.get();
    let coordinators = view
        .nodes()
        .filter(|it| it.plane == Plane::Coordinator as i32);
    let asking = coordinators.map(|it| list_one(node, it.grpc_address.clone()));
    let mut groups = BTreeMap::new();
    for answer in join_all(asking).await {
        // Half a list would look like a whole one.
        for group in answer? {
            // A group whose shard moves just now may be listed by both.
            groups.insert(group.group.clone(), group);
        }
    }
    Ok(groups.into_values().collect())
}

async fn list_one(node: &Node, address: String) -> Result<Vec<v1::Group>, Refusal> {
    let lease = node.pool.lease(&address, Traffic::Control)?;
    let mut request = Request::new(ListShardsRequest {});
    request.set_timeout(LIST_TIMEOUT);
    let answer = CoordinatorServiceClient::new(lease.channel().clone())
        .max_decoding_message_size(64 << 20)
        .list_shards(request)
        .await
        .map_err(|status| Refusal::from_status(&status))?;
    Ok(answer.into_inner().groups)
}

#[tonic::async_trait]
impl GroupService for Groups {
    /// UNAVAILABLE if a coordinator does not answer.
    async fn list_groups(
        &self,
        _: Request<v1::ListGroupsRequest>,
    ) -> Result<Response<v1::ListGroupsResponse>, Status> {
        let groups = list(&self.0).await?;
        Ok(Response::new(v1::ListGroupsResponse { groups }))
    }

    /// UNKNOWN_GROUP, INVALID_NAME.
    async fn describe_group(
        &self,
        request: Request<v1::DescribeGroupRequest>,
    ) -> Result<Response<v1::DescribeGroupResponse>, Status> {
        let request = request.into_inner();
        let group = request.group.clone();
        let answer: Result<_, Refusal> = asked!(&self.0, group, DescribeGroup(request.clone()));
        Ok(Response::new(answer?))
    }

    /// UNKNOWN_GROUP, GROUP_NOT_EMPTY, INVALID_NAME.
    async fn delete_group(
        &self,
        request: Request<v1::DeleteGroupRequest>,
    ) -> Result<Response<v1::DeleteGroupResponse>, Status> {
        let request = request.into_inner();
        let group = request.group.clone();
        let answer: Result<_, Refusal> = asked!(&self.0, group, DeleteGroup(request.clone()));
        Ok(Response::new(answer?))
    }
}
