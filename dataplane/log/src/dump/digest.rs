//! A digest of what a log says, for comparing replicas: independent of how
//! batches are split over segments, dependent on every record and its epoch.

use super::{DumpError, Event, LogFiles};
use sha2::{Digest as _, Sha256};
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
        let start = self
            .record()
            .map_or(Offset::ZERO, |record| record.log_start);
        let mut hash = Sha256::new();
        let mut digest = Digest {
            sha256: String::new(),
            from: to,
            to: start,
            records: 0,
        };
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
                let offset = batch
                    .header
                    .base_offset
                    .plus(i64::from(record.offset_delta));
                if offset >= to || offset < start {
                    continue;
                }
                hash.update(offset.0.to_be_bytes());
                hash.update(batch.header.leader_epoch.0.to_be_bytes());
                hash.update(record.timestamp.0.to_be_bytes());
                field(&mut hash, record.key.as_deref());
                field(&mut hash, record.value.as_deref());
                hash.update((record.headers.len() as u64).to_be_bytes());
                for (name, value) in &record.headers {
                    field(&mut hash, Some(name));
                    field(&mut hash, value.as_deref());
                }
                digest.from = digest.from.min(offset);
                digest.to = offset.plus(1);
                digest.records += 1;
            }
            Ok(batch.header.next_offset() < to)
        })?;
        digest.sha256 = hash
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Ok(digest)
    }
}

/// Length first, so that fields cannot flow into one another; null is -1.
fn field(hash: &mut Sha256, bytes: Option<&[u8]>) {
    let length = bytes.map_or(-1, |bytes| i64::try_from(bytes.len()).unwrap_or(i64::MAX));
    hash.update(length.to_be_bytes());
    hash.update(bytes.unwrap_or_default());
}
