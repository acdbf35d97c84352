//! The shell's part: one append on its way, sent again while its end is unknown.

use super::log::Sent;
use crate::{Input, Limits, Now, Output, Shard};
use talweg_group::{Group, Topics};

pub(super) struct Holder {
    pub shard: Shard<Group>,
    pub shard_epoch: i32,
    producer: u64,
    sequence: u64,
    /// The append in flight: its id, and what is sent.
    pub flight: Option<(u64, Sent)>,
    /// Sends of it that are still on their way.
    pub on_the_way: usize,
    /// An earlier send may have arrived.
    pub unknown: bool,
}

impl Holder {
    pub fn new(shard: Shard<Group>, shard_epoch: i32, producer: u64) -> Self {
        Self {
            shard,
            shard_epoch,
            producer,
            sequence: 0,
            flight: None,
            on_the_way: 0,
            unknown: false,
        }
    }

    /// Takes an input; appends go out, the rest comes back.
    pub fn step(&mut self, now: Now, topics: &Topics, input: Input<Group>) -> Vec<Output<Group>> {
        match input {
            Input::Appended { .. } => self.settled(true),
            Input::NotAppended { .. } => self.settled(false),
            _ => {}
        }
        let mut rest = Vec::new();
        for output in self.shard.step(now, topics, input) {
            match output {
                Output::Append { id, records } => {
                    assert!(self.flight.is_none(), "a second append in flight");
                    let sent = Sent {
                        shard_epoch: self.shard_epoch,
                        producer: self.producer,
                        sequence: self.sequence,
                        records,
                    };
                    self.flight = Some((id, sent));
                    (self.on_the_way, self.unknown) = (1, false);
                }
                other => rest.push(other),
            }
        }
        rest
    }

    fn settled(&mut self, appended: bool) {
        self.flight = None;
        self.on_the_way = 0;
        if appended {
            self.sequence += 1;
        }
    }
}

/// Small, so that batches fill and the queue overflows.
pub(super) fn small() -> Limits {
    Limits {
        append_bytes: 600,
        waiting: 12,
        waiting_bytes: 4_000,
    }
}
