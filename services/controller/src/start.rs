//! Putting a controller together: sockets, services, and the task that stands
//! for election, leads, and stands again.

use crate::{
    config::ControllerConfig,
    election::Candidate,
    handle::{Handle, Message, Role},
    metrics::Metrics,
    service::{ClusterApi, ControllerApi, TopicApi},
    store::StoreError,
    term::{Ended, Term},
};
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use talweg_kit::{
    config::{Problem, ProcessConfig},
    health::{HttpServer, Readiness, router, serve_http},
    metrics,
    net::{ServerHandle, ServerOptions, bind, serve},
};
use talweg_metastore::{Metastore, MetastoreError};
use talweg_proto::{
    DESCRIPTORS,
    controller::v1::controller_service_server::ControllerServiceServer,
    v1::{cluster_service_server::ClusterServiceServer, topic_service_server::TopicServiceServer},
};
use thiserror::Error;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use uuid::Uuid;

/// Messages that wait for the loop; more senders wait for a place.
const MAILBOX: usize = 1_024;
const AFTER_RESIGNING: Duration = Duration::from_secs(1);

/// Why a controller did not start, or had to stop.
#[derive(Debug, Error)]
pub enum ControllerError {
    #[error("{}: {}", .0.key, .0.reason)]
    Config(Problem),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("reflection: {0}")]
    Reflection(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[cfg(feature = "rocks")]
    #[error(transparent)]
    Open(#[from] talweg_metastore_rocks::OpenError),
    #[error(transparent)]
    Etcd(#[from] talweg_metastore_etcd::ConfigError),
    #[error("the controller's task has ended: {0}")]
    Task(String),
}

impl From<MetastoreError> for ControllerError {
    fn from(error: MetastoreError) -> Self {
        Self::Store(error.into())
    }
}

/// A running controller. Dropping it without [`stop`](Self::stop) is like
/// killing it.
pub struct ControllerHandle {
    grpc_addr: SocketAddr,
    http_addr: SocketAddr,
    readiness: Readiness,
    handle: Handle,
    stop: CancellationToken,
    governing: Option<JoinHandle<()>>,
    failed: watch::Receiver<Option<Arc<ControllerError>>>,
    server: Option<ServerHandle>,
    http: Option<HttpServer>,
}

/// Starts a controller on the caller's runtime with a metastore that is open.
///
/// # Errors
/// A setting that cannot work, or an address that cannot be listened on.
pub async fn start(
    config: ControllerConfig,
    store: Arc<dyn Metastore>,
) -> Result<ControllerHandle, ControllerError> {
    config.check().map_err(ControllerError::Config)?;
    let listener = bind(&config.grpc).await?;
    let address = advertised(&config.advertised, listener.local_addr()?);
    let registry = metrics::Metrics::new("controller");
    let metrics = Arc::new(Metrics::new(&registry));
    let handle = Handle::default();
    let readiness = Readiness::default();
    let server = serve(
        listener,
        routes(&handle, &address)?,
        ServerOptions::default(),
    )?;
    let http = serve_http(
        bind(&config.http).await?,
        router(readiness.clone(), registry),
    )?;
    let candidate = Candidate {
        store,
        id: Uuid::new_v4(),
        address,
        ttl: config.election_ttl(),
    };
    let stop = CancellationToken::new();
    let (fail, failed) = watch::channel(None);
    let governor = Governor {
        candidate,
        config,
        handle: handle.clone(),
        readiness: readiness.clone(),
        metrics,
        stop: stop.clone(),
    };
    let governing = tokio::spawn(async move {
        if let Err(error) = governor.run().await {
            tracing::error!(%error, "this controller must stop");
            fail.send_replace(Some(Arc::new(error)));
        }
    });
    Ok(ControllerHandle {
        grpc_addr: server.addr(),
        http_addr: http.addr(),
        readiness,
        handle,
        stop,
        governing: Some(governing),
        failed,
        server: Some(server),
        http: Some(http),
    })
}

fn routes(handle: &Handle, address: &str) -> Result<Routes, ControllerError> {
    let (_, health) = tonic_health::server::health_reporter();
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .build_v1()
        .map_err(|error| ControllerError::Reflection(error.to_string()))?;
    let cluster = ClusterApi {
        handle: handle.clone(),
        address: address.to_owned(),
    };
    Ok(Routes::new(health)
        .add_service(reflection)
        .add_service(ControllerServiceServer::new(ControllerApi {
            handle: handle.clone(),
        }))
        .add_service(TopicServiceServer::new(TopicApi {
            handle: handle.clone(),
        }))
        .add_service(ClusterServiceServer::new(cluster)))
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

impl ControllerHandle {
    /// Where gRPC is served; the real port where 0 was asked for.
    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc_addr
    }

    /// Where health and metrics are served.
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// Whether it serves, as the active one or as a standby.
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Resolves when it is the active controller or knows who is.
    pub async fn wait_ready(&self) {
        // The sender lives in `self`.
        let _ = self.readiness.watch().wait_for(Option::is_none).await;
    }

    /// Resolves when this is the active controller.
    pub async fn wait_active(&self) {
        let mut role = self.handle.watch_role();
        // The sender lives in `self`.
        let _ = role.wait_for(|role| matches!(role, Role::Active(_))).await;
    }

    /// Resolves when the controller had to stop by itself, with the reason.
    pub async fn join(&self) -> Arc<ControllerError> {
        let mut failed = self.failed.clone();
        match failed.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(error)) => error.clone(),
            // It ended without an error because it was stopped.
            _ => std::future::pending().await,
        }
    }

    /// Gives leadership back, ends streams, and stops serving; takes at most a
    /// little longer than `drain`.
    pub async fn stop(mut self, drain: Duration) {
        self.stop.cancel();
        if let Some(governing) = self.governing.take() {
            // A panic was reported when it happened.
            let _ = governing.await;
        }
        self.readiness.not_ready("stopping");
        if let Some(server) = self.server.take() {
            server.stop(drain).await;
        }
        if let Some(http) = self.http.take() {
            http.stop(drain).await;
        }
    }
}

