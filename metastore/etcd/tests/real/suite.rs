//! The suite that every backend passes. Each case has an etcd of its own: the
//! suite counts revisions, and in etcd they are shared by all namespaces.

use crate::etcd::Etcd;
use std::sync::Arc;
use talweg_metastore::conformance::Fresh;

async fn fresh() -> Fresh {
    let etcd = Etcd::one().await;
    let store = etcd.store().await;
    Fresh {
        store: Arc::new(store),
        keep: Box::new(etcd),
    }
}

talweg_metastore::conformance_suite!(fresh);
