//! A digest of what a log says, for comparing replicas: independent of how
//! batches are split over segments, dependent on every record and its epoch.

use super::{BatchView, DumpError, Event, LogFiles};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use talweg_batch::Record;
use talweg_types::Offset;

/// SHA-256 over the records in `from .. to`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Digest {
    /// Lower-case hexadecimal.
    pub sha256: String,
    /// The first offset that was there.
    pub from: Offset,
    /// Exclusive, as asked or where the log ended.
    pub to: Offset,
    pub records: u64,
}

impl LogFiles {
    /// Over offset, leader epoch, timestamp, key, value and headers of every
    /// record below `to` (exclusive) and at or above the log start. Damage is an
    /// error: a digest over a part would compare what is not there.
    pub fn digest(&self, to: Offset) -> Result<Digest, DumpError> {
        let mut hash = Sha256::new();
        let mut digest = Digest::empty(to, self.log_start());
        self.each_record(to, &mut |batch, offset, record| {
            digest.counts(offset);
            hash_record(&mut hash, batch, offset, record);
        })?;
        digest.sha256 = hexadecimal(hash);
        Ok(digest)
    }

    /// The same over the newest record of each key, if it is no tombstone, and every
    /// record without a key: equal for replicas of a compacted topic, whatever each
    /// has compacted so far. Takes about 100 bytes of memory a key.
    pub fn digest_newest(&self, to: Offset) -> Result<Digest, DumpError> {
        type Hash = [u8; 32];
        let mut newest: BTreeMap<Hash, (Offset, Hash)> = BTreeMap::new();
        self.each_record(to, &mut |batch, offset, record| {
            let mut name = Sha256::new();
            field(&mut name, record.key.as_deref());
            if record.key.is_none() {
                name.update(offset.0.to_be_bytes());
            }
            let name = name.finalize().into();
            if record.key.is_some() && record.value.is_none() {
                newest.remove(&name);
                return;
            }
            let mut hash = Sha256::new();
            hash_record(&mut hash, batch, offset, record);
            newest.insert(name, (offset, hash.finalize().into()));
        })?;
        let mut digest = Digest::empty(to, self.log_start());
        let mut all = Sha256::new();
        let mut end = digest.to;
        for (offset, hash) in newest.values() {
            digest.counts(*offset);
            end = end.max(digest.to);
            all.update(hash);
        }
        digest.to = end;
        digest.sha256 = hexadecimal(all);
        Ok(digest)
    }

    fn log_start(&self) -> Offset {
        self.record()
            .map_or(Offset::ZERO, |record| record.log_start)
    }

    fn each_record(
        &self,
        to: Offset,
        visit: &mut dyn FnMut(&BatchView<'_>, Offset, &Record),
    ) -> Result<(), DumpError> {
        let start = self.log_start();
        self.for_each(true, &mut |event| {
            let batch = match event {
                Event::Batch(batch) => batch,
                Event::Damage {
                    from, next_good, ..
                } => {
                    return if from >= to {
                        Ok(false)
                    } else {
                        Err(DumpError::Damaged {
                            offset: from,
                            next_good,
                        })
                    };
                }
                Event::Tail { .. } => return Ok(false),
            };
            for record in batch.records()? {
                let delta = i64::from(record.offset_delta);
                let offset = batch.header.base_offset.plus(delta);
                if offset < to && offset >= start {
                    visit(&batch, offset, &record);
                }
            }
            Ok(batch.header.next_offset() < to)
        })
    }
}

impl Digest {
    fn empty(to: Offset, start: Offset) -> Self {
        Self {
            sha256: String::new(),
            from: to,
            to: start,
            records: 0,
        }
    }

    fn counts(&mut self, offset: Offset) {
        self.from = self.from.min(offset);
        self.to = offset.plus(1);
        self.records += 1;
    }
}

fn hash_record(hash: &mut Sha256, batch: &BatchView<'_>, offset: Offset, record: &Record) {
    hash.update(offset.0.to_be_bytes());
    hash.update(batch.header.leader_epoch.0.to_be_bytes());
    hash.update(record.timestamp.0.to_be_bytes());
    field(hash, record.key.as_deref());
    field(hash, record.value.as_deref());
    hash.update((record.headers.len() as u64).to_be_bytes());
    for (name, value) in &record.headers {
        field(hash, Some(name));
        field(hash, value.as_deref());
    }
}

fn hexadecimal(hash: Sha256) -> String {
    let bytes = hash.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Length first, so that fields cannot flow into one another; null is -1.
fn field(hash: &mut Sha256, bytes: Option<&[u8]>) {
    let length = bytes.map_or(-1, |bytes| i64::try_from(bytes.len()).unwrap_or(i64::MAX));
    hash.update(length.to_be_bytes());
    hash.update(bytes.unwrap_or_default());
}
