//! Received chunks in, messages out.
//!
//! Chunks stay as they came, in a queue that prost reads through: a payload
//! that lies within one chunk is a slice of it. The length in the prefix is
//! checked before anything is set aside for it, and a peer that sends its
//! message in crumbs gets them merged, so that memory is bounded by the
//! message limit and one HTTP/2 frame.

use super::{DataFrame, Shape, guard};
use crate::errors::{ErrorCode, Refusal};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use talweg_types::limits::GRPC_MESSAGE_BYTES;
use tonic::Status;

/// Compressed flag and length.
const PREFIX_BYTES: usize = 5;

/// Chunks below this are merged while a message is incomplete: a queue entry
/// costs more than the copy.
const CRUMB_BYTES: usize = 2 * 1024;

/// Cuts a byte stream in gRPC framing into messages.
#[derive(Debug)]
pub struct FrameDecoder {
    chunks: Chunks,
    /// Length of the message whose prefix was read, if its end has not come.
    due: Option<usize>,
    limit: usize,
}

impl Default for FrameDecoder {
    fn default() -> Self {
        Self::new(GRPC_MESSAGE_BYTES as usize)
    }
}

impl FrameDecoder {
    /// A decoder that refuses messages above `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            chunks: Chunks::default(),
            due: None,
            limit,
        }
    }

    /// Takes what was received.
    pub fn push(&mut self, chunk: Bytes) {
        self.chunks.push(chunk);
    }

    /// The next whole message; `None` until more is pushed.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED with FRAME_TOO_LARGE above the limit, UNIMPLEMENTED
    /// for a compressed message, INVALID_ARGUMENT with PROTOCOL_VIOLATION for
    /// bytes that are not the message. The stream cannot go on after any.
    pub fn decode<T: DataFrame>(&mut self) -> Result<Option<T>, Status> {
        let length = match self.due {
            Some(length) => length,
            None => match self.read_prefix()? {
                Some(length) => *self.due.insert(length),
                None => return Ok(None),
            },
        };
        if self.chunks.remaining < length {
            return Ok(None);
        }
        self.due = None;
        self.chunks.flush_crumbs();
        if length > guard::SMALL_BYTES {
            self.check_count(length, T::SHAPE)?;
        }
        let rest = self.chunks.remaining - length;
        let decoded = T::decode((&mut self.chunks).take(length)).map_err(|error| {
            Refusal::new(
                ErrorCode::ProtocolViolation,
                format!("the frame is not valid protobuf: {error}"),
            )
        })?;
        debug_assert_eq!(self.chunks.remaining, rest, "prost reads all or fails");
        Ok(Some(decoded))
    }

    /// True at a message boundary with nothing left over: the stream may end here.
    pub fn is_empty(&self) -> bool {
        self.due.is_none() && self.chunks.remaining == 0
    }

    /// Pieces that are held.
    #[cfg(test)]
    pub(super) fn chunk_count(&self) -> usize {
        self.chunks.whole.len() + 1
    }

    fn check_count(&self, length: usize, shapes: &[Shape]) -> Result<(), Status> {
        match guard::count(&mut self.chunks.cursor(), length, shapes) {
            Some(_) => Ok(()),
            None => {
                let limit = guard::MESSAGES_MAX;
                let message = format!("more than {limit} records and headers in one frame");
                let refusal = Refusal::new(ErrorCode::FrameTooLarge, message);
                Err(refusal
                    .with_limit("messages in a frame", limit, limit + 1, "messages")
                    .into())
            }
        }
    }

    fn read_prefix(&mut self) -> Result<Option<usize>, Status> {
        if self.chunks.remaining < PREFIX_BYTES {
            return Ok(None);
        }
        self.chunks.flush_crumbs();
        let flag = self.chunks.get_u8();
        let length = self.chunks.get_u32() as usize;
        match flag {
            0 => {}
            1 => return Err(Refusal::not_built("data streams take no compressed messages").into()),
            _ => {
                let message = format!("{flag} is not a gRPC compressed flag");
                return Err(Refusal::new(ErrorCode::ProtocolViolation, message).into());
            }
        }
        if length > self.limit {
            let message = format!("a frame of {length} bytes; the limit is {}", self.limit);
            let refusal = Refusal::new(ErrorCode::FrameTooLarge, message);
            return Err(refusal
                .with_limit("frame", self.limit, length, "bytes")
                .into());
        }
        Ok(Some(length))
    }
}

/// A queue of chunks that reads as one buffer.
#[derive(Default, Debug)]
struct Chunks {
    /// None is empty.
    whole: VecDeque<Bytes>,
    /// Merged crumbs behind them; readable once flushed.
    crumbs: BytesMut,
    /// Of both.
    remaining: usize,
}

impl Chunks {
    fn push(&mut self, chunk: Bytes) {
        if chunk.is_empty() {
            return;
        }
        let mid_message = self.remaining > 0;
        self.remaining += chunk.len();
        if mid_message && chunk.len() < CRUMB_BYTES {
            self.crumbs.extend_from_slice(&chunk);
        } else {
            self.flush_crumbs();
            self.whole.push_back(chunk);
        }
    }

    /// Reads from the front without taking; call after [`Self::flush_crumbs`].
    fn cursor(&self) -> Cursor<'_> {
        Cursor {
            chunks: &self.whole,
            index: 0,
            at: 0,
            remaining: self.remaining,
        }
    }

    fn flush_crumbs(&mut self) {
        if !self.crumbs.is_empty() {
            self.whole.push_back(self.crumbs.split().freeze());
        }
    }
}

impl Buf for Chunks {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.whole.front().map_or(&[], |chunk| &chunk[..])
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.remaining, "advance past the end");
        self.remaining -= count;
        while count > 0 {
            let Some(front) = self.whole.front_mut() else {
                unreachable!("callers flush the crumbs first")
            };
            if front.len() > count {
                front.advance(count);
                return;
            }
            count -= front.len();
            self.whole.pop_front();
        }
    }

    /// A slice where one chunk has it all; a copy where it is spread.
    fn copy_to_bytes(&mut self, length: usize) -> Bytes {
        assert!(length <= self.remaining, "copy past the end");
        if let Some(front) = self.whole.front_mut() {
            if front.len() > length {
                self.remaining -= length;
                return front.split_to(length);
            }
            if front.len() == length {
                self.remaining -= length;
                return self.whole.pop_front().unwrap_or_default();
            }
        }
        let mut copy = BytesMut::with_capacity(length);
        while copy.len() < length {
            let part = self.chunk().len().min(length - copy.len());
            copy.extend_from_slice(&self.chunk()[..part]);
            self.advance(part);
        }
        copy.freeze()
    }
}

/// A place in a queue of chunks.
struct Cursor<'a> {
    chunks: &'a VecDeque<Bytes>,
    index: usize,
    /// Within the chunk.
    at: usize,
    remaining: usize,
}

impl Buf for Cursor<'_> {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.chunks.get(self.index).map_or(&[], |it| &it[self.at..])
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.remaining, "advance past the end");
        self.remaining -= count;
        loop {
            let here = self.chunk().len();
            if here > count || here == 0 {
                self.at += count;
                return;
            }
            count -= here;
            self.index += 1;
            self.at = 0;
        }
    }
}
