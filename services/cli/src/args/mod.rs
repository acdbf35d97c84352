//! The command line as a type. What parses is a request that makes sense by
//! itself; whether the cluster agrees is found out later. Wrong usage is exit
//! code 2 and never reaches the network.

mod admin;
mod bench;
mod consume;
mod dev;
mod group;
mod log;
mod produce;
mod topic;
mod tour;
mod value;

pub use admin::{NamedPartition, NodeCommand, PartitionCommand};
pub use bench::{
    BenchCommand, BenchForm, FetchBench, LatencyBench, Load, ProbeBench, ProcessPid, ProduceBench,
    RawBench, StreamBench, StreamServe,
};
pub use consume::{CommitMode, ConsumeArgs, Format, Start};
pub use dev::DevArgs;
pub use group::{DlqCommand, GroupCommand, LagArgs, ReplayArgs, ResetArgs, ResetTo};
pub use log::{DumpArgs, LogCommand, LookupArgs};
pub use produce::ProduceArgs;
pub use topic::{AlterArgs, CreateArgs, TopicCommand};
pub use tour::{TourArgs, TourCommand};
pub use value::{Bootstrap, Pair};

use clap::{Parser, Subcommand};

/// Talweg's command line.
#[derive(Parser, Debug)]
#[command(
    name = "talweg",
    version,
    about = "Talweg: a partitioned, replicated log, gRPC from end to end",
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage.\n\n\
        Start here:\n  \
        talweg dev                                  a whole cluster in this process\n  \
        talweg topic create hello --partitions 3\n  \
        echo 'world' | talweg produce hello\n  \
        talweg consume hello --until-end",
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(clap::Args, Clone, Debug)]
pub struct Globals {
    /// Gateways to begin with, separated by commas.
    #[arg(
        short,
        long,
        global = true,
        env = "TALWEG_BOOTSTRAP",
        default_value = "http://127.0.0.1:7070",
        value_name = "URL"
    )]
    pub bootstrap: Bootstrap,
    /// Results as JSON on standard output, errors as JSON on standard error.
    #[arg(long, global = true)]
    pub json: bool,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run every plane in this process, with data in one folder.
    Dev(DevArgs),
    /// Create, list, describe, alter and delete topics.
    #[command(subcommand)]
    Topic(TopicCommand),
    /// Append records, one a line, from standard input or a file.
    Produce(ProduceArgs),
    /// Read records and print them, one a line.
    Consume(ConsumeArgs),
    /// Consumer groups: members, offsets, lag.
    #[command(subcommand)]
    Group(GroupCommand),
    /// Records that failed: list them, put them back, delete them.
    #[command(subcommand)]
    Dlq(DlqCommand),
    /// Look into log files without a server. Never changes them.
    #[command(subcommand)]
    Log(LogCommand),
    /// Measure throughput and latency.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// What the cluster is made of.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Drain, undrain and remove storage nodes.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Move replicas and elect leaders.
    #[command(subcommand)]
    Partition(PartitionCommand),
    /// Play a story on a small cluster of its own, and see what the promises mean.
    #[command(subcommand)]
    Tour(TourCommand),
}

/// About the cluster.
#[derive(Subcommand, Debug)]
pub enum ClusterCommand {
    /// Show the controller and every registered node.
    #[command(after_help = "Example:\n  talweg cluster describe --json")]
    Describe,
    /// Even out replicas and leaders over nodes and racks.
    Balance(BalanceArgs),
}

/// How to balance.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Replicas go onto new nodes and off draining ones; each partition stays in as many racks as it can.
It goes on when this command is stopped, and over a change of controllers; given again it joins.

Example:
  talweg cluster balance --execute --throttle 50000000")]
pub struct BalanceArgs {
    /// Show the moves and their bytes, and change nothing [default].
    #[arg(long)]
    pub plan: bool,
    /// Carry the moves out, a few at a time, and show progress.
    #[arg(long, conflicts_with = "plan")]
    pub execute: bool,
    /// Begin no more moves; those under way go on.
    #[arg(long, conflicts_with_all = ["plan", "execute", "throttle"])]
    pub stop: bool,
    /// Bytes per second of all copies together; 0 is no limit.
    #[arg(long, value_name = "BYTES_PER_S", default_value_t = 0)]
    pub throttle: u64,
}

#[cfg(test)]
mod tests;
