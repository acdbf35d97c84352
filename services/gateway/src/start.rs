//! Putting a gateway together: sockets, services, the tasks that follow the
//! controller; and taking it apart in bounded time.

use crate::{
    config::GatewayConfig,
    fetch::FetchHandler,
    http::{HttpState, router},
    ids::ProducerIds,
    metrics::GatewayMetrics,
    node::Node,
    produce::ProduceHandler,
    services::{Cluster, Groups, Offsets, Producers, Topics, Transactions},
    subscribe::SubscribeHandler,
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use talweg_client::{
    Client, ClientConfig, Refusal,
    membership::{self, Addresses},
};
use talweg_kit::{
    config::{Problem, ProcessConfig},
    data_stream::{fetch_service, produce_service, subscribe_service},
    health::{self, HttpServer, Readiness, serve_http},
    metrics::Metrics,
    net::{CallOptions, ServerHandle, ServerOptions, add_builtin, bind, serve},
    shutdown::SideRuntime,
};
use talweg_proto::v1::{
    cluster_service_server::ClusterServiceServer, group_service_server::GroupServiceServer,
    offset_service_server::OffsetServiceServer, producer_service_server::ProducerServiceServer,
    topic_service_server::TopicServiceServer, transaction_service_server::TransactionServiceServer,
};
use thiserror::Error;
use tokio::task::JoinSet;
use tonic::service::Routes;

/// What reflection and health show.
const SERVICES: &[&str] = &[
    "talweg.v1.TopicService",
    "talweg.v1.ClusterService",
    "talweg.v1.ProduceService",
    "talweg.v1.FetchService",
    "talweg.v1.ProducerService",
    "talweg.v1.OffsetService",
    "talweg.v1.GroupService",
    "talweg.v1.SubscribeService",
    "talweg.v1.TransactionService",
];
/// Beyond the drain time: for the last frames to leave.
const LAST_FRAMES: Duration = Duration::from_millis(800);
/// One attempt of a controller to answer a forwarded call, and all of them.
const CONTROLLER_ATTEMPT: Duration = Duration::from_secs(10);
const CONTROLLER_CALL: Duration = Duration::from_secs(10);

/// Why a gateway did not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("{}: {}", .0.key, .0.reason)]
    Config(Problem),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Refused(#[from] Refusal),
    #[error("reflection: {0}")]
    Reflection(String),
}

/// A running gateway. Dropping it without [`stop`](Self::stop) is like killing it.
pub struct GatewayHandle {
    node: Arc<Node>,
    readiness: Readiness,
    server: Option<ServerHandle>,
    http: Option<HttpServer>,
    tasks: JoinSet<()>,
    session: Option<SideRuntime>,
    grpc_addr: SocketAddr,
    http_addr: SocketAddr,
}

/// Starts a gateway on the caller's runtime. It is ready when it has heard from
/// a controller ([`GatewayHandle::wait_ready`]).
///
/// # Errors
/// A setting that cannot work, or an address that cannot be listened on.
pub async fn start(config: GatewayConfig) -> Result<GatewayHandle, StartError> {
    config.check().map_err(StartError::Config)?;
    let (grpc, http) = (bind(&config.grpc).await?, bind(&config.http).await?);
    let (grpc_addr, http_addr) = (grpc.local_addr()?, http.local_addr()?);
    let addresses = Addresses {
        grpc: advertised(&config.advertised, grpc_addr),
        http: advertised(&config.advertised_http, http_addr),
    };
    let registry = Metrics::new("gateway");
    let controller = Client::connect(
        &config.controllers,
        ClientConfig {
            client_id: "gateway".into(),
            connect_timeout: Duration::from_secs(2),
            attempt_timeout: CONTROLLER_ATTEMPT,
            call_timeout: CONTROLLER_CALL,
        },
    )?;
    let ids = ProducerIds::default();
    let node = Arc::new(Node::new(
        config,
        controller,
        ids,
        GatewayMetrics::new(&registry),
    ));

    let readiness = Readiness::default();
    let options = ServerOptions {
        calls: CallOptions {
            metrics: Some(registry.clone()),
            ..CallOptions::default()
        },
        ..ServerOptions::default()
    };
    let server = serve(grpc, routes(&node, &readiness)?, options)?;
    let own = Client::connect(
        [loopback(grpc_addr)],
        ClientConfig {
            client_id: "http".into(),
            ..Default::default()
        },
    )?;
    node.set_own(own.clone());
    let state = HttpState::new(own, Arc::clone(&node)).await?;
    let http = serve_http(
        http,
        router(state).merge(health::router(readiness.clone(), registry)),
    )?;

    let session = SideRuntime::start("gw-session")?;
    session.spawn(membership::session(Arc::clone(&node), addresses));
    let mut tasks = JoinSet::new();
    tasks.spawn(membership::watch(Arc::clone(&node)));
    tasks.spawn(node.ids.clone().keep_filled(node.controller.clone()));
    tasks.spawn(become_ready(Arc::clone(&node), readiness.clone()));
    Ok(GatewayHandle {
        node,
        readiness,
        server: Some(server),
        http: Some(http),
        tasks,
        session: Some(session),
        grpc_addr,
        http_addr,
    })
}

/// Ready with the first view, until the process stops.
async fn become_ready(node: Arc<Node>, readiness: Readiness) {
    readiness.not_ready("waiting for a controller");
    let day = Duration::from_secs(86_400);
    while !node
        .view
        .wait(day, |view| !view.cluster_id.is_empty())
        .await
    {}
    if node.draining().is_none() {
        readiness.ready();
    }
}

fn routes(node: &Arc<Node>, readiness: &Readiness) -> Result<Routes, StartError> {
    let node = || Arc::clone(node);
    let routes = Routes::new(TopicServiceServer::new(Topics(node())))
        .add_service(ClusterServiceServer::new(Cluster(node())))
        .add_service(produce_service(ProduceHandler(node())))
        .add_service(fetch_service(FetchHandler(node())))
        .add_service(ProducerServiceServer::new(Producers(node())))
        .add_service(OffsetServiceServer::new(Offsets(node())))
        .add_service(GroupServiceServer::new(Groups(node())))
        .add_service(subscribe_service(SubscribeHandler(node())))
        .add_service(TransactionServiceServer::new(Transactions));
    add_builtin(routes, readiness, SERVICES)
        .map_err(|error| StartError::Reflection(error.to_string()))
}

/// A URL for others. An address that means "all of them" is of no use to others.
fn advertised(configured: &str, addr: SocketAddr) -> String {
    if !configured.is_empty() {
        return configured.to_owned();
    }
    if addr.ip().is_unspecified() {
        tracing::warn!(%addr, "listening on all addresses without an advertised one; others are told loopback");
    }
    loopback(addr)
}

/// A URL at which this process reaches its own address.
fn loopback(addr: SocketAddr) -> String {
    let ip = match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, addr.port()))
}

