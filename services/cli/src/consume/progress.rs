//! When reading is over: pure.
//!
//! With `until_end`, each partition's end is the high watermark that it had
//! when reading began there; what came later is neither printed nor waited for.
//! Positions decide, not records: an end may be reached without any.

use std::collections::BTreeMap;

/// What is left to read.
#[derive(Clone, Debug)]
pub struct Progress {
    until_end: bool,
    left: Option<u64>,
    partitions: BTreeMap<u32, Partition>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Partition {
    /// Exclusive; `None` until reading has begun there, or without `until_end`.
    end: Option<i64>,
    over: bool,
}

impl Progress {
    /// Nothing is read yet; `max` records at most.
    pub fn new(
        partitions: impl IntoIterator<Item = u32>,
        until_end: bool,
        max: Option<u64>,
    ) -> Self {
        let partitions = partitions
            .into_iter()
            .map(|p| (p, Partition::default()))
            .collect();
        Self {
            until_end,
            left: max,
            partitions,
        }
    }

    /// A partition that is read from now on.
    pub fn add(&mut self, partition: u32) {
        self.partitions.entry(partition).or_default();
    }

    /// True if the partition is being read or was.
    pub fn knows(&self, partition: u32) -> bool {
        self.partitions.contains_key(&partition)
    }

    /// The partition stands at `next_offset`, everything visible below it was
    /// read, and its watermark is `high_watermark`. True: it is over with this.
    pub fn on_position(&mut self, partition: u32, next_offset: i64, high_watermark: i64) -> bool {
        let until_end = self.until_end;
        let Some(state) = self
            .partitions
            .get_mut(&partition)
            .filter(|state| !state.over)
        else {
            return false;
        };
        // The first position is that of the beginning.
        let end = *state.end.get_or_insert(high_watermark);
        state.over = until_end && next_offset >= end;
        state.over
    }

    /// A record came; true if it is to be printed.
    pub fn on_record(&mut self, partition: u32, offset: i64) -> bool {
        let Some(state) = self.partitions.get(&partition).filter(|state| !state.over) else {
            return false;
        };
        if self.until_end && state.end.is_some_and(|end| offset >= end) {
            return false;
        }
        match &mut self.left {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            None => true,
        }
    }

    /// The partition cannot be read any further.
    pub fn on_stopped(&mut self, partition: u32) {
        if let Some(state) = self.partitions.get_mut(&partition) {
            state.over = true;
        }
    }

    /// Nothing is left to do.
    pub fn is_over(&self) -> bool {
        self.left == Some(0) || self.partitions.values().all(|state| state.over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_that_of_the_beginning() {
        let mut progress = Progress::new([0, 1], true, None);
        assert!(!progress.on_position(0, 0, 3));
        assert!(
            progress.on_position(1, 0, 0),
            "an empty partition is over at once"
        );
        for offset in 0..3 {
            assert!(progress.on_record(0, offset));
        }
        assert!(!progress.on_record(0, 3), "this one came later");
        assert!(!progress.is_over());
        assert!(
            progress.on_position(0, 4, 9),
            "the watermark has moved on, the end has not"
        );
        assert!(progress.is_over());
        assert!(!progress.on_position(0, 5, 9), "it is over once");
    }

    #[test]
    fn an_end_is_reached_by_position_when_no_record_is_left() {
        // Offsets may have gaps: the last offsets below the watermark can be markers.
        let mut progress = Progress::new([0], true, None);
        progress.on_position(0, 0, 10);
        assert!(progress.on_record(0, 7));
        assert!(!progress.on_position(0, 8, 10));
        assert!(progress.on_position(0, 10, 10));
        assert!(progress.is_over());
    }

    #[test]
    fn without_until_end_only_the_count_ends_it() {
        let mut progress = Progress::new([0], false, Some(2));
        assert!(!progress.on_position(0, 0, 0));
        assert!(progress.on_record(0, 0));
        assert!(!progress.is_over());
        assert!(progress.on_record(0, 1));
        assert!(progress.is_over());
        assert!(!progress.on_record(0, 2), "two were asked for");
    }

    #[test]
    fn a_stopped_partition_is_not_waited_for() {
        let mut progress = Progress::new([0, 1], false, None);
        progress.on_stopped(0);
        assert!(!progress.is_over());
        assert!(!progress.on_record(0, 5));
        progress.add(2);
        progress.on_stopped(1);
        assert!(!progress.is_over(), "one was added");
        progress.on_stopped(2);
        assert!(progress.is_over());
        assert!(progress.knows(2) && !progress.knows(3));
    }
}
