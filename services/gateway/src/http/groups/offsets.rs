//! Commits, seeks and lag.

use super::member::Said;
use crate::{
    groups::{check_group, id_bytes},
    http::{
        HttpState,
        body::{Json, Params},
        reply::Failure,
    },
    node::Node,
    services::lag as ask_lag,
};
use axum::{
    extract::{Path, State},
    http::StatusCode,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use talweg_client::Refusal;
use talweg_proto::{
    coordinator::v1::{
        CommitEvent, CommitOffset, converse_request::Event, converse_response::What,
    },
    v1,
};
use talweg_types::limits;

/// `POST /v1/topics/{topic}/commit`
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct TopicCommit {
    group: String,
    offsets: BTreeMap<u32, i64>,
}

/// `POST /v1/groups/{group}/offsets`
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct GroupCommit {
    topic: String,
    offsets: BTreeMap<u32, i64>,
}

/// `POST /v1/topics/{topic}/seek`
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Seek {
    group: String,
    partition: u32,
    offset: Option<i64>,
    timestamp: Option<i64>,
}

/// `GET /v1/groups/{group}/lag`
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct LagQuery {
    #[serde(default)]
    topic: String,
    #[serde(default)]
    detail: bool,
}

pub async fn commit_topic(
    State(state): State<HttpState>,
    Path(topic): Path<String>,
    said: Said,
    Json(body): Json<TopicCommit>,
) -> Result<StatusCode, Failure> {
    store(&state, &body.group, &topic, &said, body.offsets, false).await
}

pub async fn commit_group(
    State(state): State<HttpState>,
    Path(group): Path<String>,
    said: Said,
    Json(body): Json<GroupCommit>,
) -> Result<StatusCode, Failure> {
    store(&state, &group, &body.topic, &said, body.offsets, false).await
}

pub async fn seek(
    State(state): State<HttpState>,
    Path(topic): Path<String>,
    said: Said,
    Json(body): Json<Seek>,
) -> Result<StatusCode, Failure> {
    let offset = match (body.offset, body.timestamp) {
        (Some(offset), None) => offset,
        (None, Some(timestamp)) => at_time(&state, &topic, body.partition, timestamp).await?,
        _ => return Err(Failure::invalid("offset", "give offset or timestamp")),
    };
    let offsets = BTreeMap::from([(body.partition, offset)]);
    store(&state, &body.group, &topic, &said, offsets, true).await
}

/// The first record that is as young, or the end.
async fn at_time(
    state: &HttpState,
    topic: &str,
    partition: u32,
    timestamp_ms: i64,
) -> Result<i64, Failure> {
    let query = v1::OffsetQuery {
        topic: topic.into(),
        partition,
        at: Some(v1::offset_query::At::TimestampMs(timestamp_ms)),
        ..Default::default()
    };
    let answers = state.client.offsets().list(vec![query]).await?;
    let answer = answers.into_iter().next().unwrap_or_default();
    if let Some(error) = answer.error {
        return Err(Refusal::from_detail(error).into());
    }
    let end = answer.bounds.map_or(0, |bounds| bounds.high_watermark);
    Ok(answer.offset.unwrap_or(end))
}

async fn store(
    state: &HttpState,
    group: &str,
    topic: &str,
    said: &Said,
    offsets: BTreeMap<u32, i64>,
    seek: bool,
) -> Result<StatusCode, Failure> {
    check_group(group)?;
    if offsets.len() > limits::COMMIT_OFFSETS_MAX {
        let why = format!("at most {} are taken", limits::COMMIT_OFFSETS_MAX);
        return Err(Failure::invalid("offsets", why));
    }
    if offsets.values().any(|offset| *offset < 0) {
        return Err(Failure::invalid("offsets", "an offset is negative"));
    }
    let id = id_bytes(state.view.get().resolve(topic, &[])?.id);
    let offsets = offsets.into_iter().map(|(partition, offset)| CommitOffset {
        topic_id: id.clone(),
        partition,
        offset,
        leader_epoch: -1,
        metadata: String::new(),
        delivered: false,
    });
    let event = Event::Commit(CommitEvent {
        caller: said.caller()?,
        seek,
        offsets: offsets.collect(),
    });
    let coordinators = &state.node.coordinators;
    let answer = coordinators
        .request(group, event, Node::GROUP_PATIENCE)
        .await?;
    let What::Committed(results) = answer else {
        return Err(Refusal::internal("the coordinator did not answer the commit").into());
    };
    match results.results.into_iter().find_map(|it| it.error) {
        Some(error) => Err(Refusal::from_detail(error).into()),
        None => Ok(StatusCode::NO_CONTENT),
    }
}

pub async fn lag(
    State(state): State<HttpState>,
    Path(group): Path<String>,
    Params(query): Params<LagQuery>,
) -> Result<axum::Json<Value>, Failure> {
    if query.topic.is_empty() && !query.detail {
        return Err(Failure::invalid(
            "topic",
            "name one, or ask for detail=true",
        ));
    }
    let request = v1::GetLagRequest {
        group: group.clone(),
        topic: query.topic,
    };
    let answer = ask_lag(&state.node, request).await?;
    if query.detail {
        let lags: Vec<Value> = answer.lags.iter().map(detailed).collect();
        return Ok(axum::Json(json!({
            "group": group, "state": answer.state, "lags": lags,
        })));
    }
    if let Some(error) = answer.lags.iter().find_map(|it| it.error.clone()) {
        return Err(Refusal::from_detail(error).into());
    }
    let brief: Map<String, Value> = answer
        .lags
        .iter()
        .map(|it| (it.partition.to_string(), it.lag_records.into()))
        .collect();
    Ok(axum::Json(brief.into()))
}

/// As `talweg group lag --json` has it: what is not known is null, and so is what the
/// partition's leader did not say.
fn detailed(lag: &v1::PartitionLag) -> Value {
    let seconds = |ms: i64| ms as f64 / 1_000.0;
    let answered = lag.error.is_none();
    let said = |value: Value| if answered { value } else { Value::Null };
    let committed = Some(lag.committed_offset).filter(|offset| *offset >= 0);
    let error = lag.error.clone().map(|error| {
        let refusal = Refusal::from_detail(error);
        json!({"code": refusal.name(), "message": refusal.message})
    });
    let trend = match v1::LagTrend::try_from(lag.trend) {
        Ok(v1::LagTrend::Flat) => Some("flat"),
        Ok(v1::LagTrend::Growing) => Some("growing"),
        Ok(v1::LagTrend::Draining) => Some("draining"),
        Ok(v1::LagTrend::Unspecified) | Err(_) => None,
    };
    json!({
        "topic": lag.topic,
        "partition": lag.partition,
        "member": Some(&lag.member_id).filter(|id| !id.is_empty()),
        "committed_offset": committed,
        "log_start_offset": said(lag.log_start_offset.into()),
        "log_end_offset": said(lag.log_end_offset.into()),
        "lag_records": said(lag.lag_records.into()),
        "lag_bytes": said(lag.lag_bytes.into()),
        "lag_seconds": said(seconds(lag.lag_ms).into()),
        "approximate": said(lag.approximate.into()),
        "seconds_to_drain": lag.drain_ms.map(seconds),
        "seconds_to_loss": lag.loss_ms.map(seconds),
        "arrival_per_second": lag.arrival_per_second,
        "processing_per_second": lag.processing_per_second,
        "trend": trend,
        "last_progress_ms": lag.last_progress_ms,
        "error": error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: a leader does not answer, nobody owns the partition and nothing is
    /// committed in it. None of that reads as "no lag".
    #[test]
    fn what_is_not_known_is_null() {
        let lag = v1::PartitionLag {
            topic: "t".into(),
            partition: 3,
            committed_offset: -1,
            error: Some(Refusal::unavailable("gone").detail()),
            ..Default::default()
        };
        let shown = detailed(&lag);
        let mut known: Vec<&str> = shown
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, _)| name.as_str())
            .collect();
        known.sort_unstable();
        assert_eq!(known, ["error", "partition", "topic"]);
        let answered = detailed(&v1::PartitionLag {
            committed_offset: 5,
            lag_records: 0,
            arrival_per_second: Some(0.0),
            error: None,
            ..lag
        });
        assert_eq!(answered["lag_records"], 0);
        assert_eq!(answered["committed_offset"], 5);
        assert_eq!(answered["arrival_per_second"], 0.0);
        assert!(answered["processing_per_second"].is_null(), "too early");
    }
}
