//! What the tests of the log share: a folder on the power-loss file system (or
//! a real one), batches, and the driver's two steps, flush and tick.

#![allow(dead_code)] // each test file uses a part

use bytes::Bytes;
use std::{path::PathBuf, sync::Arc};
use talweg_batch::{
    BatchBuilder, BatchHeader, CheckedBatch, Record, ValidationLimits, check_client_batch,
    decode_records, split_batches,
};
use talweg_log::{
    AppendError, Appended, FolderOptions, LogConfig, LogFolder, LogReader, PartitionLog, ReadError,
    RecoveryReport, ReplicaBatch,
    fs::PowerLossFs,
    kv::{IndexKv, MemKv},
};
use talweg_types::{
    Compression, Durability, Incarnation, LeaderEpoch, Offset, PartitionIndex, ProducerEpoch,
    ProducerId, Sequence, TimestampMs, TopicConfig, TopicId, TopicPartition,
    limits::IDEMPOTENCY_HEADER,
};

pub const ROOT: &str = "/data";
pub const NOW: TimestampMs = TimestampMs(1_700_000_000_000);

pub fn tp() -> TopicPartition {
    TopicPartition {
        topic_id: TopicId(uuid::Uuid::from_u128(7)),
        partition: PartitionIndex(3),
    }
}

/// Small segments, so that a test has many.
pub fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 4096,
        index_interval_bytes: 512,
        ..LogConfig::for_topic(&TopicConfig::default(), Durability::Synced)
    }
}

pub fn at(ms: i64) -> TimestampMs {
    TimestampMs(NOW.0 + ms)
}

/// A process's view of one log folder in memory.
pub struct Node {
    pub fs: PowerLossFs,
    pub kv: Arc<MemKv>,
    pub folder: Arc<LogFolder>,
    pub epoch: i32,
}

impl Node {
    pub fn new(seed: u64) -> Self {
        Self::on(PowerLossFs::in_memory(seed), Arc::new(MemKv::new()), 1)
    }

    /// A process starts on what is there.
    pub fn on(fs: PowerLossFs, kv: Arc<MemKv>, epoch: i32) -> Self {
        let folder = open_folder(&fs, Arc::clone(&kv) as Arc<dyn IndexKv>);
        folder
            .mark_running(Incarnation(u64::from(epoch.unsigned_abs())))
            .expect("marked running");
        Self {
            fs,
            kv,
            folder,
            epoch,
        }
    }

    /// The process died; the next one starts in the same boot.
    pub fn killed(self) -> Self {
        self.fs.process_crash();
        Self::on(self.fs, self.kv, self.epoch + 1)
    }

    /// The power failed; only what was flushed is there.
    pub fn power_lost(self) -> Self {
        self.fs.power_loss().expect("power loss");
        Self::on(self.fs, self.kv, self.epoch + 1)
    }

    /// A clean stop (of closed logs) and a start.
    pub fn restarted(self) -> Self {
        self.folder.mark_clean().expect("marked clean");
        Self::on(self.fs, self.kv, self.epoch + 1)
    }

    /// A log ready for appends.
    pub fn log(&self, config: LogConfig) -> PartitionLog {
        self.recover(config).0
    }

    pub fn recover(&self, config: LogConfig) -> (PartitionLog, RecoveryReport) {
        let (mut log, report) =
            PartitionLog::recover(&self.folder, tp(), config, NOW).expect("recovered");
        log.check().expect("invariants after recovery");
        log.begin_epoch(LeaderEpoch(self.epoch))
            .expect("newer epoch");
        let end = log.bounds().log_end;
        log.set_high_watermark(end);
        (log, report)
    }

    pub fn dir(&self) -> PathBuf {
        PathBuf::from(ROOT).join(tp().to_string())
    }

    pub fn segment_path(&self, base: i64) -> PathBuf {
        self.dir().join(format!("{base:020}.log"))
    }

