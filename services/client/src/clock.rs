//! Monotonic milliseconds for time-outs, wall-clock milliseconds for stamps.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Counts milliseconds from its making. Copies count alike.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Default for Clock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock {
    /// Monotonic milliseconds since the clock was made.
    pub fn now_ms(&self) -> u64 {
        millis(self.0.elapsed())
    }

    /// The moment `ms` in monotonic milliseconds, for timers.
    pub fn at(&self, ms: u64) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.0 + Duration::from_millis(ms))
    }

    /// Milliseconds since 1970.
    pub fn wall_ms() -> i64 {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        i64::try_from(millis(since)).unwrap_or(i64::MAX)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
