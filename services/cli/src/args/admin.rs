//! Nodes and replicas, for operators.

use super::value::named_partition;
use clap::Subcommand;

/// About one node.
#[derive(Subcommand, Debug)]
pub enum NodeCommand {
    /// Move all leaders off a node; it keeps its replicas and gets no new ones.
    #[command(after_help = "Example:\n  talweg node drain 3")]
    Drain {
        /// The node's id (talweg cluster describe shows it).
        #[arg(value_name = "ID")]
        node: u32,
    },
    /// Take a drain back.
    #[command(after_help = "Example:\n  talweg node undrain 3")]
    Undrain {
        /// The node's id.
        #[arg(value_name = "ID")]
        node: u32,
    },
    /// Forget a node that holds no replica. Its id is never given out again.
    #[command(after_help = "Example:\n  talweg node remove 3")]
    Remove {
        /// The node's id.
        #[arg(value_name = "ID")]
        node: u32,
    },
}

/// A partition by its topic and number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedPartition {
    /// The topic's name.
    pub topic: String,
    /// The partition's number.
    pub partition: u32,
}

/// About one partition.
#[derive(Subcommand, Debug)]
pub enum PartitionCommand {
    /// Move a partition's replicas to other nodes; it is served meanwhile.
    #[command(after_help = "\
The same move given again with another --throttle takes it from then on.

Example:
  talweg partition reassign orders:0 --to 1,2,4 --throttle 50000000 --wait")]
    Reassign {
        /// The partition, as TOPIC:NUMBER.
        #[arg(value_name = "TOPIC:P", value_parser = named_partition)]
        partition: NamedPartition,
        /// Ids of the nodes that shall hold it; the first one is the preferred leader.
        #[arg(long, value_name = "ID,...", value_delimiter = ',', required = true)]
        to: Vec<u32>,
        /// Bytes per second that the copy to each new node may take; 0 is no limit.
        #[arg(long, value_name = "BYTES_PER_S", default_value_t = 0)]
        throttle: u64,
        /// Show progress and return when it is done.
        #[arg(long)]
        wait: bool,
    },
    /// Show the moves that are under way.
    #[command(after_help = "Example:\n  talweg partition status --json")]
    Status,
    /// Stop the move of a partition and take back what it has added.
    #[command(after_help = "Example:\n  talweg partition cancel orders:0")]
    Cancel {
        /// The partition, as TOPIC:NUMBER.
        #[arg(value_name = "TOPIC:P", value_parser = named_partition)]
        partition: NamedPartition,
    },
    /// Elect a leader now: the preferred one, or with --unclean the best that lives.
    #[command(after_help = "Example:\n  talweg partition elect orders:0 --unclean")]
    Elect {
        /// The partition, as TOPIC:NUMBER.
        #[arg(value_name = "TOPIC:P", value_parser = named_partition)]
        partition: NamedPartition,
        /// Although acknowledged records may be lost.
        #[arg(long)]
        unclean: bool,
    },
}
