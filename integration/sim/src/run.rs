//! One seed, and many.

use crate::{Checked, Coverage, Plan, plan::FAULTS_MIN, world::World};
use std::{
    collections::BTreeSet,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// A smaller run says nothing.
const DELIVERED_MIN: u64 = 1_000;
const NODES_MIN: usize = 3;
const PARTITIONS_MIN: usize = 2;

/// What a seed did.
#[derive(Clone, Debug)]
pub struct Report {
    pub coverage: Coverage,
    /// The same for the same seed.
    pub trace: u64,
    pub steps: u64,
}

/// A seed that an oracle stopped.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub left_out: BTreeSet<usize>,
    /// Virtual milliseconds.
    pub at: u64,
    pub why: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let without: Vec<_> = self.left_out.iter().map(usize::to_string).collect();
        write!(f, "seed {}", self.seed)?;
        if !without.is_empty() {
            write!(f, " without {}", without.join(","))?;
        }
        write!(f, ", at {} ms: {}", self.at, self.why)
    }
}

/// Runs a seed with all of its faults.
///
/// # Errors
/// What an oracle found.
pub fn run(seed: u64) -> Result<Report, Failure> {
    run_without(seed, &BTreeSet::new())
}

/// Runs a seed without some of its faults, by number.
///
/// # Errors
/// What an oracle found, a panic included.
pub fn run_without(seed: u64, left_out: &BTreeSet<usize>) -> Result<Report, Failure> {
    let plan = Plan::of(seed).without(left_out);
    let mut world = World::new(plan);
    let result = catch_unwind(AssertUnwindSafe(|| through(&mut world)));
    let result = match result {
        Ok(result) => result,
        Err(panic) => Err(format!("a broken invariant: {}", text_of(panic.as_ref()))),
    };
    match result {
        Ok(()) => Ok(Report {
            coverage: world.coverage.clone(),
            trace: world.trace,
            steps: world.steps,
        }),
        Err(why) => Err(Failure {
            seed,
            left_out: left_out.clone(),
            at: world.now,
            why,
        }),
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default()
}

fn through(world: &mut World) -> Checked {
    world.begin()?;
    let end = world.now + world.plan.storm;
    world.run_until(end)?;
    world.heal()?;
    let partitions = world.partitions().len();
    if world.nodes.len() < NODES_MIN || partitions < PARTITIONS_MIN {
        return Err(format!(
            "too small: {} nodes, {partitions} partitions",
            world.nodes.len()
        ));
    }
    if world.plan.faults.len() >= FAULTS_MIN && world.coverage.delivered < DELIVERED_MIN {
        return Err(format!(
            "too quiet: {} messages delivered",
            world.coverage.delivered
        ));
    }
    Ok(())
}

/// What many seeds did.
#[derive(Debug)]
pub struct Many {
    pub seeds: u64,
    pub coverage: Coverage,
    /// In the order of their seeds; at most as many as were asked for.
    pub failures: Vec<Failure>,
}

/// Runs seeds from `from` to `to` (exclusive) on some threads, until so many have failed.
pub fn run_many(
    from: u64,
    to: u64,
    threads: usize,
    failures_max: usize,
    progress: impl Fn(u64) + Sync,
) -> Many {
    let next = AtomicU64::new(from);
    let stop = AtomicBool::new(false);
    let all = Mutex::new((0, Coverage::default(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= to {
                        return;
                    }
                    let result = run(seed);
                    let Ok(mut all) = all.lock() else { return };
                    all.0 += 1;
                    match result {
                        Ok(report) => all.1.merge(&report.coverage),
                        Err(failure) => all.2.push(failure),
                    }
                    stop.fetch_or(all.2.len() >= failures_max, Ordering::Relaxed);
                    progress(all.0);
                }
            });
        }
    });
    let (seeds, coverage, mut failures) = all.into_inner().unwrap_or_default();
    failures.sort_by_key(|failure: &Failure| failure.seed);
    Many {
        seeds,
        coverage,
        failures,
    }
}
