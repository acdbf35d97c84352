//! Baselines on the bare disk: plain sequential writes, and the time of a
//! small write with its flush. Neither knows anything of logs.

use super::report::{Latencies, Report};
use crate::args::{ProbeBench, RawBench};
use rand::{RngCore, SeedableRng, rngs::SmallRng};
use serde_json::json;
use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    thread,
    time::{Duration, Instant},
};

const WRITE_BYTES: usize = 1 << 20;

fn random_bytes(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    SmallRng::seed_from_u64(1).fill_bytes(&mut bytes);
    bytes
}

fn create(folder: &Path, name: &str) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(folder.join(name))
}

/// Writes `bytes` in all, file after file, 1 MiB a write, and flushes each
/// file once at the end. The time includes the flushes.
pub fn raw(args: &RawBench) -> io::Result<Report> {
    let folder = tempfile::Builder::new()
        .prefix("talweg-raw-")
        .tempdir_in(&args.dir)?;
    let block = random_bytes(WRITE_BYTES);
    let begun = Instant::now();
    let mut files = Vec::new();
    for index in 0..args.files {
        let mut file = create(folder.path(), &index.to_string())?;
        let mut left = share(args.bytes, args.files, index);
        while left > 0 {
            let length = left.min(WRITE_BYTES as u64);
            file.write_all(&block[..length as usize])?;
            left -= length;
        }
        files.push(file);
    }
    let written = begun.elapsed();
    files.iter().try_for_each(File::sync_data)?;
    let elapsed = begun.elapsed();
    drop(files);
    folder.close()?;
    Ok(Report {
        name: "raw",
        records: None,
        bytes: args.bytes,
        elapsed,
        latencies: vec![],
        cpu: None,
        more: vec![
            ("files", json!(args.files)),
            ("before_flush_ms", json!(written.as_millis() as u64)),
        ],
    })
}

/// Bytes of file `index` when `bytes` are spread over `files`; the first ones take the rest.
fn share(bytes: u64, files: u64, index: u64) -> u64 {
    bytes / files + u64::from(index < bytes % files)
}

/// Appends and flushes again and again, and keeps the times.
pub fn probe(args: &ProbeBench) -> io::Result<Report> {
    let folder = tempfile::Builder::new()
        .prefix("talweg-probe-")
        .tempdir_in(&args.dir)?;
    let mut file = create(folder.path(), "probe")?;
    let block = random_bytes(args.write_bytes as usize);
    let mut latencies = Latencies::default();
    let interval = args
        .rate
        .map(|rate| Duration::from_secs_f64(1.0 / rate as f64));
    let begun = Instant::now();
    let mut due = begun;
    while begun.elapsed() < args.duration {
        // On a schedule, times count from the moment that was due: a stall is not left out.
        let start = interval.map_or_else(Instant::now, |_| due);
        thread::sleep(start.saturating_duration_since(Instant::now()));
        file.write_all(&block)?;
        file.sync_data()?;
        latencies.record(start.elapsed());
        due += interval.unwrap_or_default();
    }
    let elapsed = begun.elapsed();
    drop(file);
    folder.close()?;
    Ok(Report {
        name: "probe",
        records: None,
        bytes: latencies.count() * u64::from(args.write_bytes),
        elapsed,
        more: vec![("writes", json!(latencies.count()))],
        latencies: vec![("write_and_flush_ms", latencies)],
        cpu: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for (bytes, files) in [(10, 3), (1, 5), (12, 12), (1 << 30, 7)] {
            assert_eq!(
                (0..files).map(|i| share(bytes, files, i)).sum::<u64>(),
                bytes
            );
        }
    }

    #[test]
    fn baselines_write_what_they_say_and_leave_nothing() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let report = raw(&RawBench {
            dir: dir.path().into(),
            bytes: 3_000_001,
            files: 3,
        })
        .expect("raw writes");
        assert_eq!(report.json()["bytes"], json!(3_000_001));
        let args = ProbeBench {
            dir: dir.path().into(),
            duration: Duration::from_millis(30),
            write_bytes: 100,
            rate: Some(1000),
        };
        let report = probe(&args).expect("probe writes");
        assert!(report.bytes >= 100, "at least one write");
        assert_eq!(
            dir.path().read_dir().expect("folder").count(),
            0,
            "files are removed"
        );
    }
}
