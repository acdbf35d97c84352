//! Leases. etcd counts in whole seconds and grants no less than about one and a
//! half election time-outs (2 s with its defaults).

use crate::{EtcdMetastore, fault::Fault, link::Repeat};
use std::time::Duration;
use talweg_metastore::{Lease, LeaseId, MetastoreError};

impl EtcdMetastore {
    pub(crate) async fn grant_lease(&self, ttl: Duration) -> Result<Lease, MetastoreError> {
        let seconds = whole_seconds(ttl);
        let call = |client: etcd_client::Client| async move {
            client.lease_client().grant(seconds, None).await
        };
        let granted = self.link.call(Repeat::IfNotDone, call).await;
        let granted = granted.map_err(Fault::of_change)?;
        Ok(Lease {
            id: LeaseId(granted.id()),
            ttl: Duration::from_secs(u64::try_from(granted.ttl()).unwrap_or(0)),
        })
    }

    pub(crate) async fn renew_lease(&self, lease: LeaseId) -> Result<(), MetastoreError> {
        let call = |client: etcd_client::Client| async move {
            client.lease_client().keep_alive(lease.0).await.map(|_| ())
        };
        let kept = self.link.call(Repeat::Free, call).await;
        kept.map_err(|fault| of_lease(fault, lease))
    }

    pub(crate) async fn end_lease(&self, lease: LeaseId) -> Result<(), MetastoreError> {
        let call = |client: etcd_client::Client| async move {
            client.lease_client().revoke(lease.0).await.map(|_| ())
        };
        let ended = self.link.call(Repeat::IfNotDone, call).await;
        ended.map_err(|fault| of_lease(fault, lease))
    }

    pub(crate) async fn is_live(&self, lease: LeaseId) -> Result<bool, Fault> {
        let call = |client: etcd_client::Client| async move {
            client.lease_client().time_to_live(lease.0, None).await
        };
        let answer = self.link.call(Repeat::Free, call).await?;
        Ok(answer.ttl() > 0)
    }
}

fn of_lease(fault: Fault, lease: LeaseId) -> MetastoreError {
    match fault {
        Fault::LeaseNotFound => MetastoreError::LeaseNotFound { lease },
        other => other.of_change(),
    }
}

/// Rounded up: what is granted is at least what was asked for.
fn whole_seconds(ttl: Duration) -> i64 {
    let up = u64::from(ttl.subsec_nanos() > 0);
    let seconds = ttl.as_secs().saturating_add(up).max(1);
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_to_live_are_rounded_up() {
        assert_eq!(whole_seconds(Duration::ZERO), 1);
        assert_eq!(whole_seconds(Duration::from_millis(500)), 1);
        assert_eq!(whole_seconds(Duration::from_secs(2)), 2);
        assert_eq!(whole_seconds(Duration::from_millis(2001)), 3);
    }
}
