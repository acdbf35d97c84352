//! `talweg-gateway`: a gateway as a process.

use clap::Parser;
use std::time::Duration;
use talweg_gateway::{GatewayConfig, start};
use talweg_kit::{config::CommonArgs, process, shutdown};

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

fn main() {
    let args = Args::parse();
    let controllers = (!args.controllers.is_empty()).then(|| args.controllers.join(","));
    let flags = [
        ("controllers", controllers),
        ("grpc", args.grpc.clone()),
        ("http", args.http.clone()),
    ];
    process::run(
        "talweg-gateway",
        &args.common,
        &flags,
        |config: &GatewayConfig| (&config.grpc, &config.telemetry),
        serve,
    )
}

async fn serve(config: GatewayConfig) -> anyhow::Result<bool> {
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
    Ok(true)
}
