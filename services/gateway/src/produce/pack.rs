//! A batch that is being filled, and the builders it comes from.

use super::credit::Amount;
use talweg_batch::{BatchBuilder, HEADER_BYTES};
use talweg_client::view::TopicView;
use talweg_types::{Acks, Compression, limits};

/// Builders kept for reuse.
const SPARE_BUILDERS: usize = 32;

/// Records of one partition that wait for company.
pub struct Pack {
    pub codec: Compression,
    pub builder: BatchBuilder,
    /// Stream sequences, in order.
    pub sequences: Vec<u64>,
    /// Their credit.
    pub amount: Amount,
    pub acks: Acks,
    /// When it goes even if it is not full, and when its oldest record is given up.
    pub linger_ms: u64,
    pub deadline_ms: u64,
}

impl Pack {
    /// Whether `bytes` more of key, value and headers fit.
    pub fn fits(&self, bytes: usize, limit: usize) -> bool {
        self.builder.payload_bytes() + bytes + RECORD_OVERHEAD <= limit
    }

    pub fn is_due(&self, now_ms: u64) -> bool {
        self.linger_ms <= now_ms
    }

    pub fn is_late(&self, now_ms: u64) -> bool {
        self.deadline_ms <= now_ms
    }
}

/// Length, attributes, deltas, and the lengths of key, value and header count
/// at their longest; headers bring their own lengths (ten bytes each at most),
/// which count as payload when they come.
const RECORD_OVERHEAD: usize = 40;

/// Bytes of records that a batch of this topic is filled up to.
pub fn fill_limit(topic: &TopicView) -> usize {
    let config = &topic.config;
    let most = limits::PACK_BATCH_BYTES
        .min(config.max_message_bytes)
        .min(config.max_unpacked_batch_bytes);
    (most as usize).saturating_sub(HEADER_BYTES)
}

/// Builders with their buffers.
#[derive(Default)]
pub struct Builders {
    spare: Vec<(Compression, BatchBuilder)>,
}

impl Builders {
    pub fn take(&mut self, codec: Compression) -> BatchBuilder {
        match self.spare.iter().position(|(it, _)| *it == codec) {
            Some(at) => self.spare.swap_remove(at).1,
            None => BatchBuilder::new(codec),
        }
    }

    pub fn give_back(&mut self, codec: Compression, builder: BatchBuilder) {
        if self.spare.len() < SPARE_BUILDERS {
            self.spare.push((codec, builder));
        }
    }
}
