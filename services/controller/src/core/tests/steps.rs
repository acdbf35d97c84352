//! What can happen in a random history.

use super::{Fate, replicas::Boot};
use proptest::prelude::*;

pub(super) const NODES: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Write(Fate),
    Crash {
        write_done: bool,
    },
    /// The node's process starts anew, or registers again.
    Start(usize, Boot),
    /// Something is acknowledged in a partition, if that can be.
    Produce(usize),
    /// The leader proposes these, by bits, beside itself.
    Propose {
        pick: usize,
        members: u8,
        truth: Truth,
    },
    /// The node answers what it was asked.
    Answer(usize),
    Elect {
        pick: usize,
        unclean: bool,
    },
    Drain(usize, bool),
    Move {
        pick: usize,
        to: [usize; 3],
    },
    CancelMove(usize),
    Refused(usize),
    /// All that the node holds fails.
    Fail(usize),
    /// All that the node holds has no room, or has again.
    Full(usize, bool),
    Balance {
        stop: bool,
    },
    Minimum {
        name: usize,
        value: u32,
    },
    Reconnect(usize),
    Heartbeat(usize),
    Leave(usize),
    Break(usize),
    Pass {
        eighths: u32,
    },
    Create {
        name: usize,
        partitions: i32,
        factor: i32,
        synced: bool,
    },
    Grow {
        name: usize,
        partitions: i32,
    },
    Delete {
        name: usize,
    },
    Confirm(usize),
    Allocate,
}

/// How a proposal fits what is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Truth {
    Right,
    StaleEpoch,
    WrongIncarnation,
}

fn boot() -> impl Strategy<Value = Boot> {
    prop_oneof![6 => Just(Boot::Whole), 2 => Just(Boot::Unclean), 1 => Just(Boot::New)]
}

fn truth() -> impl Strategy<Value = Truth> {
    prop_oneof![
        6 => Just(Truth::Right), 1 => Just(Truth::StaleEpoch), 1 => Just(Truth::WrongIncarnation)
    ]
}

fn replica_step() -> impl Strategy<Value = Step> {
    let pick = 0usize..100;
    prop_oneof![
        8 => pick.clone().prop_map(Step::Produce),
        8 => (pick.clone(), any::<u8>(), truth())
            .prop_map(|(pick, members, truth)| Step::Propose { pick, members, truth }),
        3 => (0..NODES).prop_map(Step::Answer),
        1 => (pick.clone(), any::<bool>())
            .prop_map(|(pick, unclean)| Step::Elect { pick, unclean }),
        1 => (0..NODES, any::<bool>()).prop_map(|(i, on)| Step::Drain(i, on)),
        2 => (pick.clone(), [0..NODES, 0..NODES, 0..NODES])
            .prop_map(|(pick, to)| Step::Move { pick, to }),
        1 => pick.prop_map(Step::CancelMove),
        2 => (0..NODES).prop_map(Step::Refused),
        1 => (0..NODES).prop_map(Step::Fail),
        1 => (0..NODES, any::<bool>()).prop_map(|(i, on)| Step::Full(i, on)),
        1 => prop::bool::weighted(0.3).prop_map(|stop| Step::Balance { stop }),
        1 => (0usize..3, 1u32..4).prop_map(|(name, value)| Step::Minimum { name, value }),
    ]
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let fate = prop_oneof![
        8 => Just(Fate::Committed), 1 => Just(Fate::UnknownDone), 1 => Just(Fate::UnknownNotDone)
    ];
    prop_oneof![
        60 => fate.prop_map(Step::Write),
        1 => any::<bool>().prop_map(|write_done| Step::Crash { write_done }),
        3 => (0..NODES, boot()).prop_map(|(i, boot)| Step::Start(i, boot)),
        25 => replica_step(),
        2 => (0..NODES).prop_map(Step::Reconnect),
        4 => (0..NODES).prop_map(Step::Heartbeat),
        1 => (0..NODES).prop_map(Step::Leave),
        1 => (0..NODES).prop_map(Step::Break),
        2 => (1u32..16).prop_map(|eighths| Step::Pass { eighths }),
        3 => (0usize..3, 1i32..40, 1i32..4, any::<bool>()).prop_map(
            |(name, partitions, factor, synced)| Step::Create { name, partitions, factor, synced }
        ),
        1 => (0usize..3, 1i32..90).prop_map(|(name, partitions)| Step::Grow { name, partitions }),
        1 => (0usize..3).prop_map(|name| Step::Delete { name }),
        1 => (0..NODES).prop_map(Step::Confirm),
        1 => Just(Step::Allocate),
    ]
}
