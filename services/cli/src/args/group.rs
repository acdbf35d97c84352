//! `talweg group` and `talweg dlq`.

use super::consume::milliseconds;
use clap::Subcommand;
use std::str::FromStr;

/// About consumer groups.
#[derive(Subcommand, Debug)]
pub enum GroupCommand {
    /// List all groups in name order.
    #[command(after_help = "Example:\n  talweg group list --json")]
    List,
    /// Show a group's members, what they own, and its committed offsets.
    #[command(after_help = "Example:\n  talweg group describe billing --json")]
    Describe {
        /// The group.
        group: String,
    },
    /// Show how far a group is behind, in records, bytes and time.
    Lag(LagArgs),
    /// Move the committed offsets of a group without members; shows what would change unless --execute is given.
    Reset(ResetArgs),
    /// Forget committed offsets of partitions that no member owns.
    #[command(after_help = "Example:\n  talweg group forget billing --topic orders --partition 3")]
    Forget {
        /// The group.
        group: String,
        /// The topic.
        #[arg(long)]
        topic: String,
        /// Only this partition; may be repeated [default: all].
        #[arg(long, value_name = "P")]
        partition: Vec<u32>,
    },
    /// Delete a group without members, and its committed offsets.
    #[command(after_help = "Example:\n  talweg group delete billing")]
    Delete {
        /// The group.
        group: String,
    },
}

/// Whose lag.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Lag is counted from the committed offset, or from the log start if that is higher, to the end that consumers see. Seconds are the
age of the oldest unread record. seconds_to_loss is the time until retention takes it at the present pace.

Examples:
  talweg group lag billing
  talweg group lag billing --topic orders --watch
  talweg group lag billing --json")]
pub struct LagArgs {
    /// The group.
    pub group: String,
    /// Only this topic.
    #[arg(long)]
    pub topic: Option<String>,
    /// Show it again and again; with --json one line each time.
    #[arg(long)]
    pub watch: bool,
    /// Milliseconds between two looks.
    #[arg(long, value_name = "MS", default_value_t = 1_000, requires = "watch",
          value_parser = clap::value_parser!(u32).range(100..=3_600_000))]
    pub interval: u32,
}

/// Where to move committed offsets.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  talweg group reset billing --topic orders --to earliest
  talweg group reset billing --topic orders --to @2013-06-01T00:00:00Z --execute
  talweg group reset billing --topic orders --to -100 --execute")]
pub struct ResetArgs {
    /// The group; it must have no members.
    pub group: String,
    /// The topic, all its partitions.
    #[arg(long)]
    pub topic: String,
    /// earliest, latest, an offset, @RFC3339 or @milliseconds since 1970, +N or -N records from where it stands.
    #[arg(long, value_name = "WHERE", allow_hyphen_values = true)]
    pub to: ResetTo,
    /// Do it. Without this only what would change is shown.
    #[arg(long)]
    pub execute: bool,
}

/// Where committed offsets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetTo {
    /// The log start.
    Earliest,
    /// The high watermark.
    Latest,
    /// This offset, kept within the log.
    Offset(i64),
    /// The first record at or after this, milliseconds since 1970.
    Time(i64),
    /// So many records on, or back if negative.
    Shift(i64),
}

impl FromStr for ResetTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || "must be earliest, latest, an offset, @RFC3339, @unix_ms, +N or -N".to_owned();
        match (text, text.chars().next()) {
            ("earliest", _) => Ok(Self::Earliest),
            ("latest", _) => Ok(Self::Latest),
            (_, Some('@')) => milliseconds(&text[1..]).map(Self::Time),
            (_, Some('+' | '-')) => text.parse().map(Self::Shift).map_err(|_| wrong()),
            _ => text.parse().map(Self::Offset).map_err(|_| wrong()),
        }
    }
}

/// About dead-letter topics.
#[derive(Subcommand, Debug)]
pub enum DlqCommand {
    /// List dead-letter topics with their sources, groups and record counts.
    #[command(after_help = "Example:\n  talweg dlq list --group billing")]
    List {
        /// Only those of this group.
        #[arg(long)]
        group: Option<String>,
    },
    /// Put dead letters back into their source topic, each once.
    Replay(ReplayArgs),
    /// Delete all records of a dead-letter topic.
    #[command(after_help = "Example:\n  talweg dlq purge orders.billing.dlq --execute")]
    Purge {
        /// The dead-letter topic.
        topic: String,
        /// Do it. Without this only the number of records is shown.
        #[arg(long)]
        execute: bool,
    },
}

/// Which dead letters go back.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
A record goes back to its partition with its key, value and own headers. How far it has got is kept as committed
offsets of the group dlq-replay.<TOPIC ID>, as long as the topic lives, so that the next replay goes on behind it;
delete that group to begin again.

Example:
  talweg dlq replay orders.billing.dlq --max 100")]
pub struct ReplayArgs {
    /// The dead-letter topic.
    pub topic: String,
    /// At most so many records.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_reset_goes() {
        for (text, to) in [
            ("earliest", ResetTo::Earliest),
            ("latest", ResetTo::Latest),
            ("0", ResetTo::Offset(0)),
            ("@12", ResetTo::Time(12)),
            ("@1970-01-01T00:00:01Z", ResetTo::Time(1_000)),
            ("+5", ResetTo::Shift(5)),
            ("-5", ResetTo::Shift(-5)),
        ] {
            assert_eq!(text.parse(), Ok(to), "{text}");
        }
        for wrong in ["", "soon", "@soon", "+", "-x", "5x", "@"] {
            assert!(wrong.parse::<ResetTo>().is_err(), "{wrong}");
        }
    }
}
