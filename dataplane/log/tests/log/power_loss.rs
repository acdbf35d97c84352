//! 200 power losses under a random workload: nothing acknowledged is lost, and
//! no offset that was ever read below the watermark changes its value. And the
//! twins: the same checker fails when the promise is made before the flush, and
//! when flushes do nothing.

use crate::common::*;
use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{collections::BTreeMap, io, path::Path, sync::Arc};
use talweg_log::{
    FolderOptions, LogConfig, LogFolder, PartitionLog, ReadError,
    fs::{DirEntry, LogFile, LogFs, PowerLossFs, Space},
    kv::{IndexKv, MemKv},
};
use talweg_types::{Incarnation, LeaderEpoch, Offset, TimestampMs};

/// How the node under test breaks its promise, if it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Twin {
    Honest,
    /// Acknowledges what is written and not yet flushed.
    AcknowledgesEarly,
    /// Its flushes return at once and do nothing.
    FlushesNothing,
}

/// Passes everything on, but does not flush files.
struct NoFlush(PowerLossFs);

struct NoFlushFile(Arc<dyn LogFile>);

impl LogFile for NoFlushFile {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        self.0.read_at(buf, position)
    }
    fn try_read_at(&self, buf: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        self.0.try_read_at(buf, position)
    }
    fn write_at(&self, slices: &[io::IoSlice<'_>], position: u64) -> io::Result<()> {
        self.0.write_at(slices, position)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn modified_ms(&self) -> io::Result<i64> {
        self.0.modified_ms()
    }
}

impl LogFs for NoFlush {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.0.create_dir_all(path)
    }
    fn open(&self, path: &Path, create: bool) -> io::Result<Arc<dyn LogFile>> {
        let file = self.0.open(path, create)?;
        // Sidecars are flushed, so that only the data is at stake.
        let data = path.extension().is_some_and(|extension| extension == "log");
        Ok(if data {
            Arc::new(NoFlushFile(file))
        } else {
            file
        })
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.0.remove_file(path)
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.0.remove_dir_all(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.0.list(path)
    }
    fn flush_dir(&self, path: &Path) -> io::Result<()> {
        self.0.flush_dir(path)
    }
    fn flush_all(&self, path: &Path) -> io::Result<()> {
        self.0.flush_all(path)
    }
    fn space(&self, path: &Path) -> io::Result<Space> {
        self.0.space(path)
    }
    fn boot_id(&self) -> io::Result<String> {
        self.0.boot_id()
    }
    fn mount_id(&self, path: &Path) -> io::Result<String> {
        self.0.mount_id(path)
    }
}

/// What clients were told and saw.
#[derive(Default)]
struct History {
    /// Acknowledged: offset → value.
    acknowledged: BTreeMap<i64, Bytes>,
    /// Read below the watermark: offset → value.
    read: BTreeMap<i64, Bytes>,
    /// As clients saw it; it never goes back.
    watermark: i64,
    /// Answered by a deletion; retention's is promised by nobody.
    log_start: i64,
}

impl History {
    /// The checker: compares a log with what was promised.
    fn check(&self, log: &PartitionLog) -> Result<(), String> {
        let reader = log.reader();
        let bounds = log.bounds();
        if bounds.log_start.0 < self.log_start {
            return Err(format!(
                "log start went back from {} to {}",
                self.log_start, bounds.log_start
            ));
        }
        if bounds.log_end.0 < self.watermark {
            return Err(format!(
                "log end {} is below the watermark {}",
                bounds.log_end, self.watermark
            ));
        }
        let mut next = bounds.log_start;
        let mut found = BTreeMap::new();
        while next < bounds.log_end {
            match reader.read(next, bounds.log_end, 10_000) {
                Ok(outcome) => {
                    for (offset, record, _) in records(&outcome.batches) {
                        found.insert(offset, record.value.unwrap_or_default());
                    }
                    next = outcome.next_offset;
                }
                Err(ReadError::Damaged { from, next_good }) => {
                    return Err(format!(
                        "{from}..{next_good} are damaged without a flipped flushed bit"
                    ));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        for (what, promised) in [("acknowledged", &self.acknowledged), ("read", &self.read)] {
            for (offset, value) in promised.range(bounds.log_start.0..) {
                match found.get(offset) {
                    Some(now) if now == value => {}
                    Some(_) => return Err(format!("offset {offset}, {what}, changed its value")),
                    None => return Err(format!("offset {offset}, {what}, is lost")),
                }
            }
        }
        Ok(())
    }
}

struct World {
    fs: PowerLossFs,
    kv: Arc<MemKv>,
    random: SmallRng,
    twin: Twin,
    history: History,
    life: i32,
    sequence: i32,
    producer: i64,
    now: i64,
    value: u64,
    snapshots: Vec<talweg_log::kv::mem::MemKvSnapshot>,
}

impl World {
    fn new(seed: u64, twin: Twin) -> Self {
        Self {
            fs: PowerLossFs::in_memory(seed),
            kv: Arc::new(MemKv::new()),
            random: SmallRng::seed_from_u64(seed),
            twin,
            history: History::default(),
            life: 0,
            sequence: 0,
            producer: 1,
            now: NOW.0,
            value: 0,
            snapshots: Vec::new(),
        }
    }

    fn config(&mut self) -> LogConfig {
        LogConfig {
            segment_bytes: 4096 * self.random.random_range(1..4),
            retention_bytes: if self.random.random_bool(0.3) {
                20_000
            } else {
                -1
            },
            file_delete_delay_ms: 0,
            index_interval_bytes: 512,
            ..config()
        }
    }

    /// A process starts, and everything that was promised must be there.
    fn start(&mut self) -> Result<(Arc<LogFolder>, PartitionLog), String> {
        self.life += 1;
        let process: Arc<dyn LogFs> = match self.twin {
            Twin::FlushesNothing => Arc::new(NoFlush(self.fs.process())),
            _ => Arc::new(self.fs.process()),
        };
        let options = FolderOptions {
            reserve_bytes: Some(0),
            ..FolderOptions::default()
        };
        let kv = Arc::clone(&self.kv) as Arc<dyn IndexKv>;
        let (folder, _) =
            LogFolder::open_with(process, ROOT.into(), kv, options).map_err(|e| e.to_string())?;
        folder
            .mark_running(Incarnation(self.life.unsigned_abs().into()))
            .map_err(|e| e.to_string())?;
        let config = self.config();
        let (mut log, _) = PartitionLog::recover(&folder, tp(), config, TimestampMs(self.now))
            .map_err(|e| e.to_string())?;
        log.check()?;
        self.history.check(&log)?;
        log.begin_epoch(LeaderEpoch(self.life))
            .map_err(|e| e.to_string())?;
        // At replication factor 1 what recovery kept is flushed and committed.
        let end = log.bounds().log_end;
        log.set_high_watermark(end);
        self.see(&log)?;
        Ok((folder, log))
    }

    fn step(&mut self, log: &mut PartitionLog) -> Result<(), String> {
        self.now += self.random.random_range(0..200);
        match self.random.random_range(0..10) {
            0..=4 => self.produce(log),
            5 | 6 => self.flush(log)?,
            7 => {
                log.tick(TimestampMs(self.now), true);
            }
            8 => self.see(log)?,
            _ => {
                let bounds = log.bounds();
                if self.random.random_bool(0.1) && bounds.high_watermark > bounds.log_start {
                    let to = self
                        .random
                        .random_range(bounds.log_start.0..=bounds.high_watermark.0);
                    let start = log
                        .delete_before(Offset(to), TimestampMs(self.now))
                        .map_err(|e| e.to_string())?;
                    self.history.log_start = start.0;
                }
                let _ = log.reader().rebuild_index(512, 5000);
            }
        }
        log.check()
    }

    fn produce(&mut self, log: &mut PartitionLog) {
        let batches: Vec<_> = (0..self.random.random_range(1..4))
            .map(|_| {
                let count = self.random.random_range(1..4);
                let records: Vec<Rec> = (0..count)
                    .map(|_| {
                        self.value += 1;
                        let size = self.random.random_range(8..900);
                        sized(self.value as usize, size)
                    })
                    .collect();
                let first = self.sequence;
                self.sequence += count;
                numbered(self.producer, 0, first, &records)
            })
            .collect();
        for result in log.append(&batches, TimestampMs(self.now)) {
            result.expect("the disk has room and the sequence fits");
        }
        if self.twin == Twin::AcknowledgesEarly {
            let end = log.bounds().log_end;
            self.acknowledge(log, end);
        }
    }

    fn flush(&mut self, log: &mut PartitionLog) -> Result<(), String> {
        let Some(ticket) = log.flush_ticket() else {
            return Ok(());
        };
        if self.random.random_bool(0.5) {
            // The writer goes on meanwhile.
            self.produce(log);
        }
        let result = if self.random.random_bool(0.3) {
            let folder = Arc::clone(&ticket_folder(log));
            talweg_log::run_together(&folder, std::slice::from_ref(&ticket))
        } else {
            ticket.run()
        };
        let flushed = log.flush_done(ticket, result).map_err(|e| e.to_string())?;
        self.acknowledge(log, flushed);
        if self.random.random_bool(0.1) {
            self.snapshots.push(self.kv.snapshot());
        }
        Ok(())
    }

    /// The watermark moves, and what lies below it is acknowledged.
    fn acknowledge(&mut self, log: &mut PartitionLog, end: Offset) {
        log.set_high_watermark(end);
        let from = self.history.watermark.max(log.bounds().log_start.0);
        for (offset, record, _) in read_some(&log.reader(), from, 100_000).expect("readable") {
            if offset < end.0 {
                self.history
                    .acknowledged
                    .insert(offset, record.value.unwrap_or_default());
            }
        }
        self.history.watermark = self.history.watermark.max(end.0);
    }

    /// A consumer reads everything below the watermark.
    fn see(&mut self, log: &PartitionLog) -> Result<(), String> {
        let bounds = log.bounds();
        let found =
            read_some(&log.reader(), bounds.log_start.0, 3000).map_err(|e| e.to_string())?;
        for (offset, record, _) in found {
            if offset < bounds.high_watermark.0 {
                self.history
                    .read
                    .insert(offset, record.value.unwrap_or_default());
            }
        }
        Ok(())
    }

    /// The process or the power goes, in the middle of anything.
    fn crash(&mut self) {
        self.fs.set_hook(None);
        match self.random.random_range(0..4) {
            0 => self.fs.process_crash(),
            1 => self.fs.power_loss().expect("power loss"),
            _ => self.fs.power_loss_keeping_some().expect("power loss"),
        }
        match self.random.random_range(0..6) {
            0 => self.kv.clear(),
            1 | 2 if !self.snapshots.is_empty() => {
                let at = self.random.random_range(0..self.snapshots.len());
                self.kv.restore(&self.snapshots[at]);
            }
            _ => {}
        }
        // The producer begins anew: a new id, so that its sequence starts at 0.
        self.producer += 1;
        self.sequence = 0;
    }
}

fn ticket_folder(log: &PartitionLog) -> Arc<LogFolder> {
    log.folder()
}

/// One world with several crashes; how many power losses it saw.
fn run(seed: u64, twin: Twin, crashes: usize) -> Result<(), String> {
    let mut world = World::new(seed, twin);
    for _ in 0..crashes {
        let (folder, mut log) = world.start()?;
        let steps = world.random.random_range(1..40);
        for _ in 0..steps {
            world.step(&mut log)?;
        }
        if world.random.random_bool(0.3) {
            // The crash comes in the middle of a flush: after so many operations
            // the disk takes nothing any more.
            let number = world.fs.operations() + world.random.random_range(0..25);
            world.fs.freeze_at(number);
            if let Some(ticket) = log.flush_ticket() {
                let result = ticket.run();
                if let Ok(flushed) = log.flush_done(ticket, result) {
                    world.acknowledge(&mut log, flushed);
                }
            }
        }
        drop((folder, log));
        world.crash();
    }
    world.start().map(|_| ())
}

#[test]
fn nothing_acknowledged_is_lost_in_200_power_losses_and_no_offset_changes_its_value() {
    // Five crashes a world; `make soak` asks for more worlds.
    let worlds = std::env::var("TALWEG_POWER_LOSS_WORLDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(50);
    for seed in 0..worlds {
        if let Err(error) = run(seed, Twin::Honest, 5) {
            panic!("seed {seed}: {error}");
        }
    }
}

#[test]
fn the_checker_fails_when_a_node_acknowledges_before_the_flush() {
    let caught = (0..20)
        .filter(|seed| run(*seed, Twin::AcknowledgesEarly, 5).is_err())
        .count();
    assert!(caught > 10, "caught {caught} of 20");
}

#[test]
fn the_checker_fails_when_flushes_do_nothing() {
    let caught = (0..20)
        .filter(|seed| run(*seed, Twin::FlushesNothing, 5).is_err())
        .count();
    assert!(caught > 10, "caught {caught} of 20");
}
