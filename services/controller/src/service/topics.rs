//! Topics. Every call may be answered NOT_CONTROLLER with the active one's
//! address, UNAVAILABLE while nobody is elected, or TIMED_OUT when it is not
//! known whether the change was made.

use super::at_revision;
use crate::{
    convert,
    core::{Reply, TopicAnswer},
    handle::Handle,
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1::{self, topic_service_server::TopicService};
use talweg_types::topic_config::KEYS;
use tonic::{Request, Response, Status};

pub struct TopicApi {
    pub handle: Handle,
}

fn mismatch() -> Status {
    Refusal::internal("the controller answered another question").to_status()
}

fn answered(answer: TopicAnswer) -> (Option<v1::Topic>, Vec<String>) {
    (
        Some(convert::topic(answer.id, &answer.topic)),
        answer.warnings,
    )
}

#[tonic::async_trait]
impl TopicService for TopicApi {
    /// Also: INVALID_NAME, INTERNAL_TOPIC, TOPIC_EXISTS with its id,
    /// INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_CONFIG or
    /// NOT_BUILT with the key, LIMIT_EXCEEDED with the numbers, NOT_ENOUGH_NODES
    /// and TOPIC_NOT_READY (try again), THROTTLED.
    async fn create_topic(
        &self,
        request: Request<v1::CreateTopicRequest>,
    ) -> Result<Response<v1::CreateTopicResponse>, Status> {
        let answer = self
            .handle
            .request(convert::create(request.into_inner()))
            .await?;
        let Reply::Created(created) = answer.reply else {
            return Err(mismatch());
        };
        let (topic, warnings) = answered(created);
        Ok(at_revision(
            v1::CreateTopicResponse { topic, warnings },
            answer.revision,
        ))
    }

    /// Also: UNKNOWN_TOPIC, TOPIC_ID_CHANGED, TOPIC_NOT_READY.
    async fn delete_topic(
        &self,
        request: Request<v1::DeleteTopicRequest>,
    ) -> Result<Response<v1::DeleteTopicResponse>, Status> {
        let answer = self
            .handle
            .request(convert::delete(request.into_inner())?)
            .await?;
        let Reply::Deleted(id) = answer.reply else {
            return Err(mismatch());
        };
        let topic_id = id.as_bytes().to_vec().into();
        Ok(at_revision(
            v1::DeleteTopicResponse { topic_id },
            answer.revision,
        ))
    }

    /// Also: UNKNOWN_TOPIC, INVALID_PARTITIONS when they would shrink,
    /// INVALID_CONFIG or NOT_BUILT with the key, LIMIT_EXCEEDED, NOT_ENOUGH_NODES.
    async fn alter_topic(
        &self,
        request: Request<v1::AlterTopicRequest>,
    ) -> Result<Response<v1::AlterTopicResponse>, Status> {
        let answer = self
            .handle
            .request(convert::alter(request.into_inner()))
            .await?;
        let Reply::Altered(altered) = answer.reply else {
            return Err(mismatch());
        };
        let (topic, warnings) = answered(altered);
        Ok(at_revision(
            v1::AlterTopicResponse { topic, warnings },
            answer.revision,
        ))
    }

    /// Without bounds, which leaders know. Also: UNKNOWN_TOPIC, TOPIC_ID_CHANGED.
    async fn describe_topic(
        &self,
        request: Request<v1::DescribeTopicRequest>,
    ) -> Result<Response<v1::DescribeTopicResponse>, Status> {
        let v1::DescribeTopicRequest { name, topic_id } = request.into_inner();
        let asked = convert::topic_id(&topic_id)?;
        if name.is_empty() && asked.is_none() {
            return Err(Refusal::invalid("name", "name the topic by its name or id").into());
        }
        let described = self.handle.read(move |core| {
            let by_name = core.view().topic_by_name(&name).map(|(id, _)| id);
            let id = if name.is_empty() { asked } else { by_name };
            if let (Some(asked), Some(found)) = (asked, id)
                && asked != found
            {
                let message = format!("topic {name:?} has the id {found} now, not {asked}");
                return Err(Refusal::new(ErrorCode::TopicIdChanged, message));
            }
            let unknown = || Refusal::new(ErrorCode::UnknownTopic, format!("no topic {name:?}"));
            id.and_then(|id| convert::describe_topic(core, id))
                .ok_or_else(unknown)
        });
        Ok(Response::new(described.await??))
    }

    async fn list_topics(
        &self,
        _: Request<v1::ListTopicsRequest>,
    ) -> Result<Response<v1::ListTopicsResponse>, Status> {
        let topics = self.handle.read(convert::topics).await?;
        Ok(Response::new(v1::ListTopicsResponse { topics }))
    }

    /// Answered by standbys too: the table is part of the program.
    async fn list_config_keys(
        &self,
        _: Request<v1::ListConfigKeysRequest>,
    ) -> Result<Response<v1::ListConfigKeysResponse>, Status> {
        let keys = KEYS.iter().map(|row| v1::ConfigKey {
            name: row.name.into(),
            kind: row.kind.into(),
            unit: row.unit.into(),
            range: row.range.into(),
            default: row.default.into(),
            meaning: row.meaning.into(),
            built: row.built,
        });
        Ok(Response::new(v1::ListConfigKeysResponse {
            keys: keys.collect(),
        }))
    }
}
