//! What the `main` of every plane does, and how a process ends.

use crate::{
    config::{CommonArgs, ProcessConfig, load},
    telemetry::{self, TelemetryConfig},
};
use std::{fmt::Debug, io::Write, time::Duration};

/// An exporter that is gone must not hold the process.
const TELEMETRY_TIME: Duration = Duration::from_millis(300);

/// Loads the configuration (or prints it, if asked to), runs `serve` on a
/// runtime of its own and ends the process: with 0 after true, else with 1.
/// `instance` gives the instance's name and what it exports.
pub fn run<C, E, S>(
    name: &'static str,
    args: &CommonArgs,
    flags: &[(&str, Option<String>)],
    instance: fn(&C) -> (&str, &TelemetryConfig),
    serve: S,
) -> !
where
    C: ProcessConfig,
    E: Debug,
    S: AsyncFnOnce(C) -> Result<bool, E>,
{
    let loaded = match load::<C>(args, flags) {
        Ok(loaded) => loaded,
        Err(error) => fail(&error.to_string()),
    };
    if args.print_config {
        print!("{}", loaded.render());
        exit_now(0);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.unwrap_or_else(|error| fail(&format!("no runtime: {error}")));
    let served = runtime.block_on(async {
        let (instance, config) = instance(&loaded.value);
        let exporter = match telemetry::init(name, instance, config) {
            Ok(exporter) => exporter,
            Err(error) => fail(&error.to_string()),
        };
        let served = serve(loaded.value).await;
        let _ = tokio::time::timeout(TELEMETRY_TIME, exporter.finish()).await;
        served
    });
    match served {
        Ok(true) => exit_now(0),
        Ok(false) => exit_now(1),
        Err(error) => fail(&format!("{error:?}")),
    }
}

fn fail(why: &str) -> ! {
    eprintln!("Error: {why}");
    exit_now(1)
}

/// Ends the process at once with this status. What must be on disk is there
/// already: nothing is waited for, not even workers that hang on a disk, and no
/// destructor of a C++ library runs. RocksDB's static ones abort the process
/// when a thread is inside it at that moment.
#[allow(unsafe_code)]
pub fn exit_now(status: u8) -> ! {
    // A reader that has gone away is no reason to stay.
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().flush();
    // SAFETY: `_exit` takes any status, has no preconditions and does not return.
    unsafe { libc::_exit(i32::from(status)) }
}
