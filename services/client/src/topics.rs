//! Topics: create, delete, alter, describe, list; and the table of settings.

use crate::client::{Again, Client};
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{self, topic_service_client::TopicServiceClient};
use uuid::Uuid;

/// Calls about topics, from [`Client::topics`].
#[derive(Clone, Copy)]
pub struct Topics<'a>(pub(crate) &'a Client);

impl Client {
    /// Calls about topics.
    pub fn topics(&self) -> Topics<'_> {
        Topics(self)
    }
}

impl Topics<'_> {
    /// Creates a topic. Without an idempotency key one is made up, so that a
    /// retry of this call is recognised.
    pub async fn create(
        &self,
        mut request: v1::CreateTopicRequest,
    ) -> Result<v1::CreateTopicResponse, Refusal> {
        if request.idempotency_key.is_empty() {
            request.idempotency_key = Uuid::new_v4().to_string();
        }
        self.0
            .call(Again::Safe, request, |channel, request| async move {
                TopicServiceClient::new(channel).create_topic(request).await
            })
            .await
    }

    /// Deletes a topic by name.
    pub async fn delete(&self, name: &str) -> Result<v1::DeleteTopicResponse, Refusal> {
        let request = v1::DeleteTopicRequest {
            name: name.into(),
            ..Default::default()
        };
        self.0
            .call(Again::NotDoneOnly, request, |channel, request| async move {
                TopicServiceClient::new(channel).delete_topic(request).await
            })
            .await
    }

    /// Changes partitions or settings. A repeat sets the same values.
    pub async fn alter(
        &self,
        request: v1::AlterTopicRequest,
    ) -> Result<v1::AlterTopicResponse, Refusal> {
        self.0
            .call(Again::Safe, request, |channel, request| async move {
                TopicServiceClient::new(channel).alter_topic(request).await
            })
            .await
    }

    /// One topic with its partitions and their bounds.
    pub async fn describe(&self, name: &str) -> Result<v1::DescribeTopicResponse, Refusal> {
        let request = v1::DescribeTopicRequest {
            name: name.into(),
            ..Default::default()
        };
        self.0
            .call(Again::Safe, request, |channel, request| async move {
                TopicServiceClient::new(channel)
                    .describe_topic(request)
                    .await
            })
            .await
    }

    /// All topics in name order, without partitions.
    pub async fn list(&self) -> Result<Vec<v1::Topic>, Refusal> {
        let request = v1::ListTopicsRequest {};
        self.0
            .call(Again::Safe, request, |channel, request| async move {
                TopicServiceClient::new(channel).list_topics(request).await
            })
            .await
            .map(|response| response.topics)
    }

    /// The table of settings.
    pub async fn config_keys(&self) -> Result<Vec<v1::ConfigKey>, Refusal> {
        let request = v1::ListConfigKeysRequest {};
        self.0
            .call(Again::Safe, request, |channel, request| async move {
                TopicServiceClient::new(channel)
                    .list_config_keys(request)
                    .await
            })
            .await
            .map(|response| response.keys)
    }
}
