//! `talweg bench`.

use super::Start;
use clap::{Subcommand, ValueEnum};
use std::{path::PathBuf, str::FromStr, time::Duration};
use talweg_types::{Acks, Compression};

/// What to measure.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// How fast records are taken and acknowledged.
    Produce(ProduceBench),
    /// How fast records are read.
    Fetch(FetchBench),
    /// From sending to the acknowledgement and to the reader.
    Latency(LatencyBench),
    /// Baseline: plain sequential writes, flushed at the end.
    #[command(hide = true)]
    Raw(RawBench),
    /// Baseline: the time of a write with its fdatasync.
    #[command(hide = true)]
    Probe(ProbeBench),
    /// Baseline: a bare gRPC stream of frames over loopback.
    #[command(hide = true)]
    Stream(StreamBench),
    /// The other end of `stream`, in a process of its own.
    #[command(hide = true)]
    StreamServe(StreamServe),
}

/// What the three measurements share.
#[derive(clap::Args, Debug, Clone)]
pub struct Load {
    /// Name of the topic; it must exist.
    pub topic: String,
    /// Stop after this many records in all [default: 1,000,000 unless --duration is given].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub records: Option<u64>,
    /// Stop after this time ("30s", "2m").
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
    /// Bytes of each record's value. Without effect on fetch.
    #[arg(long, value_name = "B", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(32..=3_000_000))]
    pub record_size: u32,
    /// Records per second over all streams [default: as fast as possible; latency: one record at a time].
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: Option<u64>,
    /// Streams at once; with fetch each reads every partition.
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub streams: u32,
    /// 0, 1 or all. Without effect on fetch.
    #[arg(long, value_name = "A", default_value = "all")]
    pub acks: Acks,
    /// Talk to the partition leaders instead of a gateway; batch form only.
    #[arg(long)]
    pub direct: bool,
    /// How records travel.
    #[arg(long, value_enum, default_value = "batch")]
    pub form: BenchForm,
    /// Codec: none, gzip, snappy, lz4 or zstd. Without effect on fetch.
    #[arg(long, value_name = "C", default_value = "none")]
    pub compression: Compression,
    /// Use this partition only; may be repeated [default: all].
    #[arg(long, value_name = "P")]
    pub partition: Vec<u32>,
    /// Records are the same for the same seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A server process on this machine whose CPU time is counted; may be repeated [default: every other talweg process].
    #[arg(long, value_name = "NAME=PID")]
    pub server_pid: Vec<ProcessPid>,
}

/// `bench produce`.
#[derive(clap::Args, Debug, Clone)]
#[command(after_help = "\
Records are random bytes from a seed, so that no codec shortens them.

Examples:
  talweg bench produce load --records 1000000 --streams 4
  talweg bench produce load --direct --acks 1 --until-flushed")]
pub struct ProduceBench {
    /// The load.
    #[command(flatten)]
    pub load: Load,
    /// Payload bytes of a batch in the batch form.
    #[arg(long, value_name = "B", default_value_t = 524_288, value_parser = clap::value_parser!(u32).range(1024..=1_040_000))]
    pub batch_bytes: u32,
    /// The time ends only when every partition's flushed end has reached its log end.
    #[arg(long)]
    pub until_flushed: bool,
}

/// `bench fetch`.
#[derive(clap::Args, Debug, Clone)]
#[command(after_help = "\
Ends after --records or --duration, or when every partition has reached the end that it had at the start.

Examples:
  talweg bench fetch load
  talweg bench fetch load --streams 3 --from latest --duration 30s --direct")]
pub struct FetchBench {
    /// The load.
    #[command(flatten)]
    pub load: Load,
    /// Where to begin: earliest, latest, an offset, or @time.
    #[arg(long, value_name = "WHERE", default_value = "earliest")]
    pub from: Start,
}

/// `bench latency`.
#[derive(clap::Args, Debug, Clone)]
#[command(after_help = "\
With --rate, records leave on a fixed schedule and each one's time counts from the moment at which it was due, so that
a stall is not left out. Without, one record at a time: the next leaves when the one before has been read.

Examples:
  talweg bench latency load --rate 10000 --duration 30s
  talweg bench latency load --records 1000")]
pub struct LatencyBench {
    /// The load.
    #[command(flatten)]
    pub load: Load,
}

/// `bench raw`.
#[derive(clap::Args, Debug, Clone)]
pub struct RawBench {
    /// Folder to write in; the files are removed afterwards.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Bytes in all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub bytes: u64,
    /// Number of files.
    #[arg(long, value_name = "F", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub files: u64,
}

/// `bench probe`.
#[derive(clap::Args, Debug, Clone)]
pub struct ProbeBench {
    /// Folder to write in; the file is removed afterwards.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// How long.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub duration: Duration,
    /// Bytes of each write.
    #[arg(long, value_name = "B", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub write_bytes: u32,
    /// Writes per second [default: one after the other].
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: Option<u64>,
}

/// `bench stream`.
#[derive(clap::Args, Debug, Clone)]
pub struct StreamBench {
    /// Payload bytes in all.
    #[arg(long, value_name = "N", default_value_t = 4 << 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub bytes: u64,
    /// Payload bytes of a frame.
    #[arg(long, value_name = "B", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub frame_bytes: u32,
    /// Streams at once, each with all bytes.
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub streams: u32,
}

/// `bench stream-serve`.
#[derive(clap::Args, Debug, Clone)]
pub struct StreamServe {
    /// Payload bytes of a frame.
    #[arg(long)]
    pub frame_bytes: u32,
}

/// How records travel in a measurement.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchForm {
    /// Each record a message; the gateway packs batches.
    Thin,
    /// Encoded batches.
    Batch,
}

/// A process whose CPU time is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessPid {
    /// What the report calls it.
    pub name: String,
    /// Its process id.
    pub pid: u32,
}

impl FromStr for ProcessPid {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, pid) = text.split_once('=').ok_or("must be NAME=PID")?;
        let pid = pid
            .parse()
            .map_err(|_| format!("{pid:?} is not a process id"))?;
        Ok(Self {
            name: name.into(),
            pid,
        })
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("must be longer than nothing".into()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{error}; such as 30s or 2m")),
    }
}

impl Load {
    /// Where the measurement ends by count; without a bound of its own, a million records.
    pub fn record_limit(&self) -> u64 {
        match (self.records, self.duration) {
            (Some(records), _) => records,
            (None, Some(_)) => u64::MAX,
            (None, None) => 1_000_000,
        }
    }

    /// Rules between options.
    pub fn check(&self) -> Result<(), String> {
        if self.direct && self.form == BenchForm::Thin {
            return Err(
                "storage nodes take the batch form only: --direct goes with --form batch".into(),
            );
        }
        Ok(())
    }
}
