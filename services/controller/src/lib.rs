//! The controller: topics, placement, leaders, the registry of nodes and their
//! sessions, producer-id blocks. One is active, others stand by; none is on the
//! path of the data.
//!
//! [`core`] decides, without IO, clock or await. Around it: [`start`] elects and
//! re-elects, one term's loop owns the core, services turn gRPC into its events,
//! `records` and `convert` are the only places that know stored and sent forms.
//!
//! Fails: a store that is damaged or broken stops the process; everything else
//! ends a term at most, and a term leaves nothing behind but committed writes.

mod config;
#[doc(hidden)]
pub mod convert;
pub mod core;
mod election;
mod handle;
mod hub;
mod metrics;
mod probe;
mod records;
mod service;
mod start;
mod store;
mod successor;
mod term;

pub use config::{ControllerConfig, OffsetsTopicConfig};
pub use records::DamagedRecord;
pub use service::REVISION_HEADER;
pub use start::{ControllerError, ControllerHandle, start};
pub use store::StoreError;

use std::{sync::Arc, time::Duration};
use talweg_metastore::Metastore;
use talweg_metastore_etcd::{EtcdConfig, EtcdMetastore};
use tokio_util::sync::CancellationToken;

/// Opens what keeps the metadata: etcd where its addresses are configured, else
/// the embedded store in `config.data_dir`.
///
/// # Errors
/// The folder cannot be used, or what is in it; or etcd's addresses are malformed.
#[cfg(feature = "rocks")]
pub async fn open_store(config: &ControllerConfig) -> Result<Arc<dyn Metastore>, ControllerError> {
    if !config.etcd_endpoints.is_empty() {
        let etcd = EtcdConfig::new(config.etcd_endpoints.clone(), config.etcd_namespace.clone());
        return Ok(Arc::new(EtcdMetastore::connect(etcd).await?));
    }
    tokio::fs::create_dir_all(&config.data_dir).await?;
    let path = config.data_dir.join("metadata");
    Ok(Arc::new(
        talweg_metastore_rocks::RocksMetastore::open(path).await?,
    ))
}

/// Runs a controller until `shutdown`, or until it must stop by itself.
///
/// # Errors
/// It could not start, or its store has failed.
pub async fn run(
    config: ControllerConfig,
    store: Arc<dyn Metastore>,
    shutdown: CancellationToken,
) -> Result<(), Arc<ControllerError>> {
    let drain = Duration::from_millis(config.drain_ms);
    let handle = start(config, store).await.map_err(Arc::new)?;
    let result = tokio::select! {
        biased;
        () = shutdown.cancelled() => Ok(()),
        error = handle.join() => Err(error),
    };
    handle.stop(drain).await;
    result
}
