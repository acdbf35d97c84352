//! The data of a fetch stream: whose turn it is, how much, and what becomes of
//! what was read and does not fit the credit.
//!
//! A stream keeps at most one small batch that was read and cannot go yet; a
//! large one is dropped, its size is remembered, and it is read again when the
//! credit is there.

use super::{
    cursor::{on_reader, read_refusal},
    stream::{Ended, FetchStream},
};
use bytes::Bytes;
use std::sync::Arc;
use talweg_batch::BatchHeader;
use talweg_kit::errors::Refusal;
use talweg_log::ReadOutcome;
use talweg_proto::v1::{FetchedBatches, fetch_response::Frame};
use talweg_types::Offset;

/// What is kept although it does not fit.
const HELD_BYTES_MAX: usize = 256 * 1024;

/// Read, and waiting for credit.
pub struct Held {
    pub key: u32,
    batches: Bytes,
    records: u64,
    next: Offset,
}

impl FetchStream {
    /// Something could go now.
    pub(super) fn can_send(&self) -> bool {
        if self.reading.is_some() {
            return false;
        }
        match &self.held {
            Some(held) => self.credit.fits(held.batches.len(), held.records),
            None => {
                self.credit.has_room()
                    && self
                        .ready
                        .front()
                        .is_some_and(|key| self.is_affordable(*key))
            }
        }
    }

    fn is_affordable(&self, key: u32) -> bool {
        let needs = self.cursors.get(&key).map_or(0, |cursor| cursor.needs);
        needs == 0 || self.credit.fits(needs, 1)
    }

    /// No credit is left for anything that waits.
    pub(super) fn is_starved(&self) -> bool {
        let waiting = self.held.is_some() || !self.ready.is_empty();
        !self.credit.has_room() || (waiting && self.reading.is_none() && !self.can_send())
    }

    /// One frame, of the partition whose turn it is.
    pub(super) async fn send_next(&mut self) -> Result<(), Ended> {
        if let Some(held) = self.held.take() {
            return self.deliver(held).await;
        }
        let Some(key) = self.ready.pop_front() else {
            return Ok(());
        };
        let Some(cursor) = self.cursors.get_mut(&key) else {
            return Ok(());
        };
        cursor.queued = false;
        if let Err(refusal) = cursor.check(&self.node) {
            return self.stop(key, refusal).await;
        }
        let (from, end) = (cursor.next, cursor.visible_end());
        let max_bytes = self.credit.read_bytes();
        let reader = Arc::clone(&cursor.handle.reader);
        match reader.try_read(from, end, max_bytes) {
            Ok(Some(outcome)) => self.on_read(key, end, Ok(outcome)).await,
            Ok(None) => {
                self.node.metrics.cold_reads.inc();
                let node = Arc::clone(&self.node);
                self.reading = Some(Box::pin(async move {
                    (
                        key,
                        end,
                        on_reader(&node, move || reader.read(from, end, max_bytes)).await,
                    )
                }));
                Ok(())
            }
            Err(error) => self.stop(key, read_refusal(&error)).await,
        }
    }

    /// What a read of what lies below `end` came to.
    pub(super) async fn on_read(
        &mut self,
        key: u32,
        end: Offset,
        read: Result<ReadOutcome, Refusal>,
    ) -> Result<(), Ended> {
        let outcome = match read {
            Ok(outcome) => outcome,
            Err(refusal) => return self.stop(key, refusal).await,
        };
        let Some(cursor) = self.cursors.get_mut(&key) else {
            return Ok(());
        };
        if outcome.batches.is_empty() {
            cursor.next = cursor.next.max(outcome.next_offset);
            // Nothing whole is visible: only a move of the watermark changes that.
            cursor.arm();
            return if cursor.visible_end() > end {
                self.look(key).await
            } else {
                Ok(())
            };
        }
        let held = fit(key, outcome, self.credit.records());
        self.deliver(held).await
    }

    /// Sends, or keeps for later.
    async fn deliver(&mut self, held: Held) -> Result<(), Ended> {
        let Held {
            key,
            batches,
            records,
            next,
        } = held;
        let Some(cursor) = self.cursors.get_mut(&key) else {
            return Ok(());
        };
        if !self.credit.fits(batches.len(), records) {
            if batches.len() <= HELD_BYTES_MAX {
                self.held = Some(Held {
                    key,
                    batches,
                    records,
                    next,
                });
            } else {
                cursor.needs = batches.len();
                cursor.queued = true;
                self.ready.push_front(key);
            }
            return Ok(());
        }
        let first_offset = cursor.next.0;
        cursor.next = next;
        cursor.needs = 0;
        let position = Some(cursor.position());
        self.credit.spend(batches.len(), records);
        self.node.metrics.fetched_bytes.inc_by(batches.len() as u64);
        self.node.metrics.fetched_records.inc_by(records);
        let credit_left = Some(self.credit.left());
        self.send(Frame::Batches(FetchedBatches {
            position,
            credit_left,
            first_offset,
            batches,
        }))
        .await?;
        self.look(key).await
    }
}

/// Whole batches from the front, as many as the credit in records allows and at
/// least one.
fn fit(key: u32, outcome: ReadOutcome, records_left: u64) -> Held {
    let (mut bytes, mut records, mut next) = (0, 0, outcome.next_offset);
    while let Ok(header) = BatchHeader::parse(&outcome.batches[bytes..]) {
        let count = u64::try_from(header.record_count).unwrap_or(0);
        if bytes > 0 && records + count > records_left {
            next = header.base_offset;
            break;
        }
        bytes += header.total_bytes();
        records += count;
        if bytes >= outcome.batches.len() {
            break;
        }
    }
    Held {
        key,
        batches: outcome.batches.slice(..bytes.min(outcome.batches.len())),
        records,
        next,
    }
}
