//! Settings of a controller; the keys of its configuration file.

use crate::core::{Limits, Settings};
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};
use talweg_kit::{
    config::{Problem, ProcessConfig},
    telemetry::TelemetryConfig,
};
use talweg_types::{TopicId, limits};
use uuid::Uuid;

/// A controller's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ControllerConfig {
    /// Where gRPC is served ("host:port"; port 0: any free one).
    pub grpc: String,
    /// Where health and metrics are served.
    pub http: String,
    /// URL at which others reach the gRPC address; empty: made of it.
    pub advertised: String,
    /// Folder of the embedded metadata store; not used with etcd.
    pub data_dir: PathBuf,
    /// URLs of etcd's members; empty: the embedded store, for a single controller.
    pub etcd_endpoints: Vec<String>,
    /// Names this cluster among those in the same etcd.
    pub etcd_namespace: String,
    /// Silence after which a node is taken for dead, in milliseconds.
    pub session_timeout_ms: u32,
    /// Time to live of the election lease, in milliseconds.
    pub election_ttl_ms: u32,
    /// Partitions of a topic that names no count.
    pub default_partitions: u32,
    /// `max.partitions.per.node`: replicas on one storage node.
    pub max_partitions_per_node: u32,
    /// `max.partitions.per.topic`.
    pub max_partitions_per_topic: u32,
    /// How long a preferred replica is in sync before leadership returns to it,
    /// in milliseconds; 0: it does not return by itself.
    pub preferred_leader_ms: u32,
    /// The internal topic of the coordinators, when it is created.
    pub coordinator: OffsetsTopicConfig,
    /// Time that streams get to end when the process is told to stop, in milliseconds.
    pub drain_ms: u64,
    /// Logs and spans.
    pub telemetry: TelemetryConfig,
}

/// How `__consumer_offsets` is made when the first coordinator comes. What it is then
/// stays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OffsetsTopicConfig {
    /// Shards of consumer groups: its partitions.
    pub shards: u32,
    /// 0: 3, or the number of storage nodes that are there if fewer. Otherwise it is
    /// made once so many are there.
    pub replication_factor: u32,
}

impl Default for OffsetsTopicConfig {
    fn default() -> Self {
        Self {
            shards: 48,
            replication_factor: 0,
        }
    }
}

impl Default for ControllerConfig {
    fn default() -> Self {
        Self {
            grpc: "127.0.0.1:7071".into(),
            http: "127.0.0.1:7091".into(),
            advertised: String::new(),
            data_dir: PathBuf::from("talweg-data/controller"),
            etcd_endpoints: Vec::new(),
            etcd_namespace: "default".into(),
            session_timeout_ms: 3_000,
            election_ttl_ms: 10_000,
            default_partitions: 12,
            max_partitions_per_node: limits::PARTITIONS_PER_NODE_MAX,
            max_partitions_per_topic: limits::PARTITIONS_PER_TOPIC_MAX,
            preferred_leader_ms: 30_000,
            coordinator: OffsetsTopicConfig::default(),
            drain_ms: 500,
            telemetry: TelemetryConfig::default(),
        }
    }
}

const SESSION_MS: std::ops::RangeInclusive<u32> = 200..=300_000;
const ELECTION_MS: std::ops::RangeInclusive<u32> = 500..=300_000;

impl ProcessConfig for ControllerConfig {
    const PROCESS: &'static str = "controller";

    fn check(&self) -> Result<(), Problem> {
        let within = |key: &str, value: u32, range: std::ops::RangeInclusive<u32>| {
            let reason = || {
                format!(
                    "must be from {} to {}, not {value}",
                    range.start(),
                    range.end()
                )
            };
            range
                .contains(&value)
                .then_some(())
                .ok_or_else(|| Problem::new(key, reason()))
        };
        within("session_timeout_ms", self.session_timeout_ms, SESSION_MS)?;
        within("election_ttl_ms", self.election_ttl_ms, ELECTION_MS)?;
        let (node, topic) = (
            limits::PARTITIONS_PER_NODE_MAX,
            limits::PARTITIONS_PER_TOPIC_MAX,
        );
        within(
            "max_partitions_per_node",
            self.max_partitions_per_node,
            1..=node,
        )?;
        within(
            "max_partitions_per_topic",
            self.max_partitions_per_topic,
            1..=topic,
        )?;
        let (of, factor) = (&self.coordinator, limits::REPLICATION_FACTOR_MAX);
        within("coordinator.shards", of.shards, 1..=topic)?;
        within(
            "coordinator.replication_factor",
            of.replication_factor,
            0..=factor,
        )?;
        within(
            "default_partitions",
            self.default_partitions,
            1..=self.max_partitions_per_topic,
        )
    }
}

impl ControllerConfig {
    pub(crate) fn session_timeout(&self) -> Duration {
        Duration::from_millis(u64::from(self.session_timeout_ms))
    }

    pub(crate) fn election_ttl(&self) -> Duration {
        Duration::from_millis(u64::from(self.election_ttl_ms))
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            session_timeout: self.session_timeout(),
            default_partitions: self.default_partitions,
            limits: Limits {
                partitions_per_node: self.max_partitions_per_node,
                partitions_per_topic: self.max_partitions_per_topic,
            },
            preferred_after: (self.preferred_leader_ms > 0)
                .then(|| Duration::from_millis(u64::from(self.preferred_leader_ms))),
            new_cluster_id: Uuid::new_v4(),
            coordinator_shards: self.coordinator.shards,
            coordinator_replication_factor: (self.coordinator.replication_factor > 0)
                .then_some(self.coordinator.replication_factor),
            new_offsets_topic: TopicId(Uuid::new_v4()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_allowed_and_bad_values_named() {
        ControllerConfig::default().check().expect("defaults");
        let bad = [
            (
                "session_timeout_ms",
                ControllerConfig {
                    session_timeout_ms: 0,
                    ..Default::default()
                },
            ),
            (
                "election_ttl_ms",
                ControllerConfig {
                    election_ttl_ms: 1,
                    ..Default::default()
                },
            ),
            (
                "default_partitions",
                ControllerConfig {
                    default_partitions: 0,
                    ..Default::default()
                },
            ),
            (
                "max_partitions_per_node",
                ControllerConfig {
                    max_partitions_per_node: 0,
                    ..Default::default()
                },
            ),
            (
                "max_partitions_per_topic",
                ControllerConfig {
                    max_partitions_per_topic: 10_001,
                    ..Default::default()
                },
            ),
        ];
        let bad = bad.into_iter().chain([(
            "coordinator.shards",
            ControllerConfig {
                coordinator: OffsetsTopicConfig {
                    shards: 0,
                    ..Default::default()
                },
                ..Default::default()
            },
        )]);
        for (key, config) in bad {
            assert_eq!(config.check().expect_err(key).key, key);
        }
    }
}
