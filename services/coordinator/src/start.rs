//! Putting a coordinator together, and taking it apart in bounded time.

use crate::{
    config::CoordinatorConfig,
    kept::KeptView,
    lag::{LagSeries, keep_exporting},
    log::{LeaderLog, ShardLog},
    metrics::CoordinatorMetrics,
    node::{Node, Parts},
    service::Service,
    shards,
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
    pool::ChannelPool,
    view::SharedView,
};
use talweg_kit::{
    clock::{monotonic_now, wall_now},
    config::{Problem, ProcessConfig},
    health::{self, HttpServer, Readiness, serve_http},
    metrics::Metrics,
    net::{CallOptions, ServerHandle, ServerOptions, add_builtin, bind, serve},
    shutdown::SideRuntime,
};
use talweg_proto::coordinator::v1::coordinator_service_server::CoordinatorServiceServer;
use talweg_types::limits;
use thiserror::Error;
use tokio::task::JoinSet;
use tonic::service::Routes;

/// What reflection and health show.
const SERVICES: &[&str] = &["talweg.coordinator.v1.CoordinatorService"];
/// For a call to a controller.
const CONTROLLER_TIME: Duration = Duration::from_secs(10);
/// For shards to end.
const DROP_TIME: Duration = Duration::from_secs(1);
/// For the good-bye to the controller.
const GOODBYE_TIME: Duration = Duration::from_millis(400);

/// Why a coordinator did not start.
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
    #[error("{0}")]
    View(String),
}

/// A running coordinator. Dropping it without [`stop`](Self::stop) is like killing it.
pub struct Handle {
    node: Arc<Node>,
    readiness: Readiness,
    server: Option<ServerHandle>,
    http: Option<HttpServer>,
    tasks: JoinSet<()>,
    session: Option<SideRuntime>,
    /// Ends when the controller has heard the good-bye.
    goodbye: Option<tokio::task::JoinHandle<()>>,
    grpc_addr: SocketAddr,
    http_addr: SocketAddr,
}

/// Starts a coordinator on the caller's runtime. It is ready when it has heard from
/// a controller ([`Handle::wait_ready`]).
///
/// # Errors
/// A setting that cannot work, an address that cannot be listened on, a folder that
/// another process holds.
pub async fn start(config: CoordinatorConfig) -> Result<Handle, StartError> {
    start_on(config, None).await
}

/// As [`start`], with another log than the cluster's: for tests.
pub async fn start_on(
    config: CoordinatorConfig,
    log: Option<Arc<dyn ShardLog>>,
) -> Result<Handle, StartError> {
    config.check().map_err(StartError::Config)?;
    let (grpc, http) = (bind(&config.grpc).await?, bind(&config.http).await?);
    let (grpc_addr, http_addr) = (grpc.local_addr()?, http.local_addr()?);
    let addresses = Addresses {
        grpc: advertised(&config.advertised, grpc_addr),
        http: loopback(http_addr),
    };
    let registry = Metrics::new("coordinator");
    let series = LagSeries::default();
    registry.register(series.clone());
    let node = Arc::new(node(config, log, &registry)?);

    let readiness = Readiness::default();
    readiness.not_ready("waiting for a controller");
    let service = CoordinatorServiceServer::new(Service(Arc::clone(&node)))
        .max_decoding_message_size(limits::GRPC_MESSAGE_BYTES as usize);
    let routes = add_builtin(Routes::new(service), &readiness, SERVICES);
    let routes = routes.map_err(|error| StartError::Reflection(error.to_string()))?;
    let options = ServerOptions {
        calls: CallOptions {
            metrics: Some(registry.clone()),
            ..CallOptions::default()
        },
        ..ServerOptions::default()
    };
    let server = serve(grpc, routes, options)?;
    let http = serve_http(http, health::router(readiness.clone(), registry))?;

    let session = SideRuntime::start("coord-session")?;
    let goodbye = session.spawn(membership::session(Arc::clone(&node), addresses));
    let mut tasks = JoinSet::new();
    tasks.spawn(membership::watch(Arc::clone(&node)));
    tasks.spawn(shards::follow(Arc::clone(&node)));
    tasks.spawn(keep_exporting(Arc::clone(&node), series));
    tasks.spawn(watch_clock(Arc::clone(&node)));
    tasks.spawn(become_ready(Arc::clone(&node), readiness.clone()));
    Ok(Handle {
        node,
        readiness,
        server: Some(server),
        http: Some(http),
        tasks,
        session: Some(session),
        goodbye: Some(goodbye),
        grpc_addr,
        http_addr,
    })
}

