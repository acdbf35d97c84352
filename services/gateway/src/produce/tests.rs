//! Sessions over the real delivery core and a model of leaders: tables for the
//! rules, a property for everything together.

mod model;
mod rules;

use model::{World, step};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Story: a client sends what it likes, leaders refuse, break, lose and
    /// forget. Each sequence is answered once, what is acknowledged is where the
    /// answer says, what is said "not done" is nowhere, and all credit comes back.
    #[test]
    fn whatever_happens_every_sequence_is_answered_once_and_truly(
        steps in prop::collection::vec(step(), 1..80),
        timeout in prop_oneof![Just(500_u64), Just(60_000)],
    ) {
        let mut world = World::new(timeout);
        steps.iter().for_each(|step| world.step(step));
        world.finish();
        world.check();
    }
}
