//! Calls beside the data streams. Each method decodes, asks, encodes.

mod backlog;
mod cluster;
mod internal;
mod offsets;
mod replicas;

pub use cluster::Cluster;
pub use internal::InternalLog;
pub use offsets::Offsets;
pub use replicas::Replicas;

use talweg_kit::errors::Refusal;
use tonic::Status;

/// Methods that belong to gateways, the controller, or a later version.
fn not_here(what: &str) -> Status {
    Refusal::not_built(format!(
        "{what} is not served by storage nodes in this version."
    ))
    .into()
}
