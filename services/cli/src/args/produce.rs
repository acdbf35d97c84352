//! `talweg produce`.

use super::{Pair, value::not_empty};
use std::path::PathBuf;
use talweg_types::{Acks, Compression};

/// Where records come from and how they are sent.
#[derive(clap::Args, Debug, Clone)]
#[command(after_help = "\
One record a line. Lines are bytes: nothing but the line feed is taken off, and they need not be UTF-8. Without
--key-separator and --key, and on lines without the separator, the key is null. An empty line is an empty value.

With --json each acknowledged record is a line {\"line\",\"partition\",\"offset\",\"timestamp\"} on standard output, each
other one a line {\"error\",\"line\",\"outcome\"} on standard error, and the last line on standard output is
{\"summary\":{\"acknowledged\",\"failed\",\"unknown\",\"bytes\",\"elapsed_ms\"}}. The exit code is 1 when any record failed or
its outcome is unknown.

Examples:
  echo 'hello' | talweg produce greetings
  talweg produce scores --key-separator : --null-value NULL --file scores.txt
  seq 1000 | talweg produce numbers --key all --acks 1 --compression lz4 --header source=seq")]
pub struct ProduceArgs {
    /// Name of the topic.
    pub topic: String,
    /// Text between key and value; the first one in a line counts.
    #[arg(long, value_name = "S", conflicts_with = "key", value_parser = not_empty)]
    pub key_separator: Option<String>,
    /// The key of every record.
    #[arg(long, value_name = "K")]
    pub key: Option<String>,
    /// A key of exactly this text is sent as null.
    #[arg(long, value_name = "TEXT")]
    pub null_key: Option<String>,
    /// A value of exactly this text is sent as null (a tombstone).
    #[arg(long, value_name = "TEXT")]
    pub null_value: Option<String>,
    /// Send everything to this partition [default: by key].
    #[arg(long, value_name = "P")]
    pub partition: Option<u32>,
    /// When a record counts as acknowledged: 0, 1 or all [default: the topic's default.acks].
    #[arg(long, value_name = "0|1|all")]
    pub acks: Option<Acks>,
    /// none, gzip, snappy, lz4 or zstd [default: the topic's compression.type].
    #[arg(long, value_name = "C")]
    pub compression: Option<Compression>,
    /// A header of every record. May be repeated; order is kept.
    #[arg(long, value_name = "NAME=VALUE")]
    pub header: Vec<Pair>,
    /// Read this file instead of standard input.
    #[arg(long, value_name = "F")]
    pub file: Option<PathBuf>,
}
