//! The embedded metastore passes the suite of every backend.

use std::sync::Arc;
use talweg_metastore::conformance::Fresh;
use talweg_metastore_rocks::RocksMetastore;

async fn fresh() -> Fresh {
    let folder = tempfile::tempdir().expect("folder");
    let store = RocksMetastore::open(folder.path()).await.expect("open");
    Fresh {
        store: Arc::new(store),
        keep: Box::new(folder),
    }
}

talweg_metastore::conformance_suite!(fresh);
