//! How fast groups commit: the last minute of each partition, in memory only.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};
use talweg_types::{MonotonicMs, Offset, TopicPartition};

/// What is remembered.
const WINDOW_MS: u64 = 60_000;
/// At most one sample in this time, and so at most 12 a partition.
const GRAIN_MS: u64 = 5_000;

/// Committed offsets and when, oldest first.
type Samples = VecDeque<(MonotonicMs, Offset)>;

#[derive(Default)]
pub struct Pace {
    /// By group and partition: committed offsets, oldest first; the last one moves
    /// until the next begins.
    samples: BTreeMap<(Arc<str>, TopicPartition), Samples>,
}

impl Pace {
    pub fn committed(
        &mut self,
        group: &Arc<str>,
        at: TopicPartition,
        offset: Offset,
        now: MonotonicMs,
    ) {
        let samples = self.samples.entry((Arc::clone(group), at)).or_default();
        let fresh = samples.len() > 1
            && samples
                .get(samples.len() - 2)
                .is_some_and(|(before, _)| now.since(*before) < GRAIN_MS);
        match samples.back_mut() {
            // A seek back: what was before says nothing about the pace.
            Some((_, last)) if *last > offset => {
                samples.clear();
                samples.push_back((now, offset));
            }
            Some(last) if fresh => *last = (now, offset),
            _ => samples.push_back((now, offset)),
        }
        while samples.len() > 2
            && samples
                .get(1)
                .is_some_and(|(second, _)| now.since(*second) >= WINDOW_MS)
        {
            samples.pop_front();
        }
    }

    /// Records a second, over at most the last minute; none while it is too early to
    /// say. A partition without a commit slows down as time passes.
    pub fn per_second(&self, group: &str, at: TopicPartition, now: MonotonicMs) -> Option<f64> {
        let samples = self.samples.get(&(group.into(), at))?;
        let (first, from) = samples.front()?;
        let (last, to) = samples.back()?;
        if now.since(*last) >= WINDOW_MS {
            return Some(0.0);
        }
        let ms = now.since(*first);
        if ms < 1_000 || samples.len() < 2 {
            return None;
        }
        #[allow(clippy::cast_precision_loss)]
        let (records, seconds) = ((to.0 - from.0) as f64, ms as f64 / 1_000.0);
        Some(records / seconds)
    }

    /// Keeps those of which something is stored.
    pub fn retain(&mut self, stored: impl Fn(&str, TopicPartition) -> bool) {
        self.samples.retain(|(group, at), _| stored(group, *at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_types::{PartitionIndex, TopicId};

    fn at() -> TopicPartition {
        TopicPartition {
            topic_id: TopicId::NIL,
            partition: PartitionIndex(0),
        }
    }

    fn run(until_s: u64, per_s: i64) -> Pace {
        let mut pace = Pace::default();
        for tick in 0..=until_s * 10 {
            let offset = i64::try_from(tick).expect("small") * per_s / 10;
            pace.committed(&"g".into(), at(), Offset(offset), MonotonicMs(tick * 100));
        }
        pace
    }

    #[test]
    fn the_pace_is_that_of_the_last_minute_and_falls_when_commits_stop() {
        let pace = run(200, 50);
        let per_second = |s: u64| pace.per_second("g", at(), MonotonicMs(s * 1_000));
        let now = per_second(200).expect("known");
        assert!((now - 50.0).abs() < 1.0, "{now}");
        let later = per_second(230).expect("known");
        assert!(later < 40.0, "{later}");
        assert_eq!(per_second(300), Some(0.0));
        assert!(pace.samples.values().all(|samples| samples.len() <= 14));
    }

    #[test]
    fn a_seek_back_begins_anew_and_a_first_commit_says_nothing() {
        let mut pace = run(20, 50);
        pace.committed(&"g".into(), at(), Offset(3), MonotonicMs(21_000));
        assert_eq!(pace.per_second("g", at(), MonotonicMs(25_000)), None);
        assert_eq!(pace.per_second("other", at(), MonotonicMs(25_000)), None);
    }
}
