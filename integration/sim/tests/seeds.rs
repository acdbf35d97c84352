//! The short run: part of every `cargo test`. `deploy/soak/run` and
//! `talweg-sim --seeds` run more.

use talweg_sim::{Plan, run, run_many};

/// Seeds of the short run.
const SEEDS: u64 = 400;
/// The coverage that a run must have needs so many.
const FROM: u64 = 0;

/// Story: nothing that is always true is ever broken, and the run went through
/// everything that matters.
#[test]
fn a_few_hundred_seeds_are_clean_and_go_through_everything() {
    let many = run_many(FROM, FROM + SEEDS, 2, 5, |_| {});
    print!("{}", many.coverage);
    let failures: Vec<_> = many.failures.iter().map(ToString::to_string).collect();
    assert!(
        failures.is_empty(),
        "failing seeds:\n{}",
        failures.join("\n")
    );
    assert_eq!(
        many.coverage.missing(),
        Vec::<&str>::new(),
        "never happened"
    );
}

/// Story: a failing seed is worth something only if it fails again.
#[test]
fn the_same_seed_gives_the_same_trace_and_another_one_does_not() {
    let trace = |seed| run(seed).expect("clean").trace;
    let mut all: Vec<_> = (0..8).map(|seed| (seed, trace(seed))).collect();
    for (seed, first) in &all {
        assert_eq!(trace(*seed), *first, "seed {seed}");
    }
    all.dedup_by_key(|(_, trace)| *trace);
    assert_eq!(all.len(), 8);
}

/// Seeds that once failed, and what was wrong then.
const KEPT: &[(u64, &str)] = &[
    (
        187,
        "a log not recovered since a power loss was taken for whole by the process after next",
    ),
    (198, "the same, with unflushed records lost and none cut"),
    (
        231,
        "a log start that was durable above the log's end left a hole below the flushed end",
    ),
    (339, "the same, with the copy stuck at the hole"),
    (
        1221,
        "a log of which nothing survived was cut at its next start",
    ),
    (
        15833,
        "a late copy from under a producer's earlier id was taken for disorder",
    ),
    (
        200159,
        "a proposal that was refused came again and was applied",
    ),
    (202234, "the same"),
    (
        201478,
        "files below a log start that outlived them were taken for the log",
    ),
    (
        304_101,
        "a leader that was paused while its log was opened took the order to lead for a word of now",
    ),
    (
        313_438,
        "a disk that failed while a deleted log began anew; the oracle asked for the deleted records",
    ),
    (
        303_606,
        "a follower did not begin anew below its watermark in a recovered epoch, although it may cut there",
    ),
    (
        310_809,
        "histories parted below a follower's log start, and it cut to its log start for ever",
    ),
];

#[test]
fn seeds_that_once_failed_do_not_fail_again() {
    for (seed, what) in KEPT {
        if let Err(failure) = run(*seed) {
            panic!("{what}: {failure}");
        }
    }
}

/// Story: each seed is a cluster worth the name.
#[test]
fn every_plan_has_enough_nodes_partitions_and_faults() {
    for seed in 0..2_000 {
        let plan = Plan::of(seed);
        let partitions: u32 = plan.topics.iter().map(|topic| topic.partitions).sum();
        assert!(
            plan.nodes >= 3 && partitions >= 2 && plan.faults.len() >= 3,
            "seed {seed}"
        );
        // Three replicas of each, spread evenly.
        assert!(
            partitions as usize * 3 / plan.nodes >= 2,
            "seed {seed}: {plan:?}"
        );
    }
}
