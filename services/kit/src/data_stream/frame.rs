//! Splitting a message into its head and its payload.
//!
//! ```text
//! 0x00  length(4, big endian)        gRPC prefix
//! tag  length                        the frame's variant (`batch`, `batches`)
//!   ... fields 1 to 14 ...
//!   0x7a  length                     field 15, `batches`       <- the head ends here
//!   payload                          a chunk of its own
//! ```
//! Protobuf allows fields in any order and field 15 has the highest number, so
//! this is also the order in which every generated encoder writes.

use super::Shape;
use bytes::{BufMut, Bytes, BytesMut};
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len},
};
use talweg_proto::{
    storage::v1::{ReplicateRequest, ReplicateResponse, replicate_response},
    v1::{self, fetch_response, produce_request, subscribe_response},
};

/// Field number of the payload in every frame that carries one.
const PAYLOAD_TAG: u32 = 15;

/// A message of a data stream.
pub trait DataFrame: Message + Default + Send + 'static {
    /// Where repeated messages are in it: their number is bounded.
    const SHAPE: &'static [Shape];

    /// Appends the gRPC prefix and all of the message but its payload to
    /// `head`, and returns the payload: together they are the message. Empty
    /// if the frame carries none. The message must be below 4 GiB.
    fn split(self, head: &mut BytesMut) -> Bytes;
}

/// A field with messages that are looked into.
const fn within(tag: u32, inner: &'static [Shape]) -> Shape {
    Shape { tag, inner }
}

/// A field with messages that are counted only.
const fn each(tag: u32) -> Shape {
    within(tag, &[])
}

/// A frame without a payload of its own: everything is head.
pub fn split_whole<M: Message>(message: &M, head: &mut BytesMut) -> Bytes {
    let length = message.encoded_len();
    put_prefix(length, head);
    message.encode_raw(head);
    Bytes::new()
}

/// A frame that is one nested message `inner` under field `tag`, whose payload
/// field 15 was taken out (is empty) and follows as `payload`.
pub fn split_nested<M: Message>(tag: u32, inner: &M, payload: Bytes, head: &mut BytesMut) -> Bytes {
    let payload_field = if payload.is_empty() {
        0
    } else {
        key_len(PAYLOAD_TAG) + encoded_len_varint(payload.len() as u64) + payload.len()
    };
    let inner_length = inner.encoded_len() + payload_field;
    let length = key_len(tag) + encoded_len_varint(inner_length as u64) + inner_length;
    put_prefix(length, head);
    encode_key(tag, WireType::LengthDelimited, head);
    encode_varint(inner_length as u64, head);
    inner.encode_raw(head);
    if !payload.is_empty() {
        encode_key(PAYLOAD_TAG, WireType::LengthDelimited, head);
        encode_varint(payload.len() as u64, head);
    }
    payload
}

/// Not compressed, and the length of the message.
fn put_prefix(length: usize, head: &mut BytesMut) {
    debug_assert!(u32::try_from(length).is_ok(), "the sender checks the limit");
    head.reserve(5 + length.min(16 * 1024));
    head.put_u8(0);
    head.put_u32(length as u32);
}

impl DataFrame for v1::ProduceRequest {
    /// records: records: headers.
    const SHAPE: &'static [Shape] = &[within(2, &[within(4, &[each(3)])])];

    fn split(self, head: &mut BytesMut) -> Bytes {
        match self.frame {
            Some(produce_request::Frame::Batch(mut batch)) => {
                let payload = std::mem::take(&mut batch.batches);
                split_nested(3, &batch, payload, head)
            }
            _ => split_whole(&self, head),
        }
    }
}

impl DataFrame for v1::FetchResponse {
    /// opened: positions; records: records: headers; positions: positions; updated: positions.
    const SHAPE: &'static [Shape] = &[
        within(1, &[each(1)]),
        within(2, &[within(3, &[each(5)])]),
        within(4, &[each(1)]),
        within(6, &[each(2)]),
    ];

    fn split(self, head: &mut BytesMut) -> Bytes {
        match self.frame {
            Some(fetch_response::Frame::Batches(mut batches)) => {
                let payload = std::mem::take(&mut batches.batches);
                split_nested(3, &batches, payload, head)
            }
            _ => split_whole(&self, head),
        }
    }
}

impl DataFrame for v1::ProduceResponse {
    const SHAPE: &'static [Shape] = &[];

    fn split(self, head: &mut BytesMut) -> Bytes {
        split_whole(&self, head)
    }
}

impl DataFrame for v1::FetchRequest {
    /// open: partitions; update: add, seek, remove.
    const SHAPE: &'static [Shape] = &[
        within(1, &[each(2)]),
        within(3, &[each(2), each(3), each(4)]),
    ];

    fn split(self, head: &mut BytesMut) -> Bytes {
        split_whole(&self, head)
    }
}

impl DataFrame for v1::SubscribeRequest {
    /// ack, commit, pause, resume, seek, revoked: positions.
    const SHAPE: &'static [Shape] = &[
        within(3, &[each(1)]),
        within(4, &[each(2)]),
        within(6, &[each(1)]),
        within(7, &[each(1)]),
        within(8, &[each(1)]),
        within(9, &[each(1)]),
    ];

    fn split(self, head: &mut BytesMut) -> Bytes {
        split_whole(&self, head)
    }
}

impl DataFrame for v1::SubscribeResponse {
    /// records: records: headers; assigned: partitions; revoking: partitions;
    /// committed: offsets; positions: positions.
    const SHAPE: &'static [Shape] = &[
        within(2, &[within(3, &[each(5)])]),
        within(4, &[each(2)]),
        within(5, &[each(1)]),
        within(6, &[each(2)]),
        within(7, &[each(1)]),
    ];

    fn split(self, head: &mut BytesMut) -> Bytes {
        match self.frame {
            Some(subscribe_response::Frame::Batches(mut batches)) => {
                let payload = std::mem::take(&mut batches.batches);
                split_nested(3, &batches, payload, head)
            }
            _ => split_whole(&self, head),
        }
    }
}

impl DataFrame for ReplicateRequest {
    /// positions: positions.
    const SHAPE: &'static [Shape] = &[within(2, &[each(1)])];

    fn split(self, head: &mut BytesMut) -> Bytes {
        split_whole(&self, head)
    }
}

impl DataFrame for ReplicateResponse {
    /// updates: updates.
    const SHAPE: &'static [Shape] = &[within(3, &[each(1)])];

    fn split(self, head: &mut BytesMut) -> Bytes {
        match self.frame {
            Some(replicate_response::Frame::Batches(mut batches)) => {
                let payload = std::mem::take(&mut batches.batches);
                split_nested(2, &batches, payload, head)
            }
            _ => split_whole(&self, head),
        }
    }
}
