//! Idempotency keys: a record header that makes a repeat of a record known by
//! name, for clients without producer numbers.
//!
//! A key is remembered from its append until the window has passed (by append
//! time), at most 100,000 per partition, the oldest going first. Keys are saved
//! in `sessions` files and replayed from the log like producer sessions.

use crate::{error::AppendError, sessions::is_older, sidecar::sessions::KeyEntry};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use talweg_batch::{BatchHeader, CheckedBatch, Record};
use talweg_types::{
    Offset, TimestampMs,
    limits::{IDEMPOTENCY_HEADER, IDEMPOTENCY_KEY_BYTES_MAX, IDEMPOTENCY_KEYS_MAX},
};

/// Where a key was first seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Remembered {
    pub offset: Offset,
    pub batch_base: Offset,
    pub batch_records: i32,
    pub append_time: TimestampMs,
}

/// What the keys say of a batch that wants in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum KeyVerdict {
    /// No key of it is remembered.
    Accept,
    /// All of it was appended before: the offset of each keyed record, in order.
    Repeat(Vec<Remembered>),
}

#[derive(Clone, Default)]
pub(crate) struct IdempotencyKeys {
    /// Only looked up; order is in `by_age`.
    by_key: HashMap<Box<[u8]>, Remembered>,
    by_age: VecDeque<(TimestampMs, Box<[u8]>, Offset)>,
}

impl IdempotencyKeys {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    /// The first offset of the oldest batch with a key that is remembered.
    pub(crate) fn oldest(&self) -> Option<Offset> {
        let (_, key, offset) = self.by_age.front()?;
        let known = self.by_key.get(key).map(|known| known.batch_base);
        Some(known.unwrap_or(*offset).min(*offset))
    }

    /// Judges a batch; changes nothing.
    pub(crate) fn check(
        &self,
        batch: &CheckedBatch,
        now: TimestampMs,
        window_ms: u64,
    ) -> Result<KeyVerdict, AppendError> {
        let keys = &batch.idempotency_keys;
        if keys.is_empty() {
            return Ok(KeyVerdict::Accept);
        }
        let mut names: Vec<&[u8]> = keys.iter().map(|(_, key)| &key[..]).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(AppendError::DuplicateKeyInBatch {
                key: show(twice[0]),
            });
        }
        let live = |key: &Bytes| {
            self.by_key
                .get(&key[..])
                .filter(|known| !is_older(known.append_time, now, window_ms))
                .copied()
        };
        let repeats: Vec<(&Bytes, Remembered)> = keys
            .iter()
            .filter_map(|(_, key)| live(key).map(|known| (key, known)))
            .collect();
        let Some((key, first)) = repeats.first() else {
            return Ok(KeyVerdict::Accept);
        };
        let whole =
            repeats.len() == keys.len() && (all_keyed(batch) || is_same_batch(batch, &repeats));
        if !whole {
            return Err(AppendError::KeyRepeatedInPart {
                key: show(key),
                offset: first.offset,
            });
        }
        if batch.header.has_producer() {
            return Err(AppendError::KeyRepeatedInSession {
                key: show(key),
                offset: first.offset,
            });
        }
        Ok(KeyVerdict::Repeat(
            repeats.into_iter().map(|(_, known)| known).collect(),
        ))
    }

    /// A batch with these keys (offset delta and key) is in the log.
    pub(crate) fn apply<'a>(
        &mut self,
        header: &BatchHeader,
        keys: impl Iterator<Item = (i32, &'a [u8])>,
        append_time: TimestampMs,
    ) {
        for (delta, key) in keys {
            self.insert(KeyEntry {
                key: key.into(),
                offset: header.base_offset.plus(i64::from(delta)),
                batch_base: header.base_offset,
                batch_records: header.record_count,
                append_time,
            });
        }
    }

    fn insert(&mut self, entry: KeyEntry) {
        let remembered = Remembered {
            offset: entry.offset,
            batch_base: entry.batch_base,
            batch_records: entry.batch_records,
            append_time: entry.append_time,
        };
        self.by_key.insert(entry.key.clone(), remembered);
        self.by_age
            .push_back((entry.append_time, entry.key, entry.offset));
        while self.by_age.len() > IDEMPOTENCY_KEYS_MAX {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, key, offset)) = self.by_age.pop_front() {
            self.forget(&key, offset);
        }
    }

    /// Forgets a key unless it was seen again at another offset.
    fn forget(&mut self, key: &[u8], offset: Offset) {
        if self
            .by_key
            .get(key)
            .is_some_and(|known| known.offset == offset)
        {
            self.by_key.remove(key);
        }
    }

    /// Takes back everything at or above `end`: the append failed. What such a
    /// key meant before was expired, or it would not have been appended.
    pub(crate) fn take_back(&mut self, end: Offset) {
        while self
            .by_age
            .back()
            .is_some_and(|(_, _, offset)| *offset >= end)
        {
            if let Some((_, key, offset)) = self.by_age.pop_back() {
                self.forget(&key, offset);
            }
        }
    }

    pub(crate) fn expire(&mut self, now: TimestampMs, window_ms: u64) {
        while self
            .by_age
            .front()
            .is_some_and(|(time, ..)| is_older(*time, now, window_ms))
        {
            self.forget_oldest();
        }
        if self.by_age.is_empty() && self.by_key.capacity() > 64 {
            *self = Self::default();
        }
    }

    /// Live keys, oldest first.
    pub(crate) fn entries(&self, now: TimestampMs, window_ms: u64) -> Vec<KeyEntry> {
        let live = self
            .by_age
            .iter()
            .filter(|(time, ..)| !is_older(*time, now, window_ms));
        live.filter_map(|(_, key, offset)| {
            let known = self
                .by_key
                .get(key)
                .filter(|known| known.offset == *offset)?;
            Some(KeyEntry {
                key: key.clone(),
                offset: *offset,
                batch_base: known.batch_base,
                batch_records: known.batch_records,
                append_time: known.append_time,
            })
        })
        .collect()
    }

    pub(crate) fn load(entries: &[KeyEntry]) -> Self {
        let mut keys = Self::default();
        entries.iter().for_each(|entry| keys.insert(entry.clone()));
        keys
    }
}

fn all_keyed(batch: &CheckedBatch) -> bool {
    i32::try_from(batch.idempotency_keys.len())
        .is_ok_and(|keyed| keyed == batch.header.record_count)
}

/// With records that have no key: a repeat only if all keys are known from one
/// batch of as many records, each at its old place.
fn is_same_batch(batch: &CheckedBatch, repeats: &[(&Bytes, Remembered)]) -> bool {
    batch
        .idempotency_keys
        .iter()
        .zip(repeats)
        .all(|((delta, _), (_, known))| {
            known.batch_base == repeats[0].1.batch_base
                && known.batch_records == batch.header.record_count
                && known.batch_base.plus(i64::from(*delta)) == known.offset
        })
}

/// The keys of decoded records, as [`IdempotencyKeys::apply`] takes them.
pub(crate) fn keys_of(records: &[Record]) -> impl Iterator<Item = (i32, &[u8])> {
    records.iter().filter_map(|record| {
        let named =
            |(name, _): &&(Bytes, Option<Bytes>)| &name[..] == IDEMPOTENCY_HEADER.as_bytes();
        let (_, value) = record.headers.iter().find(named)?;
        let key = value
            .as_deref()
            .filter(|key| !key.is_empty() && key.len() <= IDEMPOTENCY_KEY_BYTES_MAX)?;
        Some((record.offset_delta, key))
    })
}

fn show(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}
