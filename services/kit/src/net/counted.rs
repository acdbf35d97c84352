//! The service of one connection: routes, behind the rules for calls, plus what
//! the connection knows about itself and a count of the requests in progress.

use super::{
    calls::{self, Admitted, CallRecord, Calls},
    connection::{Connection, StreamGuard},
};
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tonic::{Status, body::Body, service::Routes, transport::server::TcpConnectInfo};
use tower_service::Service;

#[derive(Clone)]
pub(super) struct ConnectionService {
    pub(super) routes: Routes,
    pub(super) calls: Arc<Calls>,
    pub(super) connection: Arc<Connection>,
    /// What tonic's `Request::remote_addr` reads.
    pub(super) tcp: TcpConnectInfo,
}

impl hyper::service::Service<Request<Incoming>> for ConnectionService {
    type Response = Response<CountedBody>;
    type Error = Infallible;
    type Future = CallFuture;

    fn call(&self, mut request: Request<Incoming>) -> CallFuture {
        let guard = StreamGuard::new(&self.connection);
        let (admitted, record) = match self.calls.admit(&request, self.connection.peer()) {
            Ok(admitted) => admitted,
            Err(refused) => return CallFuture::Refused(Some(refused)),
        };
        let extensions = request.extensions_mut();
        extensions.insert(self.tcp.clone());
        extensions.insert(self.connection.clone());
        // The router is always ready: it holds no state between calls.
        let inner = admitted.span.in_scope(|| self.routes.clone().call(request));
        CallFuture::Serving {
            inner,
            admitted,
            counted: Some((record, guard)),
        }
    }
}

// Nearly all are of the large kind.
#[allow(clippy::large_enum_variant)]
pub(super) enum CallFuture {
    Refused(Option<Status>),
    Serving {
        inner: <Routes as Service<Request<Incoming>>>::Future,
        admitted: Admitted,
        counted: Option<(CallRecord, StreamGuard)>,
    },
}

impl Future for CallFuture {
    type Output = Result<Response<CountedBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (response, counted) = match &mut *self {
            Self::Refused(status) => {
                let status = status
                    .take()
                    .unwrap_or_else(|| Status::internal("polled twice"));
                (status.into_http(), None)
            }
            Self::Serving {
                inner,
                admitted,
                counted,
            } => {
                let span = admitted.span.clone();
                let _entered = span.enter();
                let response = match Pin::new(inner).poll(cx) {
                    Poll::Ready(Ok(response)) => response,
                    Poll::Pending if admitted.deadline.as_mut().poll(cx).is_ready() => {
                        calls::timed_out().into_http()
                    }
                    Poll::Pending => return Poll::Pending,
                };
                (response, counted.take())
            }
        };
        Poll::Ready(Ok(count(response, counted)))
    }
}

fn count(
    response: Response<Body>,
    mut counted: Option<(CallRecord, StreamGuard)>,
) -> Response<CountedBody> {
    if let Some((record, _)) = &mut counted {
        record.head(response.headers());
    }
    response.map(|inner| CountedBody { inner, counted })
}

/// A response body that tells when and how it ended.
pub(super) struct CountedBody {
    inner: Body,
    counted: Option<(CallRecord, StreamGuard)>,
}

impl HttpBody for CountedBody {
    type Data = bytes::Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let (Some(trailers), Some((record, _))) = (frame.trailers_ref(), &mut self.counted)
        {
            record.status(trailers);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
