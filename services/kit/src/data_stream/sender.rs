//! The application's end of a stream that sends.

use futures::task::AtomicWaker;
use std::{
    fmt,
    sync::{Arc, OnceLock},
};
use tokio::sync::mpsc;
use tonic::Status;

/// The peer takes nothing more: it has gone, or the stream has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the stream is closed")]
pub struct Closed;

/// Why [`FrameSender::try_send`] did not take a frame.
#[derive(Debug, thiserror::Error)]
pub enum TrySendError<T> {
    /// The queue is full; the frame comes back.
    #[error("the queue of the stream is full")]
    Full(T),
    /// As [`Closed`].
    #[error("the stream is closed")]
    Closed,
}

/// Sends frames in order. Clones share the stream; when the last one is
/// dropped, what was queued still goes out and the stream ends: for a client
/// that is the half-close, for a server status OK (unless the handler returns
/// an error).
pub struct FrameSender<T> {
    queue: mpsc::Sender<T>,
    ending: Arc<Ending>,
}

impl<T> Clone for FrameSender<T> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            ending: self.ending.clone(),
        }
    }
}

impl<T> fmt::Debug for FrameSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameSender").finish_non_exhaustive()
    }
}

impl<T> FrameSender<T> {
    pub(super) fn new(queue: mpsc::Sender<T>, ending: Arc<Ending>) -> Self {
        Self { queue, ending }
    }

    /// Queues a frame, waiting while the queue is full. `Ok` means queued, not
    /// received. Dropping the future sends nothing.
    pub async fn send(&self, frame: T) -> Result<(), Closed> {
        self.queue.send(frame).await.map_err(|_| Closed)
    }

    /// Queues a frame if there is room now.
    pub fn try_send(&self, frame: T) -> Result<(), TrySendError<T>> {
        self.queue.try_send(frame).map_err(|error| match error {
            mpsc::error::TrySendError::Full(frame) => TrySendError::Full(frame),
            mpsc::error::TrySendError::Closed(_) => TrySendError::Closed,
        })
    }

    /// Resolves when the peer takes nothing more.
    pub async fn closed(&self) {
        self.queue.closed().await;
    }

    /// True when the peer takes nothing more.
    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Ends the stream, for all clones, after what is queued: a server ends it
    /// with this status, a client resets it. The first call wins.
    pub fn fail(self, status: Status) {
        self.ending.fail(status);
    }
}

/// A stream's early end, shared by its sender, its body and a client's receiver.
#[derive(Default)]
pub(super) struct Ending {
    status: OnceLock<Status>,
    waker: AtomicWaker,
}

impl Ending {
    /// The first call wins.
    pub(super) fn fail(&self, status: Status) {
        if self.status.set(status).is_ok() {
            self.waker.wake();
        }
    }

    /// The status, if the stream was failed; else `cx` is woken when it is.
    pub(super) fn poll(&self, cx: &mut std::task::Context<'_>) -> Option<&Status> {
        self.waker.register(cx.waker());
        self.status.get()
    }
}
