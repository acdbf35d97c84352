//! Time as the pure cores see it: a number that the driver passes in.

/// A monotonic clock's milliseconds, counting suspend; never a wall clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct MonotonicMs(pub u64);

impl MonotonicMs {
    /// This many milliseconds later; saturates.
    #[must_use]
    pub fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to here; 0 if it is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
