//! Groups, members, offsets and lag as JSON. Fields may be added, never renamed.

use crate::text;
use serde_json::{Value, json};
use talweg_proto::v1;

pub fn group(group: &v1::Group) -> Value {
    json!({
        "group": group.group,
        "state": group.state,
        "group_epoch": group.group_epoch,
        "members": group.members,
        "assignor": group.assignor,
        "shard": group.shard,
        "coordinator": text::node(group.coordinator),
    })
}

pub fn member(member: &v1::GroupMember) -> Value {
    json!({
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "kind": member.kind,
        "rack": member.rack,
        "live": member.live,
        "member_epoch": member.member_epoch,
        "assignment": partitions(&member.assignment),
        "revoking": partitions(&member.revoking),
    })
}

/// `["orders:0", …]`.
fn partitions(assignment: &[v1::GroupAssignment]) -> Vec<String> {
    let named = |one: &v1::GroupAssignment| {
        let topic = one.topic.clone();
        one.partitions
            .clone()
            .into_iter()
            .map(move |partition| format!("{topic}:{partition}"))
    };
    assignment.iter().flat_map(named).collect()
}

pub fn offset(offset: &v1::CommittedOffset) -> Value {
    json!({
        "topic": offset.topic,
        "topic_id": text::id(&offset.topic_id),
        "partition": offset.partition,
        "committed_offset": known(offset.offset),
        "leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
    })
}

pub fn change(before: &v1::CommittedOffset, after: &v1::CommittedOffset) -> Value {
    json!({
        "topic": after.topic,
        "partition": after.partition,
        "from": known(before.offset),
        "to": known(after.offset),
    })
}

/// Nothing is committed: null.
fn known(offset: i64) -> Value {
    match offset {
        0.. => offset.into(),
        _ => Value::Null,
    }
}

fn seconds(ms: i64) -> f64 {
    ms as f64 / 1_000.0
}

/// One partition. What its leader did not say is null.
pub fn lag(lag: &v1::PartitionLag) -> Value {
    let answered = lag.error.is_none();
    let said = |value: Value| if answered { value } else { Value::Null };
    let trend = match lag.trend() {
        v1::LagTrend::Unspecified => Value::Null,
        v1::LagTrend::Flat => "flat".into(),
        v1::LagTrend::Growing => "growing".into(),
        v1::LagTrend::Draining => "draining".into(),
    };
    json!({
        "topic": lag.topic,
        "topic_id": text::id(&lag.topic_id),
        "partition": lag.partition,
        "member": match lag.member_id.as_str() { "" => Value::Null, id => id.into() },
        "committed_offset": known(lag.committed_offset),
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
        "error": lag.error.as_ref().map(|error| error.message.clone()),
    })
}

/// `{"group","state","lags"}`.
pub fn lags(group: &str, state: &str, lags: &[v1::PartitionLag]) -> Value {
    json!({"group": group, "state": state, "lags": lags.iter().map(lag).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_has_the_shape_that_scripts_depend_on() {
        let one = v1::PartitionLag {
            topic: "t".into(),
            topic_id: vec![1; 16].into(),
            partition: 2,
            member_id: "m".into(),
            committed_offset: 5,
            log_end_offset: 9,
            lag_records: 4,
            lag_bytes: 70,
            lag_ms: 1_500,
            loss_ms: Some(60_000),
            trend: v1::LagTrend::Growing.into(),
            ..Default::default()
        };
        let value = lags("g", "stable", std::slice::from_ref(&one));
        assert_eq!(
            (&value["group"], &value["state"]),
            (&json!("g"), &json!("stable"))
        );
        let shown = &value["lags"][0];
        for (key, expected) in [
            ("topic", json!("t")),
            ("partition", json!(2)),
            ("member", json!("m")),
            ("committed_offset", json!(5)),
            ("log_end_offset", json!(9)),
            ("lag_records", json!(4)),
            ("lag_bytes", json!(70)),
            ("lag_seconds", json!(1.5)),
            ("seconds_to_loss", json!(60.0)),
            ("seconds_to_drain", Value::Null),
            ("trend", json!("growing")),
        ] {
            assert_eq!(shown[key], expected, "{key}");
        }
        let lost = v1::PartitionLag {
            committed_offset: -1,
            member_id: String::new(),
            error: Some(v1::ErrorDetail::default()),
            ..one
        };
        let shown = lag(&lost);
        for key in [
            "member",
            "committed_offset",
            "log_end_offset",
            "lag_records",
            "lag_seconds",
        ] {
            assert_eq!(shown[key], Value::Null, "{key}: zero would be a claim");
        }
    }

    #[test]
    fn an_assignment_names_partitions() {
        let two = v1::GroupAssignment {
            topic: "t".into(),
            partitions: vec![0, 3],
        };
        assert_eq!(partitions(&[two]), ["t:0", "t:3"]);
    }
}
