//! When the next records are due.
//!
//! At a rate, records are due on a schedule that knows nothing of how long
//! anything takes; whoever is late catches up. Without a rate everything is due.

use std::time::{Duration, Instant};

/// At high rates, records leave in groups that are this far apart.
const STEP: Duration = Duration::from_millis(1);

/// A schedule for a number of records.
#[derive(Clone, Debug)]
pub struct Pace {
    begun: Instant,
    interval: Option<Duration>,
    group: u64,
    next: u64,
    limit: u64,
    ends: Option<Instant>,
}

/// Records that leave together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// When; in the past for those who are late.
    pub at: Instant,
    /// How many, at least 1.
    pub records: u64,
}

impl Pace {
    /// From `begun` on: at most `limit` records, `per_second` of them each
    /// second (`None`: no schedule), in groups of at most `group_max`, until
    /// `duration` has passed.
    pub fn new(
        begun: Instant,
        per_second: Option<f64>,
        limit: u64,
        group_max: u64,
        duration: Option<Duration>,
    ) -> Self {
        let group = match per_second {
            Some(rate) => ((rate * STEP.as_secs_f64()) as u64).clamp(1, group_max.max(1)),
            None => group_max.max(1),
        };
        Self {
            begun,
            interval: per_second.map(|rate| Duration::from_secs_f64(1.0 / rate)),
            group,
            next: 0,
            limit,
            ends: duration.map(|duration| begun + duration),
        }
    }

    /// The next group, `None` at the end. `now` stands in where there is no schedule.
    pub fn next_group(&mut self, now: Instant) -> Option<Due> {
        let at = self.interval.map_or(now, |interval| {
            self.begun + interval.mul_f64(self.next as f64)
        });
        let records = self.group.min(self.limit - self.next);
        if records == 0 || self.ends.is_some_and(|ends| at >= ends) {
            return None;
        }
        self.next += records;
        Some(Due { at, records })
    }
}

/// Part `index` of `total` in `parts`; the first ones take the rest. `u64::MAX` is "no limit".
pub fn share(total: u64, parts: u64, index: u64) -> u64 {
    if total == u64::MAX {
        total
    } else {
        total / parts + u64::from(index < total % parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut pace: Pace, now: Instant) -> Vec<Due> {
        std::iter::from_fn(|| pace.next_group(now)).collect()
    }

    #[test]
    fn a_rate_gives_a_schedule_that_no_lateness_moves() {
        let begun = Instant::now();
        let pace = Pace::new(begun, Some(10_000.0), 25, 1_000, None);
        let due = all(pace, begun + Duration::from_secs(9));
        let shape: Vec<_> = due
            .iter()
            .map(|d| ((d.at - begun).as_micros(), d.records))
            .collect();
        assert_eq!(shape, [(0, 10), (1000, 10), (2000, 5)]);
    }

    #[test]
    fn a_slow_rate_sends_one_at_a_time_until_the_time_is_over() {
        let begun = Instant::now();
        let pace = Pace::new(
            begun,
            Some(10.0),
            u64::MAX,
            1_000,
            Some(Duration::from_millis(250)),
        );
        let shape: Vec<_> = all(pace, begun)
            .iter()
            .map(|d| ((d.at - begun).as_millis(), d.records))
            .collect();
        assert_eq!(shape, [(0, 1), (100, 1), (200, 1)]);
    }

    #[test]
    fn without_a_rate_everything_is_due_now() {
        let now = Instant::now();
        let due = all(Pace::new(now, None, 7, 3, None), now);
        assert_eq!(due.iter().map(|d| d.records).collect::<Vec<_>>(), [3, 3, 1]);
        assert!(due.iter().all(|d| d.at == now));
        let over = Pace::new(now, None, 7, 3, Some(Duration::from_secs(1)));
        assert_eq!(all(over, now + Duration::from_secs(1)), []);
    }

    #[test]
    fn shares_add_up_and_no_limit_stays_none() {
        for (total, parts) in [(10, 3), (1, 5), (12, 12)] {
            assert_eq!(
                (0..parts).map(|i| share(total, parts, i)).sum::<u64>(),
                total
            );
        }
        assert_eq!(share(u64::MAX, 4, 2), u64::MAX);
    }
}
