//! From the log (and, before it, from a view that was kept of it) to a shard.

use crate::{DecodeError, Limits, Machine, Now, Shard};
use bytes::Bytes;
use std::{collections::BTreeMap, sync::Arc};
use talweg_batch::{BatchError, BatchHeader, Records, verify_crc};
use talweg_types::{Offset, limits};
use thiserror::Error;

/// Why a shard was not loaded. Nothing of it is served then.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LoadError {
    #[error("a batch at or above offset {at} cannot be read: {reason}")]
    Batch { at: Offset, reason: BatchError },
    #[error("the record at offset {at} with key {key} cannot be read: {reason}")]
    Record {
        at: Offset,
        /// Hexadecimal, the first 64 bytes.
        key: String,
        reason: DecodeError,
    },
    #[error("the records of {name:?} contradict each other: {reason}")]
    Broken { name: String, reason: String },
}

/// A shard on its way up.
pub struct Loading<M: Machine> {
    stored: BTreeMap<Arc<str>, M::Stored>,
    next: Offset,
}

impl<M: Machine> Default for Loading<M> {
    fn default() -> Self {
        Self {
            stored: BTreeMap::new(),
            next: Offset::ZERO,
        }
    }
}

impl<M: Machine> Loading<M> {
    /// The next offset to apply.
    pub fn next(&self) -> Offset {
        self.next
    }

    /// What came in from elsewhere holds all below this offset.
    pub fn skip_to(&mut self, next: Offset) {
        self.next = self.next.max(next);
    }

    /// One whole batch of the log. Records below [`Self::next`] and control batches
    /// are passed over.
    pub fn apply_batch(&mut self, batch: &Bytes) -> Result<(), LoadError> {
        let at = self.next;
        let damaged = |reason| LoadError::Batch { at, reason };
        let header = BatchHeader::parse(batch).map_err(damaged)?;
        let next = header.next_offset();
        if next <= self.next {
            return Ok(());
        }
        verify_crc(batch).map_err(damaged)?;
        if !header.is_control() {
            let most = limits::UNPACKED_BATCH_BYTES_MAX as usize;
            for record in Records::new(batch, most).map_err(damaged)? {
                let record = record.map_err(damaged)?;
                let at = header.base_offset.plus(record.offset_delta.into());
                if at >= self.next {
                    self.apply(at, record.key.as_deref(), record.value.as_deref())?;
                }
            }
        }
        self.next = next;
        Ok(())
    }

    /// One record; `at` is for the error only.
    pub fn apply(
        &mut self,
        at: Offset,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> Result<(), LoadError> {
        let unreadable = |reason| LoadError::Record {
            at,
            key: hex(key.unwrap_or_default()),
            reason,
        };
        let key = key.ok_or_else(|| unreadable(DecodeError::NoKey))?;
        let (name, record) = M::decode(key, value).map_err(unreadable)?;
        let stored = match self.stored.get_mut(name.as_str()) {
            Some(stored) => stored,
            None => self.stored.entry(name.into()).or_default(),
        };
        M::apply(stored, record);
        Ok(())
    }

    /// As [`Shard::state_hash`] of what this would become.
    pub fn state_hash(&self) -> u64 {
        let kept = self.stored.iter().filter(|(_, it)| !M::is_nothing(it));
        shard_hash(kept.map(|(name, stored)| (name.as_ref(), M::stored_hash(stored))))
    }

    /// The shard, or why there is none.
    pub fn finish(
        self,
        settings: M::Settings,
        limits: Limits,
        now: Now,
    ) -> Result<Shard<M>, LoadError> {
        let mut machines = BTreeMap::new();
        for (name, stored) in self.stored {
            if M::is_nothing(&stored) {
                continue;
            }
            let machine = M::load(settings, now, stored).map_err(|reason| LoadError::Broken {
                name: name.to_string(),
                reason,
            })?;
            machines.insert(name, machine);
        }
        Ok(Shard::loaded(settings, limits, machines, self.next))
    }
}

/// Over names in order and the hashes of their states; FNV-1a, 64 bits.
pub fn shard_hash<'a>(machines: impl Iterator<Item = (&'a str, u64)>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for (name, state) in machines {
        let state = state.to_be_bytes();
        for byte in name.bytes().chain([0]).chain(state) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

fn hex(bytes: &[u8]) -> String {
    let shown = bytes.iter().take(64);
    shown.map(|byte| format!("{byte:02x}")).collect()
}
