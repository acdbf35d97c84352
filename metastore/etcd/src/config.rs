//! Where etcd is and how long to wait for it.

use std::time::Duration;
use talweg_metastore::PROGRESS_INTERVAL;
use thiserror::Error;

/// Long enough for any name, short enough that a key with its prefix stays far
/// below what etcd takes in a request.
const MAX_NAMESPACE_BYTES: usize = 64;

/// How to reach etcd. [`EtcdConfig::new`] fills in times that suit one data centre.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdConfig {
    /// `http://host:port` of every member; at least one.
    pub endpoints: Vec<String>,
    /// Names this cluster's keys among those of others in the same etcd: 1 to 64
    /// of `A-Z a-z 0-9 . _ -`.
    pub namespace: String,
    /// Every call ends within it, attempts and pauses included.
    pub request_timeout: Duration,
    /// One attempt to connect to one member; shorter than `request_timeout`, so
    /// that a member that is gone leaves time for another.
    pub connect_timeout: Duration,
    /// A watch connection on which nothing was heard for so long is given up and
    /// made anew. It is asked for a sign of life three times within.
    pub watch_silence: Duration,
}

/// Why a configuration is not usable.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ConfigError {
    #[error("no etcd endpoint is given")]
    NoEndpoints,
    #[error("the etcd endpoint {endpoint:?} is not usable: {reason}")]
    Endpoint { endpoint: String, reason: String },
    #[error("the namespace {0:?} is not 1 to {MAX_NAMESPACE_BYTES} of A-Z a-z 0-9 . _ -")]
    Namespace(String),
    #[error("{0} must be longer than zero")]
    ZeroTime(&'static str),
}

impl EtcdConfig {
    /// The default times: 5 s a call, 1 s to connect, two progress intervals of silence.
    pub fn new(
        endpoints: impl IntoIterator<Item = impl Into<String>>,
        namespace: impl Into<String>,
    ) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            namespace: namespace.into(),
            request_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(1),
            watch_silence: PROGRESS_INTERVAL * 2,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.endpoints.is_empty() {
            return Err(ConfigError::NoEndpoints);
        }
        let name = self.namespace.as_bytes();
        let known = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        if name.is_empty() || name.len() > MAX_NAMESPACE_BYTES || !name.iter().all(known) {
            return Err(ConfigError::Namespace(self.namespace.clone()));
        }
        let times = [
            ("request_timeout", self.request_timeout),
            ("connect_timeout", self.connect_timeout),
            ("watch_silence", self.watch_silence),
        ];
        match times.iter().find(|(_, time)| time.is_zero()) {
            Some((name, _)) => Err(ConfigError::ZeroTime(name)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_cannot_reach_into_another() {
        let of = |name: &str| EtcdConfig::new(["http://localhost:1"], name).check();
        assert_eq!(of("prod-1.eu"), Ok(()));
        for bad in ["", "a/b", "ü", &"x".repeat(65)] {
            assert_eq!(of(bad), Err(ConfigError::Namespace(bad.into())));
        }
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let none: [&str; 0] = [];
        assert_eq!(
            EtcdConfig::new(none, "n").check(),
            Err(ConfigError::NoEndpoints)
        );
        let mut config = EtcdConfig::new(["http://localhost:1"], "n");
        config.watch_silence = Duration::ZERO;
        assert_eq!(config.check(), Err(ConfigError::ZeroTime("watch_silence")));
    }
}
