//! Time, and whether the wall clock may be believed.
//!
//! Time-outs use the monotonic clock that counts suspend. The wall clock only
//! stamps append times and ages; when it is a minute off the controller's, or
//! has jumped by that much, nothing is deleted by age.

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use talweg_types::{MonotonicMs, TimestampMs};

/// Off by more than this is not believed.
const TOLERANCE_MS: i64 = 60_000;

/// The wall clock.
pub fn wall_now() -> TimestampMs {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    TimestampMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Time since boot, suspend included.
pub fn monotonic_now() -> MonotonicMs {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let millis = u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000;
    MonotonicMs(seconds * 1000 + millis)
}

/// Watches the wall clock.
#[derive(Default)]
pub struct ClockWatch {
    distrusted: AtomicBool,
    state: Mutex<Samples>,
}

#[derive(Default)]
struct Samples {
    last: Option<(TimestampMs, MonotonicMs)>,
    jumped: bool,
    offset_ms: i64,
}

impl ClockWatch {
    /// False: delete nothing by age.
    pub fn is_trusted(&self) -> bool {
        !self.distrusted.load(Ordering::Relaxed)
    }

    /// The controller's wall clock minus this one, as last compared.
    pub fn offset_ms(&self) -> i64 {
        self.state.lock().offset_ms
    }

    /// Called about once a second: finds jumps.
    pub fn sample(&self, wall: TimestampMs, monotonic: MonotonicMs) {
        let mut state = self.state.lock();
        if let Some((last_wall, last_monotonic)) = state.last.replace((wall, monotonic)) {
            let elapsed =
                i64::try_from(monotonic.0.saturating_sub(last_monotonic.0)).unwrap_or(i64::MAX);
            let jump = wall.0.saturating_sub(last_wall.0).saturating_sub(elapsed);
            state.jumped |= jump.saturating_abs() > TOLERANCE_MS;
        }
        self.judge(&state);
    }

    /// The controller's wall clock, as it was about now. Agreement with it
    /// heals a jump.
    pub fn compare(&self, wall: TimestampMs, controller: TimestampMs) {
        let mut state = self.state.lock();
        state.offset_ms = controller.0.saturating_sub(wall.0);
        if state.offset_ms.saturating_abs() <= TOLERANCE_MS {
            state.jumped = false;
        }
        self.judge(&state);
    }

    fn judge(&self, state: &Samples) {
        let distrust = state.jumped || state.offset_ms.saturating_abs() > TOLERANCE_MS;
        if self.distrusted.swap(distrust, Ordering::Relaxed) != distrust {
            if distrust {
                tracing::warn!(
                    offset_ms = state.offset_ms,
                    jumped = state.jumped,
                    "the wall clock is not believed; nothing is deleted by age"
                );
            } else {
                tracing::info!("the wall clock agrees with the controller's again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: the clock jumps a day ahead; retention stops until the controller
    /// agrees with the new time or the clock is set back.
    #[test]
    fn a_clock_that_jumped_or_differs_is_not_trusted() {
        let watch = ClockWatch::default();
        let at = |wall, monotonic| watch.sample(TimestampMs(wall), MonotonicMs(monotonic));
        at(1_000_000, 5_000);
        at(1_001_000, 6_000);
        assert!(watch.is_trusted());
        at(1_061_900, 7_000);
        assert!(watch.is_trusted(), "59.9 s is tolerated");
        at(90_000_000, 8_000);
        assert!(!watch.is_trusted());
        at(90_001_000, 9_000);
        assert!(!watch.is_trusted(), "a jump is not forgotten by waiting");
        watch.compare(TimestampMs(90_001_000), TimestampMs(1_062_000));
        assert!(!watch.is_trusted());
        watch.compare(TimestampMs(90_001_000), TimestampMs(90_001_500));
        assert!(watch.is_trusted());
        watch.compare(TimestampMs(90_001_000), TimestampMs(90_062_001));
        assert!(!watch.is_trusted(), "61 s off the controller's");
        watch.compare(TimestampMs(90_001_000), TimestampMs(90_002_000));
        at(90_002_000, 10_000);
        assert!(watch.is_trusted());
    }
}