    pub fn file_names(&self) -> Vec<String> {
        use talweg_log::fs::LogFs;
        self.fs
            .list(&self.dir())
            .expect("listed")
            .into_iter()
            .map(|entry| entry.name)
            .collect()
    }

    pub fn segments(&self) -> Vec<i64> {
        let names = self.file_names();
        names
            .iter()
            .filter_map(|name| name.strip_suffix(".log")?.parse().ok())
            .collect()
    }
}

pub fn open_folder(fs: &PowerLossFs, kv: Arc<dyn IndexKv>) -> Arc<LogFolder> {
    let options = FolderOptions {
        reserve_bytes: Some(0),
        ..FolderOptions::default()
    };
    let fs = Arc::new(fs.process());
    LogFolder::open_with(fs, PathBuf::from(ROOT), kv, options)
        .expect("folder opened")
        .0
}

/// Offset, record, leader epoch.
pub type Read = (i64, Record, i32);

/// A record of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rec {
    pub timestamp: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub idempotency: Option<Vec<u8>>,
}

pub fn rec(value: &str) -> Rec {
    Rec {
        timestamp: NOW.0,
        key: None,
        value: Some(value.as_bytes().to_vec()),
        idempotency: None,
    }
}

pub fn sized(n: usize, bytes: usize) -> Rec {
    let mut value = format!("{n:08}").into_bytes();
    value.resize(bytes, b'.');
    Rec {
        timestamp: NOW.0,
        key: None,
        value: Some(value),
        idempotency: None,
    }
}

pub fn timed(timestamp: i64) -> Rec {
    Rec {
        timestamp,
        ..rec("t")
    }
}

pub fn batch(records: &[Rec]) -> CheckedBatch {
    build(BatchBuilder::new(Compression::None), records)
}

pub fn numbered(producer: i64, epoch: i16, sequence: i32, records: &[Rec]) -> CheckedBatch {
    let builder = BatchBuilder::new(Compression::None).with_producer(
        ProducerId(producer),
        ProducerEpoch(epoch),
        Sequence(sequence),
    );
    build(builder, records)
}

pub fn keyed(keys: &[&str]) -> CheckedBatch {
    let records: Vec<Rec> = keys
        .iter()
        .map(|key| Rec {
            idempotency: (!key.is_empty()).then(|| key.as_bytes().to_vec()),
            ..rec("keyed")
        })
        .collect();
    batch(&records)
}

fn build(mut builder: BatchBuilder, records: &[Rec]) -> CheckedBatch {
    for record in records {
        let header = record
            .idempotency
            .as_deref()
            .map(|key| (IDEMPOTENCY_HEADER.as_bytes(), Some(key)));
        builder
            .push(
                TimestampMs(record.timestamp),
                record.key.as_deref(),
                record.value.as_deref(),
                header,
            )
            .expect("pushed");
    }
    let bytes = builder.build().expect("built");
    check_client_batch(bytes, &limits()).expect("checked")
}

pub fn limits() -> ValidationLimits {
    let topic = TopicConfig {
        max_message_bytes: 3 << 20,
        message_timestamp_after_max_ms: i64::MAX / 4,
        ..TopicConfig::default()
    };
    ValidationLimits::for_topic(&topic, NOW)
}

/// The storage driver's flush round for one partition.
pub fn flush(log: &mut PartitionLog) -> Offset {
    while let Some(ticket) = log.flush_ticket() {
        let result = ticket.run();
        log.flush_done(ticket, result).expect("flushed");
        log.check().expect("invariants after a flush");
    }
    log.bounds().flushed_end
}

/// Appends one batch that must be taken.
pub fn append(log: &mut PartitionLog, batch: CheckedBatch, now: TimestampMs) -> Appended {
    try_append(log, batch, now).expect("appended")
}

pub fn try_append(
    log: &mut PartitionLog,
    batch: CheckedBatch,
    now: TimestampMs,
) -> Result<Appended, AppendError> {
    let mut results = log.append(&[batch], now);
    log.check().expect("invariants after an append");
    assert_eq!(results.len(), 1);
    results.remove(0)
}

