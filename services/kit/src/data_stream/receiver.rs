//! The application's end of a stream that receives.

use super::{DataFrame, FrameDecoder, sender::Ending, wire};
use futures::Stream;
use http_body::Body as _;
use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::sync::oneshot;
use tonic::{Status, body::Body};

type Opening = oneshot::Receiver<Result<http::Response<Body>, Status>>;

/// Receives frames. Reads from the connection only while it is polled, so that
/// not asking is back-pressure. Dropping a client's receiver before the end
/// resets the stream.
pub struct FrameReceiver<T> {
    source: Source,
    decoder: FrameDecoder,
    /// On a client: resets the request when this is dropped early.
    request: Option<Arc<Ending>>,
    frames: PhantomData<fn() -> T>,
}

enum Source {
    /// A client's, until the head of the response has come.
    Opening(Opening),
    /// A client's.
    Response(Body),
    /// A server's.
    Request(Body),
    Ended,
}

impl<T> Unpin for FrameReceiver<T> {}

impl<T> fmt::Debug for FrameReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameReceiver").finish_non_exhaustive()
    }
}

impl<T: DataFrame> FrameReceiver<T> {
    pub(super) fn of_request(body: Body) -> Self {
        Self {
            source: Source::Request(body),
            decoder: FrameDecoder::default(),
            request: None,
            frames: PhantomData,
        }
    }

    pub(super) fn of_response(opening: Opening, request: Arc<Ending>) -> Self {
        Self {
            source: Source::Opening(opening),
            decoder: FrameDecoder::default(),
            request: Some(request),
            frames: PhantomData,
        }
    }

    /// The next frame; `None` at the end (of a client's stream: status OK, of
    /// a server's: the half-close). After an error there is nothing more.
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<T, Status>> {
        std::future::poll_fn(|cx| self.poll_receive(cx)).await
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, Status>>> {
        loop {
            if matches!(self.source, Source::Ended) {
                return Poll::Ready(None);
            }
            match self.decoder.decode() {
                Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                Ok(None) => {}
                Err(status) => return Poll::Ready(self.abandon(status)),
            }
            if let Some(ended) = ready!(self.poll_source(cx)) {
                return Poll::Ready(self.end(ended));
            }
        }
    }

    /// Moves on by one event; `Some` says how the stream ended.
    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(), Status>>> {
        let (body, is_response) = match &mut self.source {
            Source::Opening(opening) => {
                let opened = ready!(Pin::new(opening).poll(cx))
                    .unwrap_or_else(|_| Err(Status::cancelled("the runtime is shutting down")));
                return Poll::Ready(match opened {
                    Err(status) => Some(Err(status)),
                    Ok(response) => {
                        let (head, body) = response.into_parts();
                        self.source = Source::Response(body);
                        wire::check_response(head.status, &head.headers)
                    }
                });
            }
            Source::Response(body) => (body, true),
            Source::Request(body) => (body, false),
            Source::Ended => return Poll::Ready(Some(Ok(()))),
        };
        Poll::Ready(match ready!(Pin::new(body).poll_frame(cx)) {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(chunk) => {
                    self.decoder.push(chunk);
                    None
                }
                Err(frame) => match frame.into_trailers() {
                    Ok(trailers) if is_response => wire::status_in(&trailers)
                        .or_else(|| Some(Err(Status::internal("trailers without a status")))),
                    _ => None,
                },
            },
            Some(Err(status)) => Some(Err(wire::broken(status))),
            None if is_response => Some(Err(Status::internal("the stream ended without a status"))),
            None => Some(Ok(())),
        })
    }

    /// The peer ended the stream.
    fn end(&mut self, ended: Result<(), Status>) -> Option<Result<T, Status>> {
        self.source = Source::Ended;
        if ended.is_ok() {
            self.request = None;
        }
        match ended {
            Err(status) => Some(Err(status)),
            Ok(()) if self.decoder.is_empty() => None,
            Ok(()) => Some(Err(Status::internal("the stream ended inside a frame"))),
        }
    }

    /// What the peer sends cannot be read.
    fn abandon(&mut self, status: Status) -> Option<Result<T, Status>> {
        self.source = Source::Ended;
        Some(Err(status))
    }
}

impl<T: DataFrame> Stream for FrameReceiver<T> {
    type Item = Result<T, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_receive(cx)
    }
}

impl<T> Drop for FrameReceiver<T> {
    fn drop(&mut self) {
        if let Some(request) = &self.request {
            request.fail(Status::cancelled("the receiver of this stream was dropped"));
        }
    }
}
