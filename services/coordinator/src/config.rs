//! Settings of a coordinator; the keys of its configuration file.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use talweg_kit::{
    config::{Problem, ProcessConfig},
    telemetry::TelemetryConfig,
};

/// A coordinator's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CoordinatorConfig {
    /// URLs of the controllers, in any order.
    pub controllers: Vec<String>,
    /// Where gRPC is served ("host:port"; port 0: any free one).
    pub grpc: String,
    /// Where health and metrics are served.
    pub http: String,
    /// URL at which gateways reach the gRPC address; empty: made of it.
    pub advertised: String,
    /// Its rack; may be empty.
    pub rack: String,
    /// Its id; 0: the controller gives one.
    pub node_id: u32,
    /// Folder of the view that is kept of the log; deleting it loses nothing.
    pub data_dir: PathBuf,
    /// Offsets of a group without a sign of life for this long are forgotten, in milliseconds.
    pub offsets_retention_ms: i64,
    /// How often the lag of all groups here is measured for the metrics, in
    /// milliseconds; 0: never.
    pub lag_interval_ms: u64,
    /// Partitions of groups whose lag is shown as metrics; more are counted and left out.
    pub lag_series_max: usize,
    /// Time that streams get to end when the process is told to stop, in milliseconds.
    pub drain_ms: u64,
    /// Logs and spans.
    pub telemetry: TelemetryConfig,
}

impl Default for CoordinatorConfig {
    fn default() -> Self {
        Self {
            controllers: vec!["http://127.0.0.1:7071".into()],
            grpc: "127.0.0.1:7073".into(),
            http: "127.0.0.1:7093".into(),
            advertised: String::new(),
            rack: String::new(),
            node_id: 0,
            data_dir: PathBuf::from("./talweg-coordinator"),
            offsets_retention_ms: 7 * 24 * 60 * 60 * 1_000,
            lag_interval_ms: 5_000,
            lag_series_max: 10_000,
            drain_ms: 3_000,
            telemetry: TelemetryConfig::default(),
        }
    }
}

impl ProcessConfig for CoordinatorConfig {
    const PROCESS: &'static str = "coordinator";

    fn check(&self) -> Result<(), Problem> {
        if self.controllers.is_empty() {
            return Err(Problem::new("controllers", "at least one URL is needed"));
        }
        if self.offsets_retention_ms < 1_000 {
            return Err(Problem::new(
                "offsets_retention_ms",
                "must be at least 1000",
            ));
        }
        if (1..100).contains(&self.lag_interval_ms) {
            return Err(Problem::new("lag_interval_ms", "must be 0 or at least 100"));
        }
        if self.data_dir.as_os_str().is_empty() {
            return Err(Problem::new("data_dir", "a folder is needed"));
        }
        if self.drain_ms > 4_500 {
            return Err(Problem::new(
                "drain_ms",
                "must be at most 4500: the process ends within 5 s",
            ));
        }
        Ok(())
    }
}
