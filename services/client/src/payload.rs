//! What counts as payload against credit: the encoded length of the `records`
//! and `batches` fields. The one place that knows, for senders and receivers.

use prost::Message;
use prost::encoding::encoded_len_varint;
use talweg_proto::v1;

/// One key byte (all these fields have numbers below 16), the length, the bytes.
fn field_bytes(length: usize) -> usize {
    1 + encoded_len_varint(length as u64) + length
}

/// A record's share of a thin produce frame's `records`.
pub fn record_bytes(record: &v1::Record) -> usize {
    field_bytes(record.encoded_len())
}

/// A record's share of a thin fetch frame's `records`.
pub fn fetched_record_bytes(record: &v1::FetchedRecord) -> usize {
    field_bytes(record.encoded_len())
}
