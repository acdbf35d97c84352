//! How fast a replica that is being added may be sent its copy: a bucket of
//! bytes that fills with time.
//!
//! ```text
//! bytes sent in any span of time ≤ rate × span + one burst + one frame
//! ```
//!
//! A frame is sent when the bucket is not in debt and may bring it there: frames
//! are whole batches, and no batch is too large to be sent.

use crate::MonotonicMs;

/// A burst is what the rate gives in this time.
const BURST_MS: u64 = 100;
/// Frames are made this small at the least.
const FRAME_BYTES_MIN: u64 = 16 << 10;

/// The bucket of one copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Throttle {
    /// Bytes per second, above 0.
    rate: u64,
    /// Below 0: in debt. In thousandths of a byte, so that no moment is lost by
    /// rounding.
    level: i128,
    at: MonotonicMs,
}

impl Throttle {
    /// An empty bucket; `None` without a limit, which is a rate of 0.
    pub fn new(now: MonotonicMs, rate: u64) -> Option<Self> {
        (rate > 0).then_some(Self {
            rate,
            level: 0,
            at: now,
        })
    }

    /// Bytes per second.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Another limit from now on; what was sent before counts.
    pub fn set_rate(&mut self, now: MonotonicMs, rate: u64) {
        self.fill(now);
        self.rate = rate.max(1);
    }

    /// Milliseconds until something may be sent; 0: now.
    pub fn wait(&mut self, now: MonotonicMs) -> u64 {
        self.fill(now);
        let debt = (-self.level).max(0);
        let wait = (debt + i128::from(self.rate) - 1) / i128::from(self.rate);
        u64::try_from(wait).unwrap_or(u64::MAX)
    }

    /// Bytes that a frame should have at most, so that the copy goes evenly.
    pub fn frame_bytes(&self) -> u64 {
        (self.rate.saturating_mul(BURST_MS) / 1_000).max(FRAME_BYTES_MIN)
    }

    /// So much was sent.
    pub fn take(&mut self, now: MonotonicMs, bytes: u64) {
        self.fill(now);
        self.level -= i128::from(bytes) * 1_000;
    }

    fn fill(&mut self, now: MonotonicMs) {
        let gained = i128::from(self.rate) * i128::from(now.since(self.at));
        let burst = i128::from(self.rate) * i128::from(BURST_MS);
        self.level = (self.level + gained).min(burst.max(self.level));
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn send_all(rate: u64, frame: u64, until: u64) -> u64 {
        let mut throttle = Throttle::new(MonotonicMs(0), rate).expect("a limit");
        let (mut now, mut sent) = (MonotonicMs(0), 0);
        while now.0 < until {
            match throttle.wait(now) {
                0 => {
                    throttle.take(now, frame);
                    sent += frame;
                }
                wait => now = now.plus(wait),
            }
        }
        sent
    }

    #[test]
    fn no_limit_is_no_bucket() {
        assert_eq!(Throttle::new(MonotonicMs(0), 0), None);
    }

    /// A copy that always has something to send takes what it may, within a
    /// frame and a burst.
    #[test]
    fn the_rate_is_used_and_kept() {
        for (rate, frame) in [
            (1, 1),
            (1_000, 700),
            (1 << 20, 100_000),
            (10 << 20, 1 << 20),
        ] {
            let sent = send_all(rate, frame, 20_000);
            let fair = rate * 20;
            assert!(sent <= fair + rate / 10 + frame, "{rate}: {sent}");
            assert!(sent + rate / 10 + frame >= fair, "{rate}: {sent}");
        }
    }

    /// Time in which nothing was to be sent is not made up for.
    #[test]
    fn an_idle_copy_saves_nothing_up() {
        let mut throttle = Throttle::new(MonotonicMs(0), 1_000).expect("a limit");
        let later = MonotonicMs(60_000);
        assert_eq!(throttle.wait(later), 0);
        throttle.take(later, 1_100);
        assert_eq!(throttle.wait(later), 1_000);
    }

    proptest! {
        /// Whatever is sent when, no span of time has more than its share.
        #[test]
        fn no_span_has_more_than_its_share(
            rate in 1u64..5_000_000,
            steps in proptest::collection::vec((0u64..300, 1u64..2_000_000), 1..60),
        ) {
            let mut throttle = Throttle::new(MonotonicMs(0), rate).expect("a limit");
            let (mut now, mut sent): (_, Vec<(MonotonicMs, u64)>) = (MonotonicMs(0), Vec::new());
            for (pause, bytes) in steps {
                now = now.plus(pause);
                if throttle.wait(now) == 0 {
                    throttle.take(now, bytes);
                    sent.push((now, bytes));
                }
            }
            for first in 0..sent.len() {
                for last in first..sent.len() {
                    // The last one may bring the bucket into debt.
                    let bytes: u64 = sent[first..last].iter().map(|(_, bytes)| bytes).sum();
                    let span = sent[last].0.since(sent[first].0);
                    let share = u128::from(rate) * u128::from(span + BURST_MS + 1) / 1_000;
                    prop_assert!(u128::from(bytes) <= share + 1);
                }
            }
        }
    }
}
