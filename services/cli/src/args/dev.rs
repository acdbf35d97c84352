//! `talweg dev`.

use std::{net::SocketAddr, path::PathBuf};

/// Every plane in one process.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Everything binds to loopback unless told otherwise. Stop with Ctrl-C or SIGTERM: streams are drained and data is
flushed, in at most five seconds. A kill -9 loses nothing that was acknowledged.

Examples:
  talweg dev
  talweg dev --data-dir /var/tmp/talweg --grpc 127.0.0.1:0 --http 127.0.0.1:0")]
pub struct DevArgs {
    /// Where everything is kept. Made when missing; one process at a time.
    #[arg(long, default_value = "talweg-data", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Address of the gateway's gRPC; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:7070", value_name = "ADDR")]
    pub grpc: SocketAddr,
    /// Address of the gateway's HTTP; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:7080", value_name = "ADDR")]
    pub http: SocketAddr,
}
