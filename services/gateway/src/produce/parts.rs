//! A batch frame taken apart, by headers alone.

use super::credit::Amount;
use bytes::Bytes;
use talweg_batch::{BatchHeader, split_batches};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_types::limits;

/// The batches of a frame.
pub struct Parts {
    pub batches: Vec<(BatchHeader, Bytes)>,
    /// What follows the last whole batch: bytes that are no batch.
    pub rest: Option<Refusal>,
    pub amount: Amount,
}

impl Parts {
    /// Reads nothing but headers.
    pub fn of(payload: Bytes) -> Self {
        let mut parts = Self {
            batches: Vec::new(),
            rest: None,
            amount: Amount::default(),
        };
        parts.amount.bytes = payload.len() as u64;
        if payload.is_empty() {
            parts.rest = Some(Refusal::new(
                ErrorCode::CorruptBatch,
                "the frame holds no batch",
            ));
        }
        for batch in split_batches(payload) {
            match batch.and_then(|batch| Ok((BatchHeader::parse(&batch)?, batch))) {
                Ok((header, batch)) => {
                    parts.amount.records += u64::try_from(header.record_count).unwrap_or(0);
                    parts.batches.push((header, batch));
                }
                Err(error) => {
                    // All or nothing: the client cannot tell where the good part ends.
                    parts.batches.clear();
                    parts.amount.records = 0;
                    parts.rest = Some(error.into());
                    break;
                }
            }
        }
        parts
    }

    /// Stream sequences that the frame uses up: one that is not whole batches takes one.
    pub fn count(&self) -> u64 {
        self.batches.len() as u64 + u64::from(self.rest.is_some())
    }

    /// FRAME_TOO_LARGE for several batches in more than a frame's payload.
    pub fn check_size(&self) -> Result<(), Refusal> {
        let limit = u64::from(limits::FRAME_PAYLOAD_BYTES);
        if self.amount.bytes > limit && self.batches.len() > 1 {
            return Err(too_large(self.amount.bytes, "batches"));
        }
        Ok(())
    }
}

/// FRAME_TOO_LARGE: more than one of `what` in more than a frame's payload.
pub fn too_large(bytes: u64, what: &str) -> Refusal {
    let limit = u64::from(limits::FRAME_PAYLOAD_BYTES);
    let message = format!("a frame of several {what} has at most {limit} bytes of them");
    Refusal::new(ErrorCode::FrameTooLarge, message).with_limit(
        "frame payload",
        limit,
        bytes,
        "bytes",
    )
}
