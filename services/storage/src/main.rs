//! `talweg-storage`: a storage node as a process.

use clap::Parser;
use std::time::Duration;
use talweg_kit::{config::CommonArgs, process, shutdown};
use talweg_storage::{StorageConfig, start};

/// Frames of a mebibyte come and go all the time: glibc gives such memory back to
/// the kernel and faults it in again, which costs up to a third of a fetch.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A node that keeps partition logs.
#[derive(Parser)]
#[command(name = "talweg-storage", version)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Log folder; may repeat, best one a disk
    #[arg(long = "data-dir", value_name = "DIR")]
    data_dirs: Vec<String>,
    /// Controller's URL; may repeat
    #[arg(long = "controller", value_name = "URL")]
    controllers: Vec<String>,
    /// gRPC address
    #[arg(long, value_name = "ADDR")]
    grpc: Option<String>,
    /// Address of health and metrics
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
}

fn main() {
    let args = Args::parse();
    let list = |values: &[String]| (!values.is_empty()).then(|| values.join(","));
    let flags = [
        ("data_dirs", list(&args.data_dirs)),
        ("controllers", list(&args.controllers)),
        ("grpc", args.grpc.clone()),
        ("http", args.http.clone()),
    ];
    process::run(
        "talweg-storage",
        &args.common,
        &flags,
        |config: &StorageConfig| (&config.grpc, &config.telemetry),
        serve,
    )
}

async fn serve(config: StorageConfig) -> anyhow::Result<bool> {
    let signal = shutdown::on_signals()?;
    let drain = Duration::from_millis(config.drain_ms);
    let handle = start(config).await?;
    let (grpc, http) = (handle.grpc_addr(), handle.http_addr());
    tokio::select! {
        biased;
        () = signal.cancelled() => {}
        () = handle.wait_ready() => {
            println!("talweg-storage ready grpc={grpc} http={http} node_id={}", handle.node_id());
        }
        stopped = handle.join() => anyhow::bail!("{stopped}"),
    }
    tokio::select! {
        biased;
        () = signal.cancelled() => {
            handle.stop(drain).await;
            Ok(true)
        }
        stopped = handle.join() => {
            tracing::error!(%stopped, "this process must stop");
            handle.stop(Duration::ZERO).await;
            Ok(false)
        }
    }
}
