//! What operators and clients without a member ask of one group.

mod describe;
mod offsets;
mod reset;

use crate::{
    lag,
    node::Node,
    service::check_group,
    shard::{Seen, ShardHandle, replay},
    shards::route,
};
use futures::future::join_all;
use std::{sync::Arc, time::Duration};
use talweg_coordinator_runtime::Loading;
use talweg_group::{Answer as GroupAnswer, Event, Topics};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    coordinator::v1::{
        CheckShardsResponse, ListShardsResponse, ShardCheck, ask_request::Question,
        ask_response::Answer,
    },
    v1::DeleteGroupResponse,
};
use talweg_types::TopicId;

pub use describe::state_name;

/// For one shard to say what it has.
const LIST_TIME: Duration = Duration::from_secs(2);

/// Everything but what needs no group.
pub async fn ask(node: &Arc<Node>, question: Question) -> Result<Answer, Refusal> {
    let group = group_of(&question).to_owned();
    check_group(&group)?;
    let shard = route(node, &group)?;
    let asked = Asked {
        node: Arc::clone(node),
        shard,
        group,
    };
    match question {
        Question::DescribeGroup(_) => asked.describe().await.map(Answer::DescribeGroup),
        Question::DeleteGroup(_) => asked.delete().await.map(Answer::DeleteGroup),
        Question::CommitOffsets(of) => asked.commit(of).await.map(Answer::CommitOffsets),
        Question::FetchOffsets(of) => asked.fetch(&of.topic).await.map(Answer::FetchOffsets),
        Question::ResetOffsets(of) => asked.reset(of).await.map(Answer::ResetOffsets),
        Question::DeleteOffsets(of) => asked.delete_offsets(of).await.map(Answer::DeleteOffsets),
        Question::GetLag(of) => lag::get(&asked, &of.topic).await.map(Answer::GetLag),
    }
}

fn group_of(question: &Question) -> &str {
    match question {
        Question::DescribeGroup(of) => &of.group,
        Question::DeleteGroup(of) => &of.group,
        Question::CommitOffsets(of) => &of.group,
        Question::FetchOffsets(of) => &of.group,
        Question::ResetOffsets(of) => &of.group,
        Question::DeleteOffsets(of) => &of.group,
        Question::GetLag(of) => &of.group,
    }
}

/// A question's group, and the shard that has it.
pub struct Asked {
    pub node: Arc<Node>,
    pub shard: Arc<ShardHandle>,
    pub group: String,
}

impl Asked {
    /// Reads the group as decided; UNKNOWN_GROUP if nothing is stored for it.
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Seen<'_>, &talweg_group::Group) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let group = self.group.clone();
        let found = self.shard.read(move |seen| {
            let group = seen.shard.machine(&group)?;
            Some(look(seen, group))
        });
        found.await?.ok_or_else(|| self.unknown())
    }

    pub fn unknown(&self) -> Refusal {
        let why = format!("nothing is stored for group {:?}", self.group);
        Refusal::new(ErrorCode::UnknownGroup, why)
    }

    pub fn topics(&self) -> Arc<Topics> {
        Arc::clone(&self.node.topics.borrow())
    }

    /// The id of a topic that is there.
    pub fn topic(&self, name: &str) -> Result<TopicId, Refusal> {
        let topics = self.topics();
        let topic = topics.named(name);
        topic
            .map(|topic| topic.id)
            .ok_or_else(|| talweg_client::view::unknown(&name))
    }

    async fn delete(&self) -> Result<DeleteGroupResponse, Refusal> {
        // One with very many offsets goes in parts, itself last.
        while self.shard.decide(&self.group, Event::DeleteGroup).await? == GroupAnswer::More {}
        Ok(DeleteGroupResponse {})
    }
}

/// The name of a topic; empty if it is not there.
pub fn topic_name(topics: &Topics, id: TopicId) -> String {
    let mut all = topics.iter();
    let found = all.find(|(_, topic)| topic.id == id);
    found.map(|(name, _)| name.to_owned()).unwrap_or_default()
}

/// Groups of the shards served, in name order.
pub async fn list_shards(node: &Arc<Node>) -> ListShardsResponse {
    let id = node.identity().map_or(0, |(id, _)| id.0);
    let mut response = ListShardsResponse::default();
    let shards = node.shards.all();
    let listed = shards.iter().map(|shard| async move {
        let number = shard.at.partition.0;
        let groups = shard.read(move |seen| {
            let groups = seen.shard.machines();
            groups
                .map(|(name, group)| describe::summary(name, group, id, number))
                .collect::<Vec<_>>()
        });
        (number, tokio::time::timeout(LIST_TIME, groups).await)
    });
    for (number, groups) in join_all(listed).await {
        // A shard that is not served here has no groups here; one whose log hangs
        // must not hide the others.
        if let Ok(Ok(groups)) = groups {
            response.groups.extend(groups);
            response.shards.push(number);
        }
    }
    response.groups.sort_by(|a, b| a.group.cmp(&b.group));
    response
}

/// Live, replayed and kept, of each shard served.
pub async fn check_shards(node: &Arc<Node>) -> Result<CheckShardsResponse, Refusal> {
    let mut response = CheckShardsResponse::default();
    for shard in node.shards.all() {
        if !shard.is_serving() {
            continue;
        }
        let checked = shard.check().await?;
        let replayed = replay(
            &node.log,
            shard.at,
            checked.applied,
            Loading::default(),
            None,
        )
        .await?;
        response.shards.push(ShardCheck {
            shard: shard.at.partition.0,
            shard_epoch: checked.epoch.0,
            applied_offset: checked.applied.0,
            groups: checked.groups,
            live_hash: checked.live_hash,
            replayed_hash: replayed.state_hash(),
            view_hash: checked.view_hash,
        });
    }
    Ok(response)
}
