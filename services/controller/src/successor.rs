//! What a standby does about an active controller that has died: the shortest
//! lease of etcd is two seconds, a broken stream and a refused connection say it
//! at once. A standby that is wrong harms nothing, for every write is guarded by
//! the election key.

use crate::probe;
use prost::Message;
use std::time::Duration;
use talweg_kit::net::{ChannelOptions, channel};
use talweg_metastore::{Compare, KeyValue, Metastore, MetastoreError, Op, Txn, TxnOutcome};
use talweg_proto::records::v1::ElectionRecord;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

/// Before a stream that could not be opened is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// Holds a stream to the active controller; returns once it has broken and
/// nobody listens there any more. Never, if no stream was ever open: an address
/// that we cannot reach may be reached by others.
pub async fn until_dead(address: &str) {
    let Ok(channel) = channel(address, &ChannelOptions::default()) else {
        return std::future::pending().await;
    };
    let mut was_open = false;
    loop {
        let request = HealthCheckRequest::default();
        if let Ok(answer) = HealthClient::new(channel.clone()).watch(request).await {
            if !std::mem::replace(&mut was_open, true) {
                tracing::info!(%address, "hears the active controller");
            }
            let mut states = answer.into_inner();
            while let Ok(Some(_)) = states.message().await {}
        }
        if was_open && probe::is_refused(address).await {
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Deletes the election key if it is still this holder's. True if it was.
///
/// # Errors
/// The store's. What is unclear is settled by the next attempt to be elected.
pub async fn depose(store: &dyn Metastore, holder: &KeyValue) -> Result<bool, MetastoreError> {
    let Some(current) = store.get(&holder.key, None).await? else {
        return Ok(false);
    };
    // The holder may have put its key anew meanwhile, at another revision.
    if candidate(&current) != candidate(holder) {
        return Ok(false);
    }
    let txn = Txn::new()
        .when(Compare::mod_revision(
            current.key.clone(),
            current.mod_revision,
        ))
        .then(Op::delete(current.key));
    let outcome = store.txn(txn).await?;
    Ok(matches!(outcome, TxnOutcome::Committed { .. }))
}

fn candidate(entry: &KeyValue) -> Option<prost::bytes::Bytes> {
    let record = ElectionRecord::decode(entry.value.clone()).ok()?;
    Some(record.candidate_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use talweg_metastore::keys::Key;
    use talweg_metastore_mem::MemMetastore;
    use tokio::{net::TcpListener, time::timeout};

    fn record(id: u8) -> prost::bytes::Bytes {
        let record = ElectionRecord {
            candidate_id: vec![id; 16].into(),
            grpc_address: "http://127.0.0.1:1".into(),
        };
        record.encode_to_vec().into()
    }

    async fn put(store: &dyn Metastore, id: u8) -> KeyValue {
        let key = Key::Election.encode();
        let put = Txn::new().then(Op::put(key.clone(), record(id)));
        store.txn(put).await.expect("put");
        store.get(&key, None).await.expect("get").expect("an entry")
    }

    /// The key of the one that died goes, put anew or not; a successor's stays.
    #[tokio::test]
    async fn only_the_holder_that_died_is_deposed() {
        let store: Arc<dyn Metastore> = Arc::new(MemMetastore::new(100));
        let holder = put(&*store, 1).await;
        put(&*store, 1).await;
        assert!(depose(&*store, &holder).await.expect("deposed"));
        assert!(!depose(&*store, &holder).await.expect("nothing to do"));
        put(&*store, 2).await;
        assert!(!depose(&*store, &holder).await.expect("another's"));
    }

    /// An address that never answered says nothing about who listens there.
    #[tokio::test]
    async fn an_address_that_was_never_reached_proves_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        drop(listener);
        let waited = timeout(3 * RETRY, until_dead(&address)).await;
        assert!(waited.is_err());
    }
}
