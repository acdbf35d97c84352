//! What a shard runs.

use crate::Now;
use bytes::Bytes;
use std::fmt::Debug;
use talweg_types::MonotonicMs;
use thiserror::Error;

/// A record as it is stored: no value is a tombstone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Encoded {
    /// The same bytes for the same key, always: compaction compares them.
    pub key: Bytes,
    pub value: Option<Bytes>,
}

impl Encoded {
    /// The most that it takes in a batch: lengths and deltas are varints.
    pub(crate) fn batch_bytes(&self) -> usize {
        const FRAME: usize = 32;
        FRAME + self.key.len() + self.value.as_ref().map_or(0, Bytes::len)
    }
}

/// What one step of a machine came to.
pub struct Decided<M: Machine> {
    /// In force already; appended together.
    pub records: Vec<M::Record>,
    /// Released once the records are committed.
    pub answer: M::Answer,
    /// Released as well.
    pub effects: Vec<M::Effect>,
    /// Takes the records back.
    pub undo: M::Undo,
}

/// A stored record that this build cannot read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DecodeError {
    #[error("the record has no key")]
    NoKey,
    #[error("the {part} is not the encoding of a known message: {reason}")]
    Malformed { part: &'static str, reason: String },
    /// A later version wrote it.
    #[error("the {part} has fields that this version does not know")]
    UnknownFields { part: &'static str },
    #[error("{field} is missing")]
    Missing { field: &'static str },
    #[error("{field} is {value}, which this version does not know")]
    Unknown { field: &'static str, value: u64 },
    #[error("{field} has {bytes} bytes, 16 are needed")]
    NotAnId { field: &'static str, bytes: usize },
}

/// A state machine with a name of its own within the shard: a group.
pub trait Machine: Sized {
    type Settings: Copy + Debug;
    /// What all machines of a coordinator see of the world: the topics.
    type Context;
    type Event: Clone + Debug;
    type Answer: Debug;
    type Effect: Debug;
    type Record;
    type Undo;
    /// Its durable part alone, as replayed.
    type Stored: Default;

    fn new(settings: Self::Settings) -> Self;
    fn step(&mut self, now: Now, context: &Self::Context, event: Self::Event) -> Decided<Self>;
    /// Takes a step back whose append failed; newest first.
    fn undo(&mut self, now: Now, undo: Self::Undo);
    /// It only says that somebody lives; its answer may be one that rests on nothing
    /// stored ([`Self::rests_on_nothing`]).
    fn is_sign_of_life(event: &Self::Event) -> bool;
    /// The answer to a sign of life that says nothing but that it was heard.
    fn rests_on_nothing(answer: &Self::Answer) -> bool;
    /// The event that says that time has passed.
    fn tick() -> Self::Event;
    /// When the next tick is due.
    fn next_deadline(&self) -> Option<MonotonicMs>;
    /// Nothing is stored under its name.
    fn is_gone(&self) -> bool;
    fn state_hash(&self) -> u64;

    fn encode(name: &str, record: Self::Record) -> Encoded;
    /// The name and the record.
    fn decode(key: &[u8], value: Option<&[u8]>) -> Result<(String, Self::Record), DecodeError>;
    fn apply(stored: &mut Self::Stored, record: Self::Record);
    fn is_nothing(stored: &Self::Stored) -> bool;
    fn stored_hash(stored: &Self::Stored) -> u64;
    /// All or nothing; the reason if what is stored contradicts itself.
    fn load(settings: Self::Settings, now: Now, stored: Self::Stored) -> Result<Self, String>;
}
