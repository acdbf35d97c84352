//! Settings of a storage node. Every limit that can grow is here or in
//! `talweg_types::limits`.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, path::PathBuf};
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
    /// Other URLs at which this node fetches from given leaders, each "NODE_ID=URL":
    /// through an address translator, or a proxy that delays and cuts in a rehearsal.
    /// Nodes that are not named are dialled where they say that they are.
    pub replicate_via: Vec<String>,
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
            replicate_via: Vec::new(),
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
        refuse(self.streams_max == 0, "streams_max", "must be at least 1")?;
        self.check_replicate_via()
    }
}

const MAILBOX_BYTES_MIN: u64 = 4 << 20;

/// `NODE_ID=URL`, as `replicate_via` has it.
fn via(entry: &str) -> Option<(u32, &str)> {
    let (id, url) = entry.split_once('=')?;
    let id = id.trim().parse().ok().filter(|id| *id > 0)?;
    url.starts_with("http://").then_some((id, url))
}

impl StorageConfig {
    fn check_replicate_via(&self) -> Result<(), Problem> {
        let refuse = |reason: String| Err(Problem::new("replicate_via", reason));
        let mut known = BTreeSet::new();
        for entry in &self.replicate_via {
            match via(entry) {
                Some((id, _)) if !known.insert(id) => {
                    return refuse(format!("node {id} is named twice"));
                }
                Some(_) => {}
                None => return refuse(format!("{entry:?} is not NODE_ID=http://HOST:PORT")),
            }
        }
        Ok(())
    }

    /// The URL at which to fetch from a leader, if it is not the leader's own.
    pub(crate) fn replicates_via(&self, leader: u32) -> Option<&str> {
        let mut entries = self.replicate_via.iter().filter_map(|entry| via(entry));
        entries.find_map(|(id, url)| (id == leader).then_some(url))
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    fn with(entries: &[&str]) -> StorageConfig {
        StorageConfig {
            replicate_via: entries.iter().map(|entry| (*entry).into()).collect(),
            ..StorageConfig::default()
        }
    }

    #[test]
    fn other_addresses_are_for_the_leaders_they_name() {
        let config = with(&["1=http://127.0.0.1:9", "3=http://a:1"]);
        config.check().expect("fits");
        assert_eq!(config.replicates_via(1), Some("http://127.0.0.1:9"));
        assert_eq!(config.replicates_via(2), None);
        assert_eq!(config.replicates_via(3), Some("http://a:1"));
    }

    #[test]
    fn an_address_that_does_not_fit_is_named() {
        for (entries, what) in [
            (&["http://a:1"][..], "is not NODE_ID="),
            (&["0=http://a:1"], "is not NODE_ID="),
            (&["x=http://a:1"], "is not NODE_ID="),
            (&["1=a:1"], "is not NODE_ID="),
            (&["1=http://a:1", "1=http://b:1"], "node 1 is named twice"),
        ] {
            let problem = with(entries).check().expect_err("refused");
            assert_eq!(problem.key, "replicate_via");
            assert!(problem.reason.contains(what), "{problem:?}");
        }
    }
}
