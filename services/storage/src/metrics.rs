//! What the node counts and measures, for `/metrics`.

use crate::clock;
use std::sync::atomic::{AtomicU64, Ordering};
use talweg_kit::metrics::{IntCounter, IntGauge, Metrics as Registry};
use talweg_replication::MonotonicMs;

/// Counters move as things happen; gauges are set about once a second.
pub struct Metrics {
    pub produced_bytes: IntCounter,
    pub produced_records: IntCounter,
    pub fetched_bytes: IntCounter,
    pub fetched_records: IntCounter,
    pub replicated_in_bytes: IntCounter,
    pub replicated_out_bytes: IntCounter,
    pub refused_batches: IntCounter,
    pub cold_reads: IntCounter,
    pub produce_streams: IntGauge,
    pub fetch_streams: IntGauge,
    pub partitions: IntGauge,
    pub leaders: IntGauge,
    pub failed_partitions: IntGauge,
    pub oldest_unflushed_ms: IntGauge,
    pub folder_free_bytes: IntGauge,
    pub failed_folders: IntGauge,
    pub open_files: IntGauge,
    pub descriptor_limit: IntGauge,
    pub mailbox_bytes: IntGauge,
    pub index_bytes: IntGauge,
    /// By loop: since when it has had unflushed bytes; 0: it has none.
    unflushed_since: Vec<AtomicU64>,
}

impl Metrics {
    /// Registers everything in the process's registry.
    pub fn new(registry: &Registry, loops: usize) -> Self {
        let counter = |name: &str, help: &str| registry.counter(&format!("storage_{name}"), help);
        let gauge = |name: &str, help: &str| registry.gauge(&format!("storage_{name}"), help);
        Self {
            produced_bytes: counter("produced_bytes_total", "Encoded bytes of batches appended."),
            produced_records: counter("produced_records_total", "Records appended."),
            fetched_bytes: counter(
                "fetched_bytes_total",
                "Encoded bytes of batches sent to readers.",
            ),
            fetched_records: counter(
                "fetched_records_total",
                "Records in batches sent to readers.",
            ),
            replicated_in_bytes: counter(
                "replicated_in_bytes_total",
                "Encoded bytes of batches appended as a follower.",
            ),
            replicated_out_bytes: counter(
                "replicated_out_bytes_total",
                "Encoded bytes of batches sent to followers.",
            ),
            refused_batches: counter("refused_batches_total", "Batches that were refused."),
            cold_reads: counter("cold_reads_total", "Reads that had to wait for the disk."),
            produce_streams: gauge("produce_streams", "Open produce streams."),
            fetch_streams: gauge("fetch_streams", "Open fetch streams."),
            partitions: gauge("partitions", "Replicas that are open."),
            leaders: gauge("leaders", "Partitions that this node leads."),
            failed_partitions: gauge("failed_partitions", "Replicas that serve no more."),
            oldest_unflushed_ms: gauge(
                "oldest_unflushed_ms",
                "Age of the oldest unflushed byte, in milliseconds.",
            ),
            folder_free_bytes: gauge("folder_free_bytes", "Least free space of the log folders."),
            failed_folders: gauge("failed_folders", "Log folders that failed."),
            open_files: gauge("open_files", "Segment files held open."),
            descriptor_limit: gauge("descriptor_limit", "Descriptors that the process may have."),
            mailbox_bytes: gauge("mailbox_bytes", "Produced bytes that wait for the loops."),
            index_bytes: gauge("index_bytes", "Memory of the index store."),
            unflushed_since: (0..loops).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// A round of a loop has appended.
    pub fn appended(&self, bytes: u64, records: u64) {
        if records > 0 {
            self.produced_bytes.inc_by(bytes);
            self.produced_records.inc_by(records);
        }
    }

    /// Since when a loop has had unflushed bytes.
    pub fn oldest_unflushed(&self, index: usize, since: Option<MonotonicMs>) {
        if let Some(slot) = self.unflushed_since.get(index) {
            slot.store(since.map_or(0, |at| at.0), Ordering::Relaxed);
        }
    }

    /// Age of the oldest unflushed byte in milliseconds.
    pub fn unflushed_age_ms(&self) -> u64 {
        let now = clock::monotonic_now().0;
        let ages = self
            .unflushed_since
            .iter()
            .map(|since| since.load(Ordering::Relaxed))
            .filter(|since| *since > 0);
        ages.map(|since| now.saturating_sub(since))
            .max()
            .unwrap_or(0)
    }
}
