//! `talweg consume`.

use clap::ValueEnum;
use std::str::FromStr;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Where to read and how to print.
#[derive(clap::Args, Debug, Clone)]
#[command(after_help = "\
As JSON each record is a line {\"partition\",\"offset\",\"timestamp\",\"key\",\"value\",\"headers\"}. Text is a string, null is
null; bytes that are not UTF-8 stand as base64 under \"key_base64\" or \"value_base64\" instead, and a header value as
{\"base64\":…}. Timestamps are milliseconds since 1970, -1 if the producer gave none.

Examples:
  talweg consume flights --until-end
  talweg consume flights --partition 3 --partition 5 --from 1000 --max 10
  talweg consume flights --from @2013-06-01T00:00:00Z --format value
  talweg consume flights --from latest --format key-value
  talweg consume flights --group billing --max 100")]
pub struct ConsumeArgs {
    /// Name of the topic.
    pub topic: String,
    /// Read this partition; may be repeated [default: all].
    #[arg(long, value_name = "P")]
    pub partition: Vec<u32>,
    /// earliest, latest, an offset, @RFC3339 or @milliseconds since 1970 (the first record at or after that time).
    #[arg(long, value_name = "WHERE", default_value = "earliest")]
    pub from: Start,
    /// Read as a member of this group: partitions are shared among its members, and each goes on at its committed offset.
    #[arg(long, value_name = "GROUP", conflicts_with = "partition")]
    pub group: Option<String>,
    /// When a member commits what it has printed.
    #[arg(long, value_enum, default_value = "batch", requires = "group")]
    pub commit: CommitMode,
    /// Stop after this many records.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max: Option<u64>,
    /// Stop when every partition has reached the end that it had at the start.
    #[arg(long)]
    pub until_end: bool,
    /// The rack to read in: an in-sync replica there serves, else the leader.
    #[arg(
        long,
        value_name = "RACK",
        default_value = "",
        hide_default_value = true
    )]
    pub rack: String,
    /// How to print a record.
    #[arg(long, value_enum, default_value = "json")]
    pub format: Format,
    /// Text between key and value in the key-value format [default: a tab].
    #[arg(
        long,
        value_name = "S",
        default_value = "\t",
        hide_default_value = true
    )]
    pub key_separator: String,
    /// What stands for a null key or value in the value and key-value formats.
    #[arg(long, value_name = "TEXT", default_value = "null")]
    pub null: String,
}

/// When a member commits.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitMode {
    /// After each record.
    Each,
    /// After each frame of records.
    Batch,
    /// Never.
    None,
}

/// How a record is printed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line.
    Json,
    /// The value's bytes and a line feed.
    Value,
    /// Key, separator, value and a line feed.
    KeyValue,
}

/// Where to begin in each partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The log start.
    Earliest,
    /// The high watermark: only what comes from now on.
    Latest,
    /// This offset, inclusive, not negative.
    Offset(i64),
    /// The first record at or after this, milliseconds since 1970.
    Time(i64),
}

impl FromStr for Start {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "earliest" => Ok(Self::Earliest),
            "latest" => Ok(Self::Latest),
            _ => match text.strip_prefix('@') {
                Some(time) => milliseconds(time).map(Self::Time),
                None => offset(text).map(Self::Offset),
            },
        }
    }
}

fn offset(text: &str) -> Result<i64, String> {
    let allowed = || "must be earliest, latest, an offset, @RFC3339 or @unix_ms".to_owned();
    let offset: i64 = text.parse().map_err(|_| allowed())?;
    if offset < 0 {
        Err(format!("offsets are not negative; {}", allowed()))
    } else {
        Ok(offset)
    }
}

pub fn milliseconds(text: &str) -> Result<i64, String> {
    if let Ok(ms) = text.parse::<i64>() {
        return if ms < 0 {
            Err("a time before 1970".into())
        } else {
            Ok(ms)
        };
    }
    let time = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| {
        "after '@' comes RFC 3339, such as 2013-06-01T00:00:00Z, or milliseconds".to_owned()
    })?;
    // Upwards: a record in the same millisecond but before the instant is not at or after it.
    let nanos = time.unix_timestamp_nanos();
    let ms = nanos.div_euclid(1_000_000) + i128::from(nanos.rem_euclid(1_000_000) > 0);
    match i64::try_from(ms) {
        Ok(ms) if ms >= 0 => Ok(ms),
        _ => Err("a time before 1970".into()),
    }
}

impl From<Start> for talweg_client::StartAt {
    fn from(start: Start) -> Self {
        match start {
            Start::Earliest => Self::Earliest,
            Start::Latest => Self::Latest,
            Start::Offset(offset) => Self::Offset(offset),
            Start::Time(ms) => Self::TimestampMs(ms),
        }
    }
}