/// Appends, flushes and commits `count` records of `bytes` each, one a batch.
pub fn fill(log: &mut PartitionLog, count: usize, bytes: usize, now: TimestampMs) {
    for n in 0..count {
        append(log, batch(&[sized(n, bytes)]), now);
    }
    commit(log);
}

/// Flush, and what is flushed is committed: the leader at replication factor 1.
pub fn commit(log: &mut PartitionLog) {
    let flushed = flush(log);
    log.set_high_watermark(flushed);
}

pub fn end(reader: &LogReader) -> Offset {
    reader.bounds().log_end
}

/// Everything readable from `from` to the log end: (offset, record, epoch).
pub fn read_all(reader: &LogReader, from: i64) -> Vec<Read> {
    read_some(reader, from, 64 * 1024).expect("readable")
}

pub fn read_some(reader: &LogReader, from: i64, max_bytes: usize) -> Result<Vec<Read>, ReadError> {
    let mut next = Offset(from);
    let mut found = Vec::new();
    while next < end(reader) {
        let outcome = reader.read(next, end(reader), max_bytes)?;
        assert!(outcome.next_offset > next, "a read below the end moves on");
        for (offset, record, epoch) in records(&outcome.batches) {
            if offset >= from {
                found.push((offset, record, epoch));
            }
        }
        next = outcome.next_offset;
    }
    Ok(found)
}

/// Everything readable, and the ranges that answered damaged.
pub fn read_around_damage(reader: &LogReader, from: i64) -> (Vec<Read>, Vec<(i64, i64)>) {
    let mut next = Offset(from);
    let (mut found, mut damaged) = (Vec::new(), Vec::new());
    while next < end(reader) {
        match reader.read(next, end(reader), 2048) {
            Ok(outcome) => {
                assert!(outcome.next_offset > next, "a read below the end moves on");
                found.extend(
                    records(&outcome.batches)
                        .into_iter()
                        .filter(|(offset, ..)| *offset >= next.0),
                );
                next = outcome.next_offset;
            }
            Err(ReadError::Damaged { from, next_good }) => {
                assert!(
                    from <= next && next_good > next,
                    "{from}..{next_good} at {next}"
                );
                damaged.push((next.0, next_good.0));
                next = next_good;
            }
            Err(error) => panic!("at {next}: {error}"),
        }
    }
    (found, damaged)
}

pub fn records(batches: &Bytes) -> Vec<Read> {
    let mut found = Vec::new();
    for one in split_batches(batches.clone()) {
        let one = one.expect("whole batches");
        let header = BatchHeader::parse(&one).expect("header");
        talweg_batch::verify_crc(&one).expect("checksum");
        for record in decode_records(&one, 64 << 20).expect("records") {
            found.push((
                header.base_offset.0 + i64::from(record.offset_delta),
                record,
                header.leader_epoch.0,
            ));
        }
    }
    found
}

pub fn values(found: &[Read]) -> Vec<(i64, String)> {
    found
        .iter()
        .map(|(offset, record, _)| {
            (
                *offset,
                String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned(),
            )
        })
        .collect()
}

/// Runs the index rebuild to its end, in small steps.
pub fn rebuild(reader: &LogReader) {
    let mut steps = 0;
    while reader.rebuild_index(512, 1000).expect("index written") {
        steps += 1;
        assert!(steps < 100_000, "the rebuild ends");
    }
}

/// One fetch of a follower; false at the end.
pub fn copy_once(from: &LogReader, to: &mut PartitionLog, max_bytes: usize) -> bool {
    let read = from.read_for_copy(to.bounds().log_end, max_bytes);
    let read = read.expect("readable");
    if read.batches.is_empty() {
        return false;
    }
    let batches = ReplicaBatch::check_all(read.batches).expect("whole");
    for (time, run) in ReplicaBatch::runs(&batches, &read.append_times) {
        to.append_replica(run, time.expect("a time"))
            .expect("appended");
    }
    to.check().expect("sound after an append");
    true
}
