//! Records over HTTP.

use super::{
    HttpState,
    body::{Json, Params},
    numbered::Numbered,
    record::{RecordBody, decode},
    reply::Failure,
};
use axum::{
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use talweg_client::{
    Delivered, ErrorCode, Refusal,
    clock::Clock,
    view::{TopicView, no_partition, unknown},
};
use talweg_proto::v1;
use talweg_types::Acks;

type Answer = Result<(StatusCode, axum::Json<Value>), Failure>;

/// How long a name that is not known yet is waited for; a topic created a
/// moment ago through another gateway.
const NEWS: Duration = Duration::from_millis(300);

/// The query of `POST …/records`.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct RecordsQuery {
    acks: Option<String>,
}

fn acks(text: Option<&str>) -> Result<Option<Acks>, Failure> {
    text.map(str::parse)
        .transpose()
        .map_err(|reason: String| Failure::invalid("acks", reason))
}

/// `POST /v1/topics/{topic}/records`
pub async fn records(
    State(state): State<HttpState>,
    Path(topic): Path<String>,
    Params(query): Params<RecordsQuery>,
    headers: HeaderMap,
    Json(body): Json<RecordBody>,
) -> Answer {
    let acks = acks(query.acks.as_deref())?;
    let record = body.into_record()?;
    let delivered = match Numbered::from_headers(&headers)? {
        Some(numbered) => send_numbered(&state, &topic, acks, &numbered, record).await?,
        None => send(&state, &topic, acks, record).await?,
    };
    if acks == Some(Acks::Zero) {
        return Ok((StatusCode::ACCEPTED, axum::Json(json!({}))));
    }
    let mut answer = json!({
        "partition": delivered.partition.0,
        "offset": delivered.offset.map(|o| o.0),
    });
    if delivered.duplicate {
        answer["duplicate"] = true.into();
    }
    Ok((StatusCode::ACCEPTED, axum::Json(answer)))
}

/// The body of `POST …/produce`.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct ProduceBody {
    #[serde(default)]
    key: Option<String>,
    /// Base64, or null.
    value: Option<String>,
    #[serde(default)]
    acks: Option<Value>,
    #[serde(default)]
    idempotency_key: Option<String>,
    #[serde(default)]
    partition: Option<u32>,
}

/// `POST /v1/topics/{topic}/produce`
pub async fn produce(
    State(state): State<HttpState>,
    Path(topic): Path<String>,
    Json(body): Json<ProduceBody>,
) -> Answer {
    let acks = match &body.acks {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => acks(Some(text))?,
        Some(Value::Number(number)) => acks(Some(&number.to_string()))?,
        Some(_) => return Err(Failure::invalid("acks", "must be 0, 1 or \"all\"")),
    };
    if body.idempotency_key.as_deref() == Some("") {
        return Err(Failure::invalid(
            "idempotency_key",
            "must not be empty; leave it out",
        ));
    }
    let record = v1::Record {
        key: body.key.map(Into::into),
        value: body
            .value
            .as_deref()
            .map(|text| decode("value", text))
            .transpose()?,
        partition: body.partition,
        idempotency_key: body.idempotency_key.unwrap_or_default(),
        ..Default::default()
    };
    let delivered = send(&state, &topic, acks, record).await?;
    if acks == Some(Acks::Zero) {
        return Ok((StatusCode::OK, axum::Json(json!({}))));
    }
    let mut answer = json!({
        "partition": delivered.partition.0,
        "offset": delivered.offset.map(|o| o.0),
        "timestamp": delivered.timestamp.0,
    });
    if delivered.duplicate {
        answer["duplicate"] = true.into();
    }
    Ok((StatusCode::OK, axum::Json(answer)))
}

/// One record through a thin stream that all callers with these acks share.
async fn send(
    state: &HttpState,
    topic: &str,
    acks: Option<Acks>,
    record: v1::Record,
) -> Result<Delivered, Failure> {
    let receipts = state.records(acks).send(topic, vec![record]).await?;
    let outcome = receipts.await.into_iter().next();
    let outcome = outcome.ok_or_else(|| Refusal::internal("a record without an outcome"))?;
    Ok(outcome.into_result()?)
}

async fn send_numbered(
    state: &HttpState,
    topic: &str,
    acks: Option<Acks>,
    numbered: &Numbered,
    record: v1::Record,
) -> Result<Delivered, Failure> {
    let known = find(state, topic).await?;
    let partition = numbered.partition(&record, &known, Clock::wall_ms());
    if partition.0 as usize >= known.partitions.len() {
        return Err(no_partition(&known, partition.0).into());
    }
    let batch = numbered.batch(&record)?;
    let delivery = state.batches(acks).send(topic, partition.0, batch).await?;
    match delivery.await.into_result() {
        Ok(delivered) => Ok(delivered),
        Err(refusal) => Err(numbered.explain(partition, refusal)),
    }
}

/// The topic in the gateway's view.
pub async fn find(state: &HttpState, name: &str) -> Result<Arc<TopicView>, Failure> {
    if talweg_types::is_internal(name) {
        let message = format!("{name:?} is Talweg's own; clients do not write to it");
        return Err(Refusal::new(ErrorCode::InternalTopic, message).into());
    }
    state
        .view
        .wait(NEWS, |view| view.by_name(name).is_some())
        .await;
    let view = state.view.get();
    view.by_name(name)
        .cloned()
        .ok_or_else(|| unknown(&name).into())
}
