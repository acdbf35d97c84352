//! Throws arbitrary and mutated files at recovery, reading and the sidecar
//! parsers: `fuzz_log [SECONDS] [SEED]`. A panic, a broken invariant or a batch
//! that does not fit its checksum ends it with the seed of the round.

use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{
    io::IoSlice,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use talweg_batch::{BatchBuilder, ValidationLimits, check_client_batch, split_batches, verify_crc};
use talweg_log::{
    FolderOptions, LogConfig, LogFolder, PartitionLog, ReadError,
    fs::{LogFs, PowerLossFs},
    kv::MemKv,
    sidecar::{
        Sidecar,
        identity::{FolderFile, MarkerFile},
        partition::PartitionFile,
        seal::SealFile,
        sessions::SessionsFile,
    },
};
use talweg_types::{
    Compression, Durability, Incarnation, LeaderEpoch, Offset, PartitionIndex, ProducerEpoch,
    ProducerId, Sequence, TimestampMs, TopicConfig, TopicId, TopicPartition,
};

const NOW: TimestampMs = TimestampMs(1_700_000_000_000);

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds = args.next().and_then(|n| n.parse().ok()).unwrap_or(30);
    let first: u64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(1);
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let (mut seed, mut parsed, mut damaged) = (first, 0u64, 0u64);
    while Instant::now() < deadline {
        let outcome = std::panic::catch_unwind(|| round(seed));
        match outcome {
            Ok(Ok((files, ranges))) => {
                parsed += files;
                damaged += ranges;
            }
            Ok(Err(error)) => {
                eprintln!("seed {seed}: {error}");
                std::process::exit(1);
            }
            Err(_) => {
                eprintln!("seed {seed}: panic");
                std::process::exit(1);
            }
        }
        seed += 1;
    }
    println!(
        "{} recoveries from seed {first}, {parsed} sidecars parsed, {damaged} damaged ranges, no panic",
        seed - first
    );
}

/// Builds a log, hurts its files, recovers, reads all of it and appends.
fn round(seed: u64) -> Result<(u64, u64), String> {
    let mut random = SmallRng::seed_from_u64(seed);
    let fs = PowerLossFs::in_memory(seed);
    let kv = Arc::new(MemKv::new());
    let tp = TopicPartition {
        topic_id: TopicId(uuid::Uuid::from_u128(u128::from(seed))),
        partition: PartitionIndex(0),
    };
    let config = LogConfig {
        segment_bytes: 4096 * random.random_range(1..5),
        index_interval_bytes: 256,
        ..LogConfig::for_topic(&TopicConfig::default(), Durability::Synced)
    };
    build(&fs, &kv, tp, &config, &mut random)?;
    if random.random_bool(0.5) {
        fs.process_crash();
    } else {
        fs.power_loss_keeping_some().map_err(|e| e.to_string())?;
    }
    let dir = PathBuf::from("/data").join(tp.to_string());
    for _ in 0..random.random_range(0..4) {
        hurt(&fs, &dir, &mut random)?;
    }
    let parsed = parse_noise(&mut random);
    let folder = open(&fs, &kv)?;
    let Ok((mut log, _)) = PartitionLog::recover(&folder, tp, config, NOW) else {
        return Ok((parsed, 0));
    };
    log.check()?;
    let damaged = read_all(&log)?;
    let epoch = LeaderEpoch(
        log.reader()
            .last_epoch()
            .0
            .max(log.leader_epoch().0)
            .saturating_add(1000),
    );
    if log.begin_epoch(epoch).is_ok() {
        for result in log.append(&[batch(&mut random, None)], NOW) {
            result.map_err(|e| e.to_string())?;
        }
        while let Some(ticket) = log.flush_ticket() {
            let result = ticket.run();
            log.flush_done(ticket, result).map_err(|e| e.to_string())?;
        }
        log.check()?;
    }
    while log
        .reader()
        .rebuild_index(256, 10_000)
        .map_err(|e| e.to_string())?
    {}
    let _ = log.reader().offset_for_time(
        TimestampMs(NOW.0 + random.random_range(-100..100)),
        log.bounds().log_end,
    );
    read_all(&log)?;
    Ok((parsed, damaged))
}

fn open(fs: &PowerLossFs, kv: &Arc<MemKv>) -> Result<Arc<LogFolder>, String> {
    let options = FolderOptions {
        reserve_bytes: Some(0),
        ..FolderOptions::default()
    };
    let kv = Arc::clone(kv);
    let (folder, _) = LogFolder::open_with(Arc::new(fs.process()), "/data".into(), kv, options)
        .map_err(|e| e.to_string())?;
    folder
        .mark_running(Incarnation(1))
        .map_err(|e| e.to_string())?;
    Ok(folder)
}

