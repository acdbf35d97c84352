//! Topics: changes go to the controller; descriptions are merged from our view
//! and the leaders.
//!
//! After a change the call waits, for a bounded time, until our own view has
//! it, so that the caller's next call finds what this one made.

use super::replicas::Replicas;
use crate::node::Node;
use std::{sync::Arc, time::Duration};
use talweg_client::{
    Again,
    view::{TopicView, View},
};
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{
    self, topic_service_client::TopicServiceClient, topic_service_server::TopicService,
};
use talweg_types::TopicId;
use tonic::{Request, Response, Status};

/// How long a change may take to reach our view before the call returns anyway.
const SETTLE: Duration = Duration::from_secs(5);

/// Forwards one call to the active controller.
macro_rules! forward {
    ($node:expr, $again:expr, $request:expr, $method:ident) => {
        $node
            .controller
            .call($again, $request, |channel, request| async move {
                TopicServiceClient::new(channel).$method(request).await
            })
            .await
    };
}

/// Serves `TopicService`.
pub struct Topics(pub Arc<Node>);

impl Topics {
    /// INVALID_NAME, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_CONFIG,
    /// TOPIC_EXISTS, NOT_ENOUGH_NODES by the controller; UNAVAILABLE without one.
    pub async fn create(
        &self,
        request: v1::CreateTopicRequest,
    ) -> Result<v1::CreateTopicResponse, Refusal> {
        // Without a key a lost answer must not become a second try.
        let again = match request.idempotency_key.is_empty() {
            true => Again::NotDoneOnly,
            false => Again::Safe,
        };
        let response = forward!(self.0, again, request, create_topic)?;
        if let Some(topic) = &response.topic {
            let (id, partitions) = (TopicId::from_slice(&topic.topic_id), topic.partitions);
            let ready = |view: &View| {
                id.and_then(|id| view.topic(id))
                    .is_some_and(|it| has_leaders(it, partitions))
            };
            settle(&self.0, ready).await;
        }
        Ok(response)
    }

    /// UNKNOWN_TOPIC, TOPIC_ID_CHANGED; UNAVAILABLE without a controller.
    pub async fn delete(
        &self,
        request: v1::DeleteTopicRequest,
    ) -> Result<v1::DeleteTopicResponse, Refusal> {
        let response = forward!(self.0, Again::NotDoneOnly, request, delete_topic)?;
        if let Some(id) = TopicId::from_slice(&response.topic_id) {
            settle(&self.0, |view| view.topic(id).is_none()).await;
        }
        Ok(response)
    }

    /// UNKNOWN_TOPIC, INVALID_PARTITIONS, INVALID_CONFIG; UNAVAILABLE without a controller.
    pub async fn alter(
        &self,
        request: v1::AlterTopicRequest,
    ) -> Result<v1::AlterTopicResponse, Refusal> {
        let response = forward!(self.0, Again::Safe, request, alter_topic)?;
        if let Some(topic) = &response.topic {
            let id = TopicId::from_slice(&topic.topic_id);
            let same = |it: &Arc<TopicView>| {
                it.topic.config == topic.config && has_leaders(it, topic.partitions)
            };
            settle(&self.0, |view| {
                id.and_then(|id| view.topic(id)).is_none_or(same)
            })
            .await;
        }
        Ok(response)
    }

    /// Topics of our view, in name order.
    pub fn list(&self) -> Vec<v1::Topic> {
        self.0
            .view
            .get()
            .topics()
            .map(|topic| topic.topic.clone())
            .collect()
    }
}

/// Waits until our view has a change; a view that is late is no error.
async fn settle(node: &Node, hope: impl Fn(&View) -> bool) {
    if !node.view.wait(SETTLE, hope).await {
        tracing::warn!("a change has not reached this gateway's view yet");
    }
}

fn has_leaders(topic: &TopicView, partitions: u32) -> bool {
    topic.partitions.len() >= partitions as usize
        && topic.partitions.iter().all(|it| !it.leader.is_none())
}

/// One topic with its partitions and replicas; bounds are absent where the leader
/// did not answer. UNKNOWN_TOPIC, TOPIC_ID_CHANGED.
async fn describe(
    node: &Node,
    name: &str,
    id: &[u8],
) -> Result<v1::DescribeTopicResponse, Refusal> {
    let view = node.view.get();
    let topic = Arc::clone(view.resolve(name, id)?);
    let replicas = Replicas::ask(node, &view, &[&topic]).await;
    let partitions = topic.partitions.iter().enumerate().map(|(number, state)| {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let leader = replicas.leader(topic.id, number, state.leader);
        v1::PartitionDescription {
            partition: number,
            leader: state.leader.0,
            leader_epoch: state.leader_epoch.0,
            replicas: state.replicas.clone(),
            in_sync: state.in_sync.clone(),
            bounds: leader.and_then(|described| described.bounds),
            eligible: state.eligible.clone(),
            last_in_sync: state.last_in_sync.clone(),
            recovered: state.recovered,
            replicas_detail: replicas.details(topic.id, number, state),
        }
    });
    Ok(v1::DescribeTopicResponse {
        partitions: partitions.collect(),
        topic: Some(topic.topic.clone()),
    })
}

#[tonic::async_trait]
impl TopicService for Topics {
    async fn create_topic(
        &self,
        request: Request<v1::CreateTopicRequest>,
    ) -> Result<Response<v1::CreateTopicResponse>, Status> {
        Ok(Response::new(self.create(request.into_inner()).await?))
    }

    async fn delete_topic(
        &self,
        request: Request<v1::DeleteTopicRequest>,
    ) -> Result<Response<v1::DeleteTopicResponse>, Status> {
        Ok(Response::new(self.delete(request.into_inner()).await?))
    }

    async fn alter_topic(
        &self,
        request: Request<v1::AlterTopicRequest>,
    ) -> Result<Response<v1::AlterTopicResponse>, Status> {
        Ok(Response::new(self.alter(request.into_inner()).await?))
    }

    async fn describe_topic(
        &self,
        request: Request<v1::DescribeTopicRequest>,
    ) -> Result<Response<v1::DescribeTopicResponse>, Status> {
        let request = request.into_inner();
        Ok(Response::new(
            describe(&self.0, &request.name, &request.topic_id).await?,
        ))
    }

    async fn list_topics(
        &self,
        _: Request<v1::ListTopicsRequest>,
    ) -> Result<Response<v1::ListTopicsResponse>, Status> {
        Ok(Response::new(v1::ListTopicsResponse {
            topics: self.list(),
        }))
    }

    /// UNAVAILABLE without a controller, whose table it is.
    async fn list_config_keys(
        &self,
        request: Request<v1::ListConfigKeysRequest>,
    ) -> Result<Response<v1::ListConfigKeysResponse>, Status> {
        Ok(Response::new(forward!(
            self.0,
            Again::Safe,
            request.into_inner(),
            list_config_keys
        )?))
    }
}
