//! How a long job is shown: one line a while on standard error, with the time
//! that is left as far as the past tells.

use std::time::Duration;

/// Foretells the end of a job from what it has done so far. Pure.
#[derive(Clone, Debug, Default)]
pub struct Estimate {
    /// When it was first looked at, and what was left then.
    first: Option<(Duration, u64)>,
}

impl Estimate {
    /// What is left at `now`, in whatever unit; how long that takes at the pace
    /// since the first look. `None` while nothing was done yet.
    pub fn left(&mut self, now: Duration, left: u64) -> Option<Duration> {
        let (since, before) = *self.first.get_or_insert((now, left));
        if left > before {
            // More has come: the past tells nothing.
            self.first = Some((now, left));
            return None;
        }
        let (done, took) = (before - left, now.saturating_sub(since));
        (done > 0 && !took.is_zero()).then(|| took.mul_f64(left as f64 / done as f64))
    }
}

/// As `1:02:03` or `02:03`; `-` for what is not known.
pub fn clock(time: Option<Duration>) -> String {
    let Some(time) = time else {
        return "-".to_owned();
    };
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes:02}:{seconds:02}"),
        hours => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// Bytes for people: `1.5 MiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1_024.0 && unit + 1 < UNITS.len() {
        value /= 1_024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        unit => format!("{value:.1} {}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_past_foretells_the_rest() {
        let mut estimate = Estimate::default();
        assert_eq!(estimate.left(seconds(5), 100), None, "nothing is known");
        assert_eq!(estimate.left(seconds(6), 100), None, "nothing was done");
        assert_eq!(estimate.left(seconds(15), 50), Some(seconds(10)));
        assert_eq!(estimate.left(seconds(20), 0), Some(seconds(0)));
        assert_eq!(estimate.left(seconds(21), 400), None, "more has come");
        assert_eq!(estimate.left(seconds(22), 300), Some(seconds(3)));
    }

    #[test]
    fn figures_for_people() {
        assert_eq!(clock(None), "-");
        assert_eq!(clock(Some(Duration::from_millis(61_500))), "01:02");
        assert_eq!(clock(Some(seconds(3_723))), "1:02:03");
        assert_eq!(bytes(1_023), "1023 B");
        assert_eq!(bytes(3 << 19), "1.5 MiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
    }
}
