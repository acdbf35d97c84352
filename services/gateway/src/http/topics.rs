//! `/v1/topics`.

use super::{HttpState, body::Json, reply::Failure};
use axum::{
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use talweg_proto::v1;
use talweg_types::TopicId;

type Answer = Result<(StatusCode, axum::Json<Value>), Failure>;

/// A topic to create.
#[derive(Deserialize, Debug)]
pub struct CreateBody {
    name: String,
    #[serde(default)]
    partitions: Option<i32>,
    #[serde(default)]
    replication_factor: Option<i32>,
    #[serde(flatten)]
    settings: Settings,
}

/// What to change.
#[derive(Deserialize, Debug)]
pub struct AlterBody {
    #[serde(default)]
    partitions: Option<i32>,
    #[serde(default)]
    reset_config: Vec<String>,
    #[serde(flatten)]
    settings: Settings,
}

/// Settings, two of them with a place of their own.
#[derive(Deserialize, Debug, Default)]
struct Settings {
    #[serde(default)]
    retention_ms: Option<i64>,
    #[serde(default)]
    cleanup_policy: Option<String>,
    #[serde(default)]
    config: BTreeMap<String, Value>,
    /// Everything else: refused by name (serde cannot do both flatten and deny).
    #[serde(flatten)]
    unknown: BTreeMap<String, Value>,
}

impl Settings {
    fn into_config(self) -> Result<HashMap<String, String>, Failure> {
        if let Some(field) = self.unknown.keys().next() {
            return Err(Failure::invalid(field, "no such field"));
        }
        let mut config = HashMap::new();
        for (key, value) in self.config {
            let text = match value {
                Value::String(text) => text,
                Value::Number(number) => number.to_string(),
                Value::Bool(truth) => truth.to_string(),
                _ => {
                    return Err(Failure::invalid(
                        &format!("config.{key}"),
                        "must be text or a number",
                    ));
                }
            };
            config.insert(key, text);
        }
        for (key, value) in [
            ("retention.ms", self.retention_ms.map(|ms| ms.to_string())),
            ("cleanup.policy", self.cleanup_policy),
        ] {
            if let Some(value) = value
                && config
                    .insert(key.into(), value.clone())
                    .is_some_and(|other| other != value)
            {
                return Err(Failure::invalid(
                    &format!("config.{key}"),
                    "is given twice with different values",
                ));
            }
        }
        Ok(config)
    }
}

fn topic_json(topic: &v1::Topic) -> Map<String, Value> {
    let id = TopicId::from_slice(&topic.topic_id).unwrap_or(TopicId::NIL);
    let config: BTreeMap<_, _> = topic.config.iter().collect();
    let fields = json!({
        "topic": topic.name, "topic_id": id.to_string(), "partitions": topic.partitions,
        "replication_factor": topic.replication_factor, "config": config, "created_ms": topic.created_ms,
    });
    match fields {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn answer(status: StatusCode, topic: Option<v1::Topic>, warnings: Vec<String>) -> Answer {
    let mut object = topic_json(&topic.unwrap_or_default());
    if !warnings.is_empty() {
        object.insert("warnings".into(), warnings.into());
    }
    Ok((status, axum::Json(object.into())))
}

/// `POST /v1/topics`
pub async fn create(
    State(state): State<HttpState>,
    headers: HeaderMap,
    Json(body): Json<CreateBody>,
) -> Answer {
    let key = headers
        .get("idempotency-key")
        .map(|v| v.to_str().map(str::to_owned))
        .transpose();
    let key = key.map_err(|_| Failure::invalid("Idempotency-Key", "must be text"))?;
    let request = v1::CreateTopicRequest {
        name: body.name,
        partitions: body.partitions,
        replication_factor: body.replication_factor,
        config: body.settings.into_config()?,
        idempotency_key: key.unwrap_or_default(),
    };
    let created = state.client.topics().create(request).await?;
    answer(StatusCode::CREATED, created.topic, created.warnings)
}

/// `GET /v1/topics`
pub async fn list(State(state): State<HttpState>) -> Answer {
    let topics = state.client.topics().list().await?;
    let shown: Vec<Value> = topics.iter().map(|t| topic_json(t).into()).collect();
    Ok((StatusCode::OK, axum::Json(json!({ "topics": shown }))))
}

/// `GET /v1/topics/{topic}`
pub async fn describe(State(state): State<HttpState>, Path(name): Path<String>) -> Answer {
    let described = state.client.topics().describe(&name).await?;
    let mut object = topic_json(&described.topic.unwrap_or_default());
    let partitions = described.partitions.iter().map(partition_json);
    object.insert("partition_details".into(), partitions.collect());
    Ok((StatusCode::OK, axum::Json(object.into())))
}

fn partition_json(it: &v1::PartitionDescription) -> Value {
    let bounds = it.bounds.as_ref();
    let leader = (it.leader != 0).then_some(it.leader);
    json!({
        "partition": it.partition, "leader": leader, "leader_epoch": it.leader_epoch,
        "replicas": it.replicas, "in_sync": it.in_sync,
        "log_start_offset": bounds.map(|b| b.log_start_offset),
        "last_stable_offset": bounds.map(|b| b.last_stable_offset),
        "high_watermark": bounds.map(|b| b.high_watermark),
        "log_end_offset": bounds.map(|b| b.log_end_offset),
        "flushed_end_offset": bounds.map(|b| b.flushed_end_offset),
    })
}

/// `PATCH /v1/topics/{topic}`
pub async fn alter(
    State(state): State<HttpState>,
    Path(name): Path<String>,
    Json(body): Json<AlterBody>,
) -> Answer {
    let request = v1::AlterTopicRequest {
        name,
        partitions: body.partitions,
        config: body.settings.into_config()?,
        reset_config: body.reset_config,
    };
    let altered = state.client.topics().alter(request).await?;
    answer(StatusCode::OK, altered.topic, altered.warnings)
}

/// `DELETE /v1/topics/{topic}`
pub async fn delete(
    State(state): State<HttpState>,
    Path(name): Path<String>,
) -> Result<StatusCode, Failure> {
    state.client.topics().delete(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}
