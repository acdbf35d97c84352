//! `talweg topic`.

use super::Pair;
use clap::Subcommand;

/// About topics.
#[derive(Subcommand, Debug)]
pub enum TopicCommand {
    /// Create a topic and wait until its partitions have leaders.
    Create(CreateArgs),
    /// List all topics in name order.
    #[command(after_help = "Example:\n  talweg topic list --json")]
    List,
    /// Show a topic's partitions, leaders and bounds.
    #[command(after_help = "\
log start ≤ last stable ≤ high watermark ≤ log end. Log start is the first readable offset, the others are exclusive ends.

Example:
  talweg topic describe flights --json")]
    Describe {
        /// Name of the topic.
        name: String,
    },
    /// Add partitions or change settings.
    Alter(AlterArgs),
    /// Delete a topic and its records. The name is free afterwards.
    #[command(after_help = "Example:\n  talweg topic delete flights")]
    Delete {
        /// Name of the topic.
        name: String,
    },
    /// List every topic setting with type, unit, range, default and meaning.
    #[command(after_help = "Example:\n  talweg topic config-keys")]
    ConfigKeys,
}

/// A topic to create.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  talweg topic create flights --partitions 12 --config retention.ms=86400000 --config compression.type=lz4")]
pub struct CreateArgs {
    /// 1 to 249 of letters, digits, '.', '_' and '-'.
    pub name: String,
    /// Number of partitions [default: the cluster's].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub partitions: Option<i32>,
    /// Replicas of each partition [default: the cluster's].
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub replication_factor: Option<i32>,
    /// A setting, see `talweg topic config-keys`. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub config: Vec<Pair>,
}

/// What to change.
#[derive(clap::Args, Debug)]
#[command(
    group(clap::ArgGroup::new("change").required(true).multiple(true)),
    after_help = "\
More partitions move keys to other partitions; the answer warns of it.

Example:
  talweg topic alter flights --config retention.ms=3600000"
)]
pub struct AlterArgs {
    /// Name of the topic.
    pub name: String,
    /// New number of partitions; only growth is allowed.
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        group = "change"
    )]
    pub partitions: Option<i32>,
    /// A setting, see `talweg topic config-keys`. May be repeated.
    #[arg(long, value_name = "KEY=VALUE", group = "change")]
    pub config: Vec<Pair>,
    /// A setting to put back to its default. May be repeated.
    #[arg(long, value_name = "KEY", group = "change")]
    pub reset: Vec<String>,
}
