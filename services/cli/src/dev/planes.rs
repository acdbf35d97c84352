//! The planes of `talweg dev`.

use crate::{args::DevArgs, failure::Failure};
use std::{
    fmt::Display,
    net::{SocketAddr, TcpListener},
    time::Duration,
};
use talweg_controller::{ControllerConfig, ControllerHandle, OffsetsTopicConfig};
use talweg_gateway::{GatewayConfig, GatewayHandle};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_storage::StorageConfig;
use tokio::time::timeout;

/// Any free port that only this machine sees.
const LOOPBACK: &str = "127.0.0.1:0";
/// For each plane to be ready.
const START: Duration = Duration::from_secs(60);
/// For clients to go when the process stops; storage needs up to 2.5 s after its own.
const GATEWAY_DRAIN: Duration = Duration::from_millis(1_500);
const STORAGE_DRAIN: Duration = Duration::from_millis(300);
const CONTROLLER_DRAIN: Duration = Duration::from_millis(100);
/// Shards of consumer groups.
const DEV_SHARDS: u32 = 12;
/// Memory of the index store: a laptop has other things to do.
const INDEX_CACHE_BYTES: u64 = 8 << 20;
const INDEX_BUFFER_BYTES: u64 = 8 << 20;

/// All of them, running.
pub struct Planes {
    controller: ControllerHandle,
    storage: talweg_storage::Handle,
    gateway: GatewayHandle,
}

impl Planes {
    /// Starts all planes and waits until they serve. What was started before
    /// one that cannot is stopped again.
    pub async fn start(args: &DevArgs) -> Result<Self, Failure> {
        // The likeliest mistake is told before anything is touched.
        [args.grpc, args.http]
            .iter()
            .try_for_each(|address| is_free(*address))?;
        let controller = start_controller(args).await?;
        let controllers = vec![format!("http://{}", controller.grpc_addr())];
        let storage = match start_storage(args, controllers.clone()).await {
            Ok(storage) => storage,
            Err(failure) => {
                controller.stop(CONTROLLER_DRAIN).await;
                return Err(failure);
            }
        };
        match start_gateway(args, controllers).await {
            Ok(gateway) => Ok(Self {
                controller,
                storage,
                gateway,
            }),
            Err(failure) => {
                storage.stop(Duration::ZERO).await;
                controller.stop(CONTROLLER_DRAIN).await;
                Err(failure)
            }
        }
    }

    /// Where clients connect.
    pub fn grpc(&self) -> SocketAddr {
        self.gateway.grpc_addr()
    }

    /// Where HTTP is served.
    pub fn http(&self) -> SocketAddr {
        self.gateway.http_addr()
    }

    /// Where the storage node is.
    pub fn storage(&self) -> SocketAddr {
        self.storage.grpc_addr()
    }

    /// Where the controller is.
    pub fn controller(&self) -> SocketAddr {
        self.controller.grpc_addr()
    }

    /// Resolves when a plane cannot go on.
    pub async fn failed(&self) -> Refusal {
        tokio::select! {
            why = self.controller.join() => Refusal::internal(format!("the controller stopped: {why}")),
            why = self.storage.join() => Refusal::internal(format!("storage stopped: {why}")),
        }
    }

    /// Clients first, while storage still answers; then storage, then the controller.
    pub async fn stop(self) {
        self.gateway.stop(GATEWAY_DRAIN).await;
        self.storage.stop(STORAGE_DRAIN).await;
        self.controller.stop(CONTROLLER_DRAIN).await;
    }
}

async fn start_controller(args: &DevArgs) -> Result<ControllerHandle, Failure> {
    let config = ControllerConfig {
        grpc: LOOPBACK.into(),
        http: LOOPBACK.into(),
        data_dir: args.data_dir.join("controller"),
        coordinator: OffsetsTopicConfig {
            shards: DEV_SHARDS,
            ..OffsetsTopicConfig::default()
        },
        ..ControllerConfig::default()
    };
    let store = talweg_controller::open_store(&config)
        .await
        .map_err(|error| cannot_start("metadata", &error))?;
    let controller = talweg_controller::start(config, store)
        .await
        .map_err(|error| cannot_start("controller", &error))?;
    match in_time("controller", controller.wait_active()).await {
        Ok(()) => Ok(controller),
        Err(failure) => {
            controller.stop(CONTROLLER_DRAIN).await;
            Err(failure)
        }
    }
}

async fn start_storage(
    args: &DevArgs,
    controllers: Vec<String>,
) -> Result<talweg_storage::Handle, Failure> {
    let config = StorageConfig {
        data_dirs: vec![args.data_dir.join("storage")],
        controllers,
        grpc: LOOPBACK.into(),
        http: LOOPBACK.into(),
        index_cache_bytes: INDEX_CACHE_BYTES,
        index_buffer_bytes: INDEX_BUFFER_BYTES,
        ..StorageConfig::default()
    };
    let storage = talweg_storage::start(config)
        .await
        .map_err(|error| cannot_start("storage", &error))?;
    match in_time("storage", storage.wait_ready()).await {
        Ok(()) => Ok(storage),
        Err(failure) => {
            storage.stop(Duration::ZERO).await;
            Err(failure)
        }
    }
}

async fn start_gateway(args: &DevArgs, controllers: Vec<String>) -> Result<GatewayHandle, Failure> {
    let config = GatewayConfig {
        controllers,
        grpc: args.grpc.to_string(),
        http: args.http.to_string(),
        ..GatewayConfig::default()
    };
    let gateway = talweg_gateway::start(config)
        .await
        .map_err(|error| cannot_start("gateway", &error))?;
    match in_time("gateway", gateway.wait_ready()).await {
        Ok(()) => Ok(gateway),
        Err(failure) => {
            gateway.stop(Duration::ZERO).await;
            Err(failure)
        }
    }
}

/// The listener is closed at once: only whether it can be had is asked.
fn is_free(address: SocketAddr) -> Result<(), Failure> {
    match TcpListener::bind(address) {
        Ok(_) => Ok(()),
        Err(error) => {
            let message = format!(
                "cannot listen on {address}: {error}; choose another with --grpc and --http"
            );
            Err(Refusal::unavailable(message).into())
        }
    }
}

async fn in_time(plane: &str, ready: impl Future<Output = ()>) -> Result<(), Failure> {
    timeout(START, ready).await.map_err(|_| {
        let message = format!("{plane} was not ready within {} s", START.as_secs());
        Refusal::new(ErrorCode::TimedOut, message).into()
    })
}

fn cannot_start(plane: &str, error: &dyn Display) -> Failure {
    Refusal::unavailable(format!("{plane} cannot start: {error}")).into()
}
