//! Two coordinators, one log with fences, under seeds: acknowledgements that are
//! late, lost or unknown, appends that fail, shards that move with words of the
//! earlier holder still on their way. An oracle holds what was acknowledged; a
//! shadow replays the log.

mod coordinator;
mod log;
mod world;

use world::World;

const STEPS: usize = 400;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Done {
    acknowledged: usize,
    not_done: usize,
    unknown: usize,
    repeats: usize,
    fenced: usize,
    moves: usize,
    shared: usize,
    throttled: usize,
}

fn run(seed: u64) -> Result<Done, String> {
    let mut world = World::new(seed);
    for step in 0..STEPS {
        let stepped = world.step();
        stepped.map_err(|error| format!("seed {seed}, step {step}: {error}"))?;
    }
    world
        .heal()
        .map_err(|error| format!("seed {seed}, at the end: {error}"))?;
    Ok(world.done)
}

fn seeds(from: u64, to: u64) {
    let mut all = Done::default();
    for seed in from..to {
        let done = run(seed).unwrap_or_else(|error| panic!("{error}"));
        all.acknowledged += done.acknowledged;
        all.not_done += done.not_done;
        all.unknown += done.unknown;
        all.repeats += done.repeats;
        all.fenced += done.fenced;
        all.moves += done.moves;
        all.shared += done.shared;
        all.throttled += done.throttled;
    }
    println!("{} seeds: {all:?}", to - from);
    let runs = usize::try_from(to - from).expect("few");
    assert!(all.acknowledged > 20 * runs && all.moves > runs && all.not_done > runs);
    assert!(all.unknown > runs && all.repeats > runs / 2 && all.fenced > runs / 4);
    assert!(all.shared > runs && all.throttled > 0);
}

/// Story: whatever happens to appends and coordinators, no acknowledged commit is
/// lost, none that was refused as not done is there, none steps back, and the live
/// state is the replayed one.
#[test]
fn no_acknowledged_commit_is_lost_and_the_live_state_is_the_replayed_one() {
    seeds(0, 300);
}

/// For a longer look: `cargo test -- --ignored`.
#[test]
#[ignore = "minutes"]
fn the_same_for_many_more_seeds() {
    seeds(300, 60_000);
}

#[test]
fn a_seed_runs_the_same_way_twice() {
    assert_eq!(run(11), run(11));
}

/// The oracle is worth what it catches.
#[test]
fn planted_mistakes_are_caught() {
    use world::{MISTAKE, Mistake};
    for mistake in [
        Mistake::AnswersBeforeTheAck,
        Mistake::TakesUnknownForFailed,
        Mistake::ServesWithoutReplay,
        Mistake::LogWithoutFence,
        Mistake::ForgetsToUndo,
    ] {
        MISTAKE.set(Some(mistake));
        let caught = (0..300).find_map(|seed| run(seed).err());
        MISTAKE.set(None);
        let caught = caught.unwrap_or_else(|| panic!("{mistake:?} goes unseen"));
        println!("{mistake:?}: {caught}");
    }
}
