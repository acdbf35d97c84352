//! `talweg-gateway`: a gateway as a process.

use anyhow::Context;
use clap::Parser;
use std::{process::ExitCode, time::Duration};
use talweg_gateway::{GatewayConfig, start};
use talweg_kit::{
    config::{CommonArgs, load},
    shutdown, telemetry,
};

/// Terminates client streams and routes them to partition leaders.
#[derive(Parser)]
#[command(name = "talweg-gateway", version)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Controller's URL; may repeat
    #[arg(long = "controller", value_name = "URL")]
    controllers: Vec<String>,
    /// gRPC address
    #[arg(long, value_name = "ADDR")]
    grpc: Option<String>,
    /// Address of the JSON API, health and metrics
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let controllers = (!args.controllers.is_empty()).then(|| args.controllers.join(","));
    let flags = [
        ("controllers", controllers),
        ("grpc", args.grpc.clone()),
        ("http", args.http.clone()),
    ];
    let loaded = load::<GatewayConfig>(&args.common, &flags)?;
    if args.common.print_config {
        print!("{}", loaded.render());
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    let code = runtime.block_on(run(loaded.value));
    runtime.shutdown_background();
    code
}

async fn run(config: GatewayConfig) -> anyhow::Result<ExitCode> {
    let telemetry = telemetry::init("talweg-gateway", &config.grpc, &config.telemetry)?;
    let code = serve(config).await;
    // An exporter that is gone must not hold the process.
    let _ = tokio::time::timeout(Duration::from_millis(300), telemetry.finish()).await;
    code
}

async fn serve(config: GatewayConfig) -> anyhow::Result<ExitCode> {
    let signal = shutdown::on_signals()?;
    let drain = Duration::from_millis(config.drain_ms);
    let handle = start(config).await?;
    let (grpc, http) = (handle.grpc_addr(), handle.http_addr());
    tokio::select! {
        biased;
        () = signal.cancelled() => {}
        () = handle.wait_ready() => println!("talweg-gateway ready grpc={grpc} http={http}"),
    }
    signal.cancelled().await;
    handle.stop(drain).await;
    Ok(ExitCode::SUCCESS)
}
