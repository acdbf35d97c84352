//! What goes into a shard and what comes out.

use crate::{Encoded, Machine};
use std::sync::Arc;
use talweg_types::Offset;

/// Something that happened.
pub enum Input<M: Machine> {
    /// Somebody waits for the answer under `token`.
    Request {
        token: u64,
        name: Arc<str>,
        event: M::Event,
    },
    /// Nobody waits.
    Event { name: Arc<str>, event: M::Event },
    /// For every machine.
    All(M::Event),
    /// Answered with [`Outcome::Passed`] when all that was decided before it is
    /// committed.
    Barrier {
        token: u64,
        /// Nothing decided later shares an append with what came before: the
        /// state now is then exactly that at the offset of the answer.
        seal: bool,
    },
    /// Time has passed.
    Tick,
    /// The append is committed; `last_offset` is its last record's.
    Appended { id: u64, last_offset: Offset },
    /// It certainly is not in the log and never will be.
    NotAppended { id: u64 },
}

/// Something to be done, in this order.
#[derive(Debug)]
pub enum Output<M: Machine> {
    /// As one batch. There is no second one before its end is told.
    Append { id: u64, records: Vec<Encoded> },
    Answer {
        token: u64,
        /// Grows with each decision of the shard in this epoch.
        number: u64,
        /// It is committed in the log itself. False: it rests on this coordinator
        /// still being the one.
        wrote: bool,
        outcome: Outcome<M::Answer>,
    },
    Effect {
        name: Arc<str>,
        number: u64,
        effect: M::Effect,
    },
    /// These are committed, up to `applied` (exclusive).
    Applied {
        records: Vec<Encoded>,
        applied: Offset,
    },
    /// What time made due does not fit one append; it is tried again later.
    Oversized { name: Arc<str>, bytes: usize },
}

/// How a request ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome<A> {
    Decided(A),
    /// Of a barrier: committed up to here, exclusive.
    Passed(Offset),
    /// The append failed; nothing was done.
    NotDone,
    /// Its records do not fit one append; nothing was done.
    TooLarge {
        bytes: usize,
        limit: usize,
    },
    /// Too much waits already; nothing was done.
    Throttled {
        limit: usize,
    },
    /// Another coordinator has the shard. What waited for an append may be done.
    Lost,
}
