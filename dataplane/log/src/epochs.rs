//! Where each leader epoch begins in the log. Few entries: one per leadership
//! that wrote something. Epochs and starts both rise.

use crate::sidecar::partition::EpochStart;
use talweg_types::{LeaderEpoch, Offset};

#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Epochs {
    entries: Vec<EpochStart>,
}

impl Epochs {
    pub(crate) fn new(entries: Vec<EpochStart>) -> Self {
        Self { entries }
    }

    pub(crate) fn entries(&self) -> &[EpochStart] {
        &self.entries
    }

    /// The last epoch in the log.
    pub(crate) fn last(&self) -> LeaderEpoch {
        self.entries
            .last()
            .map_or(LeaderEpoch::NONE, |entry| entry.epoch)
    }

    /// The epoch of the last batch below `offset`; NONE if unknown.
    pub(crate) fn last_below(&self, offset: Offset) -> LeaderEpoch {
        self.at(Offset(offset.0.saturating_sub(1)))
            .unwrap_or(LeaderEpoch::NONE)
    }

    /// A batch of `epoch` is at `offset`. One that contradicts what is known
    /// ([`Epochs::fits`]) changes nothing.
    pub(crate) fn observe(&mut self, epoch: LeaderEpoch, offset: Offset) {
        let after = self.entries.partition_point(|entry| entry.start <= offset);
        let begun = after.checked_sub(1).map(|at| self.entries[at]);
        if !self.fits(epoch, offset) || begun.is_some_and(|begun| begun.epoch == epoch) {
            return;
        }
        match self.entries.get_mut(after) {
            // Seen further on first, as recovery does after sealed segments.
            Some(next) if next.epoch == epoch => next.start = offset,
            _ => self.entries.insert(
                after,
                EpochStart {
                    epoch,
                    start: offset,
                },
            ),
        }
    }

    /// Whether a batch of `epoch` may be at `offset`: epochs never fall along a log.
    pub(crate) fn fits(&self, epoch: LeaderEpoch, offset: Offset) -> bool {
        let after = self.entries.partition_point(|entry| entry.start <= offset);
        let begun = after.checked_sub(1).map(|at| self.entries[at]);
        let not_below = begun.is_none_or(|begun| {
            begun.epoch == epoch || (begun.epoch < epoch && begun.start < offset)
        });
        not_below
            && self
                .entries
                .get(after)
                .is_none_or(|next| epoch <= next.epoch)
    }

    /// The epoch of the batch at `offset`; `None` below what is known.
    pub(crate) fn at(&self, offset: Offset) -> Option<LeaderEpoch> {
        let after = self.entries.partition_point(|entry| entry.start <= offset);
        self.entries
            .get(after.checked_sub(1)?)
            .map(|entry| entry.epoch)
    }

    /// The largest epoch at or below `epoch` that is in the log, and the end
    /// offset (exclusive) of its batches. (NONE, NONE-like 0) before all.
    pub(crate) fn end_offset(
        &self,
        epoch: LeaderEpoch,
        log_start: Offset,
        log_end: Offset,
    ) -> (LeaderEpoch, Offset) {
        let after = self.entries.partition_point(|entry| entry.epoch <= epoch);
        let end = self.entries.get(after).map_or(log_end, |next| next.start);
        match after.checked_sub(1).and_then(|at| self.entries.get(at)) {
            Some(entry) => (entry.epoch, end),
            None => (LeaderEpoch::NONE, log_start),
        }
    }

    /// The log now starts at `start`: epochs that end below it are forgotten.
    pub(crate) fn trim(&mut self, start: Offset) {
        let after = self.entries.partition_point(|entry| entry.start <= start);
        if after > 1 {
            self.entries.drain(..after - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_answer_where_histories_part() {
        let mut epochs = Epochs::default();
        for (epoch, offset) in [(1, 0), (1, 5), (3, 10), (3, 11), (7, 20)] {
            epochs.observe(LeaderEpoch(epoch), Offset(offset));
        }
        let end =
            |epochs: &Epochs, asked| epochs.end_offset(LeaderEpoch(asked), Offset(0), Offset(25));
        assert_eq!(end(&epochs, 0), (LeaderEpoch::NONE, Offset(0)));
        assert_eq!(end(&epochs, 1), (LeaderEpoch(1), Offset(10)));
        assert_eq!(end(&epochs, 2), (LeaderEpoch(1), Offset(10)));
        assert_eq!(end(&epochs, 3), (LeaderEpoch(3), Offset(20)));
        assert_eq!(end(&epochs, 9), (LeaderEpoch(7), Offset(25)));
        assert_eq!(epochs.at(Offset(10)), Some(LeaderEpoch(3)));
        assert_eq!(epochs.at(Offset(9)), Some(LeaderEpoch(1)));
        // What comes late finds its place; what contradicts is not believed.
        epochs.observe(LeaderEpoch(2), Offset(8));
        assert_eq!(end(&epochs, 1), (LeaderEpoch(1), Offset(8)));
        epochs.observe(LeaderEpoch(3), Offset(9));
        assert_eq!(end(&epochs, 2), (LeaderEpoch(2), Offset(9)));
        let before = epochs.clone();
        for (epoch, offset) in [(8, 9), (1, 9), (2, 10), (536_870_913, 0), (9, 20)] {
            assert!(!epochs.fits(LeaderEpoch(epoch), Offset(offset)));
            epochs.observe(LeaderEpoch(epoch), Offset(offset));
        }
        assert_eq!(epochs, before);
        epochs.trim(Offset(12));
        assert_eq!(epochs.at(Offset(12)), Some(LeaderEpoch(3)));
        assert_eq!(epochs.at(Offset(8)), None);
    }
}
