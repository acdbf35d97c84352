//! What stays of a batch. Pure.
//!
//! A record stays while it is the newest of its key as far as the round has
//! looked, or has no key. A tombstone that an earlier round has met goes once
//! its horizon has passed: all that it deletes is gone by then. Control batches
//! stay, and of every batch that a producer session remembers at least the
//! header does, so that a log copied from here knows the same repeats.

use super::keys::KeyMap;
use bytes::Bytes;
use std::collections::HashSet;
use talweg_batch::{BatchError, BatchHeader, Encoders, Records, compact};
use talweg_types::{Offset, TimestampMs, limits};

/// What one round knows.
pub(super) struct Filter {
    pub keys: KeyMap,
    /// Below this offset earlier rounds have looked.
    pub first_dirty: Offset,
    /// Below this offset (exclusive) the keys were taken into the map.
    pub mapped_end: Offset,
    /// Base offsets of batches that producer sessions remember; unknown: all may be.
    pub remembered: Option<HashSet<i64>>,
    /// Wall clock, if it may be believed: else no tombstone goes, and none is
    /// given a horizon.
    pub now: Option<TimestampMs>,
    pub delete_retention_ms: u64,
}

/// What becomes of a batch.
pub(super) enum Fate {
    AsItIs,
    Rewritten(Bytes),
    /// Nothing of it is left but its place.
    Gone,
}

/// A batch as judged.
pub(super) struct Judged {
    pub fate: Fate,
    pub removed: u64,
    /// The earliest time at which one of its tombstones can go.
    pub next_horizon: Option<TimestampMs>,
}

impl Filter {
    pub(super) fn judge(
        &self,
        header: &BatchHeader,
        batch: &Bytes,
        encoders: &mut Encoders,
    ) -> Result<Judged, BatchError> {
        if header.is_control() {
            return Ok(Judged::untouched());
        }
        let mut kept = Vec::new();
        let (mut tombstones, mut removed) = (false, 0);
        for record in Records::new(batch, limits::UNPACKED_BATCH_BYTES_MAX as usize)? {
            let record = record?;
            let offset = header.base_offset.plus(i64::from(record.offset_delta));
            let tombstone = record.key.is_some() && record.value.is_none();
            let over = tombstone && self.is_over(header, offset);
            if over || self.is_superseded(record.key.as_deref(), offset) {
                removed += 1;
                continue;
            }
            tombstones |= tombstone;
            kept.push(record);
        }
        let horizon = match (tombstones, header.delete_horizon()) {
            (false, _) => None,
            (true, Some(known)) => Some(known),
            (true, None) => self.new_horizon(header),
        };
        let next_horizon = tombstones.then(|| horizon.unwrap_or(TimestampMs(i64::MIN)));
        let fate = if kept.is_empty() {
            self.emptied(header)?
        } else if removed == 0 && horizon == header.delete_horizon() {
            Fate::AsItIs
        } else {
            Fate::Rewritten(compact::with_records(header, &kept, horizon, encoders)?)
        };
        Ok(Judged {
            fate,
            removed,
            next_horizon,
        })
    }

    fn is_superseded(&self, key: Option<&[u8]>, offset: Offset) -> bool {
        offset < self.mapped_end
            && key
                .and_then(|key| self.keys.newest(key))
                .is_some_and(|newest| newest > offset)
    }

    fn is_over(&self, header: &BatchHeader, offset: Offset) -> bool {
        let passed = header.delete_horizon().zip(self.now);
        offset < self.first_dirty && passed.is_some_and(|(horizon, now)| horizon <= now)
    }

    /// A batch that reaches beyond what the round has looked at waits for the next.
    fn new_horizon(&self, header: &BatchHeader) -> Option<TimestampMs> {
        let ms = i64::try_from(self.delete_retention_ms).unwrap_or(i64::MAX);
        let now = self
            .now
            .filter(|_| header.next_offset() <= self.mapped_end)?;
        // The last moment means "none" elsewhere.
        Some(TimestampMs(now.0.saturating_add(ms).min(i64::MAX - 1)))
    }

    fn emptied(&self, header: &BatchHeader) -> Result<Fate, BatchError> {
        let known = self.remembered.as_ref();
        let remembered = header.has_producer()
            && known.is_none_or(|known| known.contains(&header.base_offset.0));
        Ok(match (remembered, header.record_count) {
            (false, _) => Fate::Gone,
            (true, 0) => Fate::AsItIs,
            (true, _) => Fate::Rewritten(compact::without_records(header)?),
        })
    }
}

impl Judged {
    pub(super) fn untouched() -> Self {
        Self {
            fate: Fate::AsItIs,
            removed: 0,
            next_horizon: None,
        }
    }
}
