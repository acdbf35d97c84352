//! The record batch: Kafka's format, magic 2, byte for byte
//! (`docs/formats/record-batch.md` draws it).
//!
//! Invariant: what [`check_client_batch`] has let through, [`decode_records`]
//! can decode, within the same limits. Nothing here does IO, reads a clock or
//! panics on any input; every refusal is a [`BatchError`] with its reason.
//!
//! A batch stays the bytes that the producer made, from producer to consumer:
//! the leader only rewrites the first [`STAMP_BYTES`], which no checksum
//! covers ([`stamp_prefix`]).

mod builder;
mod check;
mod codec;
pub mod compact;
mod control;
mod error;
mod fence;
mod header;
mod partition;
mod record;
mod varint;

pub use builder::BatchBuilder;
pub use check::{CheckedBatch, ValidationLimits, check_client_batch};
pub use codec::Encoders;
pub use control::{ControlError, EndTransactionMarker, MarkerKind, control_batch};
pub use error::{BatchError, BatchErrorKind, RecordFault};
pub use fence::{fence_batch, read_fence};
pub use header::{
    BatchHeader, HEADER_BYTES, STAMP_BYTES, SplitBatches, split_batches, stamp_prefix, verify_crc,
};
pub use partition::{murmur2, partition_for_key};
pub use record::{HeaderRef, Record, Records, decode_records, record_bytes};
