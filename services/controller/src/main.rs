//! `talweg-controller`: a controller as a process, with the embedded store.

use anyhow::Context;
use clap::Parser;
use std::{process::ExitCode, time::Duration};
use talweg_controller::{ControllerConfig, open_store, start};
use talweg_kit::{
    config::{CommonArgs, load},
    shutdown, telemetry,
};

/// The cluster's metadata: topics, leaders, nodes.
#[derive(Parser)]
#[command(name = "talweg-controller", version)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Folder of the embedded metadata store
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// gRPC address
    #[arg(long, value_name = "ADDR")]
    grpc: Option<String>,
    /// Address of health and metrics
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let flags = [
        ("data_dir", args.data_dir.clone()),
        ("grpc", args.grpc.clone()),
        ("http", args.http.clone()),
    ];
    let loaded = load::<ControllerConfig>(&args.common, &flags)?;
    if args.common.print_config {
        print!("{}", loaded.render());
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    let code = runtime.block_on(run(loaded.value));
    // The store's thread may hang on a disk; it must not hold the process.
    runtime.shutdown_background();
    code
}

async fn run(config: ControllerConfig) -> anyhow::Result<ExitCode> {
    let telemetry = telemetry::init("talweg-controller", &config.grpc, &config.telemetry)?;
    let code = serve(config).await;
    // An exporter that is gone must not hold the process.
    let _ = tokio::time::timeout(Duration::from_millis(300), telemetry.finish()).await;
    code
}

async fn serve(config: ControllerConfig) -> anyhow::Result<ExitCode> {
    let signal = shutdown::on_signals()?;
    let drain = Duration::from_millis(config.drain_ms);
    let store = open_store(&config).await?;
    let handle = start(config, store).await?;
    let (grpc, http) = (handle.grpc_addr(), handle.http_addr());
    tokio::select! {
        biased;
        () = signal.cancelled() => {}
        () = handle.wait_ready() => println!("talweg-controller ready grpc={grpc} http={http}"),
        error = handle.join() => anyhow::bail!("{error}"),
    }
    let code = tokio::select! {
        biased;
        () = signal.cancelled() => ExitCode::SUCCESS,
        error = handle.join() => {
            tracing::error!(%error, "this process must stop");
            ExitCode::FAILURE
        }
    };
    handle.stop(drain).await;
    Ok(code)
}
