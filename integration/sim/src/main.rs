//! `talweg-sim`: many seeds, or one of them.

use clap::Parser;
use std::{collections::BTreeSet, process::ExitCode, time::Instant};
use talweg_sim::{Plan, run_many, run_without, shrink};

/// Runs a whole cluster in one process, seed after seed.
#[derive(Parser)]
struct Args {
    /// How many seeds.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Side by side.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Only this seed; TALWEG_SIM_LOG=1 tells what happens in it.
    #[arg(long)]
    seed: Option<u64>,
    /// Without these faults of the seed, by number.
    #[arg(long, value_delimiter = ',')]
    without: Vec<usize>,
    /// Stop after so many failures.
    #[arg(long, default_value_t = 3)]
    failures: usize,
    /// Do not look for fewer faults with which a seed still fails.
    #[arg(long)]
    no_shrink: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match args.seed {
        Some(seed) => one(seed, &args.without.into_iter().collect()),
        None => many(&args),
    }
}

fn one(seed: u64, left_out: &BTreeSet<usize>) -> ExitCode {
    println!("{:#?}", Plan::of(seed).without(left_out));
    match run_without(seed, left_out) {
        Ok(report) => {
            println!(
                "{}{:>12}  steps\ntrace {:016x}",
                report.coverage, report.steps, report.trace
            );
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn many(args: &Args) -> ExitCode {
    let begun = Instant::now();
    let progress = |done: u64| {
        if done.is_multiple_of(1_000) {
            let rate = done as f64 * 60.0 / begun.elapsed().as_secs_f64();
            let left = (args.seeds - done) as f64 / rate;
            println!("{done} seeds, {rate:.0} a minute, {left:.1} minutes left");
        }
    };
    // A broken invariant is told once, with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let many = run_many(
        args.from,
        args.from + args.seeds,
        args.threads,
        args.failures,
        progress,
    );
    let seconds = begun.elapsed().as_secs_f64();
    print!("{}", many.coverage);
    println!(
        "{} seeds in {seconds:.0} s, {:.0} a minute",
        many.seeds,
        many.seeds as f64 * 60.0 / seconds
    );
    for failure in &many.failures {
        println!("FAILED {failure}");
        if !args.no_shrink {
            println!("  shrunk to {}", shrink(failure));
        }
    }
    let missing = many.coverage.missing();
    if !missing.is_empty() {
        println!("FAILED: never happened: {}", missing.join(", "));
    }
    match many.failures.is_empty() && missing.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
