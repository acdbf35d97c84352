//! Topics: made, described, waited for.

use crate::eventually;
use bytes::Bytes;
use std::time::Duration;
use talweg_proto::v1::{
    self, cluster_service_client::ClusterServiceClient, offset_service_client::OffsetServiceClient,
    topic_service_client::TopicServiceClient,
};
use tonic::transport::Channel;

/// For progress on a busy machine.
const PROGRESS: Duration = Duration::from_secs(30);

/// Creates a topic with the default replication factor; its id.
pub async fn create_topic(
    channel: &Channel,
    name: &str,
    partitions: i32,
    config: &[(&str, &str)],
) -> Bytes {
    create(channel, name, partitions, None, config).await
}

/// Creates a topic with `replication_factor` replicas of each partition; its id.
pub async fn create_replicated(
    channel: &Channel,
    name: &str,
    partitions: i32,
    replication_factor: i32,
    config: &[(&str, &str)],
) -> Bytes {
    create(channel, name, partitions, Some(replication_factor), config).await
}

async fn create(
    channel: &Channel,
    name: &str,
    partitions: i32,
    replication_factor: Option<i32>,
    config: &[(&str, &str)],
) -> Bytes {
    let config = config
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    let request = v1::CreateTopicRequest {
        name: name.into(),
        partitions: Some(partitions),
        replication_factor,
        config,
        ..Default::default()
    };
    let created = TopicServiceClient::new(channel.clone())
        .create_topic(request)
        .await;
    created
        .unwrap_or_else(|e| panic!("create {name}: {e}"))
        .into_inner()
        .topic
        .expect("topic")
        .topic_id
}

/// Log start and high watermark of one partition, from its leader.
pub async fn bounds(
    channel: &Channel,
    topic: &str,
    partition: u32,
) -> Result<v1::PartitionBounds, String> {
    let query = v1::OffsetQuery {
        topic: topic.into(),
        partition,
        at: None,
        ..Default::default()
    };
    let request = v1::ListOffsetsRequest {
        queries: vec![query],
    };
    let answer = OffsetServiceClient::new(channel.clone())
        .list_offsets(request)
        .await
        .map_err(|e| e.to_string())?;
    let answer = answer
        .into_inner()
        .answers
        .into_iter()
        .next()
        .ok_or("no answer")?;
    match answer.error {
        Some(error) => Err(error.message),
        None => answer.bounds.ok_or_else(|| "no bounds".into()),
    }
}

/// The partitions of a topic, as a gateway describes them.
pub async fn describe(
    channel: &Channel,
    topic: &str,
) -> Result<Vec<v1::PartitionDescription>, String> {
    Ok(describe_topic(channel, topic).await?.partitions)
}

/// A topic with its partitions, as a gateway describes it.
pub async fn describe_topic(
    channel: &Channel,
    topic: &str,
) -> Result<v1::DescribeTopicResponse, String> {
    let request = v1::DescribeTopicRequest {
        name: topic.into(),
        ..Default::default()
    };
    let described = TopicServiceClient::new(channel.clone())
        .describe_topic(request)
        .await;
    let described = described.map_err(|status| status.to_string())?;
    Ok(described.into_inner())
}

/// Waits until each partition of a topic has a leader and so many in sync.
pub async fn in_sync(
    channel: &Channel,
    topic: &str,
    replicas: usize,
) -> Vec<v1::PartitionDescription> {
    let what = format!("{replicas} of {topic} in sync");
    eventually(&what, Duration::from_secs(60), || async {
        let partitions = describe(channel, topic).await?;
        let whole = |p: &v1::PartitionDescription| p.leader > 0 && p.in_sync.len() == replicas;
        match !partitions.is_empty() && partitions.iter().all(whole) {
            true => Ok(partitions),
            false => Err(format!("{partitions:?}")),
        }
    })
    .await
}

/// Place of a partition's leader among the storage nodes.
pub async fn leader(c: &Channel, topic: &str, partition: usize) -> usize {
    let partitions = eventually("a leader", PROGRESS, || async {
        let partitions = describe(c, topic).await?;
        match partitions.iter().all(|p| p.leader > 0) {
            true => Ok(partitions),
            false => Err(format!("{partitions:?}")),
        }
    });
    partitions.await[partition].leader as usize - 1
}

/// Leaders move away from these nodes until told otherwise.
pub async fn drain(c: &Channel, nodes: &[u32]) {
    for node_id in nodes.iter().copied() {
        let request = v1::DrainNodeRequest { node_id };
        let drained = ClusterServiceClient::new(c.clone())
            .drain_node(request)
            .await;
        drained.expect("drained");
    }
}
