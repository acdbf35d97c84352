//! `talweg-storage`: a storage node as a process.

use anyhow::Context;
use clap::Parser;
use std::{process::ExitCode, time::Duration};
use talweg_kit::{
    config::{CommonArgs, load},
    shutdown, telemetry,
};
use talweg_storage::{StorageConfig, start};

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

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let list = |values: &[String]| (!values.is_empty()).then(|| values.join(","));
    let flags = [
        ("data_dirs", list(&args.data_dirs)),
        ("controllers", list(&args.controllers)),
        ("grpc", args.grpc.clone()),
        ("http", args.http.clone()),
    ];
    let loaded = load::<StorageConfig>(&args.common, &flags)?;
    if args.common.print_config {
        print!("{}", loaded.render());
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    let code = runtime.block_on(run(loaded.value));
    // Workers that hang on a disk must not hold the process.
    runtime.shutdown_background();
    code
}

async fn run(config: StorageConfig) -> anyhow::Result<ExitCode> {
    let telemetry = telemetry::init("talweg-storage", &config.grpc, &config.telemetry)?;
    let code = serve(config).await;
    // An exporter that is gone must not hold the process.
    let _ = tokio::time::timeout(Duration::from_millis(300), telemetry.finish()).await;
    code
}

async fn serve(config: StorageConfig) -> anyhow::Result<ExitCode> {
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
            Ok(ExitCode::SUCCESS)
        }
        stopped = handle.join() => {
            tracing::error!(%stopped, "this process must stop");
            handle.stop(Duration::ZERO).await;
            Ok(ExitCode::FAILURE)
        }
    }
}
