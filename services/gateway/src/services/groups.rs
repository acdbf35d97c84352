//! Groups and their stored offsets for operators, and for clients that assign
//! partitions themselves: checked here, decided by the group's coordinator.

use crate::{
    groups::{ask, check_group},
    node::Node,
};
use futures::future::join_all;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use talweg_client::pool::Traffic;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    coordinator::v1::{
        ListShardsRequest, ListShardsResponse, ask_request::Question, ask_response::Answer,
        coordinator_service_client::CoordinatorServiceClient,
    },
    v1::{self, Plane, group_service_server::GroupService},
};
use talweg_types::{CONSUMER_OFFSETS, limits};
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

/// All groups, in name order, once each, and what is missing.
async fn list(node: &Node) -> Result<v1::ListGroupsResponse, Refusal> {
    let view = node.view.get();
    let coordinators = view
        .nodes()
        .filter(|it| it.plane == Plane::Coordinator as i32);
    let asking = coordinators.map(|it| {
        let (id, address) = (it.node_id, it.grpc_address.clone());
        async move { (id, list_one(node, address).await) }
    });
    let answers = join_all(asking).await;
    let topic = view.by_name(CONSUMER_OFFSETS);
    let shards = topic.map_or(0, |topic| topic.topic.partitions);
    together(answers, shards)
}

/// Half a list must not look like a whole one; nothing at all is a refusal.
fn together(
    answers: Vec<(u32, Result<ListShardsResponse, Refusal>)>,
    shards: u32,
) -> Result<v1::ListGroupsResponse, Refusal> {
    let (mut groups, mut missing) = (BTreeMap::new(), Vec::new());
    let mut unserved: BTreeSet<u32> = (0..shards).collect();
    let (mut heard, mut refused) = (answers.is_empty(), None);
    for (coordinator, answer) in answers {
        match answer {
            Ok(answer) => {
                heard = true;
                unserved.retain(|shard| !answer.shards.contains(shard));
                // A group whose shard moves just now may be listed by both.
                let named = answer.groups.into_iter();
                groups.extend(named.map(|group| (group.group.clone(), group)));
            }
            Err(refusal) => {
                missing.push(v1::MissingCoordinator {
                    coordinator,
                    error: Some(refusal.detail()),
                });
                refused.get_or_insert(refusal);
            }
        }
    }
    match refused {
        Some(refusal) if !heard => Err(refusal),
        _ => Ok(v1::ListGroupsResponse {
            groups: groups.into_values().collect(),
            missing,
            missing_shards: unserved.into_iter().collect(),
        }),
    }
}

async fn list_one(node: &Node, address: String) -> Result<ListShardsResponse, Refusal> {
    let lease = node.pool.lease(&address, Traffic::Control)?;
    let mut request = Request::new(ListShardsRequest {});
    request.set_timeout(LIST_TIMEOUT);
    let answer = CoordinatorServiceClient::new(lease.channel().clone())
        .max_decoding_message_size(64 << 20)
        .list_shards(request)
        .await
        .map_err(|status| Refusal::from_status(&status))?;
    Ok(answer.into_inner())
}

#[tonic::async_trait]
impl GroupService for Groups {
    /// UNAVAILABLE if no coordinator answers; one that does not is named.
    async fn list_groups(
        &self,
        _: Request<v1::ListGroupsRequest>,
    ) -> Result<Response<v1::ListGroupsResponse>, Status> {
        Ok(Response::new(list(&self.0).await?))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(names: &[&str], shards: &[u32]) -> Result<ListShardsResponse, Refusal> {
        let group = |name: &&str| v1::Group {
            group: (*name).into(),
            ..Default::default()
        };
        Ok(ListShardsResponse {
            groups: names.iter().map(group).collect(),
            shards: shards.to_vec(),
        })
    }

    /// Story: one of three coordinators is away, and a shard of its is not taken yet.
    #[test]
    fn what_is_missing_from_a_list_is_named() {
        let away = || Err(Refusal::unavailable("away"));
        let answers = vec![
            (1, answer(&["b", "c"], &[0, 2])),
            (2, away()),
            (3, answer(&["a", "b"], &[1])),
        ];
        let list = together(answers, 4).expect("a part");
        let names: Vec<&str> = list.groups.iter().map(|it| it.group.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!((list.missing.len(), list.missing[0].coordinator), (1, 2));
        assert_eq!(list.missing_shards, [3]);
        let whole = together(vec![(1, answer(&[], &[0, 1]))], 2).expect("whole");
        assert_eq!(whole, v1::ListGroupsResponse::default());
        let nobody = together(vec![(2, away())], 2).expect_err("nobody answered");
        assert_eq!(nobody.code, ErrorCode::Unavailable);
    }
}
