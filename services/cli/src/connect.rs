//! From the options of the command line to a client.

use crate::{args::Globals, failure::Failure};
use std::time::Duration;
use talweg_client::{Client, ClientConfig};

/// Patience with a cluster that cannot be reached: a person or a script waits.
/// Calls that were reached and take their time may last as long as they need.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(5);

/// A client of the cluster that `--bootstrap` names. Connects on first use.
pub fn client(globals: &Globals) -> Result<Client, Failure> {
    to(&globals.bootstrap.0)
}

/// A client of the cluster with these gateways.
pub fn to(gateways: &[String]) -> Result<Client, Failure> {
    let config = ClientConfig {
        client_id: format!("talweg-cli-{}", std::process::id()),
        connect_timeout: Duration::from_secs(3),
        attempt_timeout: Duration::from_secs(30),
        call_timeout: UNREACHABLE_AFTER,
    };
    Ok(Client::connect(gateways, config)?)
}
