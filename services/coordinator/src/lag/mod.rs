//! How far groups are behind: measured at the leaders, beside the pace of commits
//! that the shards remember.

mod export;
mod measure;

pub use export::{LagSeries, keep_exporting};

use crate::{
    ask::{Asked, state_name, topic_name},
    leaders,
};
use measure::{Position, partition_lag, positions};
use talweg_kit::{clock::wall_now, errors::Refusal};
use talweg_proto::v1::GetLagResponse;

/// Partitions with a committed offset or an owner; those without an offset are
/// measured from the log start. UNKNOWN_GROUP, UNKNOWN_TOPIC; a leader that does not
/// answer is in the answer of its partition.
pub async fn get(asked: &Asked, topic: &str) -> Result<GetLagResponse, Refusal> {
    let only = match topic {
        "" => None,
        name => Some(asked.topic(name)?),
    };
    let name = asked.group.clone();
    let read = asked.read(move |seen, group| {
        let state = state_name(group.status());
        let mut all = positions(&name, group, seen, true);
        all.retain(|position| only.is_none_or(|id| id == position.at.topic_id));
        (state, all)
    });
    let (state, all) = read.await?;
    let asked_for = all.iter().map(Position::question);
    let mut backlogs = leaders::backlogs(&asked.node, asked_for).await;
    let topics = asked.topics();
    let now = wall_now();
    let lags = all.iter().map(|position| {
        let backlog = backlogs.remove(&position.question());
        let name = topic_name(&topics, position.at.topic_id);
        partition_lag(position, name, backlog, now)
    });
    Ok(GetLagResponse {
        lags: lags.collect(),
        state: state.into(),
    })
}
