//! `<offset>.sessions`: what duplicate detection knew just before that offset,
//! so that it outlives the records it was learnt from, and the running state of
//! the segment there, so that recovery goes on from that offset.
//!
//! Open transactions have a reserved list, empty in this version.

use super::{
    Sidecar, SidecarError,
    wire::{Input, Output},
};
use crate::fence::Fence;
use talweg_types::{
    Offset, ProducerEpoch, ProducerId, Sequence, ShardEpoch, TimestampMs,
    limits::{IDEMPOTENCY_KEY_BYTES_MAX, REMEMBERED_BATCHES},
};

/// One remembered batch of a producer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RememberedBatch {
    pub first_sequence: Sequence,
    /// Inclusive.
    pub last_sequence: Sequence,
    pub base_offset: Offset,
    /// Inclusive.
    pub last_offset: Offset,
    pub append_time: TimestampMs,
}

/// A producer and its last batches, oldest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionEntry {
    pub producer: ProducerId,
    pub epoch: ProducerEpoch,
    pub batches: Vec<RememberedBatch>,
}

/// An idempotency key within its window, oldest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyEntry {
    pub key: Box<[u8]>,
    pub offset: Offset,
    /// The batch it came in: base offset and record count.
    pub batch_base: Offset,
    pub batch_records: i32,
    pub append_time: TimestampMs,
}

/// State of the segment that is open at the offset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentState {
    pub base: Offset,
    /// The byte position of the offset in that segment.
    pub position: u64,
    pub first_append: TimestampMs,
    pub last_append: TimestampMs,
    pub max_timestamp: TimestampMs,
    /// CRC-32C of each block up to `position`; the last one may be of a block's beginning.
    pub blocks: Vec<u32>,
}

/// The body of a `sessions` file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionsFile {
    /// Everything below it is taken into account, nothing from it on.
    pub offset: Offset,
    pub segment: SegmentState,
    pub sessions: Vec<SessionEntry>,
    pub keys: Vec<KeyEntry>,
    /// The newest fence below the offset. Since version 2.
    pub fence: Option<Fence>,
}

impl SessionsFile {
    /// About the size of the file, in bytes.
    pub fn encoded_size(&self) -> u64 {
        let sessions: usize = self
            .sessions
            .iter()
            .map(|session| 11 + 32 * session.batches.len())
            .sum();
        let keys: usize = self.keys.iter().map(|entry| 29 + entry.key.len()).sum();
        (sessions + keys + self.segment.blocks.len() * 4 + 96) as u64
    }
}

impl Sidecar for SessionsFile {
    const KIND: u8 = 5;
    const VERSION: u8 = 2;

    fn version(&self) -> u8 {
        1 + u8::from(self.fence.is_some())
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        out.put_i64(self.offset.0);
        encode_segment(&self.segment, out);
        out.put_count(self.sessions.len());
        for session in &self.sessions {
            out.put_i64(session.producer.0);
            out.put(&session.epoch.0.to_be_bytes());
            out.put(&[u8::try_from(session.batches.len()).unwrap_or(u8::MAX)]);
            for batch in &session.batches {
                out.put_i32(batch.first_sequence.0);
                out.put_i32(batch.last_sequence.0);
                out.put_i64(batch.base_offset.0);
                out.put_i64(batch.last_offset.0);
                out.put_i64(batch.append_time.0);
            }
        }
        out.put_count(self.keys.len());
        for entry in &self.keys {
            out.put(&[u8::try_from(entry.key.len()).unwrap_or(u8::MAX)]);
            out.put(&entry.key);
            out.put_i64(entry.offset.0);
            out.put_i64(entry.batch_base.0);
            out.put_i32(entry.batch_records);
            out.put_i64(entry.append_time.0);
        }
        out.put_count(0); // open transactions
        if let Some(fence) = self.fence {
            out.put_i32(fence.epoch.0);
            out.put_i64(fence.offset.0);
        }
    }

