//! A storage node whose logs lie on a file system that forgets what was never
//! flushed: kill -9 of this process is a power loss. For tests; the settings are
//! those of `talweg-storage`, given with `--set`.

use clap::Parser;
use std::time::Duration;
use talweg_kit::{config::CommonArgs, process, shutdown};
use talweg_storage::{StorageConfig, start_losing_power};

/// A node that loses power when it is killed.
#[derive(Parser)]
#[command(name = "talweg-storage-power-loss")]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
}

fn main() {
    process::run(
        "talweg-storage",
        &Args::parse().common,
        &[],
        |config: &StorageConfig| (&config.grpc, &config.telemetry),
        serve,
    )
}

async fn serve(config: StorageConfig) -> anyhow::Result<bool> {
    let signal = shutdown::on_signals()?;
    let drain = Duration::from_millis(config.drain_ms);
    let handle = start_losing_power(config).await?;
    tokio::select! {
        biased;
        () = signal.cancelled() => {}
        () = handle.wait_ready() => println!("talweg-storage ready node_id={}", handle.node_id()),
        stopped = handle.join() => anyhow::bail!("{stopped}"),
    }
    tokio::select! {
        biased;
        () = signal.cancelled() => {
            handle.stop(drain).await;
            Ok(true)
        }
        stopped = handle.join() => anyhow::bail!("{stopped}"),
    }
}
