//! Settings of a gateway; the keys of its configuration file.

use serde::{Deserialize, Serialize};
use talweg_kit::{
    config::{Problem, ProcessConfig},
    telemetry::TelemetryConfig,
};
use talweg_types::limits;

/// A gateway's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewayConfig {
    /// URLs of the controllers, in any order.
    pub controllers: Vec<String>,
    /// Where gRPC is served ("host:port"; port 0: any free one).
    pub grpc: String,
    /// Where HTTP is served: the JSON API, health and metrics.
    pub http: String,
    /// URL at which clients reach the gRPC address; empty: made of it.
    pub advertised: String,
    /// URL at which clients reach the HTTP address; empty: made of it.
    pub advertised_http: String,
    /// Its rack; may be empty.
    pub rack: String,
    /// Its id among gateways; 0: the controller gives one.
    pub node_id: u32,
    /// Idle streams hear something between these, jittered, in milliseconds.
    pub heartbeat_ms: (u64, u64),
    /// Time that streams get to end when the process is told to stop, in milliseconds.
    pub drain_ms: u64,
    /// Streams served at a time; more are refused with a delay.
    pub streams_max: usize,
    /// How long a partition may be without a leader before its readers are told, in milliseconds.
    pub leader_patience_ms: u64,
    /// Logs and spans.
    pub telemetry: TelemetryConfig,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            controllers: vec!["http://127.0.0.1:7071".into()],
            grpc: "127.0.0.1:7070".into(),
            http: "127.0.0.1:7080".into(),
            advertised: String::new(),
            advertised_http: String::new(),
            rack: String::new(),
            node_id: 0,
            heartbeat_ms: limits::HEARTBEAT_MS_RANGE,
            drain_ms: 3_000,
            streams_max: 20_000,
            leader_patience_ms: 30_000,
            telemetry: TelemetryConfig::default(),
        }
    }
}

impl ProcessConfig for GatewayConfig {
    const PROCESS: &'static str = "gateway";

    fn check(&self) -> Result<(), Problem> {
        if self.controllers.is_empty() {
            return Err(Problem::new("controllers", "at least one URL is needed"));
        }
        let (low, high) = self.heartbeat_ms;
        if low == 0 || low > high {
            return Err(Problem::new(
                "heartbeat_ms",
                "must be two numbers above 0, the first not above the second",
            ));
        }
        if self.streams_max == 0 {
            return Err(Problem::new("streams_max", "must be at least 1"));
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
