//! `talweg bench`: throughput and latency of a cluster, with the CPU time of
//! everything on this machine that takes part, and the baselines beside which
//! the figures stand.

mod cpu;
mod fetch;
mod latency;
mod pace;
mod payload;
mod produce;
mod raw;
mod report;
mod sender;
mod stream;
mod topic;

use crate::{
    args::{BenchCommand, Globals},
    failure::Failure,
    out,
};
use report::Report;
use std::io;
use talweg_kit::errors::Refusal;

/// Runs one measurement and prints what it found.
pub async fn run(globals: &Globals, command: BenchCommand) -> Result<(), Failure> {
    let report = match command {
        BenchCommand::Produce(args) => produce::run(globals, &args).await?,
        BenchCommand::Fetch(args) => fetch::run(globals, &args).await?,
        BenchCommand::Latency(args) => latency::run(globals, &args).await?,
        BenchCommand::Raw(args) => blocking(move || raw::raw(&args)).await?,
        BenchCommand::Probe(args) => blocking(move || raw::probe(&args)).await?,
        BenchCommand::Stream(args) => stream::run(&args).await?,
        BenchCommand::StreamServe(args) => return stream::serve(&args).await,
    };
    out::print(globals.json, &report.json(), || report.text())
}

async fn blocking(
    work: impl FnOnce() -> io::Result<Report> + Send + 'static,
) -> Result<Report, Failure> {
    let done = tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Refusal::internal(error.to_string()))?;
    done.map_err(|error| Failure::local("the folder", &error))
}