fn build(
    fs: &PowerLossFs,
    kv: &Arc<MemKv>,
    tp: TopicPartition,
    config: &LogConfig,
    random: &mut SmallRng,
) -> Result<(), String> {
    let folder = open(fs, kv)?;
    let mut log = PartitionLog::create(&folder, tp, config.clone());
    let mut sequence = 0;
    for epoch in 1..random.random_range(2..4) {
        log.begin_epoch(LeaderEpoch(epoch))
            .map_err(|e| e.to_string())?;
        for _ in 0..random.random_range(1..30) {
            let numbered = random.random_bool(0.5).then_some(sequence);
            let batch = batch(random, numbered);
            if numbered.is_some() {
                sequence += batch.header.record_count;
            }
            for result in log.append(&[batch], NOW) {
                result.map_err(|e| e.to_string())?;
            }
            if random.random_bool(0.2)
                && let Some(ticket) = log.flush_ticket()
            {
                let result = ticket.run();
                log.flush_done(ticket, result).map_err(|e| e.to_string())?;
            }
        }
    }
    Ok(())
}

fn batch(random: &mut SmallRng, sequence: Option<i32>) -> talweg_batch::CheckedBatch {
    let mut builder = BatchBuilder::new(Compression::ALL[random.random_range(0..5)]);
    if let Some(sequence) = sequence {
        builder = builder.with_producer(ProducerId(1), ProducerEpoch(0), Sequence(sequence));
    }
    for _ in 0..random.random_range(1..4) {
        let value: Vec<u8> = (0..random.random_range(0..400))
            .map(|_| random.random())
            .collect();
        builder
            .push(
                TimestampMs(NOW.0 + random.random_range(-99..99)),
                None,
                Some(&value),
                None,
            )
            .expect("pushed");
    }
    let limits = ValidationLimits::for_topic(&TopicConfig::default(), NOW);
    check_client_batch(builder.build().expect("built"), &limits).expect("checked")
}

/// Changes one file in the folder: bits, bytes, a cut, more bytes, another
/// file's contents, or it goes.
fn hurt(fs: &PowerLossFs, dir: &Path, random: &mut SmallRng) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let Ok(entries) = fs.list(dir) else {
        return Ok(());
    };
    if entries.is_empty() {
        return Ok(());
    }
    let pick =
        |random: &mut SmallRng| dir.join(&entries[random.random_range(0..entries.len())].name);
    let path = pick(random);
    let Ok(file) = fs.open(&path, false) else {
        return Ok(());
    };
    let len = file.len().map_err(text)?;
    let place = random.random_range(0..len.max(1));
    match random.random_range(0..7) {
        0 | 1 if len > 0 => {
            // Only what was flushed can be flipped; elsewhere nothing happens.
            let _ = fs.flip_bit(&path, place, random.random_range(0..8));
        }
        2 => {
            let noise: Vec<u8> = (0..random.random_range(1..200))
                .map(|_| random.random())
                .collect();
            file.write_at(&[IoSlice::new(&noise)], place)
                .map_err(text)?;
        }
        3 => file.set_len(place).map_err(text)?,
        4 => file
            .set_len(len + random.random_range(1..5000))
            .map_err(text)?,
        5 => {
            let other = fs.open(&pick(random), false).map_err(text)?;
            let mut bytes = vec![0; usize::try_from(other.len().map_err(text)?).unwrap_or(0)];
            other.read_at(&mut bytes, 0).map_err(text)?;
            file.write_at(&[IoSlice::new(&bytes)], place)
                .map_err(text)?;
        }
        _ => fs.remove_file(&path).map_err(text)?,
    }
    Ok(())
}

/// Reads everything; what is served must be whole batches that fit their checksums.
fn read_all(log: &PartitionLog) -> Result<u64, String> {
    let reader = log.reader();
    let bounds = log.bounds();
    let (mut next, mut damaged) = (bounds.log_start, 0);
    while next < bounds.log_end {
        let served = match reader.read(next, bounds.log_end, 3000) {
            Ok(outcome) => outcome,
            Err(ReadError::Damaged { next_good, .. }) if next_good > next => {
                damaged += 1;
                next = next_good;
                continue;
            }
            Err(error) => return Err(format!("at {next}: {error}")),
        };
        if served.next_offset <= next {
            return Err(format!("the read at {next} did not move on"));
        }
        for batch in split_batches(served.batches) {
            let batch = batch.map_err(|e| format!("at {next}: {e}"))?;
            verify_crc(&batch).map_err(|e| format!("at {next}: {e}"))?;
        }
        next = served.next_offset;
    }
    if reader
        .read(Offset(bounds.log_end.0 + 1), bounds.log_end, 1)
        .is_ok()
    {
        return Err("a read above the end was answered".into());
    }
    Ok(damaged)
}

/// Parsers on noise whose envelope is right.
fn parse_noise(random: &mut SmallRng) -> u64 {
    for _ in 0..100 {
        let body: Vec<u8> = (0..random.random_range(0..300))
            .map(|_| {
                if random.random_bool(0.5) {
                    0
                } else {
                    random.random()
                }
            })
            .collect();
        let mut file = b"TLWG".to_vec();
        file.extend([random.random_range(0..7), random.random_range(0..3), 0, 0]);
        file.extend(u32::try_from(body.len()).unwrap_or(0).to_be_bytes());
        file.extend(body);
        let checksum = crc32c::crc32c(&file);
        file.extend(checksum.to_be_bytes());
        let _ = FolderFile::decode(&file);
        let _ = MarkerFile::decode(&file);
        let _ = PartitionFile::decode(&file);
        let _ = SealFile::decode(&file);
        let _ = SessionsFile::decode(&file);
    }
    100
}
