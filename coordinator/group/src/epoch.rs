//! The group's counter and the two clocks.

use std::fmt;
use talweg_types::{MonotonicMs, TimestampMs};

/// A moment in a group's life, from 1; group, target and member epochs are drawn
/// from one counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct MemberEpoch(pub i32);

impl MemberEpoch {
    /// No epoch follows this one; joins are refused at it.
    pub const LAST: Self = Self(i32::MAX);

    pub(crate) fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for MemberEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Deadlines rest on `monotonic`; `wall` is stored, for it must outlive the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    pub monotonic: MonotonicMs,
    pub wall: TimestampMs,
}
