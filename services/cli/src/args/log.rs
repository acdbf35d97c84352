//! `talweg log`.

use clap::Subcommand;
use std::path::PathBuf;

/// About files of a log.
#[derive(Subcommand, Debug)]
pub enum LogCommand {
    /// Show segments, batches, records, index entries and epochs.
    Dump(DumpArgs),
    /// Show how an offset is found: segment, index entries, byte position, records scanned.
    Lookup(LookupArgs),
}

/// What to show.
#[derive(clap::Args, Debug, Clone)]
#[command(after_help = "\
Works on a live log too: what is read is what the files hold at that moment.

Examples:
  talweg log dump talweg-data/storage/<topic id>-0
  talweg log dump talweg-data/storage/<topic id>-0 --verify
  talweg log dump talweg-data/storage/<topic id>-0 --digest --to 1000 --json")]
pub struct DumpArgs {
    /// A segment file or a partition folder.
    pub path: PathBuf,
    /// Check every checksum, every record and the seals; exit code 1 if anything is wrong.
    #[arg(long)]
    pub verify: bool,
    /// Print only a digest over the records, for comparing replicas.
    #[arg(long)]
    pub digest: bool,
    /// With --digest: only over the newest record of each key, so that replicas of
    /// a compacted topic compare equal.
    #[arg(long, requires = "digest")]
    pub newest: bool,
    /// With --digest: records below this offset [default: all].
    #[arg(long, value_name = "OFFSET", requires = "digest", value_parser = clap::value_parser!(i64).range(0..))]
    pub to: Option<i64>,
}

/// What to find.
#[derive(clap::Args, Debug, Clone)]
#[command(after_help = "\
Without --index the sparse index is made by scanning the segment, with one entry every --interval bytes as the server
makes it. With --index the server's own store is asked; the server must be stopped, since the store has one owner.

Example:
  talweg log lookup talweg-data/storage/<topic id>-0 12345")]
pub struct LookupArgs {
    /// A segment file or a partition folder.
    pub path: PathBuf,
    /// The offset.
    #[arg(value_parser = clap::value_parser!(i64).range(0..))]
    pub offset: i64,
    /// The topic's index.interval.bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(256..=1 << 30))]
    pub interval: u32,
    /// Folder of the index store of a stopped server.
    #[arg(long, value_name = "DIR")]
    pub index: Option<PathBuf>,
}
