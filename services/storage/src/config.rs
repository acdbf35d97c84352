//! Settings of a storage node. Every limit that can grow is here or in
//! `talweg_types::limits`.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use talweg_kit::{
    config::{Problem, ProcessConfig},
    telemetry::TelemetryConfig,
};
use talweg_types::limits::HEARTBEAT_MS_RANGE;

/// A storage node's settings; the keys of its configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StorageConfig {
    /// Log folders, best one a disk. The first one also holds the index and the node's identity.
    pub data_dirs: Vec<PathBuf>,
    /// URLs of the controllers, any order.
    pub controllers: Vec<String>,
    /// Where gRPC is served ("host:port"; port 0: any free one).
    pub grpc: String,
    /// Where health and metrics are served.
    pub http: String,
    /// URL at which others reach this node; empty: made of the gRPC address.
    pub advertised: String,
    /// URL of the HTTP address for others; empty: made of the HTTP address.
    pub advertised_http: String,
    pub rack: String,
    /// Threads that own partitions; 0: one a core.
    pub loops: usize,
    /// Threads for flushes that somebody waits for.
    pub flush_threads: usize,
    /// Threads for background flushes, deletions and index rebuilds.
    pub background_threads: usize,
    /// Partitions recovered side by side at start; 0: two a core.
    pub recovery_threads: usize,
    /// Cold reads side by side.
    pub read_threads: usize,
    /// Bytes of produced batches that wait for the loops, over all of them.
    pub mailbox_bytes: u64,
    /// Bytes of fresh batches kept in memory for tailing readers, a folder.
    pub tail_bytes: u64,
    /// Dirty bytes of a folder at which a background flush begins early.
    pub background_flush_bytes: u64,
    /// Below this much free space produce is refused; absent: 5 % or 1 GiB, whichever is less.
    pub disk_reserve_bytes: Option<u64>,
    /// Open sealed segments, a folder; 0: a quarter of the descriptor limit.
    pub open_files: usize,
    /// The index store's block cache.
    pub index_cache_bytes: u64,
    /// The index store's write buffers.
    pub index_buffer_bytes: u64,
    /// Idle streams hear something after a time between these two, in milliseconds.
    pub heartbeat_min_ms: u64,
    pub heartbeat_max_ms: u64,
    /// Time that streams get to end when the process is told to stop, in milliseconds.
    pub drain_ms: u64,
    /// Streams served at a time; more are refused with a delay.
    pub streams_max: usize,
    pub telemetry: TelemetryConfig,
}

impl Default for StorageConfig {
    fn default() -> Self {
        Self {
            data_dirs: vec![PathBuf::from("talweg-data/storage")],
            controllers: vec!["http://127.0.0.1:7071".into()],
            grpc: "127.0.0.1:7072".into(),
            http: "127.0.0.1:7092".into(),
            advertised: String::new(),
            advertised_http: String::new(),
            rack: String::new(),
            loops: 0,
            flush_threads: 8,
            background_threads: 4,
            recovery_threads: 0,
            read_threads: 16,
            mailbox_bytes: 64 << 20,
            tail_bytes: 64 << 20,
            background_flush_bytes: 16 << 20,
            disk_reserve_bytes: None,
            open_files: 0,
            index_cache_bytes: 32 << 20,
            index_buffer_bytes: 16 << 20,
            heartbeat_min_ms: HEARTBEAT_MS_RANGE.0,
            heartbeat_max_ms: HEARTBEAT_MS_RANGE.1,
            drain_ms: 2_500,
            streams_max: 20_000,
            telemetry: TelemetryConfig::default(),
        }
    }
}

impl ProcessConfig for StorageConfig {
    const PROCESS: &'static str = "storage";

    fn check(&self) -> Result<(), Problem> {
        let refuse = |bad: bool, key: &str, reason: &str| {
            if bad {
                Err(Problem::new(key, reason))
            } else {
                Ok(())
            }
        };
        refuse(
            self.data_dirs.is_empty(),
            "data_dirs",
            "at least one folder is needed",
        )?;
        refuse(
            self.controllers.is_empty(),
            "controllers",
            "at least one URL is needed",
        )?;
        refuse(
            self.heartbeat_min_ms == 0,
            "heartbeat_min_ms",
            "must be above 0",
        )?;
        let crossed = self.heartbeat_min_ms > self.heartbeat_max_ms;
        refuse(
            crossed,
            "heartbeat_max_ms",
            "must not be below heartbeat_min_ms",
        )?;
        let low = self.mailbox_bytes < MAILBOX_BYTES_MIN;
        refuse(
            low,
            "mailbox_bytes",
            "must be at least 4194304, the largest frame",
        )?;
        refuse(self.streams_max == 0, "streams_max", "must be at least 1")
    }
}

const MAILBOX_BYTES_MIN: u64 = 4 << 20;

impl StorageConfig {
    pub(crate) fn loop_count(&self) -> usize {
        if self.loops > 0 { self.loops } else { cores() }
    }

    pub(crate) fn recovery_count(&self) -> usize {
        if self.recovery_threads > 0 {
            self.recovery_threads
        } else {
            cores() * 2
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}
