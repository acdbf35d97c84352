//! What the node counts and measures, for `/metrics`.

use crate::clock;
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use talweg_kit::metrics::{IntCounter, IntGauge, IntGaugeVec, Metrics as Registry};
use talweg_log::{CompactionReport, LogFolder, fs::Space};
use talweg_replication::MonotonicMs;
use talweg_types::Ratio;

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
    pub failed_folders: IntGauge,
    /// Log folders that may have lost unflushed bytes before this start.
    pub unclean_folders: IntGauge,
    /// 1 while a controller keeps this node's session.
    pub controller_connected: IntGauge,
    truncations: IntCounter,
    truncated_bytes: IntCounter,
    refused_truncations: IntCounter,
    refusing_truncation: IntGauge,
    clock_offset_ms: IntGauge,
    clock_trusted: IntGauge,
    folder_free_bytes: IntGaugeVec,
    folder_reserve_bytes: IntGaugeVec,
    folder_full: IntGaugeVec,
    pub open_files: IntGauge,
    pub descriptor_limit: IntGauge,
    pub mailbox_bytes: IntGauge,
    pub index_bytes: IntGauge,
    pub compactions: IntCounter,
    pub compaction_failures: IntCounter,
    compaction_read_bytes: IntCounter,
    compaction_written_bytes: IntCounter,
    compaction_removed_records: IntCounter,
    compaction_ms: IntCounter,
    compaction_dirty_permille_max: IntGauge,
    pub damaged_replicas: IntGauge,
    pub repairs: IntCounter,
    pub repair_failures: IntCounter,
    pub repaired_bytes: IntCounter,
    /// By loop: since when it has had unflushed bytes; 0: it has none.
    unflushed_since: Vec<AtomicU64>,
}

impl Metrics {
    /// Registers everything in the process's registry.
    pub fn new(registry: &Registry, loops: usize) -> Self {
        let counter = |name: &str, help: &str| registry.counter(&format!("storage_{name}"), help);
        let gauge = |name: &str, help: &str| registry.gauge(&format!("storage_{name}"), help);
        let of_folders = |name: &str, help: &str| {
            registry.gauges(&format!("storage_folder_{name}"), help, &["folder"])
        };
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
            failed_folders: gauge("failed_folders", "Log folders that failed."),
            unclean_folders: gauge(
                "unclean_folders",
                "Log folders that may have lost unflushed bytes before this start.",
            ),
            controller_connected: gauge(
                "controller_connected",
                "1 while a controller keeps this node's session.",
            ),
            truncations: counter(
                "truncations_total",
                "Times that the end of a log was cut because its leader does not have it.",
            ),
            truncated_bytes: counter("truncated_bytes_total", "Bytes cut that way."),
            refused_truncations: counter(
                "refused_truncations_total",
                "Times that a leader asked to cut below the stored high watermark.",
            ),
            refusing_truncation: gauge(
                "replicas_refusing_truncation",
                "Replicas that follow nobody because their leader lacks committed records.",
            ),
            clock_offset_ms: gauge(
                "clock_offset_ms",
                "The controller's wall clock minus this node's, as last compared.",
            ),
            clock_trusted: gauge(
                "clock_trusted",
                "0 while nothing is deleted by age because of the clock.",
            ),
            folder_free_bytes: of_folders("free_bytes", "Free space of a log folder."),
            folder_reserve_bytes: of_folders("reserve_bytes", "Below it produce is refused."),
            folder_full: of_folders("full", "1 while produce is refused for want of space."),
            open_files: gauge("open_files", "Segment files held open."),
            descriptor_limit: gauge("descriptor_limit", "Descriptors that the process may have."),
            mailbox_bytes: gauge("mailbox_bytes", "Produced bytes that wait for the loops."),
            index_bytes: gauge("index_bytes", "Memory of the index store."),
            compactions: counter("compactions_total", "Rounds of compaction that ended well."),
            compaction_failures: counter(
                "compaction_failures_total",
                "Rounds of compaction that failed; their partitions are tried again.",
            ),
            compaction_read_bytes: counter(
                "compaction_read_bytes_total",
                "Bytes of segments that compaction has replaced.",
            ),
            compaction_written_bytes: counter(
                "compaction_written_bytes_total",
                "Bytes of the segments that took their places.",
            ),
            compaction_removed_records: counter(
                "compaction_removed_records_total",
                "Records that compaction has removed.",
            ),
            compaction_ms: counter(
                "compaction_milliseconds_total",
                "Time that rounds of compaction took.",
            ),
            compaction_dirty_permille_max: gauge(
                "compaction_dirty_permille_max",
                "The highest share of a compacted log's sealed bytes that was not compacted yet.",
            ),
            damaged_replicas: gauge(
                "damaged_replicas",
                "Replicas of which a range was met that cannot be believed and is not repaired.",
            ),
            repairs: counter(
                "repairs_total",
                "Damaged segments that were repaired from another replica.",
            ),
            repair_failures: counter(
                "repair_failures_total",
                "Repairs that failed; they are tried again.",
            ),
            repaired_bytes: counter(
                "repaired_bytes_total",
                "Bytes of batches that repairs have brought back.",
            ),
            unflushed_since: (0..loops).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The end of a log was cut.
    pub fn truncated(&self, bytes: u64) {
        self.truncations.inc();
        self.truncated_bytes.inc_by(bytes);
    }

    /// A replica refuses to cut, until the answer is dropped.
    pub fn refusing(&self) -> Refusing {
        self.refused_truncations.inc();
        self.refusing_truncation.inc();
        Refusing(self.refusing_truncation.clone())
    }

    /// What was found on a look at a log folder.
    pub fn folder(&self, folder: &LogFolder, space: Space) {
        let path = folder.root().display().to_string();
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let set = |gauge: &IntGaugeVec, value| gauge.with_label_values(&[&path]).set(value);
        set(&self.folder_free_bytes, number(space.free_bytes));
        set(&self.folder_reserve_bytes, number(folder.reserve(space)));
        set(&self.folder_full, folder.is_full().into());
    }

    /// A round of compaction has ended well.
    pub fn compacted(&self, report: &CompactionReport, took: Duration) {
        self.compactions.inc();
        self.compaction_read_bytes.inc_by(report.bytes_before);
        self.compaction_written_bytes.inc_by(report.bytes_after);
        self.compaction_removed_records
            .inc_by(report.removed_records);
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.compaction_ms.inc_by(ms);
    }

    /// The log that needs compaction most.
    pub fn dirtiest(&self, ratio: Ratio) {
        let permille = i64::from(ratio.millionths() / 1_000);
        self.compaction_dirty_permille_max.set(permille);
    }

    /// How the wall clock compares.
    pub fn clock(&self, clock: &clock::ClockWatch) {
        self.clock_offset_ms.set(clock.offset_ms());
        self.clock_trusted.set(clock.is_trusted().into());
    }

    /// A round of a loop has appended.
    pub fn appended(&self, bytes: u64, records: u64) {
        if records > 0 {
            self.produced_bytes.inc_by(bytes);
            self.produced_records.inc_by(records);
        }
    }

    /// A loop is about to write: bytes whose write hangs wait for the disk too.
    pub fn writes(&self, index: usize, now: MonotonicMs) {
        if let Some(slot) = self.unflushed_since.get(index) {
            // Older ones count; the end of the round says what is so then.
            let _ = slot.compare_exchange(0, now.0, Ordering::Relaxed, Ordering::Relaxed);
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

/// Counts a replica among those that refuse to cut.
pub struct Refusing(IntGauge);

impl Drop for Refusing {
    fn drop(&mut self) {
        self.0.dec();
    }
}