fn node(
    config: CoordinatorConfig,
    log: Option<Arc<dyn ShardLog>>,
    registry: &Metrics,
) -> Result<Node, StartError> {
    let client = ClientConfig {
        client_id: "coordinator".into(),
        connect_timeout: Duration::from_secs(2),
        attempt_timeout: CONTROLLER_TIME,
        call_timeout: CONTROLLER_TIME,
    };
    let controller = Client::connect(&config.controllers, client)?;
    let kept = KeptView::open(&config.data_dir);
    let kept = kept.map_err(|error| StartError::View(error.to_string()))?;
    let (view, pool) = (
        SharedView::default(),
        ChannelPool::new(Duration::from_secs(2)),
    );
    let log = log.unwrap_or_else(|| {
        Arc::new(LeaderLog {
            view: view.clone(),
            pool: pool.clone(),
            controller: controller.clone(),
            client_id: "coordinator".into(),
        })
    });
    Ok(Node::new(Parts {
        config,
        controller,
        view,
        pool,
        log,
        kept,
        metrics: CoordinatorMetrics::new(registry),
    }))
}

/// Ready with the first view, until the process stops.
async fn become_ready(node: Arc<Node>, readiness: Readiness) {
    let day = Duration::from_secs(86_400);
    while !node
        .view
        .wait(day, |view| !view.cluster_id.is_empty())
        .await
    {}
    if !node.leaving.is_cancelled() {
        readiness.ready();
    }
}

/// Looks for jumps of the wall clock, by which offsets expire.
async fn watch_clock(node: Arc<Node>) {
    let mut every = tokio::time::interval(Duration::from_secs(1));
    loop {
        every.tick().await;
        node.wall.sample(wall_now(), monotonic_now());
    }
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

impl Handle {
    /// Where gRPC is served; the real port where 0 was asked for.
    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc_addr
    }

    /// Where health and metrics are served.
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// Its id; 0 before the controller has given one.
    pub fn node_id(&self) -> u32 {
        self.node.identity().map_or(0, |(id, _)| id.0)
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

    /// Shards that it serves now.
    pub fn shards(&self) -> Vec<u32> {
        let serving = self.node.shards.all().into_iter();
        let serving = serving.filter(|shard| shard.is_serving());
        serving.map(|shard| shard.at.partition.0).collect()
    }

    /// Why shards are not served yet, if attempts to take them failed.
    pub fn troubles(&self) -> Vec<String> {
        let all = self.node.shards.all();
        all.iter().filter_map(|shard| shard.trouble()).collect()
    }

    /// Stops: shards are given up and gateways told, the controller hears a good-bye,
    /// then everything is forced. Takes at most `drain` and about two seconds.
    pub async fn stop(mut self, drain: Duration) {
        self.readiness.not_ready("stopping");
        self.node.leaving.cancel();
        // The controller gives the shards to others while they end here.
        let dropped = tokio::time::timeout(DROP_TIME, shards::drop_all(&self.node));
        let goodbye = self.goodbye.take();
        let said = async {
            if let Some(goodbye) = goodbye {
                let _ = tokio::time::timeout(GOODBYE_TIME, goodbye).await;
            }
        };
        let (dropped, ()) = tokio::join!(dropped, said);
        if dropped.is_err() {
            tracing::warn!("not all shards ended in time");
        }
        for link in self.node.links.all() {
            link.ending.cancel();
        }
        if let Some(server) = self.server.take() {
            let report = server.stop(drain).await;
            tracing::info!(
                open = report.open,
                forced = report.forced,
                "connections ended"
            );
        }
        if let Some(http) = self.http.take() {
            http.stop(Duration::from_millis(200)).await;
        }
        self.tasks.shutdown().await;
        let (session, kept) = (self.session.take(), self.node.kept.clone());
        let last = tokio::task::spawn_blocking(move || {
            drop(session);
            kept.flush()
        });
        if let Ok(Ok(Err(error))) = tokio::time::timeout(DROP_TIME, last).await {
            tracing::info!(%error, "the kept view was not written out; the log has everything");
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        for shard in self.node.shards.all() {
            shard.drop_it();
        }
        if let Some(session) = self.session.take() {
            std::thread::spawn(move || drop(session));
        }
    }
}
