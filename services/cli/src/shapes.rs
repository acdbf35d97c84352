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
        "eligible": partition.eligible,
        "last_in_sync": partition.last_in_sync,
        "recovered": partition.recovered.as_ref().map(recovered),
        "replicas_detail": partition.replicas_detail.iter().map(replica).collect::<Vec<_>>(),
        "truncations": partition.replicas_detail.iter().filter_map(truncations).collect::<Vec<_>>(),
        "log_start_offset": bound(|b| b.log_start_offset),
        "last_stable_offset": bound(|b| b.last_stable_offset),
        "high_watermark": bound(|b| b.high_watermark),
        "log_end_offset": bound(|b| b.log_end_offset),
        "flushed_end_offset": bound(|b| b.flushed_end_offset),
    })
}

/// The newest election after which acknowledged records may be missing.
pub fn recovered(recovered: &v1::RecoveredDescription) -> Value {
    json!({
        "leader_epoch": recovered.leader_epoch,
        "unclean": recovered.unclean,
        "time_ms": recovered.time_ms,
        "from_offset": (recovered.from_offset >= 0).then_some(recovered.from_offset),
    })
}

/// Null where its node did not answer; `unknown` says why.
fn replica(detail: &v1::ReplicaDetail) -> Value {
    let bound = |get: fn(&v1::PartitionBounds) -> i64| detail.bounds.as_ref().map(get);
    let said = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    json!({
        "node": detail.node_id,
        "log_end_offset": bound(|b| b.log_end_offset),
        "flushed_end_offset": bound(|b| b.flushed_end_offset),
        "log_start_offset": bound(|b| b.log_start_offset),
        "high_watermark": bound(|b| b.high_watermark),
        "last_caught_up_ms": detail.last_caught_up_ms,
        "in_sync": detail.in_sync,
        "size_bytes": detail.size_bytes,
        "failure": said(&detail.failure),
        "unknown": said(&detail.unknown),
    })
}

/// What a replica has cut, if it has.
fn truncations(detail: &v1::ReplicaDetail) -> Option<Value> {
    let cut = detail.truncations.as_ref().filter(|cut| cut.count > 0)?;
    let newest = cut.newest.as_ref().map(|newest| {
        json!({
            "from_offset": newest.from_offset,
            "to_offset": newest.to_offset,
            "bytes": newest.bytes,
            "time_ms": newest.time_ms,
            "below_watermark": newest.below_watermark,
        })
    });
    Some(json!({"node": detail.node_id, "count": cut.count, "newest": newest}))
}

/// What is out of the ordinary in a partition as [`described_topic`] shapes it, a
/// line each.
pub fn partition_notes(partition: &Value) -> String {
    let mut text = String::new();
    let number = &partition["partition"];
    let recovered = &partition["recovered"];
    if !recovered.is_null() {
        let kind = match recovered["unclean"] == true {
            true => "unclean election",
            false => "recovered election",
        };
        text += &format!(
            "partition {number}: {kind} in epoch {} at {} ms: acknowledged records may be missing\n",
            recovered["leader_epoch"], recovered["time_ms"]
        );
    }
    for cut in partition["truncations"].as_array().into_iter().flatten() {
        let newest = &cut["newest"];
        text += &format!(
            "partition {number}: node {} cut its log {} times; the last time from {} to {}, {} bytes, at {} ms\n",
            cut["node"],
            cut["count"],
            newest["from_offset"],
            newest["to_offset"],
            newest["bytes"],
            newest["time_ms"]
        );
    }
    text
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
    let bytes = |get: fn(&v1::FolderDescription) -> u64| {
        (!folders.is_empty()).then(|| described.folders.iter().map(get).sum::<u64>())
    };
    let drain = match (described.draining, described.leaders) {
        (false, _) => "no",
        (true, 0) => "drained",
        (true, _) => "draining",
    };
    json!({
        "node_id": node.node_id,
        "plane": plane(node.plane()),
        "grpc": node.grpc_address,
        "http": node.http_address,
        "rack": node.rack,
        "incarnation": described.incarnation,
        "alive": described.alive,
        "draining": described.draining,
        "drain": drain,
        "free_bytes": bytes(|folder| folder.free_bytes),
        "total_bytes": bytes(|folder| folder.total_bytes),
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
        "full": folder.full,
    })
}

/// Folders that failed or are full, a line each.
pub fn trouble(cluster: &v1::DescribeClusterResponse) -> String {
    let mut text = String::new();
    for described in &cluster.nodes {
        let node = described.node.as_ref().map_or(0, |node| node.node_id);
        for folder in &described.folders {
            let id = text::id(&folder.folder_id);
            if !folder.failure.is_empty() {
                text += &format!("node {node}: log folder {id} failed: {}\n", folder.failure);
            } else if folder.full {
                text +=
                    &format!("node {node}: log folder {id} is full; produce is refused there\n");
            }
        }
    }
    text
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
            eligible: vec![8],
            last_in_sync: vec![7, 8],
            recovered: Some(v1::RecoveredDescription {
                leader_epoch: 5,
                unclean: false,
                time_ms: 11,
                from_offset: 3,
            }),
            replicas_detail: details(bounds),
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

    fn details(bounds: v1::PartitionBounds) -> Vec<v1::ReplicaDetail> {
        let newest = v1::Truncation {
            from_offset: 6,
            to_offset: 4,
            bytes: 70,
            time_ms: 14,
            below_watermark: false,
        };
        let here = v1::ReplicaDetail {
            node_id: 7,
            in_sync: true,
            bounds: Some(bounds),
            last_caught_up_ms: Some(12),
            size_bytes: Some(13),
            truncations: Some(v1::Truncations {
                count: 2,
                newest: Some(newest),
            }),
            ..Default::default()
        };
        let away = v1::ReplicaDetail {
            node_id: 8,
            unknown: "away".into(),
            ..Default::default()
        };
        vec![here, away]
    }

    #[test]
    fn what_is_out_of_the_ordinary_is_said_in_words() {
        let notes = partition_notes(&described_topic(&described())["partitions"][0]);
        assert!(notes.contains("recovered election in epoch 5"), "{notes}");
        assert!(
            notes.contains("node 7 cut its log 2 times; the last time from 6 to 4"),
            "{notes}"
        );
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
                "eligible": [8], "last_in_sync": [7, 8],
                "recovered": {"leader_epoch": 5, "unclean": false, "time_ms": 11, "from_offset": 3},
                "replicas_detail": [{
                    "node": 7, "log_end_offset": 5, "flushed_end_offset": 4, "log_start_offset": 1,
                    "high_watermark": 3, "last_caught_up_ms": 12, "in_sync": true, "size_bytes": 13,
                    "failure": null, "unknown": null,
                }, {
                    "node": 8, "log_end_offset": null, "flushed_end_offset": null,
                    "log_start_offset": null, "high_watermark": null, "last_caught_up_ms": null,
                    "in_sync": false, "size_bytes": null, "failure": null, "unknown": "away",
                }],
                "truncations": [{"node": 7, "count": 2, "newest": {
                    "from_offset": 6, "to_offset": 4, "bytes": 70, "time_ms": 14,
                    "below_watermark": false,
                }}],
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
