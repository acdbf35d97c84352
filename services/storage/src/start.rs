//! Putting a storage node together.
//!
//! In this order: folders are opened and looked at, threads and sockets made,
//! then the controller is asked. Streams are answered from the first moment,
//! with UNAVAILABLE until this process leads something.

use crate::{
    clock::ClockWatch,
    compactor,
    config::StorageConfig,
    control::{
        Assigner, Controllers, Identity, IdentityError, Registration, Session, Stopped, follow,
    },
    fetch::FetchHandler,
    flusher::Flushers,
    folders::{self, FileSystem, Folders, FoldersError},
    housekeeping::Housekeeping,
    metrics::Metrics,
    node::Node,
    partition::{Command, LoopSettings, spawn_loop},
    produce::ProduceHandler,
    repairer,
    replicate::{Outbox, ReplicateHandler, propose, pull},
    services::{Cluster, InternalLog, Offsets, Replicas},
    worker::Worker,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{io, net::SocketAddr, sync::Arc, thread::JoinHandle};
use talweg_kit::{
    config::{Problem, ProcessConfig},
    data_stream::{DataService, ReplicateMethod, fetch_service, produce_service},
    health::{HttpServer, Readiness, router, serve_http},
    metrics,
    net::{ServerHandle, ServerOptions, bind, serve},
    shutdown::SideRuntime,
};
use talweg_proto::{
    DESCRIPTORS,
    storage::v1::{
        internal_log_service_server::InternalLogServiceServer,
        replica_service_server::ReplicaServiceServer,
    },
    v1::{
        cluster_service_server::ClusterServiceServer, offset_service_server::OffsetServiceServer,
    },
};
use thiserror::Error;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic_health::server::HealthReporter;

/// Why a storage node did not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("{}: {}", .0.key, .0.reason)]
    Config(Problem),
    #[error(transparent)]
    Folders(#[from] FoldersError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("reflection: {0}")]
    Reflection(String),
}

/// A running storage node. Dropping it without `stop` is like killing it.
pub struct Handle {
    grpc_addr: SocketAddr,
    http_addr: SocketAddr,
    pub(crate) node: Arc<Node>,
    pub(crate) folders: Arc<Folders>,
    pub(crate) readiness: Readiness,
    pub(crate) health: HealthReporter,
    pub(crate) server: Option<ServerHandle>,
    pub(crate) http: Option<HttpServer>,
    pub(crate) session: Arc<Session>,
    pub(crate) ended: watch::Receiver<Option<Result<(), Stopped>>>,
    pub(crate) threads: Vec<JoinHandle<()>>,
    /// The compactor and the repairer.
    pub(crate) rewriters: Vec<Worker>,
    housekeeping: tokio::task::JoinHandle<()>,
    pulling: tokio::task::JoinHandle<()>,
    _control: SideRuntime,
}

/// Starts a storage node on the caller's runtime.
///
/// # Errors
/// A setting that cannot work, a folder that cannot be opened or is used by
/// another process, an address that cannot be listened on.
pub async fn start(config: StorageConfig) -> Result<Handle, StartError> {
    start_on(config, folders::real).await
}

/// As [`start`], on a file system that forgets what was never flushed: killing
/// the process is a power loss. For tests.
///
/// # Errors
/// As [`start`].
#[cfg(feature = "power-loss")]
pub async fn start_losing_power(config: StorageConfig) -> Result<Handle, StartError> {
    start_on(config, folders::losing_power).await
}

async fn start_on(config: StorageConfig, on: FileSystem) -> Result<Handle, StartError> {
    config.check().map_err(StartError::Config)?;
    let descriptors = raise_descriptor_limit();
    let (folders, identity) = open_folders(config.clone(), descriptors, on).await?;
    let registry = metrics::Metrics::new("storage");
    let metrics = Arc::new(Metrics::new(&registry, config.loop_count()));
    metrics
        .descriptor_limit
        .set(i64::try_from(descriptors).unwrap_or(i64::MAX));
    let clock = Arc::new(ClockWatch::default());
    let (loops, threads) = start_loops(&config, &folders, &clock, &metrics)?;
    let (outbox, followed) = Outbox::new();
    let node = Arc::new(Node::new(config.clone(), loops, clock, metrics, outbox));

    let readiness = Readiness::default();
    let (health, health_service) = tonic_health::server::health_reporter();
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .build_v1()
        .map_err(|error| StartError::Reflection(error.to_string()))?;
    let routes = Routes::new(health_service)
        .add_service(reflection)
        .add_service(produce_service::<ProduceHandler>(ProduceHandler {
            node: Arc::clone(&node),
        }))
        .add_service(fetch_service::<FetchHandler>(FetchHandler {
            node: Arc::clone(&node),
        }))
        .add_service(DataService::<ReplicateMethod, ReplicateHandler>::new(
            ReplicateHandler {
                node: Arc::clone(&node),
            },
        ))
        .add_service(OffsetServiceServer::new(Offsets {
            node: Arc::clone(&node),
        }))
        .add_service(ClusterServiceServer::new(Cluster {
            node: Arc::clone(&node),
        }))
        .add_service(InternalLogServiceServer::new(InternalLog {
            node: Arc::clone(&node),
        }))
        .add_service(ReplicaServiceServer::new(Replicas {
            node: Arc::clone(&node),
        }));
    let server = serve(bind(&config.grpc).await?, routes, ServerOptions::default())?;
    let http = serve_http(
        bind(&config.http).await?,
        router(readiness.clone(), registry),
    )?;

    let registration = Registration {
        grpc_address: advertised(&config.advertised, server.addr()),
        http_address: advertised(&config.advertised_http, http.addr()),
        rack: config.rack.clone(),
    };
    let controllers = Arc::new(Controllers::new(config.controllers.clone()));
    let session = Session::new(
        Arc::clone(&node),
        Arc::clone(&folders),
        Arc::clone(&controllers),
        registration,
        identity,
    );
    let session = Arc::new(session);
    let housekeeping = Housekeeping {
        node: Arc::clone(&node),
        folders: Arc::clone(&folders),
        readiness: readiness.clone(),
        space: Arc::clone(&session.space),
    };
    let (control, ended) = start_control(&node, &folders, &controllers, &session)?;
    control.spawn(propose(
        Arc::clone(&node),
        Arc::clone(&node.outbox),
        Arc::clone(&controllers),
    ));
    let pulling = tokio::spawn(pull(Arc::clone(&node), followed));
    let rewriters = vec![
        compactor::spawn(Arc::clone(&node))?,
        repairer::spawn(Arc::clone(&node))?,
    ];
    Ok(Handle {
        grpc_addr: server.addr(),
        http_addr: http.addr(),
        node,
        folders,
        readiness,
        health,
        server: Some(server),
        http: Some(http),
        session,
        ended,
        threads,
        rewriters,
        housekeeping: tokio::spawn(housekeeping.run()),
        pulling,
        _control: control,
    })
}

async fn open_folders(
    config: StorageConfig,
    descriptors: u64,
    on: FileSystem,
) -> Result<(Arc<Folders>, Option<Identity>), StartError> {
    let open = move || {
        let folders = Folders::open(&config, descriptors, on)?;
        let identity = Identity::read(folders.list[0].root())?;
        Ok((Arc::new(folders), identity))
    };
    match tokio::task::spawn_blocking(open).await {
        Ok(result) => result,
        Err(error) => Err(io::Error::other(error).into()),
    }
}

type Loops = (Vec<crate::partition::LoopHandle>, Vec<JoinHandle<()>>);

fn start_loops(
    config: &StorageConfig,
    folders: &Folders,
    clock: &Arc<ClockWatch>,
    metrics: &Arc<Metrics>,
) -> io::Result<Loops> {
    let count = config.loop_count();
    let (flushers, mut threads) = Flushers::spawn(config.flush_threads, config.background_threads)?;
    let share = |bytes: u64| bytes / count as u64;
    let settings = LoopSettings {
        folders: folders.list.clone(),
        flushers,
        clock: Arc::clone(clock),
        metrics: Arc::clone(metrics),
        mailbox_bytes: u32::try_from(share(config.mailbox_bytes)).unwrap_or(u32::MAX),
        background_flush_bytes: share(config.background_flush_bytes),
    };
    let mut loops = Vec::with_capacity(count);
    for index in 0..count {
        let (handle, thread) = spawn_loop(index, settings.clone())?;
        loops.push(handle);
        // Loops first: the flushers end when the last loop has.
        threads.insert(index, thread);
    }
    Ok((loops, threads))
}

type Control = (SideRuntime, watch::Receiver<Option<Result<(), Stopped>>>);

fn start_control(
    node: &Arc<Node>,
    folders: &Arc<Folders>,
    controllers: &Arc<Controllers>,
    session: &Arc<Session>,
) -> io::Result<Control> {
    let control = SideRuntime::start("control")?;
    control.spawn(follow(Arc::clone(node), Arc::clone(controllers)));
    control.spawn(
        Assigner::new(
            Arc::clone(node),
            Arc::clone(folders),
            Arc::clone(controllers),
        )
        .run(),
    );
    let (end, ended) = watch::channel(None);
    let session = Arc::clone(session);
    control.spawn(async move {
        let result = session.run().await;
        end.send_replace(Some(result));
    });
    Ok((control, ended))
}

/// A URL for others. An address that means "all of them" is of no use to others.
fn advertised(configured: &str, addr: SocketAddr) -> String {
    if !configured.is_empty() {
        return configured.to_owned();
    }
    if addr.ip().is_unspecified() {
        tracing::warn!(%addr, "listening on all addresses without an advertised one; others are told 127.0.0.1");
        return format!("http://127.0.0.1:{}", addr.port());
    }
    format!("http://{addr}")
}

/// Asks for as many descriptors as the system gives; returns how many there are.
fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if let Some(maximum) = limit
        .maximum
        .filter(|maximum| limit.current.is_some_and(|now| now < *maximum))
    {
        let raised = Rlimit {
            current: Some(maximum),
            maximum: Some(maximum),
        };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the descriptor limit stays as it is");
        }
    }
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    tracing::info!(descriptors, "descriptor limit");
    descriptors
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

    /// 0 before the first registration.
    pub fn node_id(&self) -> u32 {
        self.node.id()
    }

    /// Whether it serves.
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Resolves when it is registered and knows the cluster.
    pub async fn wait_ready(&self) {
        // The sender lives in `self`.
        let _ = self.readiness.watch().wait_for(Option::is_none).await;
    }

    /// Resolves when the node must stop by itself, with the reason.
    pub async fn join(&self) -> Stopped {
        let mut ended = self.ended.clone();
        let stopped = ended.wait_for(|ended| matches!(ended, Some(Err(_)))).await;
        match stopped.as_deref() {
            Ok(Some(Err(stopped))) => stopped.clone(),
            _ => Stopped::Refused("the session task has ended".into()),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.housekeeping.abort();
        self.pulling.abort();
        self.rewriters.iter_mut().for_each(Worker::stop);
        for owner in &self.node.loops {
            // After a stop they have ended already.
            let _ = owner.send(Command::Abort);
        }
        // Nothing of this node touches its files when the next one opens them.
        self.threads
            .drain(..)
            .for_each(|thread| drop(thread.join()));
    }
}
