//! Committed offsets, stored and asked for by whoever assigns partitions himself.

use std::collections::BTreeMap;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1::{
    CommitOffsetsRequest, CommittedOffset, FetchOffsetsRequest,
    offset_service_client::OffsetServiceClient,
};
use tonic::transport::Channel;

/// Commits one offset, by nobody in particular.
///
/// # Errors
/// The code of the refusal.
pub async fn commit(
    channel: &Channel,
    group: &str,
    place: (&str, u32),
    offset: i64,
) -> Result<(), ErrorCode> {
    commit_by(channel, group, None, place, offset).await
}

/// Commits one offset, as the member `by` in that epoch.
///
/// # Errors
/// The code of the refusal.
pub async fn commit_by(
    channel: &Channel,
    group: &str,
    by: Option<(&str, i32)>,
    (topic, partition): (&str, u32),
    offset: i64,
) -> Result<(), ErrorCode> {
    let (member_id, member_epoch) = by.unwrap_or_default();
    let request = CommitOffsetsRequest {
        group: group.into(),
        member_id: member_id.into(),
        member_epoch,
        offsets: vec![CommittedOffset {
            topic: topic.into(),
            partition,
            offset,
            leader_epoch: -1,
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut offsets = OffsetServiceClient::new(channel.clone());
    let answer = offsets.commit_offsets(request).await;
    let answer = answer.map_err(|status| Refusal::from_status(&status).code)?;
    let mut errors = answer.into_inner().errors.into_iter();
    match errors.find(|error| error.code != 0) {
        Some(error) => Err(Refusal::from_detail(error).code),
        None => Ok(()),
    }
}

/// What a group has stored in a topic, by partition.
///
/// # Errors
/// What the refusal says.
pub async fn stored(
    channel: &Channel,
    group: &str,
    topic: &str,
) -> Result<BTreeMap<u32, i64>, String> {
    let request = FetchOffsetsRequest {
        group: group.into(),
        topic: topic.into(),
    };
    let mut offsets = OffsetServiceClient::new(channel.clone());
    let answer = offsets.fetch_offsets(request).await;
    let answer = answer.map_err(|status| status.to_string())?.into_inner();
    let each = answer.offsets.into_iter();
    Ok(each.map(|one| (one.partition, one.offset)).collect())
}
