//! What clients did and saw, and the checker that has the last word on it.
//!
//! Each written value is unique and names its writer and number, so that a
//! record can be recognised wherever it turns up. Times are since the recorder began.

mod check;
#[cfg(test)]
mod doctored;
mod finding;
mod recorder;

pub use check::{check, check_bounds};
pub use finding::{Finding, StepBack};
pub use recorder::Recorder;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// What a client knows about a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Acknowledged; the offset of the first value, the others follow it.
    Ok { base: i64 },
    /// Refused, and the refusal says that nothing happened (in a transaction: aborted).
    Failed,
    /// No answer, or one that says that it may have happened.
    Unknown,
}

/// One call that writes records into one partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Send {
    /// Its place among the calls of this client for this partition, from 0.
    pub number: u64,
    pub client: u32,
    pub partition: u32,
    /// Order is promised among the records of one key of one client.
    pub key: Vec<u8>,
    pub values: Vec<Vec<u8>>,
    /// Sent with acks=all: what is acknowledged stays.
    pub lasting: bool,
    pub invoked: Duration,
    pub completed: Duration,
    pub outcome: Outcome,
}

/// One frame that a reader got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Poll {
    pub client: u32,
    pub partition: u32,
    /// Set where the reader began at this place; else the poll goes on where its last one ended.
    pub seek: Option<i64>,
    /// Offset and value in the order in which they came.
    pub records: Vec<(i64, Vec<u8>)>,
    /// Where the reader was told to go on.
    pub next: i64,
    pub at: Duration,
}

/// Bounds as somebody told them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Who told them: a gateway, or one life of a storage node.
    pub observer: String,
    pub partition: u32,
    pub log_start: i64,
    pub last_stable: i64,
    pub high_watermark: i64,
    pub at: Duration,
}

/// Everything.
#[derive(Clone, Default, Debug)]
pub struct History {
    /// By client and partition in the order of `number`.
    pub sends: Vec<Send>,
    /// By client and partition in the order in which they came.
    pub polls: Vec<Poll>,
    /// Clients that follow every partition from its beginning to its end, also those
    /// that were never given anything.
    pub readers: BTreeSet<u32>,
    /// By observer and partition in the order in which they were asked for.
    pub bounds: Vec<Bounds>,
    /// All that is there at the end: partition → what was read from log start to watermark.
    pub end: BTreeMap<u32, Vec<(i64, Vec<u8>)>>,
}
