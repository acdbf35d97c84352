//! What an etcd error means. The question that matters is whether a change can
//! have been made: "certainly not" is said only of what never left, and of
//! refusals that etcd gives before it proposes a change.

use etcd_client::Error;
use std::{error::Error as StdError, time::Duration};
use talweg_metastore::MetastoreError;
use tonic::{Code, ConnectError, Status};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// The member could not be reached or has refused: certainly not done.
    NotDone(String),
    /// The call broke off, or etcd itself does not know.
    Unclear(String),
    /// No answer within the time of a call.
    TimedOut(Duration),
    /// The revision that was asked for is compacted.
    Compacted,
    /// The revision that was asked for is not there yet.
    Future,
    LeaseNotFound,
}

/// etcd's messages for requests that it refuses before they are proposed.
const REFUSALS: [&str; 12] = [
    "etcdserver: no leader",
    "etcdserver: too many requests",
    "etcdserver: request is too large",
    "etcdserver: mvcc: database space exceeded",
    "etcdserver: not capable",
    "etcdserver: key is not provided",
    "etcdserver: too many operations in txn request",
    "etcdserver: duplicate key given in txn request",
    "etcdserver: invalid auth token",
    "etcdserver: user name is empty",
    "etcdserver: permission denied",
    "etcdserver: too large lease TTL",
];
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const FUTURE: &str = "etcdserver: mvcc: required revision is a future revision";
const LEASE: &str = "etcdserver: requested lease not found";
/// The client library's own words when a keep-alive is answered with no time left.
const KEEP_ALIVE_LEASE: &str = "lease not found";

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::GRpcStatus(status) => of_status(&status),
            Error::LeaseKeepAliveError(words) if words == KEEP_ALIVE_LEASE => Self::LeaseNotFound,
            Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::EndpointError(_) => {
                Self::NotDone(error.to_string())
            }
            other => Self::Unclear(other.to_string()),
        }
    }
}

fn of_status(status: &Status) -> Fault {
    let message = status.message();
    match message {
        COMPACTED => return Fault::Compacted,
        FUTURE => return Fault::Future,
        LEASE => return Fault::LeaseNotFound,
        _ => {}
    }
    let refused = REFUSALS.contains(&message) || status.code() == Code::Unimplemented;
    let reason = format!("{:?}: {message}", status.code());
    if refused || never_connected(status) {
        Fault::NotDone(reason)
    } else {
        Fault::Unclear(reason)
    }
}

/// Nothing can have been sent where there was no connection.
fn never_connected(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

impl Fault {
    /// etcd has answered the question; another member would say the same.
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Compacted | Self::Future | Self::LeaseNotFound)
    }

    fn reason(self) -> String {
        match self {
            Self::NotDone(reason) | Self::Unclear(reason) => reason,
            Self::TimedOut(after) => format!("no answer within {after:?}"),
            Self::Compacted => COMPACTED.into(),
            Self::Future => FUTURE.into(),
            Self::LeaseNotFound => LEASE.into(),
        }
    }

    /// As the error of a call that changes nothing.
    pub fn of_read(self) -> MetastoreError {
        MetastoreError::Unavailable {
            reason: self.reason(),
        }
    }

    /// As the error of a call that may change something.
    pub fn of_change(self) -> MetastoreError {
        match self {
            Self::Unclear(_) | Self::TimedOut(_) => MetastoreError::Unknown {
                reason: self.reason(),
            },
            _ => self.of_read(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_metastore::Happened;

    fn happened(status: Status) -> Happened {
        Fault::from(Error::GRpcStatus(status))
            .of_change()
            .happened()
    }

    #[test]
    fn only_a_refusal_before_the_proposal_is_certain() {
        for message in REFUSALS {
            assert_eq!(happened(Status::unavailable(message)), Happened::No);
        }
        for message in [
            "etcdserver: request timed out",
            "etcdserver: request timed out, possibly due to previous leader failure",
            "etcdserver: leader changed",
            "etcdserver: server stopped",
            "transport error",
            "",
        ] {
            assert_eq!(
                happened(Status::unavailable(message)),
                Happened::Unknown,
                "{message}"
            );
        }
        let timed_out = Fault::TimedOut(Duration::from_secs(1));
        assert_eq!(timed_out.of_change().happened(), Happened::Unknown);
    }

    #[test]
    fn what_never_connected_was_never_sent() {
        let status = Status::from_error(Box::new(ConnectError("refused".into())));
        assert_eq!(happened(status), Happened::No);
    }
}