impl Drop for ControllerHandle {
    fn drop(&mut self) {
        if let Some(governing) = &self.governing {
            governing.abort();
        }
    }
}

/// Stands for election, leads, and stands again, until it is told to stop.
struct Governor {
    candidate: Candidate,
    config: ControllerConfig,
    handle: Handle,
    readiness: Readiness,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

impl Governor {
    async fn run(self) -> Result<(), ControllerError> {
        let result = loop {
            match self.term().await {
                Ok(Ended::Lost) => tracing::warn!("no longer the active controller"),
                // A standby goes first.
                Ok(Ended::Resigned) => tokio::time::sleep(AFTER_RESIGNING).await,
                Ok(Ended::Stopped) => break Ok(()),
                Err(error) => break Err(error),
            }
            self.handle.set_role(Role::Starting);
        };
        self.handle.set_role(Role::Stopped);
        self.readiness.not_ready("stopped");
        result
    }

    /// One election and what follows it.
    async fn term(&self) -> Result<Ended, ControllerError> {
        let standby = |active: String| {
            tracing::info!(%active, "standing by");
            self.handle.set_role(Role::Standby { active });
            self.readiness.ready();
        };
        let leadership = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Ok(Ended::Stopped),
            leadership = self.candidate.campaign(standby) => Arc::new(leadership?),
        };
        let store = self.candidate.store.clone();
        let (mailbox, messages) = mpsc::channel(MAILBOX);
        let term = Term::begin(
            store.clone(),
            leadership.clone(),
            self.config.settings(),
            mailbox.downgrade(),
            self.metrics.clone(),
        );
        let ended = match term.await {
            Ok(term) => self.lead(term, mailbox, messages).await,
            Err(error) => Err(error),
        };
        leadership.resign(store.as_ref()).await;
        Ok(ended?)
    }

    async fn lead(
        &self,
        term: Term,
        mailbox: mpsc::Sender<Message>,
        messages: mpsc::Receiver<Message>,
    ) -> Result<Ended, StoreError> {
        self.handle.set_role(Role::Active(mailbox));
        self.readiness.ready();
        self.metrics.active.set(1);
        tracing::info!(address = %self.candidate.address, "this is the active controller");
        let ended = term.run(messages, &self.stop).await;
        self.metrics.stand_by();
        self.handle.set_role(Role::Starting);
        ended
    }
}
