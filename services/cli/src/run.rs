//! From the words of the command line to an exit code.

use crate::{
    admin,
    args::{BenchCommand, Cli, Command, Globals, LogCommand},
    bench, consume, dlq,
    failure::Failure,
    group, produce, topic, tour,
};
use clap::Parser;
use std::ffi::OsString;

/// Runs one command: 0 done, 1 failed, 2 wrong usage.
pub fn run(words: impl IntoIterator<Item = OsString>) -> u8 {
    let words: Vec<OsString> = words.into_iter().collect();
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error, words.iter().any(|word| word == "--json")),
    };
    let globals = cli.globals;
    match execute(&globals, cli.command) {
        Ok(()) => 0,
        Err(failure) => failure.report(globals.json),
    }
}

/// Help and version are good ends; everything else is wrong usage.
fn refuse(error: &clap::Error, json: bool) -> u8 {
    if json && error.use_stderr() {
        let text = error.render().to_string();
        let message = text.trim_start_matches("error: ").trim().to_owned();
        return Failure::Usage(message).report(true);
    }
    // Where it was to be printed has gone: nobody to tell.
    drop(error.print());
    u8::try_from(error.exit_code()).unwrap_or(2)
}

fn execute(globals: &Globals, command: Command) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::local("threads", &error))?;
    let done = runtime.block_on(dispatch(globals, command));
    // A thread may sit in a read of standard input, which nothing can end.
    runtime.shutdown_background();
    done
}

async fn dispatch(globals: &Globals, command: Command) -> Result<(), Failure> {
    match command {
        Command::Dev(args) => dev(globals, args).await,
        Command::Topic(command) => topic::run(globals, command).await,
        Command::Produce(args) => produce::run(globals, args).await,
        Command::Consume(args) => consume::run(globals, args).await,
        Command::Group(command) => group::run(globals, command).await,
        Command::Dlq(command) => dlq::run(globals, command).await,
        Command::Log(command) => log(globals, command),
        Command::Bench(command) => bench(globals, command).await,
        Command::Cluster(command) => topic::cluster(globals, command).await,
        Command::Node(command) => admin::node(globals, command).await,
        Command::Partition(command) => admin::partition(globals, command).await,
        Command::Tour(command) => tour::run(globals, command).await,
    }
}

async fn bench(globals: &Globals, command: BenchCommand) -> Result<(), Failure> {
    bench::run(globals, command).await
}

#[cfg(feature = "dev")]
async fn dev(globals: &Globals, args: crate::args::DevArgs) -> Result<(), Failure> {
    crate::dev::run(globals, args).await
}

#[cfg(not(feature = "dev"))]
async fn dev(_: &Globals, _: crate::args::DevArgs) -> Result<(), Failure> {
    Err(without("dev"))
}

#[cfg(feature = "log")]
fn log(globals: &Globals, command: LogCommand) -> Result<(), Failure> {
    crate::log::run(globals, command)
}

#[cfg(not(feature = "log"))]
fn log(_: &Globals, _: LogCommand) -> Result<(), Failure> {
    Err(without("log"))
}

#[cfg(not(all(feature = "dev", feature = "log")))]
fn without(feature: &str) -> Failure {
    talweg_kit::errors::Refusal::not_built(format!(
        "this program was built without the feature {feature:?}, which this command needs"
    ))
    .into()
}