impl GatewayHandle {
    /// Where gRPC is served; the real port where 0 was asked for.
    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc_addr
    }

    /// Where the JSON API, health and metrics are served.
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// Its id; 0 before the controller has given one.
    pub fn node_id(&self) -> u32 {
        self.node.id()
    }

    /// Whether it serves.
    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// Waits until it has heard from a controller.
    pub async fn wait_ready(&self) {
        let mut changes = self.readiness.watch();
        // The sender lives in `self`.
        drop(changes.wait_for(Option::is_none).await);
    }

    /// Stops: streams are told and get `drain` to end, then everything is
    /// forced. Takes at most `drain` and about a second.
    pub async fn stop(mut self, drain: Duration) {
        self.readiness.not_ready("stopping");
        self.node.start_drain(drain);
        let (http, server) = (self.http.take(), self.server.take());
        let http = async {
            if let Some(http) = http {
                http.stop(drain.min(Duration::from_secs(1))).await;
            }
        };
        let server = async {
            if let Some(server) = server {
                let report = server.stop(drain + LAST_FRAMES).await;
                tracing::info!(
                    open = report.open,
                    forced = report.forced,
                    "connections ended"
                );
            }
        };
        tokio::join!(http, server);
        self.tasks.abort_all();
        if let Some(session) = self.session.take() {
            // Its thread is joined; not on one of ours.
            drop(tokio::task::spawn_blocking(move || drop(session)).await);
        }
    }
}

impl Drop for GatewayHandle {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            std::thread::spawn(move || drop(session));
        }
    }
}
