//! The controller's gRPC services: decode, ask, encode.

mod cluster;
mod controller;
mod session;
mod topics;
mod watch;

pub use cluster::ClusterApi;
pub use controller::ControllerApi;
pub use topics::TopicApi;

use tonic::{Response, metadata::AsciiMetadataValue};

/// Response header of every change: the revision of the controller's view that
/// has it. Who follows the view waits for it before using what was made.
pub const REVISION_HEADER: &str = "talweg-revision";

fn at_revision<T>(message: T, revision: u64) -> Response<T> {
    let mut response = Response::new(message);
    let value = AsciiMetadataValue::from(revision);
    response.metadata_mut().insert(REVISION_HEADER, value);
    response
}
