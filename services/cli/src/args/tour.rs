//! `talweg tour`: stories that are played on a cluster of their own.

use clap::Subcommand;
use std::path::PathBuf;

/// Which story.
#[derive(Subcommand, Debug)]
pub enum TourCommand {
    /// Three replicas, one cut off, one slow, and then the leader is killed.
    #[command(after_help = "\
Starts a controller, three storage nodes and a gateway as processes on free ports of this machine, with all data in a
temporary folder, and stops them at the end. The programs are looked for beside this one. Takes about half a minute:
the lagging replica leaves the in-sync set after replica.lag.time.max.ms (10 s).

Examples:
  talweg tour failover
  talweg tour failover --json --dir /var/tmp/tour --keep")]
    Failover(TourArgs),
}

/// Where a story is played.
#[derive(clap::Args, Clone, Debug)]
pub struct TourArgs {
    /// Folder for data and logs; must be missing or empty [default: a temporary one].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Leave data and logs when it went well; they always stay when it did not.
    #[arg(long)]
    pub keep: bool,
}
