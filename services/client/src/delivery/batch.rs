//! What travels: a batch with its number, and how it ended.

use bytes::Bytes;
use talweg_kit::errors::Refusal;
use talweg_proto::v1;

/// Why a batch may be sent again without being appended twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Numbering {
    /// It may not: the batch is sent once, and again only after a refusal that
    /// says "not done".
    Plain,
    /// Its records carry idempotency keys.
    Keyed,
    /// The client numbered it with this producer id; nothing here may renumber it.
    Client(i64),
    /// We numbered it: after a refusal it can be numbered anew.
    Ours,
}

impl Numbering {
    /// A leader recognises a repeat of the same bytes.
    pub fn repeatable(self) -> bool {
        self != Self::Plain
    }

    /// Its leader keeps a session for it, of at most five unanswered batches.
    pub fn numbered(self) -> bool {
        matches!(self, Self::Client(_) | Self::Ours)
    }

    /// Both belong to one session of a leader.
    pub(super) fn same_session(self, other: Self) -> bool {
        self.numbered() && self == other
    }
}

/// One encoded record batch for one partition.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The caller's name for it.
    pub ticket: u64,
    /// Exactly one record batch. Never changed after it was sent once, unless
    /// it is certain that it was not appended.
    pub bytes: Bytes,
    /// Records in it.
    pub records: u32,
    pub numbering: Numbering,
    /// When to give up, in the caller's monotonic milliseconds.
    pub deadline_ms: u64,
}

/// The batch is in the log.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Done {
    /// `None`: a repeat too old for its offset to be remembered.
    pub base_offset: Option<i64>,
    /// Append time, milliseconds since 1970.
    pub timestamp_ms: i64,
    pub durability: v1::Durability,
    /// It had been appended before.
    pub duplicate: bool,
}

/// How a batch ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    Done(Done),
    /// The refusal's effect says whether it may have been appended.
    Refused(Refusal),
}

/// A batch that ended.
#[derive(Clone, Debug)]
pub struct Settled {
    pub partition: talweg_types::TopicPartition,
    pub ticket: u64,
    pub outcome: Outcome,
}

/// Credit of a link that an answer gives back.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Freed {
    pub bytes: i64,
    pub records: i64,
}

impl Freed {
    pub(super) fn add(&mut self, batch: &Batch) {
        self.bytes += i64::try_from(batch.bytes.len()).unwrap_or(i64::MAX);
        self.records += i64::from(batch.records);
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.records += other.records;
    }
}

/// A stream to a leader; never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LinkId(pub u64);
