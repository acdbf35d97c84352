//! The HTTP body behind a [`FrameSender`](super::FrameSender): heads and
//! payloads as chunks, then trailers (server) or the end (client).

use super::{DataFrame, sender::Ending, wire};
use bytes::{Bytes, BytesMut};
use http_body::Frame;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use talweg_types::limits::GRPC_MESSAGE_BYTES;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

/// A payload up to this is copied behind its head: a chunk of its own costs
/// more (an HTTP/2 frame, a queue entry, an iovec) than the copy.
const INLINE_BYTES: usize = 4 * 1024;

/// Small frames that wait are packed into one chunk up to about this.
const CHUNK_BYTES: usize = 32 * 1024;

/// What a handler returned; `Err` also if it panicked.
pub(super) type Outcome = oneshot::Receiver<Result<(), Status>>;

/// Which side of the stream this is.
pub(super) enum Side {
    /// A client's request: ends without trailers.
    Request,
    /// A server's response: ends with the handler's status.
    Response(Outcome),
}

pub(super) struct FrameBody<T> {
    queue: mpsc::Receiver<T>,
    ending: Arc<Ending>,
    side: Side,
    /// The handler returned OK; the stream ends when the senders are gone.
    handler_done: bool,
    /// Follows the head that was just handed out.
    payload: Bytes,
    chunk: BytesMut,
    finished: bool,
}

impl<T> Unpin for FrameBody<T> {}

type Item = Option<Result<Frame<Bytes>, Status>>;

impl<T: DataFrame> FrameBody<T> {
    pub(super) fn new(queue: mpsc::Receiver<T>, ending: Arc<Ending>, side: Side) -> Self {
        Self {
            queue,
            ending,
            side,
            handler_done: false,
            payload: Bytes::new(),
            chunk: BytesMut::new(),
            finished: false,
        }
    }

    /// Encodes `frame`; true when the chunk should go out now.
    fn encode(&mut self, frame: T) -> bool {
        let length = frame.encoded_len();
        if length > GRPC_MESSAGE_BYTES as usize {
            tracing::error!(length, "a frame above the message limit was to be sent");
            self.ending.fail(Status::internal(format!(
                "a frame of {length} bytes was to be sent; the limit is {GRPC_MESSAGE_BYTES}"
            )));
            self.queue.close();
            return false;
        }
        let payload = frame.split(&mut self.chunk);
        if payload.len() <= INLINE_BYTES {
            self.chunk.extend_from_slice(&payload);
            self.chunk.len() >= CHUNK_BYTES
        } else {
            self.payload = payload;
            true
        }
    }

    /// What is left in a queue that was closed early. Does not wait: a sender
    /// that is in the middle of queueing loses against the end.
    fn drain(&mut self, cx: &mut Context<'_>) -> Poll<Item> {
        while let Ok(frame) = self.queue.try_recv() {
            if self.encode(frame) {
                return self.take_chunk();
            }
        }
        if self.chunk.is_empty() {
            self.poll_end(cx)
        } else {
            self.take_chunk()
        }
    }

    fn take_chunk(&mut self) -> Poll<Item> {
        Poll::Ready(Some(Ok(Frame::data(self.chunk.split().freeze()))))
    }

    /// True when someone has ended the stream early and the queue was closed for it.
    fn ended_early(&mut self, cx: &mut Context<'_>) -> bool {
        if self.ending.poll(cx).is_some() {
            self.queue.close();
            return true;
        }
        let Side::Response(outcome) = &mut self.side else {
            return false;
        };
        if self.handler_done {
            return false;
        }
        match Pin::new(outcome).poll(cx) {
            Poll::Pending => false,
            Poll::Ready(Ok(Ok(()))) => {
                self.handler_done = true;
                false
            }
            Poll::Ready(Ok(Err(status))) => {
                self.handler_done = true;
                self.ending.fail(status);
                self.queue.close();
                true
            }
            Poll::Ready(Err(_)) => {
                self.handler_done = true;
                self.ending
                    .fail(Status::internal("the handler of this stream failed"));
                self.queue.close();
                true
            }
        }
    }

    /// After the last frame.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Item> {
        let early = self.ended_early(cx);
        let waiting = matches!(self.side, Side::Response(_)) && !self.handler_done;
        if waiting && !early {
            return Poll::Pending;
        }
        self.finished = true;
        let status = self.ending.poll(cx);
        Poll::Ready(match (&self.side, status) {
            (Side::Request, None) => None,
            (Side::Request, Some(status)) => Some(Err(wire::as_reset(status))),
            (Side::Response(_), status) => Some(Ok(Frame::trailers(wire::trailers(status)))),
        })
    }
}

impl<T: DataFrame> http_body::Body for FrameBody<T> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Item> {
        let this = &mut *self;
        if !this.payload.is_empty() {
            let payload = std::mem::take(&mut this.payload);
            return Poll::Ready(Some(Ok(Frame::data(payload))));
        }
        if this.finished {
            return Poll::Ready(None);
        }
        loop {
            match this.queue.poll_recv(cx) {
                Poll::Ready(Some(frame)) => {
                    if this.encode(frame) {
                        return this.take_chunk();
                    }
                }
                _ if !this.chunk.is_empty() => return this.take_chunk(),
                Poll::Ready(None) => return Poll::Ready(ready!(this.poll_end(cx))),
                Poll::Pending if this.ended_early(cx) => return this.drain(cx),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
