//! When the leader appended, as far as entries tell.

use super::Index;
use crate::{
    append_times::{Around, Mark},
    kv::{IndexKv, KvError},
};
use std::sync::atomic::Ordering;
use talweg_types::{Offset, TimestampMs};

impl Index {
    /// The append times of the entry at or below `offset` and of the next one, in
    /// that segment, in memory or in the store.
    pub(crate) fn append_times(
        &self,
        kv: &dyn IndexKv,
        segment: Offset,
        offset: Offset,
    ) -> Result<Around, KvError> {
        let known = self.append_times_between(kv, segment, (offset, offset.plus(1)), 1)?;
        let after = known.partition_point(|mark| mark.0 <= offset);
        let time_at = |at: usize| known.get(at).map(|mark| mark.1);
        Ok(Around {
            entry: after.checked_sub(1).and_then(time_at),
            next: time_at(after),
        })
    }

    /// The entry at or below `from` in that segment, those above it below `to`, of
    /// which no more than `limit`, and the next one.
    pub(crate) fn append_times_between(
        &self,
        kv: &dyn IndexKv,
        segment: Offset,
        (from, to): (Offset, Offset),
        limit: usize,
    ) -> Result<Vec<Mark>, KvError> {
        let pending = self.pending_between(segment, (from, to), limit);
        // What is pending lies above what is stored.
        let has_floor = pending.first().is_some_and(|mark| mark.0 <= from);
        if has_floor || self.distrusted.load(Ordering::Acquire) {
            return Ok(pending);
        }
        let floor = kv.last_in(&self.offset_key(segment), &self.offset_key(from))?;
        let (low, high) = (self.offset_key(from.plus(1)), self.offset_key(to));
        let within = kv.scan(&low, &high, limit)?;
        let next = kv.scan(&high, &self.offset_key(Offset::MAX), 1)?;
        let stored = floor.into_iter().chain(within).chain(next);
        // A flush may have stored meanwhile what was pending.
        let below = pending.first().map_or(Offset::MAX, |mark| mark.0);
        let stored = stored.filter_map(|(key, value)| mark_of(&key, &value));
        let stored = stored.filter(|mark| mark.0 < below);
        Ok(stored.chain(pending.iter().copied()).collect())
    }

    fn pending_between(
        &self,
        segment: Offset,
        (from, to): (Offset, Offset),
        limit: usize,
    ) -> Vec<Mark> {
        let pending = self.pending.read();
        let after = pending.partition_point(|entry| entry.offset <= from);
        let end = pending
            .partition_point(|entry| entry.offset < to)
            .max(after);
        let floor = after.checked_sub(1).and_then(|at| pending.get(at));
        let floor = floor.filter(|entry| entry.segment == segment);
        let within = pending.range(after..end).take(limit);
        let marks = floor.into_iter().chain(within).chain(pending.get(end));
        marks.map(Mark::from).collect()
    }
}

fn mark_of(key: &[u8], value: &[u8]) -> Option<Mark> {
    let offset = i64::from_be_bytes(*key.last_chunk()?);
    let time = i64::from_be_bytes(*value.get(8..)?.first_chunk()?);
    Some((Offset(offset), TimestampMs(time)))
}
