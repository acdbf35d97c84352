//! `talweg-controller`: a controller as a process, with the embedded store.

use clap::Parser;
use std::time::Duration;
use talweg_controller::{ControllerConfig, open_store, start};
use talweg_kit::{config::CommonArgs, process, shutdown};

/// Frames of a mebibyte come and go all the time: glibc gives such memory back to
/// the kernel and faults it in again, which costs up to a third of a fetch.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The cluster's metadata: topics, leaders, nodes.
#[derive(Parser)]
#[command(name = "talweg-controller", version)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Folder of the embedded metadata store
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// URL of an etcd member; may repeat; without it the embedded store is used
    #[arg(long = "etcd", value_name = "URL")]
    etcd: Vec<String>,
    /// gRPC address
    #[arg(long, value_name = "ADDR")]
    grpc: Option<String>,
    /// Address of health and metrics
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
}

fn main() {
    let args = Args::parse();
    let flags = [
        ("data_dir", args.data_dir.clone()),
        (
            "etcd_endpoints",
            (!args.etcd.is_empty()).then(|| args.etcd.join(",")),
        ),
        ("grpc", args.grpc.clone()),
        ("http", args.http.clone()),
    ];
    process::run(
        "talweg-controller",
        &args.common,
        &flags,
        |config: &ControllerConfig| (&config.grpc, &config.telemetry),
        serve,
    )
}

async fn serve(config: ControllerConfig) -> anyhow::Result<bool> {
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
        () = signal.cancelled() => true,
        error = handle.join() => {
            tracing::error!(%error, "this process must stop");
            false
        }
    };
    handle.stop(drain).await;
    Ok(code)
}
