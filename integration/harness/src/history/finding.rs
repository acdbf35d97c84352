//! What can be wrong with a history, each kind by its name.

use std::fmt;

/// What stepped back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepBack {
    LogStart,
    LastStable,
    HighWatermark,
}

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// Acknowledged with acks=all, and nowhere at the end.
    LostWrite {
        client: u32,
        partition: u32,
        offset: i64,
        value: String,
    },
    /// A reader saw it, and it is not at the end.
    Vanished {
        client: u32,
        partition: u32,
        offset: i64,
        value: String,
    },
    /// At the end, and a reader that followed to the end was never given it.
    Unseen {
        client: u32,
        partition: u32,
        offset: i64,
    },
    /// One value at two places.
    Duplicate {
        value: String,
        first: (u32, i64),
        second: (u32, i64),
    },
    /// One offset with two values, among what readers saw and lasting acknowledgements.
    InconsistentOffset {
        partition: u32,
        offset: i64,
        values: [String; 2],
    },
    /// Its write failed for certain (or its transaction was aborted), and it was read.
    AbortedRead {
        partition: u32,
        offset: i64,
        value: String,
    },
    /// Read, and never sent by anybody.
    Invented {
        partition: u32,
        offset: i64,
        value: String,
    },
    /// A reader was led past a record.
    SkippedPoll {
        client: u32,
        partition: u32,
        offset: i64,
    },
    /// A reader was led back without asking for it.
    NonMonotonicPoll {
        client: u32,
        partition: u32,
        position: i64,
        offset: i64,
    },
    /// The records of one call do not lie beside each other.
    SkippedSend {
        client: u32,
        partition: u32,
        after: i64,
        next: i64,
    },
    /// A client's later call has a lower offset.
    NonMonotonicSend {
        client: u32,
        partition: u32,
        after: i64,
        offset: i64,
    },
    /// Records of one key are not in the order in which they were sent.
    KeyOrder {
        client: u32,
        partition: u32,
        key: String,
        offset: i64,
    },
    /// Offsets at the end do not ascend one by one.
    Gap {
        partition: u32,
        after: i64,
        next: i64,
    },
    /// A bound went back.
    SteppedBack {
        observer: String,
        partition: u32,
        what: StepBack,
        from: i64,
        to: i64,
    },
    /// Bounds that contradict each other: log start ≤ last stable ≤ high watermark.
    Bounds {
        observer: String,
        partition: u32,
        bounds: [i64; 3],
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
