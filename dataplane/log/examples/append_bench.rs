//! How fast one log takes 1 MiB batches of 1 KB records: `append_bench DIR [MIB]`.
//! Prints a plain sequential write of the same bytes, the append, both with the
//! final flush, and the read back.

use bytes::Bytes;
use std::{fs::File, io::Write, path::PathBuf, sync::Arc, time::Instant};
use talweg_batch::{BatchBuilder, CheckedBatch, ValidationLimits, check_client_batch};
use talweg_log::{
    LogConfig, LogFolder, PartitionLog,
    fs::RealFs,
    kv::{RocksKv, rocks::RocksKvConfig},
};
use talweg_types::{
    Compression, Durability, Incarnation, LeaderEpoch, Offset, PartitionIndex, TimestampMs,
    TopicConfig, TopicId, TopicPartition,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().unwrap_or_else(|| "/tmp/append-bench".into()));
    let mib: usize = args.next().and_then(|n| n.parse().ok()).unwrap_or(1024);
    let batch = batch()?;
    std::fs::create_dir_all(&dir)?;
    report("plain write", mib, || plain(&dir, &batch.bytes, mib))?;
    let root = dir.join("log");
    let kv = RocksKv::open(&root.join("index"), RocksKvConfig::default())?;
    let (folder, _) = LogFolder::open(Arc::new(RealFs), root, Arc::new(kv))?;
    folder.mark_running(Incarnation(1))?;
    let tp = TopicPartition {
        topic_id: TopicId(uuid::Uuid::new_v4()),
        partition: PartitionIndex(0),
    };
    let mut log = PartitionLog::create(
        &folder,
        tp,
        LogConfig::for_topic(&TopicConfig::default(), Durability::Replicated),
    );
    log.begin_epoch(LeaderEpoch(1))?;
    report("append, flushed every 16 MiB", mib, || {
        for n in 0..mib {
            for result in log.append(std::slice::from_ref(&batch), TimestampMs(1_700_000_000_000)) {
                result?;
            }
            if n % 16 == 15 {
                flush(&mut log)?;
            }
        }
        flush(&mut log)
    })?;
    let end = log.bounds().log_end;
    log.set_high_watermark(end);
    let reader = log.reader();
    report("read, 1 MiB a call", mib, || {
        let mut next = Offset(0);
        while next < end {
            next = reader.read(next, end, 1 << 20)?.next_offset;
        }
        Ok(())
    })?;
    let inline = std::cell::Cell::new(0);
    report("try_read, 1 MiB a call", mib, || {
        let mut next = Offset(0);
        while next < end {
            next = match reader.try_read(next, end, 1 << 20)? {
                Some(outcome) => {
                    inline.set(inline.get() + 1);
                    outcome.next_offset
                }
                None => reader.read(next, end, 1 << 20)?.next_offset,
            };
        }
        Ok(())
    })?;
    println!("served inline: {} reads", inline.get());
    log.delete()?;
    Ok(())
}

fn flush(log: &mut PartitionLog) -> Result<(), Box<dyn std::error::Error>> {
    if let Some(ticket) = log.flush_ticket() {
        let result = ticket.run();
        log.flush_done(ticket, result)?;
    }
    Ok(())
}

fn plain(
    dir: &std::path::Path,
    bytes: &Bytes,
    mib: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let path = dir.join("plain");
    let mut file = File::create(&path)?;
    for _ in 0..mib {
        file.write_all(bytes)?;
    }
    file.sync_data()?;
    std::fs::remove_file(path)?;
    Ok(())
}

fn batch() -> Result<CheckedBatch, Box<dyn std::error::Error>> {
    let mut builder = BatchBuilder::new(Compression::None);
    let mut value = vec![0u8; 1000];
    let mut seed = 1u64;
    for _ in 0..1020 {
        for byte in &mut value {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (seed >> 56) as u8;
        }
        builder.push(TimestampMs(1_700_000_000_000), None, Some(&value), None)?;
    }
    let limits =
        ValidationLimits::for_topic(&TopicConfig::default(), TimestampMs(1_700_000_000_000));
    Ok(check_client_batch(builder.build()?, &limits)?)
}

fn report(
    what: &str,
    mib: usize,
    work: impl FnOnce() -> Result<(), Box<dyn std::error::Error>>,
) -> Result<(), Box<dyn std::error::Error>> {
    let (started, cpu) = (Instant::now(), cpu_seconds());
    work()?;
    let seconds = started.elapsed().as_secs_f64();
    let cpu = (cpu_seconds() - cpu) / (mib as f64 / 1024.0);
    println!(
        "{what:32} {:8.0} MB/s  {cpu:6.2} CPU-s/GB",
        mib as f64 * 1.048 / seconds
    );
    Ok(())
}

/// User and system time of this process.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    // Of the fields after the name, the state is no number; utime and stime are 11 and 12 of the rest.
    fields
        .get(10)
        .zip(fields.get(11))
        .map_or(0.0, |(user, system)| (user + system) / 100.0)
}