    fn decode_body(version: u8, body: &[u8]) -> Result<Self, SidecarError> {
        let mut input = Input(body);
        let offset = Offset(input.i64()?);
        let segment = decode_segment(&mut input)?;
        let mut sessions = Vec::new();
        for _ in 0..input.count(11)? {
            sessions.push(decode_session(&mut input)?);
        }
        let mut keys = Vec::new();
        for _ in 0..input.count(29)? {
            keys.push(decode_key(&mut input)?);
        }
        if input.u32()? != 0 {
            return Err(SidecarError::Malformed(
                "open transactions in a version without them",
            ));
        }
        let fence = match version {
            1 => None,
            _ => Some(decode_fence(&mut input, offset)?),
        };
        input.end()?;
        if offset.0 < 0 || segment.base.0 < 0 || segment.base > offset {
            return Err(SidecarError::Malformed("segment is above the offset"));
        }
        Ok(Self {
            offset,
            segment,
            sessions,
            keys,
            fence,
        })
    }
}

fn decode_fence(input: &mut Input<'_>, end: Offset) -> Result<Fence, SidecarError> {
    let fence = Fence {
        epoch: ShardEpoch(input.i32()?),
        offset: Offset(input.i64()?),
    };
    if fence.epoch <= ShardEpoch::NONE || fence.offset.0 < 0 || fence.offset >= end {
        return Err(SidecarError::Malformed("fence"));
    }
    Ok(fence)
}

fn encode_segment(segment: &SegmentState, out: &mut Vec<u8>) {
    out.put_i64(segment.base.0);
    out.put_u64(segment.position);
    out.put_i64(segment.first_append.0);
    out.put_i64(segment.last_append.0);
    out.put_i64(segment.max_timestamp.0);
    out.put_count(segment.blocks.len());
    for block in &segment.blocks {
        out.put_u32(*block);
    }
}

fn decode_segment(input: &mut Input<'_>) -> Result<SegmentState, SidecarError> {
    let mut segment = SegmentState {
        base: Offset(input.i64()?),
        position: input.u64()?,
        first_append: TimestampMs(input.i64()?),
        last_append: TimestampMs(input.i64()?),
        max_timestamp: TimestampMs(input.i64()?),
        blocks: Vec::new(),
    };
    for _ in 0..input.count(4)? {
        segment.blocks.push(input.u32()?);
    }
    Ok(segment)
}

fn decode_session(input: &mut Input<'_>) -> Result<SessionEntry, SidecarError> {
    let producer = ProducerId(input.i64()?);
    let epoch = ProducerEpoch(input.i16()?);
    let count = usize::from(input.u8()?);
    if count == 0 || count > REMEMBERED_BATCHES {
        return Err(SidecarError::Malformed("remembered batches"));
    }
    let mut batches = Vec::with_capacity(count);
    for _ in 0..count {
        batches.push(RememberedBatch {
            first_sequence: Sequence(input.i32()?),
            last_sequence: Sequence(input.i32()?),
            base_offset: Offset(input.i64()?),
            last_offset: Offset(input.i64()?),
            append_time: TimestampMs(input.i64()?),
        });
    }
    let sane = |b: &RememberedBatch| {
        b.first_sequence.0 >= 0 && b.last_sequence.0 >= 0 && b.base_offset <= b.last_offset
    };
    if producer.is_none() || !batches.iter().all(sane) {
        return Err(SidecarError::Malformed("session"));
    }
    Ok(SessionEntry {
        producer,
        epoch,
        batches,
    })
}

fn decode_key(input: &mut Input<'_>) -> Result<KeyEntry, SidecarError> {
    let length = usize::from(input.u8()?);
    if length > IDEMPOTENCY_KEY_BYTES_MAX {
        return Err(SidecarError::Malformed("idempotency key is too long"));
    }
    Ok(KeyEntry {
        key: input.bytes(length)?.into(),
        offset: Offset(input.i64()?),
        batch_base: Offset(input.i64()?),
        batch_records: input.i32()?,
        append_time: TimestampMs(input.i64()?),
    })
}

const _: () = assert!(IDEMPOTENCY_KEY_BYTES_MAX <= u8::MAX as usize);
const _: () = assert!(REMEMBERED_BATCHES <= u8::MAX as usize);
