//! `talweg-coordinator`: a coordinator as a process.

use clap::Parser;
use std::time::Duration;
use talweg_coordinator::{CoordinatorConfig, start};
use talweg_kit::{config::CommonArgs, process, shutdown};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Consumer groups and committed offsets.
#[derive(Parser)]
#[command(name = "talweg-coordinator", version)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Controller's URL; may repeat
    #[arg(long = "controller", value_name = "URL")]
    controllers: Vec<String>,
    /// gRPC address
    #[arg(long, value_name = "ADDR")]
    grpc: Option<String>,
    /// Address of health and metrics
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Folder of the view of the log
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
}

fn main() {
    let args = Args::parse();
    let controllers = (!args.controllers.is_empty()).then(|| args.controllers.join(","));
    let flags = [
        ("controllers", controllers),
        ("grpc", args.grpc.clone()),
        ("http", args.http.clone()),
        ("data_dir", args.data_dir.clone()),
    ];
    process::run(
        "talweg-coordinator",
        &args.common,
        &flags,
        |config: &CoordinatorConfig| (&config.grpc, &config.telemetry),
        serve,
    )
}

async fn serve(config: CoordinatorConfig) -> anyhow::Result<bool> {
    let signal = shutdown::on_signals()?;
    let drain = Duration::from_millis(config.drain_ms);
    let handle = start(config).await?;
    let (grpc, http) = (handle.grpc_addr(), handle.http_addr());
    tokio::select! {
        biased;
        () = signal.cancelled() => {}
        () = handle.wait_ready() => println!("talweg-coordinator ready grpc={grpc} http={http}"),
    }
    signal.cancelled().await;
    handle.stop(drain).await;
    Ok(true)
}
