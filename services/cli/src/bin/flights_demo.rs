//! `flights-demo`: what `make demo` runs. Exit code 0 means that the proof holds.

use clap::Parser;
use std::process::ExitCode;
use talweg::flights::{DemoArgs, run};

#[tokio::main]
async fn main() -> ExitCode {
    match run(DemoArgs::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flights-demo failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}
