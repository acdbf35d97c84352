//! Segments that another thread rewrites: a loop gives them out and takes them back.

use crate::{
    clock,
    node::Node,
    partition::{Command, PartitionHandle},
};
use crossbeam_channel::{Sender, bounded};
use std::collections::BTreeMap;
use talweg_log::Rewrite;
use talweg_replication::MonotonicMs;
use talweg_types::TopicPartition;

/// What a loop gives out, if anything is to be done.
pub type Given<T> = Sender<Option<T>>;

/// Asks the loop that owns a log. `None`: nothing is to be done, or not now.
pub fn ask<T>(
    node: &Node,
    handle: &PartitionHandle,
    command: impl FnOnce(Given<T>) -> Command,
) -> Option<T> {
    let (give, taken) = bounded(1);
    node.loop_of(handle).send(command(give)).ok()?;
    taken.recv().ok().flatten()
}

/// Gives a round back, and waits until readers see what it did: until then another
/// look would find what is done already.
pub fn give_back(node: &Node, handle: &PartitionHandle, round: impl Into<Rewrite>) {
    let (done, installed) = bounded(1);
    let back = Command::Rewritten {
        tp: handle.tp,
        rewrite: Box::new(round.into()),
        done,
    };
    // A loop that has ended drops both.
    if node.loop_of(handle).send(back).is_ok() {
        let _ = installed.recv();
    }
}

/// Logs that are not looked at for a while.
#[derive(Default)]
pub struct Waiting {
    until: BTreeMap<TopicPartition, MonotonicMs>,
}

impl Waiting {
    pub fn add(&mut self, tp: TopicPartition, ms: u64) {
        self.until.insert(tp, clock::monotonic_now().plus(ms));
    }

    /// Forgets those whose time has come.
    pub fn pass(&mut self) {
        let now = clock::monotonic_now();
        self.until.retain(|_, until| *until > now);
    }

    pub fn holds(&self, tp: &TopicPartition) -> bool {
        self.until.contains_key(tp)
    }
}
