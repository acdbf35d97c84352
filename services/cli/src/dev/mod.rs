//! `talweg dev`: every plane in one process, data in one folder.
//!
//! The same code as the processes run, each plane started as a library, with
//! real connections between them. The gateway is where it was asked for, the
//! inner planes are on loopback ports that nobody needs to know.
//!
//! ```text
//! <data-dir>/lock          held by one process (the kernel lets go of it)
//! <data-dir>/controller    metadata, embedded
//! <data-dir>/storage       partition logs, their index, the node's identity
//! ```
//! Stopping is bounded: clients are drained first, while storage still answers
//! what was accepted; then logs are flushed and marked clean. What takes longer
//! than [`STOP`] is given up, which costs a recovery and loses nothing.

mod lock;
mod planes;

use crate::{
    args::{DevArgs, Globals},
    failure::Failure,
    out,
};
use lock::FolderLock;
use planes::Planes;
use serde_json::json;
use std::time::{Duration, Instant};
use talweg_kit::{
    errors::Refusal,
    shutdown,
    telemetry::{self, TelemetryConfig},
};
use tokio::time::timeout;

/// From the signal to the end.
const STOP: Duration = Duration::from_millis(4_800);
/// For a start that is under way when the signal comes.
const START_WHEN_STOPPED: Duration = Duration::from_millis(2_500);
/// For the exporter of spans, within it.
const TELEMETRY_END: Duration = Duration::from_millis(100);

/// Runs until SIGTERM or SIGINT, or until a plane cannot go on.
pub async fn run(globals: &Globals, args: DevArgs) -> Result<(), Failure> {
    let begun = Instant::now();
    let _lock = FolderLock::take(&args.data_dir)?;
    let telemetry = telemetry::init("talweg-dev", &args.grpc.to_string(), &telemetry_config())
        .map_err(|error| Refusal::invalid("telemetry", error.to_string()))?;
    let stop = shutdown::on_signals().map_err(|error| Failure::local("signals", &error))?;
    let starting = Planes::start(&args);
    tokio::pin!(starting);
    let planes = tokio::select! {
        biased;
        planes = &mut starting => planes?,
        // What has begun to start is let in and taken down in order, if that can be had in time.
        () = stop.cancelled() => {
            if let Ok(planes) = timeout(START_WHEN_STOPPED, starting).await {
                stop_in_time(planes?).await;
            }
            return Ok(());
        }
    };
    announce(globals, &args, &planes, begun)?;
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        why = planes.failed() => Err(why),
    };
    stop_in_time(planes).await;
    // An exporter that is gone must not hold the process.
    drop(timeout(TELEMETRY_END, telemetry.finish()).await);
    ended.map_err(Failure::from)
}

async fn stop_in_time(planes: Planes) {
    if timeout(STOP, planes.stop()).await.is_err() {
        tracing::warn!("not everything ended in time; the next start recovers the logs");
    }
}

/// Only what a person at the terminal wants to see, unless RUST_LOG asks for more.
fn telemetry_config() -> TelemetryConfig {
    let log_filter = std::env::var("RUST_LOG").unwrap_or_else(|_| "warn".into());
    let otlp_endpoint = std::env::var("OTEL_EXPORTER_OTLP_ENDPOINT").unwrap_or_default();
    TelemetryConfig {
        log_filter,
        otlp_endpoint,
        ..TelemetryConfig::default()
    }
}

fn announce(
    globals: &Globals,
    args: &DevArgs,
    planes: &Planes,
    begun: Instant,
) -> Result<(), Failure> {
    let (grpc, http) = (planes.grpc(), planes.http());
    let data = args.data_dir.display();
    let value = json!({ "ready": {
        "grpc": format!("http://{grpc}"),
        "http": format!("http://{http}"),
        "storage": format!("http://{}", planes.storage()),
        "controller": format!("http://{}", planes.controller()),
        "data_dir": data.to_string(),
        "started_ms": begun.elapsed().as_millis() as u64,
    }});
    let bootstrap = if grpc.port() == 7070 {
        String::new()
    } else {
        format!(" -b http://{grpc}")
    };
    let told = out::print(globals.json, &value, || {
        format!(
            "talweg dev ready grpc={grpc} http={http} data={data} ({} ms)\n\
             inner planes: controller {}, storage {}\n\n\
             Try, in another terminal:\n  \
             talweg{bootstrap} topic create hello --partitions 3\n  \
             echo 'ada:first' | talweg{bootstrap} produce hello --key-separator :\n  \
             talweg{bootstrap} consume hello --until-end\n  \
             curl -s http://{http}/v1/topics/hello\n\
             Stop with Ctrl-C.\n",
            begun.elapsed().as_millis(),
            planes.controller(),
            planes.storage(),
        )
    });
    match told {
        // Nobody reads it; the cluster is there all the same.
        Err(Failure::OutputClosed) => Ok(()),
        other => other,
    }
}
