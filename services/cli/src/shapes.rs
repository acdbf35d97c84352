//! Topics, partitions and nodes as JSON and as text. JSON shapes are a
//! contract: fields may be added, never renamed.

use crate::text;
use serde_json::{Map, Value, json};
use talweg_proto::v1;

/// A topic without its partitions.
pub fn topic(topic: &v1::Topic) -> Map<String, Value> {
    let config: std::collections::BTreeMap<_, _> = topic.config.iter().collect();
    let value = json!({
        "name": topic.name,
        "topic_id": text::id(&topic.topic_id),
        "partition_count": topic.partitions,
        "replication_factor": topic.replication_factor,
        "config": config,
        "created_ms": topic.created_ms,
    });
    object(value)
}

/// A topic with the warnings of what was done to it.
pub fn changed_topic(changed: &v1::Topic, warnings: &[String]) -> Value {
    let mut object = topic(changed);
    object.insert("warnings".into(), json!(warnings));
    object.into()
}

/// A topic, whole.
pub fn described_topic(described: &v1::DescribeTopicResponse) -> Value {
    let mut object = described.topic.as_ref().map(topic).unwrap_or_default();
    let partitions: Vec<Value> = described.partitions.iter().map(partition).collect();
    object.insert("partitions".into(), partitions.into());
    object.into()
}

fn partition(partition: &v1::PartitionDescription) -> Value {
    // Null where the leader did not answer: zero would be a claim.
    let bound = |get: fn(&v1::PartitionBounds) -> i64| partition.bounds.as_ref().map(get);
    json!({
        "partition": partition.partition,
        "leader": text::node(partition.leader),
        "leader_epoch": partition.leader_epoch,
        "replicas": partition.replicas,
        "in_sync": partition.in_sync,
        "log_start_offset": bound(|b| b.log_start_offset),
        "last_stable_offset": bound(|b| b.last_stable_offset),
        "high_watermark": bound(|b| b.high_watermark),
        "log_end_offset": bound(|b| b.log_end_offset),
        "flushed_end_offset": bound(|b| b.flushed_end_offset),
    })
}

/// A row of the configuration table.
pub fn config_key(key: &v1::ConfigKey) -> Value {
    json!({
        "name": key.name,
        "type": key.kind,
        "unit": key.unit,
        "range": key.range,
        "default": key.default,
        "meaning": key.meaning,
        "built": key.built,
    })
}

/// The cluster and its nodes.
pub fn cluster(cluster: &v1::DescribeClusterResponse) -> Value {
    json!({
        "cluster_id": text::id(&cluster.cluster_id),
        "controller": cluster.controller_address,
        "revision": cluster.revision,
        "nodes": cluster.nodes.iter().map(node).collect::<Vec<_>>(),
    })
}

fn node(described: &v1::NodeDescription) -> Value {
    let node = described.node.clone().unwrap_or_default();
    let folders: Vec<Value> = described.folders.iter().map(folder).collect();
    json!({
        "node_id": node.node_id,
        "plane": plane(node.plane()),
        "grpc": node.grpc_address,
        "http": node.http_address,
        "rack": node.rack,
        "incarnation": described.incarnation,
        "alive": described.alive,
        "draining": described.draining,
        "version": described.version,
        "leaders": described.leaders,
        "replicas": described.replicas,
        "folders": folders,
    })
}

fn folder(folder: &v1::FolderDescription) -> Value {
    json!({
        "folder_id": text::id(&folder.folder_id),
        "free_bytes": folder.free_bytes,
        "total_bytes": folder.total_bytes,
        "failure": (!folder.failure.is_empty()).then_some(&folder.failure),
    })
}

fn plane(plane: v1::Plane) -> &'static str {
    match plane {
        v1::Plane::Unspecified => "unknown",
        v1::Plane::Controller => "controller",
        v1::Plane::Storage => "storage",
        v1::Plane::Coordinator => "coordinator",
        v1::Plane::Gateway => "gateway",
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

/// Rows of equal keys as a table with a heading; columns as wide as their widest cell.
pub fn table(columns: &[&str], rows: &[Value]) -> String {
    let cell = |row: &Value, column: &str| match &row[column] {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items
            .iter()
            .map(Value::to_string)
            .collect::<Vec<_>>()
            .join(","),
        other => other.to_string(),
    };
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| columns.iter().map(|c| cell(row, c)).collect())
        .collect();
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(i, name)| {
            cells
                .iter()
                .map(|row| row[i].chars().count())
                .max()
                .unwrap_or(0)
                .max(name.len())
        })
        .collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text = line(&mut columns.iter().copied());
    for row in &cells {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described() -> v1::DescribeTopicResponse {
        let bounds = v1::PartitionBounds {
            log_start_offset: 1,
            last_stable_offset: 2,
            high_watermark: 3,
            log_end_offset: 5,
            flushed_end_offset: 4,
        };
        let partition = v1::PartitionDescription {
            partition: 0,
            leader: 7,
            leader_epoch: 9,
            replicas: vec![7],
            in_sync: vec![7],
            bounds: Some(bounds),
        };
        let lost = v1::PartitionDescription {
            partition: 1,
            leader: 0,
            bounds: None,
            ..partition.clone()
        };
        v1::DescribeTopicResponse {
            topic: Some(v1::Topic {
                name: "t".into(),
                topic_id: vec![1; 16].into(),
                partitions: 2,
                replication_factor: 1,
                ..Default::default()
            }),
            partitions: vec![partition, lost],
        }
    }

    #[test]
    fn topic_describe_has_the_shape_that_scripts_depend_on() {
        let value = described_topic(&described());
        assert_eq!(value["name"], "t");
        assert_eq!(value["topic_id"], "01010101-0101-0101-0101-010101010101");
        assert_eq!(
            value["partitions"][0],
            json!({
                "partition": 0, "leader": 7, "leader_epoch": 9, "replicas": [7], "in_sync": [7],
                "log_start_offset": 1, "last_stable_offset": 2, "high_watermark": 3, "log_end_offset": 5,
                "flushed_end_offset": 4,
            })
        );
    }

    #[test]
    fn what_is_not_known_is_null_and_not_zero() {
        let lost = &described_topic(&described())["partitions"][1];
        assert_eq!(lost["leader"], Value::Null);
        for bound in [
            "log_start_offset",
            "high_watermark",
            "log_end_offset",
            "flushed_end_offset",
        ] {
            assert_eq!(
                lost.get(bound),
                Some(&Value::Null),
                "{bound} is there and null"
            );
        }
    }

    #[test]
    fn a_table_lines_up() {
        let rows = [
            json!({"a": "long cell", "b": 1}),
            json!({"a": "", "b": [1, 2]}),
        ];
        assert_eq!(
            table(&["a", "b"], &rows),
            "a          b\nlong cell  1\n-          1,2\n"
        );
    }
}
