//! Transactions.

use crate::{
    EtcdMetastore,
    fault::Fault,
    link::{Repeat, kv},
    namespace::{Namespace, revision, to_etcd},
};
use etcd_client::{
    Compare as EtcdCompare, CompareOp, PutOptions, Txn as EtcdTxn, TxnOp, TxnResponse,
    proto::PbTxnOpResponse,
};
use std::collections::BTreeSet;
use talweg_metastore::{Compare, KeyValue, LeaseId, MetastoreError, Op, Revision, Txn, TxnOutcome};

impl EtcdMetastore {
    pub(crate) async fn transact(&self, txn: Txn) -> Result<TxnOutcome, MetastoreError> {
        txn.check()?;
        let request = request(&self.namespace, &txn);
        let call = |client| {
            let request = request.clone();
            async move { kv(&client).txn(request).await }
        };
        match self.link.call(Repeat::IfNotDone, call).await {
            Ok(answer) => outcome(&self.namespace, answer, txn.compares.len()),
            Err(Fault::LeaseNotFound) => Err(self.missing_lease(&txn).await),
            Err(fault) => Err(fault.of_change()),
        }
    }

    /// etcd has refused the transaction for a lease and does not say which.
    async fn missing_lease(&self, txn: &Txn) -> MetastoreError {
        let leases: BTreeSet<_> = txn.then.iter().map(lease_of).collect();
        let leases: Vec<_> = leases.into_iter().filter(|id| !id.is_none()).collect();
        for lease in &leases[..leases.len().saturating_sub(1)] {
            match self.is_live(*lease).await {
                Ok(true) => {}
                Ok(false) => return MetastoreError::LeaseNotFound { lease: *lease },
                Err(fault) => return fault.of_read(),
            }
        }
        let lease = leases.last().copied().unwrap_or_default();
        MetastoreError::LeaseNotFound { lease }
    }
}

fn lease_of(op: &Op) -> LeaseId {
    match op {
        Op::Put { lease, .. } => *lease,
        Op::Delete { .. } => LeaseId::NONE,
    }
}

/// Compares and operations; if the compares fail, the entry of each compared key.
fn request(names: &Namespace, txn: &Txn) -> EtcdTxn {
    let compares: Vec<_> = txn.compares.iter().map(|c| compare(names, c)).collect();
    let then: Vec<_> = txn.then.iter().map(|op| operation(names, op)).collect();
    let current = txn.compares.iter().map(Compare::key);
    let otherwise: Vec<_> = current
        .map(|key| TxnOp::get(names.key(key), None))
        .collect();
    EtcdTxn::new()
        .when(compares)
        .and_then(then)
        .or_else(otherwise)
}

fn compare(names: &Namespace, compare: &Compare) -> EtcdCompare {
    let key = names.key(compare.key());
    match compare {
        // An absent key has modification revision 0 in etcd; for us it has none,
        // and nothing was ever put by revision 0.
        Compare::ModRevision { revision, .. } if *revision == Revision::NONE => {
            EtcdCompare::mod_revision(key, CompareOp::Less, 0)
        }
        Compare::ModRevision { revision, .. } => {
            EtcdCompare::mod_revision(key, CompareOp::Equal, to_etcd(*revision))
        }
        Compare::Absent { .. } => EtcdCompare::create_revision(key, CompareOp::Equal, 0),
        Compare::Value { value, .. } => EtcdCompare::value(key, CompareOp::Equal, value.to_vec()),
    }
}

fn operation(names: &Namespace, op: &Op) -> TxnOp {
    let key = names.key(op.key());
    match op {
        Op::Put { value, lease, .. } => {
            let options = PutOptions::new().with_lease(lease.0);
            TxnOp::put(key, value.to_vec(), Some(options))
        }
        Op::Delete { .. } => TxnOp::delete(key, None),
    }
}

fn outcome(
    names: &Namespace,
    answer: TxnResponse,
    compares: usize,
) -> Result<TxnOutcome, MetastoreError> {
    let answer = answer.0;
    let revision = revision(answer.header.map_or(0, |header| header.revision));
    if answer.succeeded {
        return Ok(TxnOutcome::Committed { revision });
    }
    let current: Vec<_> = answer
        .responses
        .into_iter()
        .filter_map(|response| match response.response {
            Some(PbTxnOpResponse::ResponseRange(range)) => Some(current(names, range.kvs)),
            _ => None,
        })
        .collect();
    if current.len() != compares {
        // It was refused, so nothing was done; but what it was refused for is missing.
        let reason = format!("{} entries for {compares} compares", current.len());
        return Err(MetastoreError::Unavailable { reason });
    }
    Ok(TxnOutcome::Refused { revision, current })
}

fn current(names: &Namespace, kvs: Vec<etcd_client::proto::PbKeyValue>) -> Option<KeyValue> {
    let first = kvs.into_iter().next()?;
    names.entry(etcd_client::KeyValue(first))
}
