//! How fast partitions grow: samples of their ends over the last minute, taken by
//! housekeeping, for the lag of groups.

use crate::partition::PartitionHandle;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};
use talweg_types::{MonotonicMs, TopicPartition};

/// The time that a pace is taken over, and how often a sample is.
const WINDOW_MS: u64 = 60_000;
const EVERY_MS: u64 = 5_000;

/// Growth of one partition.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pace {
    pub records_per_second: f64,
    pub bytes_per_second: f64,
}

#[derive(Clone, Copy)]
struct Sample {
    at: MonotonicMs,
    end: i64,
    bytes: u64,
}

/// Samples of the partitions that this node leads.
#[derive(Default)]
pub struct Arrivals {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    next: u64,
    by_partition: BTreeMap<TopicPartition, VecDeque<Sample>>,
}

impl Arrivals {
    /// Looks at all partitions, if it is time to.
    pub fn sample(&self, now: MonotonicMs, partitions: impl FnOnce() -> Vec<Arc<PartitionHandle>>) {
        let mut inner = self.inner.lock();
        if now.0 < inner.next {
            return;
        }
        inner.next = now.0.saturating_add(EVERY_MS);
        let led = partitions();
        let led: BTreeMap<_, _> = led
            .iter()
            .filter(|handle| handle.leads().is_some())
            .map(|handle| (handle.tp, handle))
            .collect();
        inner.by_partition.retain(|tp, _| led.contains_key(tp));
        for (tp, handle) in led {
            let sample = Sample {
                at: now,
                end: handle.reader.bounds().log_end.0,
                bytes: handle.reader.size_bytes(),
            };
            add(inner.by_partition.entry(tp).or_default(), sample);
        }
    }

    /// Over the last minute, or since it is led here; none before the second sample.
    pub fn pace(&self, tp: &TopicPartition) -> Option<Pace> {
        let inner = self.inner.lock();
        inner.by_partition.get(tp).and_then(pace)
    }
}

fn add(samples: &mut VecDeque<Sample>, sample: Sample) {
    let old = |it: &Sample| it.at.0.saturating_add(WINDOW_MS) < sample.at.0;
    while samples.front().is_some_and(old) {
        samples.pop_front();
    }
    samples.push_back(sample);
}

/// Bytes that retention took are no growth: only what was added counts.
fn pace(samples: &VecDeque<Sample>) -> Option<Pace> {
    let (first, last) = (samples.front()?, samples.back()?);
    let seconds = last.at.0.saturating_sub(first.at.0) as f64 / 1_000.0;
    if seconds <= 0.0 {
        return None;
    }
    let grown = samples.iter().zip(samples.iter().skip(1));
    let bytes: u64 = grown
        .map(|(before, after)| after.bytes.saturating_sub(before.bytes))
        .sum();
    // A truncation takes back what was not committed.
    let records = last.end.saturating_sub(first.end).max(0);
    Some(Pace {
        records_per_second: records as f64 / seconds,
        bytes_per_second: bytes as f64 / seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(of: &[(u64, i64, u64)]) -> Option<Pace> {
        let mut samples = VecDeque::new();
        for (seconds, end, bytes) in of {
            let sample = Sample {
                at: MonotonicMs(seconds * 1_000),
                end: *end,
                bytes: *bytes,
            };
            add(&mut samples, sample);
        }
        pace(&samples)
    }

    #[test]
    fn a_pace_is_that_of_the_last_minute() {
        let both = |records_per_second, bytes_per_second| {
            Some(Pace {
                records_per_second,
                bytes_per_second,
            })
        };
        assert_eq!(sampled(&[]), None);
        assert_eq!(sampled(&[(5, 100, 100)]), None, "too early to say");
        assert_eq!(sampled(&[(0, 0, 0), (10, 100, 1_000)]), both(10.0, 100.0));
        // What came before the minute does not count; retention is no growth.
        let long = [
            (0, 0, 0),
            (100, 9_000, 90_000),
            (130, 9_030, 60_000),
            (160, 9_060, 66_000),
        ];
        assert_eq!(sampled(&long), both(1.0, 100.0));
    }
}
