//! An HTTP server (HTTP/1.1, and HTTP/2 with prior knowledge) over a socket
//! that is already bound, with the same bounds as the gRPC server.

use super::{
    Connection, HEADER_LIST_BYTES, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT,
    listen::{Listening, Protocol, listen},
};
use axum::{Router, extract::ConnectInfo};
use http::Request;
use hyper::{body::Incoming, service::Service as _};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// A client must have sent the headers of a request within this.
const HEADER_TIMEOUT: Duration = Duration::from_secs(20);

/// Connections at a time; more are closed at once.
const CONNECTIONS_MAX: usize = 10_000;

/// A running HTTP server. Dropping it without [`stop`](Self::stop) ends it at once.
#[derive(Debug)]
pub struct HttpServer {
    listening: Listening,
}

/// Serves any router. Handlers may extract `ConnectInfo<SocketAddr>`.
///
/// # Errors
/// The listener's own address could not be read.
pub fn serve_http(listener: TcpListener, router: Router) -> io::Result<HttpServer> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEADER_LIST_BYTES)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    let listening = listen(listener, Http { router, builder }, CONNECTIONS_MAX)?;
    Ok(HttpServer { listening })
}

impl HttpServer {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.listening.addr()
    }

    /// Stops accepting, lets requests in progress end within `drain`, then
    /// drops them. True if all ended by themselves.
    pub async fn stop(self, drain: Duration) -> bool {
        self.listening.stop(drain).await.forced == 0
    }
}

struct Http {
    router: Router,
    builder: auto::Builder<TokioExecutor>,
}

impl Protocol for Http {
    async fn serve(
        &self,
        stream: TcpStream,
        connection: Arc<Connection>,
        draining: CancellationToken,
    ) {
        let peer = connection.peer();
        let router = TowerToHyperService::new(self.router.clone());
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            router.call(request)
        });
        let serving = self.builder.serve_connection(TokioIo::new(stream), service);
        let mut serving = pin!(serving);
        let served = tokio::select! {
            biased;
            () = draining.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
            served = &mut serving => served,
        };
        if let Err(error) = served {
            tracing::debug!(%peer, %error, "connection ended");
        }
    }
}
