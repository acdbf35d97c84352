//! A log in memory: records with their epochs, and what is flushed.

use crate::{History, ReplicaEnds};
use talweg_types::{LeaderEpoch, Offset};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub epoch: i32,
    pub value: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    pub start: i64,
    records: Vec<Record>,
    pub flushed: i64,
    pub high_watermark: i64,
}

impl Log {
    pub(super) fn end(&self) -> i64 {
        self.start + i64::try_from(self.records.len()).unwrap()
    }

    fn index(&self, offset: i64) -> Option<usize> {
        usize::try_from(offset - self.start).ok()
    }

    pub(super) fn get(&self, offset: i64) -> Option<Record> {
        self.records.get(self.index(offset)?).copied()
    }

    pub(super) fn read(&self, from: i64, to: i64) -> Vec<Record> {
        (from..to).filter_map(|offset| self.get(offset)).collect()
    }

    pub(super) fn append(&mut self, records: &[Record]) {
        self.records.extend_from_slice(records);
    }

    pub(super) fn truncate(&mut self, to: i64) {
        let kept = self.index(to.max(self.start)).unwrap_or(0);
        self.records.truncate(kept);
        self.flushed = self.flushed.min(self.end());
        self.high_watermark = self.high_watermark.min(self.end());
    }

    /// Removes what is below `start`, which is not above the watermark.
    pub(super) fn trim(&mut self, start: i64) {
        if start > self.start {
            let gone = self.index(start).unwrap_or(0).min(self.records.len());
            self.records.drain(..gone);
            self.start = start;
            self.flushed = self.flushed.max(start);
        }
    }

    pub(super) fn restart_at(&mut self, at: i64) {
        *self = Self {
            start: at,
            records: Vec::new(),
            flushed: at,
            high_watermark: at,
        };
    }

    /// What recovery finds, and it flushes what it keeps.
    pub(super) fn recover(&mut self, lost_unflushed: bool) {
        if lost_unflushed {
            self.truncate(self.flushed);
        }
        self.flushed = self.end();
    }

    pub(super) fn ends(&self) -> ReplicaEnds {
        ReplicaEnds {
            log_end: Offset(self.end()),
            flushed_end: Offset(self.flushed),
        }
    }

    /// The first offset at which the two differ below the last one at which
    /// both hold a record of the same epoch.
    pub(super) fn mismatch(&self, other: &Self) -> Option<i64> {
        let low = self.start.max(other.start);
        let high = self.end().min(other.end());
        let same_epoch = |offset: &i64| {
            let epoch = |log: &Self| log.get(*offset).map(|record| record.epoch);
            epoch(self) == epoch(other)
        };
        let common = (low..high).rev().find(same_epoch)?;
        (low..=common).find(|offset| self.get(*offset) != other.get(*offset))
    }
}

impl History for Log {
    fn last_epoch(&self) -> LeaderEpoch {
        let last = self.records.last();
        last.map_or(LeaderEpoch::NONE, |record| LeaderEpoch(record.epoch))
    }

    fn end_of(&self, epoch: LeaderEpoch) -> (LeaderEpoch, Offset) {
        let after = self
            .records
            .partition_point(|record| record.epoch <= epoch.0);
        let end = Offset(self.start + i64::try_from(after).unwrap());
        match after.checked_sub(1) {
            Some(last) => (LeaderEpoch(self.records[last].epoch), end),
            None => (LeaderEpoch::NONE, Offset(self.start)),
        }
    }
}
