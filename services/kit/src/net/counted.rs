//! The service of one connection: routes, plus what the connection knows about
//! itself, plus a count of the requests in progress.

use super::connection::{Connection, StreamGuard};
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tonic::{Status, body::Body, service::Routes, transport::server::TcpConnectInfo};
use tower_service::Service;

#[derive(Clone)]
pub(super) struct ConnectionService {
    pub(super) routes: Routes,
    pub(super) connection: Arc<Connection>,
    /// What tonic's `Request::remote_addr` reads.
    pub(super) tcp: TcpConnectInfo,
}

impl hyper::service::Service<Request<Incoming>> for ConnectionService {
    type Response = Response<CountedBody>;
    type Error = Infallible;
    type Future = CountedFuture;

    fn call(&self, mut request: Request<Incoming>) -> CountedFuture {
        let guard = StreamGuard::new(&self.connection);
        let extensions = request.extensions_mut();
        extensions.insert(self.tcp.clone());
        extensions.insert(self.connection.clone());
        CountedFuture {
            // Always ready: the router holds no state between calls.
            inner: self.routes.clone().call(request),
            guard: Some(guard),
        }
    }
}

pub(super) struct CountedFuture {
    inner: <Routes as Service<Request<Incoming>>>::Future,
    guard: Option<StreamGuard>,
}

impl Future for CountedFuture {
    type Output = Result<Response<CountedBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = ready!(Pin::new(&mut self.inner).poll(cx))?;
        let guard = self.guard.take();
        Poll::Ready(Ok(response.map(|inner| CountedBody {
            inner,
            _guard: guard,
        })))
    }
}

pub(super) struct CountedBody {
    inner: Body,
    _guard: Option<StreamGuard>,
}

impl HttpBody for CountedBody {
    type Data = bytes::Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
