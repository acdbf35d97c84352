//! Seeds.

use super::{Checked, world::World};

const STEPS: usize = 800;

/// What runs did, so that a world in which nothing happens is noticed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    acknowledged: usize,
    leaderships: usize,
    cuts: usize,
    restarts: usize,
}

pub(super) fn run(seed: u64) -> Result<Done, String> {
    let mut world = World::new(seed);
    let ran: Checked = (0..STEPS).try_for_each(|step| {
        world
            .step()
            .map_err(|error| format!("step {step}: {error}"))
    });
    ran.and_then(|()| world.heal())
        .map_err(|error| format!("seed {seed}, {error}"))?;
    Ok(Done {
        acknowledged: world.oracle.acknowledged,
        leaderships: usize::try_from(world.controller.state.epoch).unwrap_or(0),
        cuts: world.cuts,
        restarts: world.restarts,
    })
}

fn seeds(from: u64, to: u64) {
    let mut all = Done::default();
    for seed in from..to {
        let done = run(seed).unwrap_or_else(|error| panic!("{error}"));
        all.acknowledged += done.acknowledged;
        all.leaderships += done.leaderships;
        all.cuts += done.cuts;
        all.restarts += done.restarts;
    }
    let runs = usize::try_from(to - from).unwrap();
    println!("{runs} seeds: {all:?}");
    assert!(all.acknowledged > 4 * runs && all.leaderships > 2 * runs);
    assert!(all.cuts > runs / 10 && all.restarts > runs / 100);
}

/// Story: whatever the network, the disks and the processes do, what was
/// acknowledged is in every later leader's log.
#[test]
fn nothing_acknowledged_is_lost_and_no_watermark_steps_back() {
    seeds(0, 3_000);
}

/// For a longer look: `cargo test -- --ignored`.
#[test]
#[ignore = "minutes"]
fn nothing_acknowledged_is_lost_in_many_more_seeds() {
    seeds(3_000, 100_000);
}
